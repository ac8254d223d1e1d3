//! Makes the input of the talker of Qwen3-TTS from a text and a voice.
//!
//! The talker's input embeddings are tokens: those of the instruction, three of the assistant's header, for in-context
//! cloning those of the reference's transcript, then the text. The [`TalkerPrompt`] says where each of them stands and
//! which codes are added to it.
//!
//! A text is `<|im_start|>assistant\n{TEXT}<|im_end|>\n<|im_start|>assistant\n`: 3 ids, those of the text, 5 ids. With
//! `P(x) = text_projection(text_embedding[x])` and `C(x)` the talker's embedding of a code, the prompt is, in this
//! order:
//!
//! 1. An instruction (VoiceDesign's description, the style of CustomVoice 1.7B; 0.6B discards it; none if empty): `P`
//!    of `<|im_start|>user\n{INSTRUCT}<|im_end|>\n`, no codes.
//! 2. `P` of the 3 ids of the role, no codes.
//! 3. Codes `nothink think_bos think_eos` for the language "auto", else `think think_bos LANG think_eos`; then SPEAKER
//!    if any (`C` of the speaker, or the x-vector itself), `pad`, and `bos`, which is part of the next point. Text
//!    beside all but `bos`: `pad`, beside the codes' `pad` `tts_bos`. Of CustomVoice, where the language is auto or
//!    Chinese and the speaker has a dialect, LANG is that dialect.
//! 4. One of these:
//!    - text that comes piece by piece: `P(text 0) + C(bos)`; trailing are the other ids and `tts_eos`.
//!    - the whole text (CustomVoice's and VoiceDesign's default): its ids and `tts_eos`, each with `C(pad)`, then
//!      `tts_pad + C(bos)`; trailing is `tts_pad`.
//!    - in-context cloning, with `X` = ids of the reference's text (`<|im_start|>assistant\n{REF}<|im_end|>\n`,
//!      `[3:-2]` of it) and of the text, `tts_eos`; `Y` = `C(bos)`, then for each frame of the reference the sum of its
//!      code embeddings (group 0 from the talker's table, the others from the predictor's). Piece by piece (the
//!      default): `X` and `Y` as far as `Y` goes, trailing the rest of `X`; a shorter `X` is padded by `tts_pad`, which
//!      is trailing too. Whole: `X` with `C(pad)`, then `Y` with `tts_pad`; trailing `tts_pad`. The decoder gets the
//!      reference's codes in front of the new ones, and as large a part of its samples as they are of the frames is
//!      cut.
//!
//! Cloning by the x-vector alone is the first or the second with the x-vector as SPEAKER, which in-context cloning has
//! as well. VoiceDesign has no SPEAKER. Names of languages are looked up in lower case; dialects cannot be asked for.

mod error;
mod layout;
mod stream;

pub use error::TtsPromptError;
pub use stream::TtsStream;

use crate::LoadError;
use crate::hf::{CodecTokens, TtsConfig, Variant};
use crate::talker::{CodecSide, TalkerPrompt, Trailing};
use crate::tokenizer::Tokenizer;
use crate::weights::Files;
use layout::{Plan, PlannedReference};
use std::sync::Arc;

/// The header of the assistant's turn, which every text follows.
const HEADER: &str = "<|im_start|>assistant\n";
/// The tokens before and behind an instruction.
const INSTRUCTION: [&str; 2] = ["<|im_start|>user\n", "<|im_end|>\n"];

/// A text and how to speak it.
#[derive(Clone, Debug)]
pub struct TtsRequest<'a> {
    /// The text to speak. Space around it is ignored.
    pub text: &'a str,
    /// A language of the checkpoint or `auto`, any case; `None` is `auto`.
    pub language: Option<&'a str>,
    /// The voice.
    pub speaker: Speaker<'a>,
    /// The manner of speaking, or the description of a voice; empty is none.
    pub instruct: Option<&'a str>,
    /// Whether the talker gets the whole text before it speaks, instead of a token per frame; `None` is what the
    /// reference does for the checkpoint: all at once unless a voice is cloned.
    pub non_streaming: Option<bool>,
}

