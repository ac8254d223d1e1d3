//! Runs the talker of either family the way the reference does, one request, greedy, and notes everything that the
//! reference notes.

use super::generate::Trace;
use candle_core::{D, Result, Tensor};
use omni_model::sampling::{History, Sampler, SamplingParams};
use omni_model::talker::{PredictorCaches, Talker, TalkerPrompt, TextSide};
use omni_model::transformer::{DecoderStack, KvCache, Segment};

/// A prompt to be spoken, with its whole text.
pub(super) struct Speech<'a> {
    pub talker: &'a Talker,
    pub prompt: &'a TalkerPrompt,
    /// Every input embedding, projected: `[n, hidden]`.
    pub inputs: Tensor,
    /// At most this many code-0 tokens.
    pub limit: usize,
    /// Ends the speech, but not before `min_tokens`.
    pub eos: &'a [u32],
    pub min_tokens: usize,
    /// Of code 0; acts although everything is greedy.
    pub repetition_penalty: f32,
    /// On how many axes the reference notes the positions of steps.
    pub axes: usize,
    /// How many dimensions of 1 the reference puts before the predictor's.
    pub batches: usize,
}

impl Speech<'_> {
    /// Speaks to the end.
    pub fn run(&self, trace: &mut Trace) -> Result<()> {
        let (talker, stack) = (self.talker, self.talker.stack());
        let Some(prompt) =
            talker.prompt_embeddings(self.prompt, 0..self.prompt.positions(), |sequence| self.input(sequence))?
        else {
            candle_core::bail!("the talker's prompt needs more sequences than there are")
        };
        let p = self.prompt.positions() as usize;
        let mut run = Run::new(stack)?;
        let hidden = run.forward(stack, &prompt)?;
        let (last_hidden, logits) = talker.logits(&run.residual)?;
        self.note_text(trace)?;
        trace.ints("talker.prefill.position_ids", [3, 1, p], positions(3, 0..p));
        trace.floats("talker.prefill.inputs_embeds", &prompt, 1)?;
        for (i, state) in hidden.iter().enumerate() {
            trace.floats(format!("talker.prefill.hidden.{i}"), state, 1)?;
        }
        trace.floats("talker.prefill.logits", &logits, 1)?;

        let mut steps = Steps::default();
        let mut caches = PredictorCaches::default();
        let (mut last_hidden, mut logits) = (last_hidden.narrow(0, p - 1, 1)?, logits.narrow(0, p - 1, 1)?);
        loop {
            let code = steps.pick(&logits, self)?;
            steps.hidden.push(last_hidden.clone());
            steps.logits.push(logits);
            steps.codec0.push(code);
            if self.eos.contains(&code) || steps.codec0.len() >= self.limit {
                break;
            }
            let first = talker.embed(&[code])?;
            let (mut pass_hidden, mut pass_logits) = (Vec::new(), Vec::new());
            let frames = talker.predictor().frame(&mut caches, &last_hidden, &first, |pass| {
                pass_hidden.push(pass.hidden.clone());
                pass_logits.push(pass.logits.clone());
                pass.logits.argmax(D::Minus1)?.to_vec1::<u32>()
            })?;
            steps.predictor_inputs.push(Tensor::cat(&[&last_hidden, &first], 0)?);
            steps.predictor_hidden.push(Tensor::cat(&pass_hidden, 0)?);
            steps.predictor_logits.push(Tensor::cat(&pass_logits, 0)?);
            trace.frames.push([vec![code], frames.codes.concat()].concat());

            let next = ((first + frames.embedded)? + self.text(trace.frames.len() as u32)?)?;
            run.forward(stack, &next)?;
            steps.inputs.push(next);
            (last_hidden, logits) = talker.logits(&run.residual)?;
        }
        steps.note(self, p, trace)
    }

    /// The text that follows the prompt: until its end, or one sequence of padding where there is none.
    fn note_text(&self, trace: &mut Trace) -> Result<()> {
        let sides = (1..).map_while(|step| self.side(step).filter(|side| *side != TextSide::Pad));
        let mut trailing = sides.map(|side| self.embedding(side)).collect::<Result<Vec<_>>>()?;
        let pad = self.embedding(TextSide::Pad)?;
        if trailing.is_empty() {
            trailing.push(pad.clone());
        }
        trace.floats("talker.trailing_text_hidden", &Tensor::cat(&trailing, 0)?, 1)?;
        trace.floats("talker.tts_pad_embed", &pad, 1)
    }

    /// The text embedding of a decode step.
    fn text(&self, step: u32) -> Result<Tensor> {
        match self.side(step) {
            Some(side) => self.embedding(side),
            None => candle_core::bail!("no text side for step {step}"),
        }
    }

    fn side(&self, step: u32) -> Option<TextSide> {
        self.prompt.text_side(step, self.inputs.dims()[0] as u32, true)
    }

    fn embedding(&self, side: TextSide) -> Result<Tensor> {
        match self.talker.text_embedding(side, |sequence| self.input(sequence)) {
            Some(sequence) => Ok(sequence),
            None => candle_core::bail!("the talker has no sequence for {side:?}"),
        }
    }

    fn input(&self, sequence: u32) -> Option<Tensor> {
        self.inputs.narrow(0, sequence as usize, 1).ok()
    }
}

