//! The talker stage.
//!
//! Units are positions. A sequence first advances through its [prompt](crate::talker::TalkerPrompt), in pieces of any
//! size, as far as the input embeddings that they need have arrived. The step that completes the prompt also makes
//! the first frame; every later step is one unit and makes the next, for which it needs one more input embedding or the
//! end of the input, unless the prompt held the whole text. A step that samples the stop token, or the last one
//! allowed, makes no frame. A sequence whose input ends before its prompt is there has nothing to speak: a step of 0
//! units ends it.
//!
//! A talker that reads text itself takes tokens, any other the embeddings of its thinker.
//!
//! Prompt positions that an earlier sequence has computed are taken over (`src/model/stages/kept/`): a step that finds
//! some computes only the rest of its units, and makes the same of them.

mod sequence;

use super::kept::KeptPrompts;
use super::{Batch, LanguageModel, Running};
use crate::error::{in_vocabulary, not_open, refused};
use crate::sampling::{Domain, History, Sampler, Suppress, uniform};
use crate::stage::{Launched, SequenceOutput, SequenceSpec, SequenceWork, StageData, StageFactory, StageModel};
use crate::talker::{PredictorCaches, Talker};
use crate::transformer::{MediaInput, Segment};
use crate::{LoadError, ModelError};
use candle_core::Tensor;
use omni_core::ids::{FinishReason, Slot, StageName};
use omni_telemetry::{Phase, PhaseClock};
use sequence::Sequence;
use std::collections::HashMap;
use std::sync::Arc;

/// Makes [`TalkerStage`]s that share one net.
pub struct TalkerFactory {
    net: Arc<Talker>,
    kept: usize,
}

impl TalkerFactory {
    /// For a loaded net; keeps no prompts.
    pub fn new(net: Arc<Talker>) -> TalkerFactory {
        TalkerFactory { net, kept: 0 }
    }

    /// Has each stage keep so many bytes of prompts, for sequences that begin alike.
    #[must_use]
    pub fn keeping(self, bytes: usize) -> TalkerFactory {
        TalkerFactory { kept: bytes, ..self }
    }

    pub(super) fn stage(&self) -> TalkerStage {
        let sampler = Sampler::new(self.net.vocabulary() as usize);
        let kept = KeptPrompts::new(StageName::Talker, self.kept);
        let (sequences, caches) = (HashMap::new(), PredictorCaches::default());
        TalkerStage { net: self.net.clone(), sequences, caches, sampler, kept }
    }
}

impl StageFactory for TalkerFactory {
    fn build(&self) -> Result<Box<dyn StageModel>, LoadError> {
        Ok(Box::new(self.stage()))
    }
}

/// Sequences of the talker, and the scratch memory of the code predictor.
pub struct TalkerStage {
    net: Arc<Talker>,
    sequences: HashMap<Slot, Sequence>,
    caches: PredictorCaches,
    sampler: Sampler,
    /// `None` where prompts are not kept.
    kept: Option<KeptPrompts>,
}

#[cfg(test)]
impl TalkerStage {
    /// Bytes of prompts that are kept.
    pub(super) fn kept_bytes(&self) -> usize {
        self.kept.as_ref().map_or(0, KeptPrompts::bytes)
    }

    pub(super) fn net(&self) -> &Talker {
        &self.net
    }
}

impl StageModel for TalkerStage {
    fn open(&mut self, slot: Slot, spec: SequenceSpec) -> Result<(), ModelError> {
        let SequenceSpec::Talker(spec) = spec else {
            return refused(format!("{slot}: the talker cannot open {spec:?}"));
        };
        if self.sequences.contains_key(&slot) {
            return refused(format!("{slot} is open already"));
        }
        spec.check(self.net.config())?;
        if !spec.prompt.media().is_empty() && !self.net.takes_media() {
            return refused("this checkpoint's talker has no hidden_projection: it takes no hidden states of media");
        }
        let keeping = self.kept.as_mut().and_then(|kept| kept.begin_speech(&spec));
        let sequence = Sequence::new(&self.net, spec, keeping)?;
        self.sequences.insert(slot, sequence);
        Ok(())
    }

    fn push_input(&mut self, slot: Slot, input: Option<StageData>, end: bool) -> Result<(), ModelError> {
        let sequence = self.sequences.get_mut(&slot).ok_or_else(|| not_open(slot))?;
        if sequence.ended {
            return refused(format!("{slot}: sequences after the end of the text"));
        }
        check_input(&self.net, slot, input.as_ref())?;
        // Text behind the end of the speech needs no projection.
        if !sequence.finished {
            let inputs = match &input {
                Some(StageData::Tokens(tokens)) if !tokens.is_empty() => Some(self.net.read(tokens)?),
                Some(StageData::Embeddings(inputs)) => {
                    let (first, media) = (sequence.inputs.len() as u32, sequence.spec.prompt.media());
                    Some(self.net.project_media(&inputs.tensor()?, first, media)?)
                }
                _ => None,
            };
            if let Some(inputs) = inputs {
                sequence.push(&self.net, &inputs)?;
            }
        }
        sequence.ended = end;
        Ok(())
    }

