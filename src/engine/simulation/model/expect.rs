//! What each unit of a sequence is, and all that a client has to get, computed in one go.

use super::encoder::rows;
use super::prompt::{Rows, prefill};
use super::{END, GROUPS, Lengths, SAMPLES};
use omni_core::random::mix;
use omni_media::Medium;
use omni_model::stage::{TalkerSpec, ThinkerMode, ThinkerSpec, VocoderSpec};
use omni_model::talker::{CodecSide, TalkerPrompt, TextSide};
use std::sync::Arc;

/// The next token of an answer, of which `count` have been made.
pub(super) fn token(state: u64, count: u32, lengths: Lengths) -> u32 {
    if count + 1 >= lengths.tokens { END } else { u32::from(b'a') + (mix(state, 1) % 26) as u32 }
}

pub(super) fn read(state: u64, token: u32) -> u64 {
    mix(state, 0x100 + u64::from(token))
}

pub(super) fn text(side: TextSide, input: impl Fn(u32) -> Option<u32>) -> Option<u64> {
    Some(match side {
        TextSide::Input(at) => 0x1000 + u64::from(input(at)?),
        TextSide::Pad => 1,
        TextSide::Bos => 2,
        TextSide::Eos => 3,
    })
}

pub(super) fn codec(side: Option<CodecSide>, prompt: &TalkerPrompt) -> u64 {
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
pub(super) fn frame(codes: &[u32]) -> u64 {
    codes.iter().fold(7, |state, code| mix(state, u64::from(*code)))
}

pub(super) fn position(state: u64, text: u64, codec: u64) -> u64 {
    mix(mix(state, text), codec)
}

/// The codes of frame `count`, which follow from all positions before it.
pub(super) fn codes(state: u64, seed: u64, count: u32) -> [u32; GROUPS] {
    let of = mix(state, seed);
    [seed as u32, count, of as u32 & 0xFFFF, (of >> 32) as u32 & 0xFFFF]
}

/// The sound of a frame, which follows from all frames up to it.
pub(super) fn sound(state: u64) -> [f32; SAMPLES] {
    [(state & 0xFF_FFFF) as f32, ((state >> 32) & 0xFF_FFFF) as f32]
}

/// What a client has to get.
#[derive(Clone, Debug, Default)]
pub(crate) struct Expected {
    pub text: String,
    pub tokens: u32,
    pub samples: Vec<f32>,
    pub frames: u32,
    pub length_limit: bool,
}

/// The sequences of a request, as the model is given them, and the text that is spoken.
pub(crate) struct Asked<'a> {
    pub thinker: Option<&'a ThinkerSpec>,
    pub talker: Option<&'a TalkerSpec>,
    pub vocoder: Option<&'a VocoderSpec>,
    pub text: &'a [u32],
    /// The media of its prompt, and whether their sound is meant.
    pub media: &'a [(Arc<Medium>, bool)],
    pub lengths: Lengths,
}

/// Computes a request in one go.
pub(crate) fn expect(asked: &Asked<'_>) -> Expected {
    let mut expected = Expected::default();
    let mut inputs = Vec::new();
    match asked.thinker {
        Some(spec) => {
            let mut state = spec.seed;
            let media = Rows::all(spec.media.as_deref(), rows(asked.media));
            inputs.extend(prefill(spec, &media, 0, spec.prompt.len() as u32, &mut state).unwrap_or_default());
            match spec.mode {
                ThinkerMode::Follow => inputs.extend(asked.text),
                ThinkerMode::Sample => {
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
