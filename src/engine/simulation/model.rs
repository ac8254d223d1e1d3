//! Models that compute nothing: what a sequence makes is a hash of everything that it was given before, as in a net
//! that reads its own output. So a unit that is lost, doubled, out of order or of another sequence changes all that
//! follows, and [`Expected`] says without any stage what a client has to get, sample by sample.

mod encoder;
mod expect;
mod prompt;

pub(super) use encoder::pieces;
pub(super) use expect::{Asked, Expected, expect};

use encoder::Encoding;
use expect::{codec, codes, frame, position, read, sound, text, token};
use omni_config::Precision;
use omni_core::ids::{FinishReason, Slot, StageName};
use omni_core::random::mix;
use omni_model::embeddings::{EmbeddingBytes, Embeddings};
use omni_model::error::{not_open, refused};
use omni_model::stage::{
    Launched, SequenceOutput, SequenceSpec, SequenceWork, StageData, StageFactory, StageModel, StepOutcome, TalkerSpec,
    ThinkerMode, ThinkerSpec,
};
use omni_model::{LoadError, ModelError};
use prompt::Rows;
use std::collections::{BTreeMap, HashMap, VecDeque};
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

/// Codes of a frame: the prompt's number, the frame's, and two of its content.
pub(super) const GROUPS: usize = 4;
/// Samples of a frame.
pub(super) const SAMPLES: usize = 2;
/// Ends an answer; a text that is spoken has no such token.
pub(super) const END: u32 = b'.' as u32;

/// How long the outputs of a prompt are: tokens of its answer, with the end, and frames of its speech.
#[derive(Clone, Copy, Debug)]
pub(super) struct Lengths {
    pub tokens: u32,
    pub frames: u32,
}

/// A prompt with which a stage cannot go on, however often it tries.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Sickness {
    pub stage: StageName,
    /// Number of the token or frame that cannot be made.
    pub unit: u32,
    /// Whether the stage goes down with it; otherwise its sequence fails alone.
    pub kills: bool,
}

/// What a model knows of prompts, by their seed. A vocoder knows the lower half.
#[derive(Debug, Default)]
pub(super) struct Book {
    prompts: Mutex<BTreeMap<u32, (Lengths, Option<Sickness>)>>,
    /// Features that one prompt alone has, by their hash: what an encoder knows a prompt by.
    features: Mutex<BTreeMap<u64, u32>>,
    /// Of each stage: launches that fail one sequence.
    pub failing: [AtomicU32; StageName::ALL.len()],
    /// Requests whose sequence was made to fail, by their prompt.
    pub failed: Mutex<BTreeMap<u32, u32>>,
}

/// What kills a stage says so.
pub(super) const POISON: &str = "poison";
/// A prompt that cannot be told.
pub(super) const UNKNOWN: u32 = u32::MAX;

impl Book {
    pub fn enter(&self, seed: u64, lengths: Lengths, sick: Option<Sickness>) {
        self.prompts.lock().unwrap_or_else(PoisonError::into_inner).insert(seed as u32, (lengths, sick));
    }

    /// Only this prompt has such features.
    pub fn enter_features(&self, seed: u64, features: &[f32]) {
        let mut known = self.features.lock().unwrap_or_else(PoisonError::into_inner);
        known.insert(encoder::look(0, features), seed as u32);
    }

    /// Whose features these are, if one prompt alone has them.
    fn whose(&self, features: &[f32]) -> Option<u32> {
        let known = self.features.lock().unwrap_or_else(PoisonError::into_inner);
        if known.is_empty() { None } else { known.get(&encoder::look(0, features)).copied() }
    }

    fn lengths(&self, seed: u64) -> Lengths {
        let prompts = self.prompts.lock().unwrap_or_else(PoisonError::into_inner);
        prompts.get(&(seed as u32)).map_or(Lengths { tokens: 1, frames: 0 }, |(lengths, _)| *lengths)
    }