/// Who speaks.
#[derive(Clone, Debug)]
pub enum Speaker<'a> {
    /// No speaker: the instruction describes the voice.
    Unnamed,
    /// One of the other voices, which has spoken an earlier piece that this one continues. With the sound of a recording
    /// this is the layout of in-context cloning. The checkpoints for names and descriptions were not trained with it; it
    /// is what they see inside a long text: the text of both pieces, and the frames of the first.
    Continued {
        /// Who spoke it.
        voice: Box<Speaker<'a>>,
        /// The piece, which takes the place of a recording's transcript and codes.
        spoken: Reference,
    },
    /// A speaker that the checkpoint was trained with, any case.
    Named(&'a str),
    /// A voice from a recording.
    Cloned {
        /// The sound of the voice, as the speaker encoder makes it: `[talker hidden]`.
        x_vector: Arc<[f32]>,
        /// The recording with its transcript, which the speech continues.
        reference: Option<Reference>,
    },
}

/// A recording and its transcript.
#[derive(Clone, Debug)]
pub struct Reference {
    /// The transcript.
    pub text: Arc<str>,
    /// Frame after frame, all groups of each.
    pub codes: Arc<[u32]>,
}

/// The input of the talker for a text.
#[derive(Clone, Debug, PartialEq)]
pub struct TtsPrompt {
    /// The layout, with the voice.
    pub prompt: Arc<TalkerPrompt>,
    /// The talker's whole input: instruction, header, transcript of the reference, text.
    pub tokens: Vec<u32>,
    /// How many of `tokens` are the instruction's.
    pub instruct_len: usize,
    /// How many are the transcript's.
    pub reference_len: usize,
}

/// A request without its text, checked and tokenized.
#[derive(Clone, Debug)]
pub struct TtsPrepared {
    plan: Arc<Plan>,
    non_streaming: Option<bool>,
}

/// Builds prompts. Immutable and shared by all requests.
#[derive(Clone, Debug)]
pub struct TtsPrompter {
    tokenizer: Arc<Tokenizer>,
    config: Arc<TtsConfig>,
    header: Arc<[u32]>,
    instruction: [Arc<[u32]>; 2],
}

impl TtsPrompter {
    /// Made from the parts of one checkpoint; errors name its files.
    ///
    /// # Errors
    /// [`LoadError::Invalid`] when the tokenizer does not give the assistant's header its three tokens.
    pub fn new(tokenizer: Arc<Tokenizer>, config: Arc<TtsConfig>, files: &Files) -> Result<TtsPrompter, LoadError> {
        let encode = |text: &str| match tokenizer.encode_structure(text) {
            Ok(ids) => Ok(Arc::<[u32]>::from(ids)),
            Err(error) => Err(files.invalid("tokenizer.json", error.to_string())),
        };
        let header = encode(HEADER)?;
        if header.len() != 3 {
            let reason = format!("gives {HEADER:?} {} tokens: expected 3", header.len());
            return Err(files.invalid("tokenizer.json", reason));
        }
        let instruction = [encode(INSTRUCTION[0])?, encode(INSTRUCTION[1])?];
        Ok(TtsPrompter { header, instruction, tokenizer, config })
    }

    /// The tokenizer of these prompts.
    pub fn tokenizer(&self) -> &Arc<Tokenizer> {
        &self.tokenizer
    }

    /// The prompt for a complete text.
    ///
    /// # Errors
    /// [`TtsPromptError`] for what this checkpoint cannot do, and for an empty text.
    pub fn prompt(&self, request: &TtsRequest<'_>) -> Result<TtsPrompt, TtsPromptError> {
        self.prompt_for(&self.prepare(request)?, request.text)
    }

