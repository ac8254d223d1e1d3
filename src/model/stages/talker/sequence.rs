//! One sequence of the talker stage: what it has of its prompt, its input and its frames.

use crate::ModelError;
use crate::error::refused;
use crate::sampling::{Domain, History, Sampler, uniform};
use crate::stage::TalkerSpec;
use crate::stages::kept::{Keeping, KeptPrompts, Parts};
use crate::talker::{Talker, TextSide};
use crate::transformer::KvCache;
use candle_core::Tensor;
use omni_core::ids::FinishReason;

/// See the module.
pub(in crate::stages) struct Sequence {
    pub(super) spec: TalkerSpec,
    pub(super) cache: KvCache,
    /// Prompt positions done.
    pub(super) prefilled: u32,
    /// Projected input embeddings; `None` once used up.
    pub(super) inputs: Vec<Option<Tensor>>,
    pub(super) ended: bool,
    /// Embedding of the last frame's codes, `[1, hidden]`: the codec side of the next input.
    pub(super) codec: Option<Tensor>,
    history: History,
    /// Code-0 tokens sampled.
    pub(super) count: u32,
    /// The codes that would have been picked in a frame of forced codes.
    pub(super) picked: Vec<u32>,
    pub(super) finished: bool,
    /// `None` where its prompt is not kept.
    pub(super) keeping: Option<Keeping>,
}

impl Sequence {
    /// A sequence that has computed nothing.
    ///
    /// # Errors
    /// When the device cannot give the memory.
    pub fn new(net: &Talker, spec: TalkerSpec, keeping: Option<Keeping>) -> Result<Sequence, ModelError> {
        let mut history = History::default();
        spec.said_codes(net.config().num_code_groups).for_each(|code| history.push(code));
        Ok(Sequence {
            cache: net.stack().new_cache()?,
            prefilled: 0,
            inputs: Vec::new(),
            ended: false,
            codec: None,
            history,
            count: spec.generated_len,
            picked: Vec::new(),
            finished: false,
            keeping,
            spec,
        })
    }

    /// Takes the next projected input embeddings `[n, hidden]`.
    ///
    /// # Errors
    /// What the device says.
    pub fn push(&mut self, net: &Talker, inputs: &Tensor) -> Result<(), ModelError> {
        for at in 0..inputs.dim(0)? {
            self.inputs.push(Some(inputs.narrow(0, at, 1)?));
        }
        let Some(keeping) = &mut self.keeping else { return Ok(()) };
        // No other prompt has the frames that this one generated before it resumed.
        let (prompt, asked) = (&self.spec.prompt, self.spec.prefill_positions() - self.spec.generated_len);
        if keeping.known() == asked {
            return Ok(());
        }
        let known = keeping.known()..prompt.positions_of(self.inputs.len() as u32).min(asked);
        if !known.is_empty() {
            let input = |at: u32| self.inputs.get(at as usize).cloned().flatten();
            if let Some(inputs) = net.prompt_embeddings(prompt, known, input)? {
                keeping.inputs(&inputs, prompt.axes())?;
            }
        }
        Ok(())
    }

    /// The inputs `[n, hidden]` of those of the next `count` of the `left` positions of the prompt that are not kept;
    /// `None` if all are.
    ///
    /// # Errors
    /// [`ModelError::Sequence`] for too many positions, and when input embeddings have not arrived.
    pub fn prompt(
        &mut self,
        net: &Talker,
        kept: Option<&mut KeptPrompts>,
        count: u32,
        left: u32,
    ) -> Result<Option<Tensor>, ModelError> {
        if count > left {
            return refused(format!("asked for {count} of {left} prompt positions"));
        }
        let (prompt, from, upto) = (&self.spec.prompt, self.prefilled, self.prefilled + count);
        if prompt.positions_of(self.inputs.len() as u32) < upto {
            let (have, want) = (self.inputs.len(), self.spec.prefill_embeddings());
            return refused(format!("the speech prompt needs {want} input embeddings, {have} have arrived"));
        }
        if let (Some(kept), Some(keeping)) = (kept, &mut self.keeping) {
            let parts = Parts { cache: &mut self.cache, media: None };
            kept.take_over(keeping, prompt.positions() as usize, upto as usize, parts)?;
        }
        let first = self.cache.len() as u32;
        let x = if first < upto {
            self.cache.check_room((upto - first) as usize).map_err(|full| ModelError::Sequence(full.to_string()))?;
            let input = |at: u32| self.inputs.get(at as usize).cloned().flatten();
            let Some(x) = net.prompt_embeddings(prompt, first..upto, input)? else {
                return refused(format!("input embeddings of positions {first}..{upto} of the speech prompt are gone"));
            };
            Some(x)
        } else {
            self.prefilled = upto;
            None
        };
        // Freed: the text of a long conversation need not stay for the whole speech.
        for position in (from..upto).filter_map(|at| prompt.embedding(at)) {
            if let TextSide::Input(at) = position.text {
                self.inputs[at as usize] = None;
            }
        }
        Ok(x)
    }