    /// Whether a stage can make this unit.
    fn check(&self, stage: StageName, seed: u64, unit: u32) -> Result<(), ModelError> {
        let prompts = self.prompts.lock().unwrap_or_else(PoisonError::into_inner);
        match prompts.get(&(seed as u32)).and_then(|(_, sick)| *sick) {
            Some(sick) if sick.stage == stage && sick.unit == unit && sick.kills => {
                Err(ModelError::Device(candle_core::Error::msg(format!("{POISON} in prompt {seed}"))))
            }
            Some(sick) if sick.stage == stage && sick.unit == unit => refused(format!("unit {unit} cannot be made")),
            _ => Ok(()),
        }
    }

    /// Whether this launch is to fail a sequence.
    fn fails(&self, stage: StageName) -> bool {
        let failing = &self.failing[stage as usize];
        failing.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |left| left.checked_sub(1)).is_ok()
    }
}

/// Makes the models of one stage.
pub(super) struct Factory {
    pub stage: StageName,
    pub book: Arc<Book>,
}

impl StageFactory for Factory {
    fn build(&self) -> Result<Box<dyn StageModel>, LoadError> {
        Ok(Box::new(Model { stage: self.stage, book: Arc::clone(&self.book), sequences: HashMap::new() }))
    }
}

struct Model {
    stage: StageName,
    book: Arc<Book>,
    sequences: HashMap<Slot, Sequence>,
}

struct Sequence {
    kind: Kind,
    state: u64,
    prefilled: u32,
    count: u32,
    ended: bool,
    finished: bool,
}

enum Kind {
    Encoder(Box<Encoding>),
    Thinker { spec: ThinkerSpec, waiting: VecDeque<u32>, rows: Rows },
    Talker { spec: TalkerSpec, inputs: Vec<u32>, last: u64 },
    Vocoder { context: Vec<u32>, waiting: VecDeque<u32> },
}

impl StageModel for Model {
    fn open(&mut self, slot: Slot, spec: SequenceSpec) -> Result<(), ModelError> {
        if self.sequences.contains_key(&slot) {
            return refused(format!("{slot} is open already"));
        }
        let (kind, state, count) = match spec {
            SequenceSpec::Encoder(spec) => (Kind::Encoder(Box::new(Encoding::open(&spec)?)), 0, 0),
            SequenceSpec::Thinker(spec) => {
                let (state, count) = (spec.seed, spec.generated_len);
                let rows = Rows::of(spec.media.as_deref());
                (Kind::Thinker { spec, waiting: VecDeque::new(), rows }, state, count)
            }
            SequenceSpec::Talker(spec) => {
                let (state, count) = (spec.seed, spec.generated_len);
                (Kind::Talker { spec, inputs: Vec::new(), last: 0 }, state, count)
            }
            SequenceSpec::Vocoder(spec) => {
                let context = spec.context.as_deref().unwrap_or_default().to_vec();
                (Kind::Vocoder { context, waiting: VecDeque::new() }, 9, 0)
            }
        };
        let sequence = Sequence { kind, state, prefilled: 0, count, ended: false, finished: false };
        self.sequences.insert(slot, sequence);
        Ok(())
    }

    fn push_input(&mut self, slot: Slot, input: Option<StageData>, end: bool) -> Result<(), ModelError> {
        let sequence = self.sequences.get_mut(&slot).ok_or_else(|| not_open(slot))?;
        if sequence.ended {
            return refused(format!("{slot}: input after its end"));
        }
        sequence.ended = end;
        match (&mut sequence.kind, input) {
            (Kind::Thinker { spec: ThinkerSpec { media: Some(_), .. }, rows, .. }, input) => match input {
                None => rows.push(&[], end)?,
                Some(StageData::Embeddings(embeddings)) => rows.push(&tokens_of(&embeddings)?, end)?,
                Some(_) => return refused(format!("{slot}: a prompt with media takes their embeddings only")),
            },
            (_, None) => {}
            (Kind::Encoder(encoding), Some(StageData::Features(features))) => encoding.push(features),
            (Kind::Thinker { waiting, .. }, Some(StageData::Tokens(tokens))) => waiting.extend(tokens),
            (Kind::Talker { inputs, .. }, Some(StageData::Tokens(tokens))) => inputs.extend(tokens),
            (Kind::Talker { inputs, .. }, Some(StageData::Embeddings(embeddings))) => {
                inputs.extend(tokens_of(&embeddings)?);
            }
            (Kind::Vocoder { waiting, .. }, Some(StageData::Codes(codes))) => waiting.extend(codes),
            (_, Some(_)) => return refused(format!("{slot}: input of the wrong kind")),
        }
        Ok(())
    }

