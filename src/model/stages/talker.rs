//! The talker stage.
//!
//! Units are positions. A sequence first advances through its prompt of [`TalkerSpec::prefill_positions`], in pieces of
//! any size, as far as the input embeddings that they need have arrived. The step that completes the prompt also makes
//! the first frame; every later step is one unit and makes the next, for which it needs one more input embedding or the
//! end of the input, unless the prompt held the whole text. A step that samples the stop token, or the last one
//! allowed, makes no frame. A sequence whose input ends before its prompt is there has nothing to speak: a step of 0
//! units ends it.
//!
//! A talker that reads text itself takes tokens, any other the embeddings of its thinker.

use super::{Batch, LanguageModel, Running};
use crate::error::{in_vocabulary, not_open, refused};
use crate::sampling::{Domain, History, Sampler, Suppress, uniform};
use crate::stage::{
    Launched, SequenceOutput, SequenceSpec, SequenceWork, StageData, StageFactory, StageModel, TalkerSpec,
};
use crate::talker::{PredictorCaches, Talker, TextSide};
use crate::transformer::{KvCache, MediaInput, Segment};
use crate::{LoadError, ModelError};
use candle_core::Tensor;
use omni_core::ids::{FinishReason, Slot};
use omni_telemetry::{Phase, PhaseClock};
use std::collections::HashMap;
use std::sync::Arc;

/// Makes [`TalkerStage`]s that share one net.
pub struct TalkerFactory {
    net: Arc<Talker>,
}

impl TalkerFactory {
    /// For a loaded net.
    pub fn new(net: Arc<Talker>) -> TalkerFactory {
        TalkerFactory { net }
    }
}

impl StageFactory for TalkerFactory {
    fn build(&self) -> Result<Box<dyn StageModel>, LoadError> {
        let sampler = Sampler::new(self.net.vocabulary() as usize);
        let caches = PredictorCaches::default();
        Ok(Box::new(TalkerStage { net: self.net.clone(), sequences: HashMap::new(), caches, sampler }))
    }
}

/// Sequences of the talker, and the scratch memory of the code predictor.
pub struct TalkerStage {
    net: Arc<Talker>,
    sequences: HashMap<Slot, Sequence>,
    caches: PredictorCaches,
    sampler: Sampler,
}

pub(super) struct Sequence {
    spec: TalkerSpec,
    cache: KvCache,
    /// Prompt positions done.
    prefilled: u32,
    /// Projected input embeddings; `None` once used up.
    inputs: Vec<Option<Tensor>>,
    ended: bool,
    /// Embedding of the last frame's codes, `[1, hidden]`: the codec side of the next input.
    codec: Option<Tensor>,
    history: History,
    /// Code-0 tokens sampled.
    count: u32,
    /// The codes that would have been picked in a frame of forced codes.
    picked: Vec<u32>,
    finished: bool,
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
        let mut history = History::default();
        spec.said_codes(self.net.config().num_code_groups).for_each(|code| history.push(code));
        let sequence = Sequence {
            cache: self.net.stack().new_cache()?,
            prefilled: 0,
            inputs: Vec::new(),
            ended: false,
            codec: None,
            history,
            count: spec.generated_len,
            picked: Vec::new(),
            finished: false,
            spec,
        };
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
            let sequences = match &input {
                Some(StageData::Tokens(tokens)) if !tokens.is_empty() => Some(self.net.read(tokens)?),
                Some(StageData::Embeddings(sequences)) => {
                    let (first, media) = (sequence.inputs.len() as u32, sequence.spec.prompt.media());
                    Some(self.net.project_media(&sequences.tensor()?, first, media)?)
                }
                _ => None,
            };
            if let Some(sequences) = sequences {
                for at in 0..sequences.dim(0)? {
                    sequence.inputs.push(Some(sequences.narrow(0, at, 1)?));
                }
            }
        }
        sequence.ended = end;
        Ok(())
    }

    fn launch(&mut self, work: &[SequenceWork]) -> Result<Launched, ModelError> {
        Ok(Launched::Done(self.step_sequences(work)?))
    }

    fn close(&mut self, slot: Slot) {
        self.sequences.remove(&slot);
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
        sequence.cache.check_room(work.advance as usize).map_err(|full| ModelError::Sequence(full.to_string()))?;
        let left = sequence.spec.prefill_positions() - sequence.prefilled;
        let x = if left > 0 {
            sequence.prompt(&self.net, work.advance, left)?
        } else {
            sequence.next(&self.net, work.advance)?
        };
        batch.input.push(x);
        batch.take(&mut self.sequences, place, work, left <= work.advance)?;
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
        for Running { sequence, len, .. } in running.iter_mut() {
            sequence.prefilled = (sequence.prefilled + *len as u32).min(sequence.spec.prefill_positions());
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
                    entry.sequence.finished = true;
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
                entry.sequence.finished = true;
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

impl Sequence {
    /// The next `count` of the `left` positions of the prompt.
    fn prompt(&mut self, net: &Talker, count: u32, left: u32) -> Result<Tensor, ModelError> {
        if count > left {
            return refused(format!("asked for {count} of {left} prompt positions"));
        }
        let input = |at: u32| self.inputs.get(at as usize).cloned().flatten();
        let range = self.prefilled..self.prefilled + count;
        let prompt = &self.spec.prompt;
        match net.prompt_embeddings(prompt, range.clone(), input)? {
            Some(sequences) => {
                // Freed: the text of a long conversation need not stay for the whole speech.
                for sequence in range.filter_map(|at| prompt.embedding(at)) {
                    if let TextSide::Input(at) = sequence.text {
                        self.inputs[at as usize] = None;
                    }
                }
                Ok(sequences)
            }
            None => {
                let (have, want) = (self.inputs.len(), self.spec.prefill_embeddings());
                refused(format!("the speech prompt needs {want} input embeddings, {have} have arrived"))
            }
        }
    }

    /// The input of the next decode step.
    fn next(&mut self, net: &Talker, count: u32) -> Result<Tensor, ModelError> {
        if count != 1 {
            return refused(format!("asked for {count} units, a decode step is 1"));
        }
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

    fn sample(&mut self, logits: &[f32], net: &Talker, sampler: &mut Sampler) -> Result<u32, ModelError> {
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
    fn take_picked(&mut self) -> Option<Box<[u32]>> {
        Some(std::mem::take(&mut self.picked)).filter(|picked| !picked.is_empty()).map(Vec::into_boxed_slice)
    }

    fn ends_with(&self, code: u32, eos: u32) -> Option<FinishReason> {
        if code == eos {
            Some(FinishReason::Stop)
        } else {
            (self.count >= self.spec.max_tokens).then_some(FinishReason::Length)
        }
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
