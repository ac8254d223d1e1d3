//! Runs a request of Qwen3-Omni the way the reference does, one request, greedy, and records the same tensors.

use super::media::{Media, axes};
use super::speak::{Run, Speech, positions, speak};
use super::value::{Data, Value, Values};
use candle_core::{D, Result, Tensor};
use omni_model::hf::OmniConfig;
use omni_model::prompt::ChatPrompt;
use omni_model::talker::{Talker, TalkerPrompt};
use omni_model::thinker::Thinker;
use omni_model::transformer::MediaInput;
use std::ops::Range;

/// The request of a generation case.
#[derive(Clone, Debug, PartialEq)]
pub struct Request {
    /// Prompt tokens, and which of them the talker gets.
    pub prompt: ChatPrompt,
    /// Codec id of the speaker.
    pub speaker: u32,
    /// At most this many answer tokens.
    pub text_tokens: usize,
    /// Ends the answer.
    pub thinker_eos: Vec<u32>,
    /// At most this many code-0 tokens.
    pub codec_tokens: usize,
    /// Ends the speech.
    pub talker_eos: Vec<u32>,
    /// Of code 0; acts although everything is greedy.
    pub repetition_penalty: f32,
}

/// The outcome of a run.
#[derive(Debug, Default)]
pub struct Trace {
    /// All tensors by the reference's names.
    pub values: Values,
    /// Frame after frame, all groups.
    pub frames: Vec<Vec<u32>>,
}

/// Runs thinker and talker.
///
/// # Errors
/// What the device says, and tokens outside a vocabulary.
pub fn generate(
    config: &OmniConfig,
    thinker: &Thinker,
    talker: &Talker,
    request: &Request,
    media: Option<&Media>,
) -> Result<Trace> {
    let mut trace = Trace::default();
    let thought = think(config, thinker, request, media, &mut trace)?;
    say(config, talker, request, media, &thought, &mut trace)?;
    Ok(trace)
}

/// An answer with its last token, and the two hidden states of all positions but that token's.
struct Thought {
    answer: Vec<u32>,
    embedded: Tensor,
    accepted: Tensor,
}

/// Samples the answer.
fn think(
    config: &OmniConfig,
    thinker: &Thinker,
    request: &Request,
    media: Option<&Media>,
    trace: &mut Trace,
) -> Result<Thought> {
    let (prompt, stack) = (request.prompt.ids.as_ref(), thinker.stack());
    let accept = config.thinker.accept_hidden_layer;
    let mut run = Run::new(stack)?;
    let mut step_logits = Vec::new();
    let mut accepted = Vec::new();
    let mut answer = Vec::new();

    let embedded = thinker.embed(prompt)?;
    let (embedded, input) = media.map_or(Ok((embedded.clone(), MediaInput::default())), |m| m.scatter(&embedded))?;
    let hidden = run.forward(stack, &embedded, &input)?;
    let logits = thinker.logits(&run.residual)?;
    trace.floats("thinker.prefill.inputs_embeds", &embedded, 1)?;
    for (i, state) in hidden.iter().enumerate() {
        trace.floats(format!("thinker.prefill.hidden.{i}"), state, 1)?;
    }
    trace.floats("thinker.prefill.logits", &logits, 1)?;
    accepted.push(hidden[accept].clone());
    let mut last = logits.narrow(0, prompt.len() - 1, 1)?;
    loop {
        let token = last.argmax(D::Minus1)?.to_vec1::<u32>()?[0];
        step_logits.push(last);
        answer.push(token);
        if request.thinker_eos.contains(&token) || answer.len() >= request.text_tokens {
            break;
        }
        let at = prompt.len() + answer.len() - 1;
        let positions = media.and_then(|media| media.axes(at..at + 1));
        let hidden =
            run.forward(stack, &thinker.embed(&[token])?, &MediaInput { positions, ..MediaInput::default() })?;
        accepted.push(hidden[accept].clone());
        last = thinker.logits(&run.residual)?;
    }
    let sequence = [prompt, &answer].concat();
    let (t, n) = (prompt.len(), answer.len());
    trace.ints("input_ids", [1, t], prompt.iter().copied());
    trace.ints("thinker.sequences", [1, t + n], sequence.iter().copied());
    match media.and_then(|media| media.layout.positions.as_ref()) {
        None => {
            trace.ints("thinker.prefill.position_ids", [3, 1, t], positions(3, 0..t));
            trace.ints("thinker.decode.position_ids", [3, n - 1], positions(3, t..t + n - 1));
        }
        Some(positions) => trace.positions("thinker.decode.position_ids", axes(positions, t..t + n - 1)),
    }
    let embedded = Tensor::cat(&[embedded, thinker.embed(&answer[..n - 1])?], 0)?;
    let accepted = Tensor::cat(&accepted, 0)?;
    trace.floats("thinker.hidden0.all", &embedded, 1)?;
    trace.floats("thinker.accept_hidden.all", &accepted, 1)?;
    trace.floats("thinker.step_logits", &Tensor::cat(&step_logits, 0)?, 1)?;
    Ok(Thought { answer, embedded, accepted })
}

