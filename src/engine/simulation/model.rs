//! Models that compute nothing: what a sequence makes is a hash of everything that it was given before, as in a net
//! that reads its own output. So a unit that is lost, doubled, out of order or of another sequence changes all that
//! follows, and [`Expected`] says without any stage what a client has to get, sample by sample.

use super::random::mix;
use omni_config::Precision;
use omni_core::ids::{FinishReason, Slot, StageName};
use omni_model::embeddings::{EmbeddingBytes, Embeddings};
use omni_model::error::{not_open, refused};
use omni_model::stage::{
    Launched, SequenceOutput, SequenceSpec, SequenceWork, StageData, StageFactory, StageModel, StepOutcome, TalkerSpec,
    ThinkerMode, ThinkerSpec, VocoderSpec,
};
use omni_model::stages::thinker::prompt_embeddings;
use omni_model::talker::{CodecSide, TalkerPrompt, TextSide};
use omni_model::{LoadError, ModelError};
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
    /// Of each stage: launches that fail one sequence.
    pub failing: [AtomicU32; 3],
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

/// The next token of an answer, of which `count` have been made.
fn token(state: u64, count: u32, lengths: Lengths) -> u32 {
    if count + 1 >= lengths.tokens { END } else { u32::from(b'a') + (mix(state, 1) % 26) as u32 }
}

fn read(state: u64, token: u32) -> u64 {
    mix(state, 0x100 + u64::from(token))
}

fn text(side: TextSide, input: impl Fn(u32) -> Option<u32>) -> Option<u64> {
    Some(match side {
        TextSide::Input(at) => 0x1000 + u64::from(input(at)?),
        TextSide::Pad => 1,
        TextSide::Bos => 2,
        TextSide::Eos => 3,
    })
}

fn codec(side: Option<CodecSide>, prompt: &TalkerPrompt) -> u64 {
    match side {
        None => 0,
        Some(CodecSide::Token(id)) => 10 + u64::from(id),
        Some(CodecSide::XVector) => 5,
        Some(CodecSide::Frame(at)) => {
            let codes = prompt.reference().map_or(&[][..], |codes| codes);
            codes.chunks(GROUPS).nth(at as usize).map_or(6, frame)
        }
    }
}

/// A frame as the talker and the vocoder read it.
fn frame(codes: &[u32]) -> u64 {
    codes.iter().fold(7, |state, code| mix(state, u64::from(*code)))
}

fn position(state: u64, text: u64, codec: u64) -> u64 {
    mix(mix(state, text), codec)
}

/// The codes of frame `count`, which follow from all positions before it.
fn codes(state: u64, seed: u64, count: u32) -> [u32; GROUPS] {
    let of = mix(state, seed);
    [seed as u32, count, of as u32 & 0xFFFF, (of >> 32) as u32 & 0xFFFF]
}

/// The sound of a frame, which follows from all frames up to it.
fn sound(state: u64) -> [f32; SAMPLES] {
    [(state & 0xFF_FFFF) as f32, ((state >> 32) & 0xFF_FFFF) as f32]
}

/// What a client has to get.
#[derive(Clone, Debug, Default)]
pub(super) struct Expected {
    pub text: String,
    pub tokens: u32,
    pub samples: Vec<f32>,
    pub frames: u32,
    pub length_limit: bool,
}

/// The sequences of a request, as the model is given them, and the text that is spoken.
pub(super) struct Asked<'a> {
    pub thinker: Option<&'a ThinkerSpec>,
    pub talker: Option<&'a TalkerSpec>,
    pub vocoder: Option<&'a VocoderSpec>,
    pub text: &'a [u32],
    pub lengths: Lengths,
}