    fn launch(&mut self, work: &[SequenceWork]) -> Result<Launched, ModelError> {
        Ok(Launched::Done(self.step_sequences(work)?))
    }

    fn close(&mut self, slot: Slot) {
        let closed = self.sequences.remove(&slot);
        if let (Some(kept), Some(Sequence { keeping: Some(keeping), .. })) = (&mut self.kept, closed) {
            kept.end(&keeping);
        }
    }

    fn live_sequences(&self) -> usize {
        self.sequences.len()
    }
}

impl LanguageModel for TalkerStage {
    type Sequence = Sequence;
    type Input = Tensor;

    fn sequences(&mut self) -> &mut HashMap<Slot, Sequence> {
        &mut self.sequences
    }

    fn begin(
        &mut self,
        place: usize,
        work: SequenceWork,
        batch: &mut Batch<Sequence, Tensor>,
    ) -> Result<SequenceOutput, ModelError> {
        let slot = work.slot;
        let sequence = self.sequences.get_mut(&slot).ok_or_else(|| not_open(slot))?;
        if sequence.finished {
            return Ok(SequenceOutput { stale: true, ..SequenceOutput::default() });
        }
        if work.advance == 0 {
            if sequence.ended && (sequence.inputs.len() as u32) < sequence.spec.prefill_embeddings() {
                sequence.finished = true;
                return Ok(SequenceOutput { finish: Some(FinishReason::Stop), ..SequenceOutput::default() });
            }
            return refused(format!("{slot}: asked for 0 units of a sequence that can go on"));
        }
        let left = sequence.spec.prefill_positions() - sequence.prefilled;
        let x = if left > 0 {
            sequence.prompt(&self.net, self.kept.as_mut(), work.advance, left)?
        } else {
            Some(sequence.next(&self.net, work.advance)?)
        };
        if let Some(x) = x {
            let advance = x.dim(0)? as u32;
            batch.input.push(x);
            batch.take(&mut self.sequences, place, SequenceWork { advance, ..work }, left <= work.advance)?;
        }
        Ok(SequenceOutput::default())
    }

    fn run(
        &mut self,
        batch: &mut Batch<Sequence, Tensor>,
        results: &mut [Result<SequenceOutput, ModelError>],
        clock: &mut PhaseClock,
    ) -> Result<(), ModelError> {
        let last = batch.last_positions();
        let x = if let [one] = batch.input.as_slice() { one.clone() } else { Tensor::cat(&batch.input, 0)? };
        let running = &mut batch.running;
        let media = MediaInput { positions: positions(running), ..MediaInput::default() };
        let segments = running.iter_mut().map(|entry| Segment { cache: &mut entry.sequence.cache, len: entry.len });
        let mut segments: Vec<_> = segments.collect();
        clock.lap(Phase::Preprocess);
        let residual = self.net.stack().forward_media(&x, &mut segments, &media, |_, _| {})?;
        for Running { sequence, .. } in running.iter_mut() {
            sequence.computed(self.kept.as_mut())?;
        }
        if last.is_empty() {
            clock.lap(Phase::Backbone);
            return Ok(());
        }
        let residual = if last.len() == x.dim(0)? {
            residual
        } else {
            residual.index_select(&Tensor::new(last.as_slice(), residual.device())?, 0)?
        };
        let (hidden, logits) = self.net.logits(&residual)?;
        // Sequences that sampled a code and make a frame, with their index in `hidden`.
        let mut speaking: Vec<(u32, u32, &mut Running<Sequence>)> = Vec::with_capacity(last.len());
        let sampling = running.iter_mut().filter(|entry| entry.samples);
        let logits = logits.to_vec2::<f32>()?;
        clock.lap(Phase::Backbone);
        for ((at, entry), logits) in (0..).zip(sampling).zip(logits) {
            match entry.sequence.sample(&logits, &self.net, &mut self.sampler) {
                Ok(code) => {
                    let finish = entry.sequence.ends_with(code, self.net.config().tokens.eos);
                    entry.sequence.finished = finish.is_some();
                    let picked = finish.and_then(|_| entry.sequence.take_picked());
                    results[entry.place] =
                        Ok(SequenceOutput { sampled: Some(code), finish, picked, ..SequenceOutput::default() });
                    if finish.is_none() {
                        speaking.push((at, code, entry));
                    }
                }
                Err(error) => {
                    entry.sequence.fail(self.kept.as_mut());
                    results[entry.place] = Err(error);
                }
            }
        }
        clock.lap(Phase::Sampling);
        if speaking.is_empty() {
            return Ok(());
        }
        let hidden = if speaking.len() == last.len() {
            hidden
        } else {
            let places: Vec<u32> = speaking.iter().map(|(at, ..)| *at).collect();
            hidden.index_select(&Tensor::new(places.as_slice(), hidden.device())?, 0)?
        };
        self.frames(&hidden, speaking, results, clock)
    }
}