    fn launch(&mut self, work: &[SequenceWork]) -> Result<Launched, ModelError> {
        let fails = self.book.fails(self.stage);
        let mut results = Vec::with_capacity(work.len());
        for (at, SequenceWork { slot, advance }) in work.iter().enumerate() {
            let result = match self.sequences.get_mut(slot) {
                None => Err(not_open(*slot)),
                Some(sequence) if sequence.finished => Ok(SequenceOutput { stale: true, ..SequenceOutput::default() }),
                Some(sequence) if fails && at == 0 => {
                    sequence.finished = true;
                    let prompt = sequence.prompt().unwrap_or(UNKNOWN);
                    *self.book.failed.lock().unwrap_or_else(PoisonError::into_inner).entry(prompt).or_default() += 1;
                    refused("a number that is none")
                }
                Some(sequence) => sequence.advance(*advance, &self.book),
            };
            match result {
                Err(ModelError::Device(error)) => return Err(ModelError::Device(error)),
                Err(error) => {
                    if let Some(sequence) = self.sequences.get_mut(slot) {
                        sequence.finished = true;
                    }
                    results.push(Err(error));
                }
                ok => results.push(ok),
            }
        }
        Ok(Launched::Done(StepOutcome::from(results)))
    }

    fn close(&mut self, slot: Slot) {
        self.sequences.remove(&slot);
    }

    fn live_sequences(&self) -> usize {
        self.sequences.len()
    }
}

impl Sequence {
    /// Whose it is, as far as it can tell.
    fn prompt(&self) -> Option<u32> {
        match &self.kind {
            // It has what its request has in common with others.
            Kind::Encoder(_) => None,
            Kind::Thinker { spec, .. } => Some(spec.seed as u32),
            Kind::Talker { spec, .. } => Some(spec.seed as u32),
            Kind::Vocoder { waiting, .. } => waiting.front().copied(),
        }
    }