/// Computes a request in one go.
pub(super) fn expect(asked: &Asked<'_>) -> Expected {
    let mut expected = Expected::default();
    let mut inputs = Vec::new();
    match asked.thinker {
        Some(spec) => {
            inputs.extend(prompt_embeddings(spec, 0, spec.prompt.len() as u32));
            match spec.mode {
                ThinkerMode::Follow => inputs.extend(asked.text),
                ThinkerMode::Sample => {
                    let mut state = spec.prompt.iter().fold(spec.seed, |state, token| read(state, *token));
                    let mut answer = Vec::new();
                    loop {
                        let next = token(state, answer.len() as u32, asked.lengths);
                        answer.push(next);
                        let limit = answer.len() as u32 >= spec.max_tokens;
                        if spec.eos.contains(&next) || limit {
                            expected.length_limit |= !spec.eos.contains(&next);
                            break;
                        }
                        state = read(state, next);
                    }
                    expected.tokens = answer.len() as u32;
                    expected.text = answer.iter().filter_map(|token| char::from_u32(*token)).collect();
                    inputs.extend(&answer[..answer.len() - 1]);
                }
            }
        }
        None => inputs.extend(asked.text),
    }
    let (Some(talker), Some(vocoder)) = (asked.talker, asked.vocoder) else { return expected };
    let prompt = &talker.prompt;
    if (inputs.len() as u32) < prompt.inputs() {
        return expected;
    }
    let input = |at: u32| inputs.get(at as usize).copied();
    let mut state = talker.seed;
    for at in 0..prompt.positions() {
        let Some(embedding) = prompt.embedding(at) else { break };
        state = position(state, text(embedding.text, input).unwrap_or_default(), codec(embedding.codec, prompt));
    }
    let context = vocoder.context.as_deref().unwrap_or_default();
    let mut heard = context.chunks(GROUPS).fold(9, |heard, codes| mix(heard, frame(codes)));
    for count in 0.. {
        if count >= asked.lengths.frames {
            break;
        }
        if count + 1 >= talker.max_tokens {
            expected.length_limit = true;
            break;
        }
        let made = codes(state, talker.seed, count);
        heard = mix(heard, frame(&made));
        expected.samples.extend(sound(heard));
        expected.frames += 1;
        let side = prompt.text_side(count + 1, inputs.len() as u32, true).unwrap_or(TextSide::Pad);
        state = position(state, text(side, input).unwrap_or_default(), frame(&made));
    }
    expected
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
    Thinker { spec: ThinkerSpec, waiting: VecDeque<u32> },
    Talker { spec: TalkerSpec, inputs: Vec<u32>, last: u64 },
    Vocoder { context: Vec<u32>, waiting: VecDeque<u32> },
}

impl StageModel for Model {
    fn open(&mut self, slot: Slot, spec: SequenceSpec) -> Result<(), ModelError> {
        if self.sequences.contains_key(&slot) {
            return refused(format!("{slot} is open already"));
        }
        let (kind, state, count) = match spec {
            SequenceSpec::Thinker(spec) => {
                let (state, count) = (spec.seed, spec.generated_len);
                (Kind::Thinker { spec, waiting: VecDeque::new() }, state, count)
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
            (_, None) => {}
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
            Kind::Thinker { spec, .. } => Some(spec.seed as u32),
            Kind::Talker { spec, .. } => Some(spec.seed as u32),
            Kind::Vocoder { waiting, .. } => waiting.front().copied(),
        }
    }

    fn advance(&mut self, units: u32, book: &Book) -> Result<SequenceOutput, ModelError> {
        let Sequence { kind, state, prefilled, count, ended, finished } = self;
        let mut output = SequenceOutput::default();
        match kind {
            Kind::Thinker { spec, waiting } => {
                let left = spec.prompt.len() as u32 - *prefilled;
                let mut spoken = prompt_embeddings(spec, *prefilled, if left > 0 { units } else { 0 });
                if left > 0 && (units == 0 || units > left) {
                    return refused(format!("{units} of {left} positions of the prompt"));
                }
                if left > 0 {
                    for token in &spec.prompt[*prefilled as usize..][..units as usize] {
                        *state = read(*state, *token);
                    }
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