    /// Everything about a request but its text: tokenized once, for all pieces of the text.
    ///
    /// # Errors
    /// [`TtsPromptError`] for what this checkpoint cannot do.
    pub fn prepare(&self, request: &TtsRequest<'_>) -> Result<TtsPrepared, TtsPromptError> {
        let plan = self.plan(request)?.into();
        Ok(TtsPrepared { plan, non_streaming: request.non_streaming })
    }

    /// The prompt for a complete text.
    ///
    /// # Errors
    /// [`TtsPromptError::NothingToSpeak`] for an empty text.
    pub fn prompt_for(&self, prepared: &TtsPrepared, text: &str) -> Result<TtsPrompt, TtsPromptError> {
        let whole = prepared.non_streaming.unwrap_or(self.config.variant != Variant::Base);
        let mut plan = Plan { whole, ..Plan::clone(&prepared.plan) };
        let text = self.tokenizer.encode_text(text.trim())?;
        if text.is_empty() {
            return Err(TtsPromptError::NothingToSpeak);
        }
        plan.tokens.extend(&text);
        let prompt = plan.whole_prompt(text.len() as u32, &self.config.talker.tokens);
        Ok(TtsPrompt {
            prompt: prompt.into(),
            instruct_len: plan.plain as usize - self.header.len(),
            reference_len: plan.reference_len() as usize,
            tokens: plan.tokens,
        })
    }

    /// The prompt for a text that is still being written: `request.text` is its beginning, which may be empty. Unless
    /// `non_streaming` is set, the talker gets the text as it arrives.
    ///
    /// # Errors
    /// [`TtsPromptError`] for what this checkpoint cannot do.
    pub fn stream(&self, request: &TtsRequest<'_>) -> Result<TtsStream, TtsPromptError> {
        self.stream_for(&self.prepare(request)?, request.text)
    }

    /// The same for a request that is prepared.
    ///
    /// # Errors
    /// [`TtsPromptError::Tokenize`], which a byte-level tokenizer never returns.
    pub fn stream_for(&self, prepared: &TtsPrepared, text: &str) -> Result<TtsStream, TtsPromptError> {
        let whole = prepared.non_streaming.unwrap_or(false);
        TtsStream::new(self.clone(), Plan { whole, ..Plan::clone(&prepared.plan) }, text)
    }

    /// Everything about a request but its text. Says nothing of whether the prompt holds all of that.
    fn plan(&self, request: &TtsRequest<'_>) -> Result<Plan, TtsPromptError> {
        let config = &self.config;
        let mut tokens = self.instruction(request.instruct)?;
        tokens.extend(self.header.iter());
        let plain = tokens.len() as u32;
        let (voice, spoken) = match &request.speaker {
            Speaker::Continued { voice, spoken } => (voice.as_ref(), Some(spoken)),
            voice => (voice, None),
        };
        let (speaker, dialect) = self.speaker(voice)?;
        let mut opening = self.language(request.language, dialect)?;
        opening.extend(speaker);
        opening.push(CodecSide::Token(config.talker.tokens.pad));
        let mut plan = Plan { tokens, plain, opening, x_vector: None, reference: None, whole: false };
        let recording = match voice {
            Speaker::Cloned { x_vector, reference } => {
                let (made, read) = (config.codec.encoder_groups(), config.talker.num_code_groups);
                if reference.is_some() && made != read {
                    return Err(TtsPromptError::SoundOnly { made, read });
                }
                plan.x_vector = Some(Arc::clone(x_vector));
                reference.as_ref()
            }
            Speaker::Unnamed | Speaker::Named(_) | Speaker::Continued { .. } => None,
        };
        if let Some(Reference { text, codes }) = spoken.or(recording) {
            let text = self.tokenizer.encode_text(text.trim())?;
            if text.is_empty() {
                return Err(TtsPromptError::NoTranscript);
            }
            if codes.is_empty() {
                return Err(TtsPromptError::NoRecording);
            }
            let frames = codes.len().div_ceil(config.talker.num_code_groups) as u32;
            plan.reference = Some(PlannedReference { tokens: text.len() as u32, frames, codes: Arc::clone(codes) });
            plan.tokens.extend(text);
        }
        let fits = plan.prompt(Vec::new(), Trailing::Pad).check(&config.talker);
        fits.map_err(TtsPromptError::Voice)?;
        Ok(plan)
    }