impl TalkerStage {
    /// Completes the frames of sequences that have just sampled a code 0.
    fn frames(
        &mut self,
        hidden: &Tensor,
        mut speaking: Vec<(u32, u32, &mut Running<Sequence>)>,
        results: &mut [Result<SequenceOutput, ModelError>],
        clock: &mut PhaseClock,
    ) -> Result<(), ModelError> {
        let first: Vec<u32> = speaking.iter().map(|(_, code, _)| *code).collect();
        let first = self.net.embed(&first)?;
        let mut failures: Vec<Option<ModelError>> = speaking.iter().map(|_| None).collect();
        let none = History::default();
        let groups = self.net.config().num_code_groups;
        let frames = self.net.predictor().frame(&mut self.caches, hidden, &first, |pass| {
            let logits = pass.logits.to_vec2::<f32>()?;
            clock.lap(Phase::CodePredictor);
            let sequences = speaking.iter_mut().zip(&mut failures).zip(logits);
            let codes = sequences
                .map(|(((_, _, Running { sequence, .. }), failure), logits)| {
                    let number = uniform(sequence.spec.seed, Domain::Codes, sequence.count - 1, pass.group as u32);
                    let picked = self.sampler.sample(&logits, &sequence.spec.predictor, &none, &Suppress::NONE, number);
                    let picked = picked.unwrap_or_else(|error| {
                        failure.get_or_insert(error);
                        0
                    });
                    let frame = sequence.spec.forced_frame(sequence.count - 1, groups);
                    let Some(forced) = frame.and_then(|frame| frame.get(pass.group)).copied() else { return picked };
                    sequence.picked.push(picked);
                    forced
                })
                .collect();
            clock.lap(Phase::Sampling);
            Ok(codes)
        })?;
        clock.lap(Phase::CodePredictor);
        let codec = (first + frames.embedded)?;
        let sequences = speaking.iter_mut().zip(failures).zip(frames.codes);
        for (at, (((_, code, entry), failure), codes)) in sequences.enumerate() {
            if let Some(error) = failure {
                entry.sequence.fail(self.kept.as_mut());
                results[entry.place] = Err(error);
                continue;
            }
            entry.sequence.codec = Some(codec.narrow(0, at, 1)?);
            if let Ok(output) = &mut results[entry.place] {
                output.emit = Some(StageData::Codes([&[*code], codes.as_slice()].concat()));
                output.picked = entry.sequence.take_picked();
            }
        }
        Ok(())
    }
}

/// Positions of a batch's new tokens on three axes, if a sequence has others than those of its cache.
fn positions(running: &[Running<Sequence>]) -> Option<[Vec<f32>; 3]> {
    if running.iter().all(|entry| entry.sequence.spec.prompt.axes().is_none()) {
        return None;
    }
    let mut axes = [const { Vec::new() }; 3];
    for Running { sequence, len, .. } in running {
        let first = sequence.cache.len();
        for at in first..first + len {
            let position = sequence.spec.prompt.axes().map_or([at as f32; 3], |positions| positions.at(at));
            axes.iter_mut().zip(position).for_each(|(axis, position)| axis.push(position));
        }
    }
    Some(axes)
}

/// Whether a talker can take an input: tokens if it reads text itself, embeddings of its thinker's width otherwise.
fn check_input(net: &Talker, slot: Slot, input: Option<&StageData>) -> Result<(), ModelError> {
    match (input, net.text_vocabulary()) {
        (None, _) => Ok(()),
        (Some(StageData::Tokens(tokens)), Some(vocabulary)) => in_vocabulary(tokens, vocabulary),
        (Some(StageData::Embeddings(sequences)), None) => match (sequences.shape(), net.config().text_hidden_size) {
            ((n, width), wanted) if n > 0 && width == wanted => Ok(()),
            (shape, wanted) => refused(format!("{slot}: expected embeddings [n, {wanted}], got {shape:?}")),
        },
        (_, Some(_)) => refused(format!("{slot}: this talker takes tokens of text only")),
        (_, None) => refused(format!("{slot}: this talker takes sequences of its thinker only")),
    }
}