    fn advance(&mut self, units: u32, book: &Book) -> Result<SequenceOutput, ModelError> {
        let Sequence { kind, state, prefilled, count, ended, finished } = self;
        let mut output = SequenceOutput::default();
        match kind {
            Kind::Encoder(encoding) => {
                if units != 1 {
                    return refused(format!("{units} units in a step of an encoder"));
                }
                let (rows, last) = encoding.step(book)?;
                *finished = last;
                output.finish = finished.then_some(FinishReason::Stop);
                output.emit = embeddings(&rows);
            }
            Kind::Thinker { spec, waiting, rows } => {
                let left = spec.prompt.len() as u32 - *prefilled;
                if left > 0 && (units == 0 || units > left) {
                    return refused(format!("{units} of {left} positions of the prompt"));
                }
                let mut spoken = Vec::new();
                if left > 0 {
                    spoken = prompt::prefill(spec, rows, *prefilled, units, state)?;
                    *prefilled += units;
                }
                match spec.mode {
                    ThinkerMode::Follow if left > 0 => {}
                    ThinkerMode::Follow => {
                        if units as usize > waiting.len() || units == 0 && !*ended {
                            return refused(format!("{units} tokens of {}", waiting.len()));
                        }
                        let followed: Vec<u32> = waiting.drain(..units as usize).collect();
                        *finished = *ended && waiting.is_empty();
                        output.sampled = followed.last().copied();
                        output.finish = finished.then_some(FinishReason::Stop);
                        if spec.emit.is_some() {
                            spoken.extend(followed);
                        }
                    }
                    ThinkerMode::Sample if left > units => {}
                    ThinkerMode::Sample => {
                        if left == 0 && units != 1 {
                            return refused(format!("{units} units in a decode step"));
                        }
                        book.check(StageName::Thinker, spec.seed, *count)?;
                        let next = token(*state, *count, book.lengths(spec.seed));
                        *count += 1;
                        *state = read(*state, next);
                        output.sampled = Some(next);
                        output.finish = if spec.eos.contains(&next) {
                            Some(FinishReason::Stop)
                        } else {
                            (*count >= spec.max_tokens).then_some(FinishReason::Length)
                        };
                        *finished = output.finish.is_some();
                        if !*finished && spec.emit.is_some() {
                            spoken.push(next);
                        }
                    }
                }
                output.emit = embeddings(&spoken);
            }
            Kind::Talker { spec, inputs, last } => {
                let prompt = &spec.prompt;
                let left = prompt.positions() - *prefilled;
                if units == 0 {
                    if !*ended || inputs.len() as u32 >= prompt.inputs() {
                        return refused("0 units of a sequence that can go on");
                    }
                    *finished = true;
                    return Ok(SequenceOutput { finish: Some(FinishReason::Stop), ..output });
                }
                let input = |at: u32| inputs.get(at as usize).copied();
                if left > 0 {
                    for at in *prefilled..(*prefilled + units).min(prompt.positions()) {
                        let Some(embedding) = prompt.embedding(at) else { break };
                        let Some(text) = text(embedding.text, input) else {
                            return refused(format!("position {at} has no input"));
                        };
                        *state = position(*state, text, codec(embedding.codec, prompt));
                    }
                    *prefilled += units;
                    if units < left {
                        return Ok(output);
                    }
                } else {
                    let side = prompt.text_side(*count - spec.generated_len, inputs.len() as u32, *ended);
                    let Some(text) = side.and_then(|side| text(side, input)) else {
                        return refused(format!("frame {count} has no text"));
                    };
                    *state = position(*state, text, *last);
                }
                book.check(StageName::Talker, spec.seed, *count)?;
                let (end, made) = (*count >= book.lengths(spec.seed).frames, codes(*state, spec.seed, *count));
                *count += 1;
                output.sampled = Some(made[0]);
                output.finish = if end {
                    Some(FinishReason::Stop)
                } else {
                    (*count >= spec.max_tokens).then_some(FinishReason::Length)
                };
                *finished = output.finish.is_some();
                if !*finished {
                    *last = frame(&made);
                    output.emit = Some(StageData::Codes(made.to_vec()));
                }
            }
            Kind::Vocoder { context, waiting } => {
                let left = (context.len() / GROUPS) as u32 - *prefilled;
                if left > 0 {
                    if units == 0 || units > left {
                        return refused(format!("{units} of {left} frames of the context"));
                    }
                    let codes = &context[*prefilled as usize * GROUPS..][..units as usize * GROUPS];
                    *state = codes.chunks(GROUPS).fold(*state, |state, codes| mix(state, frame(codes)));
                    *prefilled += units;
                    return Ok(output);
                }
                if units as usize * GROUPS > waiting.len() || units == 0 && !*ended {
                    return refused(format!("{units} frames of {}", waiting.len() / GROUPS));
                }
                let codes: Vec<u32> = waiting.drain(..units as usize * GROUPS).collect();
                let mut samples = Vec::with_capacity(units as usize * SAMPLES);
                for codes in codes.chunks(GROUPS) {
                    book.check(StageName::Vocoder, u64::from(codes[0]), codes[1])?;
                    *state = mix(*state, frame(codes));
                    samples.extend(sound(*state));
                }
                *finished = *ended && waiting.is_empty();
                output.finish = finished.then_some(FinishReason::Stop);
                output.emit = (!samples.is_empty()).then_some(StageData::Audio(samples));
            }
        }
        Ok(output)
    }
}

/// Embeddings of one number each: the token.
fn embeddings(tokens: &[u32]) -> Option<StageData> {
    let bytes: Vec<u8> = tokens.iter().flat_map(|token| (*token as f32).to_le_bytes()).collect();
    let some = EmbeddingBytes::new(bytes.into(), 1, Precision::F32).filter(|some| some.count() > 0)?;
    Some(StageData::Embeddings(Embeddings::Bytes(some)))
}

fn tokens_of(embeddings: &Embeddings) -> Result<Vec<u32>, ModelError> {
    let numbers = embeddings.tensor()?.flatten_all()?.to_vec1::<f32>()?;
    Ok(numbers.into_iter().map(|number| number as u32).collect())
}
