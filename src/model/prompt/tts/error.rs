//! Requests that a checkpoint cannot serve, as messages for the client.

use crate::hf::{UnknownSpeaker, Variant};
use crate::tokenizer::TokenizeError;

/// A request that this checkpoint cannot serve. All but the last are the client's mistake.
#[derive(Debug, thiserror::Error)]
#[expect(missing_docs, reason = "the messages say it")]
pub enum TtsPromptError {
    #[error("there is no text to speak")]
    NothingToSpeak,
    #[error(transparent)]
    UnknownSpeaker(#[from] UnknownSpeaker),
    #[error("name a voice; the voices are: {0}")]
    NoSpeaker(String),
    #[error("{0} checkpoints have no voices by name: {how}", how = how_to_choose(*.0))]
    NoNames(Variant),
    #[error("{0} checkpoints cannot clone a voice: {how}", how = how_to_choose(*.0))]
    NoCloning(Variant),
    #[error("no voice was given: {how}", how = how_to_choose(Variant::Base))]
    NothingToClone,
    #[error("no language {name:?}; the languages are: auto, {known}")]
    UnknownLanguage { name: String, known: String },
    #[error(
        "{name:?} is a dialect and cannot be chosen as a language: it is spoken by {speakers} in \"auto\" and \"chinese\""
    )]
    Dialect { name: String, speakers: String },
    #[error("this checkpoint does not follow instructions ({0}): leave them out, or use {1}")]
    NoInstructions(&'static str, &'static str),
    #[error("VoiceDesign checkpoints speak in a voice that the instructions describe: describe it")]
    NothingDescribed,
    #[error("the transcript of the reference is empty: give what is said in the recording, or use its sound alone")]
    NoTranscript,
    #[error("the recording of the reference is empty")]
    NoRecording,
    #[error(
        "this checkpoint encodes a recording with {made} codes per frame and its talker reads {read}: leave the \
         transcript out to clone the voice by its sound alone"
    )]
    SoundOnly { made: usize, read: usize },
    #[error("{0}")]
    Voice(String),
    #[error(transparent)]
    Tokenize(#[from] TokenizeError),
}

impl TtsPromptError {
    /// The field at fault, as the HTTP API names it.
    pub fn field(&self) -> &'static str {
        match self {
            TtsPromptError::NothingToSpeak | TtsPromptError::Tokenize(_) => "input",
            TtsPromptError::UnknownSpeaker(_) | TtsPromptError::NoSpeaker(_) | TtsPromptError::NoNames(_) => "voice",
            TtsPromptError::UnknownLanguage { .. } | TtsPromptError::Dialect { .. } => "language",
            TtsPromptError::NoInstructions(..) | TtsPromptError::NothingDescribed => "instructions",
            TtsPromptError::NoTranscript | TtsPromptError::SoundOnly { .. } => "ref_text",
            TtsPromptError::NoCloning(_)
            | TtsPromptError::NothingToClone
            | TtsPromptError::NoRecording
            | TtsPromptError::Voice(_) => "ref_audio",
        }
    }
}

fn how_to_choose(variant: Variant) -> &'static str {
    match variant {
        Variant::CustomVoice => "name one of its voices",
        Variant::VoiceDesign => "describe the voice in the instructions",
        Variant::Base => "give a recording, a speaker embedding or the name of an uploaded voice",
    }
}
