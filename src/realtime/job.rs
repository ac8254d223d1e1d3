//! Requests to the engine: what is asked, and what comes back.

use crate::calls::Call;
use crate::item::Detail;
use crate::sound::WireFormat;
use serde_json::{Value, json};
use std::sync::Arc;

/// The name of a request to the engine.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct JobId(pub u64);

/// A request to the engine.
#[derive(Clone, Debug, PartialEq)]
pub struct Job {
    /// Its name.
    pub id: JobId,
    /// The conversation, the user's turn or a tool's last.
    pub turns: Vec<PromptTurn>,
    /// JSON of each function that the model may call. Text from the first call on is not to be spoken.
    pub tools: Arc<[String]>,
    /// Whether nothing takes its answer: it is made so that the engine knows the prompt when the turn goes on. It waits
    /// for every answer that a client hears, and may fail.
    pub prepares: bool,
    /// Sound and text, or text alone.
    pub speaks: bool,
    /// `None` is the model's.
    pub voice: Option<String>,
    /// How many times as fast as it was made the sound is sent.
    pub speed: f32,
    /// The format of the sound.
    pub format: WireFormat,
    /// Limit on tokens of text, and on frames of sound; `None` is the model's.
    pub max_tokens: Option<u32>,
    /// Of the text; `None` is the model's.
    pub temperature: Option<f32>,
    /// Same job, same seed, same answer.
    pub seed: u64,
}

/// A turn of a prompt.
#[derive(Clone, Debug, PartialEq)]
pub struct PromptTurn {
    /// `system`, `user`, `assistant` or `tool`.
    pub role: &'static str,
    /// What it is made of.
    pub parts: Vec<PromptPart>,
    /// What the assistant calls behind that.
    pub calls: Vec<Call>,
}

impl PromptTurn {
    pub(crate) fn text(role: &'static str, text: &str) -> PromptTurn {
        PromptTurn { role, parts: vec![PromptPart::Text(text.to_owned())], calls: Vec::new() }
    }

    /// Calls belong to the turn of the assistant in front of them.
    pub(crate) fn joined(turns: Vec<PromptTurn>) -> Vec<PromptTurn> {
        let mut joined: Vec<PromptTurn> = Vec::with_capacity(turns.len());
        for turn in turns {
            match joined.last_mut() {
                Some(last) if last.role == "assistant" && turn.parts.is_empty() => last.calls.extend(turn.calls),
                _ => joined.push(turn),
            }
        }
        joined
    }
}

/// A part of such a turn.
#[derive(Clone, PartialEq)]
pub enum PromptPart {
    /// Text.
    Text(String),
    /// A wav file.
    Audio(Arc<[u8]>),
    /// A picture.
    Image {
        /// Base64, a `data:` URL or an address.
        url: String,
        /// How much of it is seen.
        detail: Detail,
    },
}

impl PromptPart {
    /// Bytes of its sound.
    pub(crate) fn sound(&self) -> usize {
        match self {
            PromptPart::Audio(file) => file.len(),
            PromptPart::Text(_) | PromptPart::Image { .. } => 0,
        }
    }
}

impl std::fmt::Debug for PromptPart {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            PromptPart::Text(text) => write!(f, "{text:?}"),
            // Never the bytes: they are long, and private.
            PromptPart::Audio(file) => write!(f, "sound of {} bytes", file.len()),
            PromptPart::Image { url, .. } => write!(f, "picture of {} bytes", url.len()),
        }
    }
}

/// What came of a job.
#[derive(Clone, Debug)]
pub enum AnswerPart {
    /// The engine has taken it: always first of a job that does not fail before.
    Started,
    /// The text of the next token.
    Text(String),
    /// The next sound, in the job's format.
    Audio(Vec<u8>),
    /// It is complete.
    Finished {
        /// Why it ended.
        ending: Ending,
        /// What it used.
        usage: Usage,
    },
    /// It is over without being complete.
    Failed {
        /// For programs.
        code: String,
        /// Why.
        message: String,
    },
}

/// Why an answer ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ending {
    /// The model ended it.
    Stop,
    /// A limit on its length did.
    Length,
}

/// What a job used, tokens.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Usage {
    /// Of the prompt, those of media included.
    pub input: u32,
    /// Those of them that were kept and not computed again.
    pub cached: u32,
    /// Those of all that stand for sound.
    pub input_audio: u32,
    /// Those of all that stand for pictures.
    pub input_image: u32,
    /// Of text.
    pub output_text: u32,
    /// Frames of sound.
    pub output_audio: u32,
}

impl Usage {
    pub(crate) fn object(self) -> Value {
        let text = self.input.saturating_sub(self.input_audio).saturating_sub(self.input_image);
        let output = self.output_text + self.output_audio;
        json!({
            "total_tokens": self.input + output,
            "input_tokens": self.input,
            "output_tokens": output,
            "input_token_details": {
                "text_tokens": text,
                "audio_tokens": self.input_audio,
                "image_tokens": self.input_image,
                "cached_tokens": self.cached,
            },
            "output_token_details": {"text_tokens": self.output_text, "audio_tokens": self.output_audio},
        })
    }

    pub(crate) fn transcription(self) -> Value {
        let mut usage = self.object();
        if let Some(fields) = usage.as_object_mut() {
            fields.insert("type".to_owned(), json!("tokens"));
        }
        usage
    }
}