/// A sequence with its cache.
pub(super) struct Run {
    cache: KvCache,
    /// Of the last forward, before the final norm.
    pub residual: Tensor,
}

impl Run {
    pub fn new(stack: &DecoderStack) -> Result<Run> {
        Ok(Run { cache: stack.new_cache()?, residual: Tensor::new(0f32, stack.device())? })
    }

    /// Appends positions; returns hidden states as the reference counts them: the input, the output of each layer but
    /// the last, and the last one after the final norm.
    pub fn forward(&mut self, stack: &DecoderStack, x: &Tensor) -> Result<Vec<Tensor>> {
        let mut hidden = Vec::new();
        let mut segments = [Segment { cache: &mut self.cache, len: x.dim(0)? }];
        self.residual = stack.forward_tapped(x, &mut segments, |_, state| hidden.push(state.clone()))?;
        hidden.push(stack.norm(&self.residual)?);
        Ok(hidden)
    }
}

/// What is noted of every talker step.
#[derive(Default)]
struct Steps {
    sampler: Sampler,
    history: History,
    codec0: Vec<u32>,
    hidden: Vec<Tensor>,
    logits: Vec<Tensor>,
    inputs: Vec<Tensor>,
    predictor_inputs: Vec<Tensor>,
    predictor_hidden: Vec<Tensor>,
    predictor_logits: Vec<Tensor>,
}

impl Steps {
    /// The most likely code 0 after the penalty on earlier ones and suppression.
    fn pick(&mut self, logits: &Tensor, speech: &Speech<'_>) -> Result<u32> {
        let mut logits = logits.flatten_all()?.to_vec1::<f32>()?;
        if self.codec0.len() < speech.min_tokens {
            // Cases may end with another token than the config's.
            for eos in speech.eos {
                if let Some(logit) = logits.get_mut(*eos as usize) {
                    *logit = f32::NEG_INFINITY;
                }
            }
        }
        let params = SamplingParams { repetition_penalty: speech.repetition_penalty, ..SamplingParams::GREEDY };
        let picked = self.sampler.sample(&logits, &params, &self.history, &speech.talker.suppressed(false), 0.0);
        let code = picked.map_err(candle_core::Error::wrap)?;
        self.history.push(code);
        Ok(code)
    }

    fn note(&self, speech: &Speech<'_>, prompt: usize, trace: &mut Trace) -> Result<()> {
        let (steps, frames, batches) = (self.codec0.len(), trace.frames.len(), speech.batches);
        trace.ints("talker.codec0_sequence", [1, steps], self.codec0.iter().copied());
        trace.floats("talker.step_last_hidden", &Tensor::cat(&self.hidden, 0)?, 1)?;
        trace.floats("talker.step_logits", &Tensor::cat(&self.logits, 0)?, 1)?;
        if frames == 0 {
            return Ok(());
        }
        let positions = positions(speech.axes, prompt..prompt + frames);
        trace.ints("talker.step_position_ids", [speech.axes, frames], positions);
        trace.floats("talker.step_inputs_embeds", &Tensor::cat(&self.inputs, 0)?, 1)?;
        trace.floats("code_predictor.inputs", &Tensor::stack(&self.predictor_inputs, 0)?, batches)?;
        trace.floats("code_predictor.last_hidden", &Tensor::stack(&self.predictor_hidden, 0)?, batches)?;
        trace.floats("code_predictor.logits", &Tensor::stack(&self.predictor_logits, 0)?, batches)?;
        trace.floats("frame_hidden", &Tensor::cat(&self.hidden[..frames], 0)?, 0)
    }
}

/// The same positions on some axes.
pub(super) fn positions(axes: usize, range: std::ops::Range<usize>) -> impl Iterator<Item = u32> {
    (0..axes).flat_map(move |_| range.clone().map(|p| p as u32))
}