    /// A step has computed the cached positions: keeps what is new of its prompt.
    ///
    /// # Errors
    /// What the device says.
    pub fn computed(&mut self, kept: Option<&mut KeptPrompts>) -> Result<(), ModelError> {
        let prompt = self.spec.prefill_positions();
        if self.prefilled < prompt {
            self.prefilled = self.cache.len() as u32;
            if let (Some(kept), Some(keeping)) = (kept, &mut self.keeping) {
                kept.keep(keeping, Parts { cache: &mut self.cache, media: None })?;
                if self.prefilled == prompt {
                    kept.prefilled(keeping);
                }
            }
        }
        Ok(())
    }

    /// It has failed: what it has used and computed is suspect.
    pub fn fail(&mut self, kept: Option<&mut KeptPrompts>) {
        self.finished = true;
        if let (Some(kept), Some(keeping)) = (kept, &self.keeping) {
            kept.forget(keeping);
        }
    }

    /// The input `[1, hidden]` of the next decode step, of `count` units.
    ///
    /// # Errors
    /// [`ModelError::Sequence`] for more than one unit, without room in the context, and before its text has arrived.
    pub fn next(&mut self, net: &Talker, count: u32) -> Result<Tensor, ModelError> {
        if count != 1 {
            return refused(format!("asked for {count} units, a decode step is 1"));
        }
        self.cache.check_room(1).map_err(|full| ModelError::Sequence(full.to_string()))?;
        let inputs = self.inputs.len() as u32;
        let Some(side) = self.spec.prompt.text_side(self.count - self.spec.generated_len, inputs, self.ended) else {
            return refused(format!("frame {} needs one more text embedding or the end of the text", self.count));
        };
        let text = net.text_embedding(side, |at| self.inputs.get_mut(at as usize).and_then(Option::take));
        match (&self.codec, text) {
            (Some(codec), Some(text)) => Ok((codec + text)?),
            _ => refused("the sequence has no frame to go on from"),
        }
    }

    /// Samples code 0 of the next frame.
    ///
    /// # Errors
    /// [`ModelError::Sequence`] when the logits are not numbers.
    pub fn sample(&mut self, logits: &[f32], net: &Talker, sampler: &mut Sampler) -> Result<u32, ModelError> {
        let suppress = net.suppressed(self.spec.ignore_eos || self.count < self.spec.min_tokens);
        let number = uniform(self.spec.seed, Domain::Codes, self.count, 0);
        let picked = sampler.sample(logits, &self.spec.sampling, &self.history, &suppress, number)?;
        let forced = self.spec.forced_frame(self.count, net.config().num_code_groups).map(|frame| frame[0]);
        self.picked = forced.map(|_| vec![picked]).unwrap_or_default();
        let code = forced.unwrap_or(picked);
        self.history.push(code);
        self.count += 1;
        Ok(code)
    }

    /// What would have been picked in this frame, if its codes are forced.
    pub fn take_picked(&mut self) -> Option<Box<[u32]>> {
        Some(std::mem::take(&mut self.picked)).filter(|picked| !picked.is_empty()).map(Vec::into_boxed_slice)
    }

    /// Why it ends with this code 0, if it does.
    pub fn ends_with(&self, code: u32, eos: u32) -> Option<FinishReason> {
        if code == eos {
            Some(FinishReason::Stop)
        } else {
            (self.count >= self.spec.max_tokens).then_some(FinishReason::Length)
        }
    }

    /// Its keys and values.
    #[cfg(test)]
    pub(in crate::stages) fn cache(&self) -> &KvCache {
        &self.cache
    }
}