/// Speaks the answer.
fn say(
    config: &OmniConfig,
    talker: &Talker,
    request: &Request,
    media: Option<&Media>,
    thought: &Thought,
    trace: &mut Trace,
) -> Result<()> {
    let (prompt, inputs) = spoken(config, request, &thought.answer)?;
    let (prompt, embeddings) = heard(prompt, request, media, thought)?;
    let user_embeddings = request.prompt.user_embeddings;
    let ids = inputs[..user_embeddings as usize].iter().copied().chain([config.tokens.tts_pad; 9]);
    trace.ints("talker.prefill.input_ids", [1, prompt.positions() as usize], ids);
    let speech = Speech {
        talker,
        prompt: &prompt,
        inputs: talker.project_media(&embeddings, 0, prompt.media())?,
        limit: request.codec_tokens,
        eos: &request.talker_eos,
        min_tokens: 0,
        repetition_penalty: request.repetition_penalty,
        axes: 3,
        batches: 0,
    };
    speak(&[speech], std::slice::from_mut(trace))?;
    let frames = trace.frames.len();
    if let Some(groups) = trace.frames.first().map(Vec::len) {
        let codes: Vec<u32> = (0..groups).flat_map(|g| trace.frames.iter().map(move |frame| frame[g])).collect();
        trace.ints("codes", [1, groups, frames], codes);
    }
    Ok(())
}

/// The talker's prompt for an answer, whose last token is never embedded, and the tokens whose embeddings are its
/// input.
pub(super) fn spoken(config: &OmniConfig, request: &Request, answer: &[u32]) -> Result<(TalkerPrompt, Vec<u32>)> {
    let ranges = request.prompt.emit.iter().flat_map(Clone::clone);
    let spoken = ranges.map(|at| request.prompt.ids[at as usize]);
    let inputs: Vec<u32> = spoken.chain(answer[..answer.len().saturating_sub(1)].iter().copied()).collect();
    let prompt = TalkerPrompt::omni(request.prompt.user_embeddings, request.speaker, &config.talker.tokens);
    if (inputs.len() as u32) < prompt.inputs() {
        candle_core::bail!("the answer is empty: there is nothing to speak");
    }
    Ok((prompt, inputs))
}

/// The talker's prompt with its media, and its input embeddings: those of text, and hidden states at media.
fn heard(
    prompt: TalkerPrompt,
    request: &Request,
    media: Option<&Media>,
    thought: &Thought,
) -> Result<(TalkerPrompt, Tensor)> {
    let positions = spoken_positions(request, thought.embedded.dim(0)?);
    let embeddings =
        thought.embedded.index_select(&Tensor::new(positions.as_slice(), thought.embedded.device())?, 0)?;
    let Some(media) = media else { return Ok((prompt, embeddings)) };
    for (input, at) in positions.iter().enumerate().filter(|(_, at)| media.has(**at as usize)) {
        embeddings.slice_set(&thought.accepted.narrow(0, *at as usize, 1)?, 0, input)?;
    }
    Ok((with_media(prompt, request, media), embeddings))
}

/// Of `all` positions of prompt and answer those that the talker gets.
pub(super) fn spoken_positions(request: &Request, all: usize) -> Vec<u32> {
    let asked = request.prompt.emit.iter().flat_map(Clone::clone);
    asked.chain(request.prompt.ids.len() as u32..all as u32).collect()
}

/// The talker's prompt, told which of its input embeddings are hidden states.
pub(super) fn with_media(prompt: TalkerPrompt, request: &Request, media: &Media) -> TalkerPrompt {
    let positions = spoken_positions(request, request.prompt.ids.len());
    let mut ranges: Vec<Range<u32>> = Vec::new();
    for (input, _) in (0u32..).zip(&positions).filter(|(_, at)| media.has(**at as usize)) {
        match ranges.last_mut() {
            Some(last) if last.end == input => last.end += 1,
            _ => ranges.push(input..input + 1),
        }
    }
    prompt.with_media(ranges.into(), media.talker.clone())
}

impl Trace {
    /// Positions `[3, n]`, as they are and without their fractions.
    pub(super) fn positions(&mut self, name: &str, axes: [Vec<f32>; 3]) {
        let (shape, all) = (vec![3, axes[0].len()], axes.concat());
        self.ints(name, shape.clone(), all.iter().map(|position| *position as u32));
        self.values.insert(format!("{name}_f32"), Value { shape, data: Data::Floats(all) });
    }

    pub(super) fn floats(&mut self, name: impl Into<String>, tensor: &Tensor, leading: usize) -> Result<()> {
        self.values.insert(name.into(), Value::floats(tensor, leading)?);
        Ok(())
    }

    pub(super) fn ints(&mut self, name: &str, shape: impl Into<Vec<usize>>, data: impl IntoIterator<Item = u32>) {
        self.values.insert(name.to_owned(), Value::ints(shape, data));
    }
}