    fn instruction(&self, text: Option<&str>) -> Result<Vec<u32>, TtsPromptError> {
        let text = text.unwrap_or_default().trim();
        let variant = self.config.variant;
        if text.is_empty() {
            let described = variant != Variant::VoiceDesign;
            return described.then(Vec::new).ok_or(TtsPromptError::NothingDescribed);
        }
        if !self.config.follows_instructions {
            let (which, instead) = match variant {
                Variant::Base => ("Base", "a CustomVoice or VoiceDesign checkpoint of 1.7B"),
                _ => ("0.6B", "the 1.7B checkpoint"),
            };
            return Err(TtsPromptError::NoInstructions(which, instead));
        }
        let [before, after] = &self.instruction;
        Ok([before, self.tokenizer.encode_text(text)?.as_slice(), after].concat())
    }

    /// The codec side of the speaker, and the dialect of that speaker.
    fn speaker(&self, speaker: &Speaker<'_>) -> Result<(Option<CodecSide>, Option<u32>), TtsPromptError> {
        let (config, variant) = (&self.config, self.config.variant);
        match (variant, speaker) {
            (Variant::CustomVoice, Speaker::Named(name)) => {
                let id = config.talker.speaker(name)?;
                let dialect = config.dialects.get(&name.trim().to_lowercase()).copied();
                Ok((Some(CodecSide::Token(id)), dialect))
            }
            (Variant::CustomVoice, Speaker::Unnamed) => {
                Err(TtsPromptError::NoSpeaker(config.talker.speaker_names().join(", ")))
            }
            (Variant::VoiceDesign, Speaker::Unnamed) => Ok((None, None)),
            (Variant::Base, Speaker::Cloned { .. }) => Ok((Some(CodecSide::XVector), None)),
            (Variant::Base, Speaker::Unnamed) => Err(TtsPromptError::NothingToClone),
            (_, Speaker::Named(_)) => Err(TtsPromptError::NoNames(variant)),
            (_, Speaker::Cloned { .. } | Speaker::Continued { .. }) => Err(TtsPromptError::NoCloning(variant)),
        }
    }

    /// How the codec side begins: nothing about the language, or its id. A speaker's dialect takes the place of Chinese
    /// and of no language at all.
    fn language(&self, name: Option<&str>, dialect: Option<u32>) -> Result<Vec<CodecSide>, TtsPromptError> {
        let config = &self.config;
        let name = name.unwrap_or("auto").trim();
        let lower = name.to_lowercase();
        let named = if lower == "auto" { None } else { Some(self.language_id(name, &lower)?) };
        let id = match dialect {
            Some(dialect) if matches!(lower.as_str(), "auto" | "chinese") => Some(dialect),
            _ => named,
        };
        let CodecTokens { think, nothink, think_bos, think_eos, .. } = config.talker.tokens;
        let ids = match (id, think) {
            // `think` is there: the config was checked.
            (Some(id), Some(think)) => vec![think, think_bos, id, think_eos],
            _ => vec![nothink, think_bos, think_eos],
        };
        Ok(ids.into_iter().map(CodecSide::Token).collect())
    }

    fn language_id(&self, name: &str, lower: &str) -> Result<u32, TtsPromptError> {
        let config = &self.config;
        let unknown = || {
            let name = name.chars().take(64).collect();
            if lower.ends_with("dialect") && !config.dialects.is_empty() {
                let speakers: Vec<_> = config.dialects.keys().map(String::as_str).collect();
                return TtsPromptError::Dialect { name, speakers: speakers.join(", ") };
            }
            let known: Vec<_> = config.languages.keys().map(String::as_str).collect();
            TtsPromptError::UnknownLanguage { name, known: known.join(", ") }
        };
        config.languages.get(lower).copied().ok_or_else(unknown)
    }
}
