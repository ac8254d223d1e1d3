//! Messages of `WS /v1/audio/speech/stream`, both ways.

use super::fields::{FieldError, Fields};
use super::speech::{
    Beginning, Deadlines, Finish, Measuring, Model, REFUSED, Sampling, SoundFields, SpeechFields, SpeechUsage,
    SpokenWord, VoiceFields, Words,
};
use super::values::short;
use super::wording::Wording;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

/// A message of a client.
#[derive(Debug, PartialEq, JsonSchema)]
#[schemars(tag = "type")]
pub(crate) enum ClientMessage {
    /// How the following utterances are spoken; a field that is left out goes back to its default. The fields are read
    /// when the session takes the message.
    #[schemars(rename = "session.config")]
    Config(#[schemars(with = "SessionFields<'static>")] Map<String, Value>),
    /// A piece of text; the first one begins an utterance.
    #[schemars(rename = "input.text")]
    Text(InputText),
    /// A sentence ends here.
    #[schemars(rename = "input.commit")]
    Commit(InputCommit),
    /// The text of the utterance is complete.
    #[schemars(rename = "input.done")]
    Done,
    /// Stop now and drop the text that waits. `response.cancel` is another name of it.
    #[schemars(rename = "input.cancel")]
    Cancel,
    /// Speak the text that is there, then close.
    #[schemars(rename = "session.close")]
    Close,
}

/// A piece of text.
#[derive(Debug, PartialEq, Deserialize, JsonSchema)]
pub(crate) struct InputText {
    /// Pieces are joined as they are.
    #[schemars(required)]
    pub text: Option<String>,
}

/// Longest name of a commit, in bytes: it goes back to the client.
const MAX_COMMIT_ID: usize = 256;

/// The end of a sentence.
#[derive(Debug, PartialEq, Deserialize, JsonSchema)]
pub(crate) struct InputCommit {
    /// The client's name for it, at most 256 bytes, which `input.committed` repeats.
    #[schemars(length(max = MAX_COMMIT_ID))]
    pub commit_id: Option<String>,
}

/// What the message is.
#[derive(Deserialize)]
struct Kind {
    #[serde(rename = "type")]
    kind: Option<String>,
}

const TYPES: &str =
    "session.config, input.text, input.commit, input.done, input.cancel (or response.cancel), session.close";

impl ClientMessage {
    /// Reads the object of a message.
    pub fn read(map: Map<String, Value>) -> Result<ClientMessage, FieldError> {
        let fields = Fields::top(&map);
        let Kind { kind } = fields.read()?;
        match kind.ok_or_else(|| FieldError::missing("type", TYPES))?.as_str() {
            "session.config" => Ok(ClientMessage::Config(map)),
            "input.text" => match fields.read()? {
                InputText { text: None } => Err(FieldError::missing("text", "a piece of text")),
                text => Ok(ClientMessage::Text(text)),
            },
            "input.commit" => match fields.read()? {
                InputCommit { commit_id: Some(id) } if id.len() > MAX_COMMIT_ID => {
                    let message = format_args!("is longer than {MAX_COMMIT_ID} bytes");
                    Err(FieldError::invalid("commit_id", message))
                }
                commit => Ok(ClientMessage::Commit(commit)),
            },
            "input.done" => Ok(ClientMessage::Done),
            "input.cancel" | "response.cancel" => Ok(ClientMessage::Cancel),
            "session.close" => Ok(ClientMessage::Close),
            other => {
                let message = format_args!("{:?} is unknown; send one of: {TYPES}", short(other));
                Err(FieldError::invalid("type", message))
            }
        }
    }
}

/// The fields of `session.config`: those of the speech route that say how to speak.
#[derive(Debug, JsonSchema)]
pub(crate) struct SessionFields<'a> {
    #[schemars(flatten)]
    pub model: Model,
    #[schemars(flatten)]
    pub wording: Wording,
    #[schemars(flatten)]
    pub sound: SoundFields,
    #[schemars(flatten)]
    pub speech: SpeechFields,
    #[schemars(flatten)]
    pub sampling: Sampling,
    #[schemars(flatten)]
    pub voice: VoiceFields<'a>,
    #[schemars(flatten)]
    pub deadlines: Deadlines,
    #[schemars(flatten)]
    pub beginning: Beginning,
    #[schemars(flatten)]
    pub words: Words,
}

impl<'a> SessionFields<'a> {
    /// Reads the object of a `session.config`.
    pub fn read(fields: &Fields<'a>) -> Result<SessionFields<'a>, FieldError> {
        let model = fields.read()?;
        fields.refuse(REFUSED)?;
        if fields.read::<Measuring>()?.ignore_eos == Some(true) {
            let message = "is for POST /v1/audio/speech, where the text is whole";
            return Err(FieldError::invalid("ignore_eos", message));
        }
        fields
            .refuse(&[("loudness", "is known at the end of an answer; ask POST /v1/audio/speech for a whole one")])?;
        Ok(SessionFields {
            model,
            wording: fields.read()?,
            sound: fields.read()?,
            speech: fields.read()?,
            sampling: fields.read()?,
            voice: fields.read()?,
            deadlines: fields.read()?,
            beginning: fields.read()?,
            words: fields.read()?,
        })
    }
}

/// A message of the server.
#[derive(Serialize, JsonSchema)]
#[serde(tag = "type")]
pub(crate) enum ServerMessage<'a> {
    /// The first message.
    #[serde(rename = "session.created")]
    Created {
        #[serde(flatten)]
        session: SessionState<'a>,
        /// The names that `voice` may be.
        voices: Vec<String>,
    },
    /// Answers `session.config`.
    #[serde(rename = "session.updated")]
    Updated {
        #[serde(flatten)]
        session: SessionState<'a>,
    },
    /// Speech begins. Binary frames up to the end of the utterance are its audio, joined a file.
    #[serde(rename = "audio.start")]
    Start {
        /// Number of the utterance, from 1.
        utterance: u64,
        /// The same from 0.
        utterance_index: u64,
        /// 0: an utterance is one stream of audio.
        sentence_index: u32,
        /// The text that had come by now.
        sentence_text: String,
        /// The request's name in logs and metrics.
        request_id: String,
        /// The seed that makes it again.
        seed: u64,
        /// Samples per second.
        sample_rate: u32,
        /// 1.
        channels: u32,
        /// The audio format.
        format: &'static str,
        /// The first sample that is sent.
        start_sample: u64,
    },
    /// A word of the utterance's text, where they are asked for. It comes before or soon after its sound.
    #[serde(rename = "audio.word")]
    Word {
        /// Number of the utterance, from 1.
        utterance: u64,
        /// The same from 0.
        utterance_index: u64,
        #[serde(flatten)]
        word: SpokenWord,
    },
    /// The last message of an utterance that went well.
    #[serde(rename = "audio.done")]
    Done(AudioDone),
    /// Answers `input.done` when its utterance is over, spoken or not.
    #[serde(rename = "session.done")]
    SessionDone {
        /// Null if it was dropped before it began.
        utterance: Option<u64>,
        /// The same from 0.
        utterance_index: Option<u64>,
        /// 1, or 0 if no speech was made.
        total_sentences: u32,
    },
    /// Answers `input.commit`.
    #[serde(rename = "input.committed")]
    Committed {
        /// As it was sent.
        commit_id: Option<String>,
        /// Which sentence of the utterance, from 0.
        sentence_index: u32,
    },
    /// Answers `input.cancel`.
    #[serde(rename = "audio.cancelled")]
    Cancelled {
        /// Null if nothing was being spoken.
        utterance: Option<u64>,
        /// How many of its samples were sent.
        samples: u64,
    },
    /// An utterance failed, or a message makes no sense and changed nothing.
    #[serde(rename = "error")]
    Error {
        /// Null if it is about a message.
        utterance: Option<u64>,
        /// A stable word for programs.
        code: &'static str,
        /// What happened and what to do, in one sentence.
        message: &'a str,
        /// The field at fault.
        param: Option<&'a str>,
        /// Seconds after which the same may succeed.
        #[serde(skip_serializing_if = "Option::is_none")]
        retry_after_s: Option<u64>,
    },
    /// Answers `session.close`; then the connection is closed.
    #[serde(rename = "session.closed")]
    Closed {
        /// How many there were.
        utterances: u64,
    },
}

/// What is in force.
#[derive(Serialize, JsonSchema)]
pub(crate) struct SessionState<'a> {
    pub model: &'a str,
    /// Null where the voice has no name.
    pub voice: Option<&'a str>,
    /// The audio format.
    pub response_format: &'static str,
    /// How many times as fast.
    pub speed: f32,
    /// Samples per second.
    pub sample_rate: u32,
    /// Null: one is drawn for each utterance.
    pub seed: Option<u64>,
}

/// What an utterance was.
#[derive(Serialize, JsonSchema)]
pub(crate) struct AudioDone {
    /// Number of the utterance, from 1.
    pub utterance: u64,
    /// The same from 0.
    pub utterance_index: u64,
    /// 0: an utterance is one stream of audio.
    pub sentence_index: u32,
    /// Bytes of audio sent.
    pub total_bytes: u64,
    /// False.
    pub error: bool,
    /// Why it ended.
    pub finish_reason: Finish,
    /// Frames made.
    pub frames: u32,
    /// Samples sent.
    pub samples: u64,
    /// The same in seconds.
    pub seconds: f64,
    /// Milliseconds from the first text to the first audio; null without audio.
    pub ttfa_ms: Option<f64>,
    /// Milliseconds from the first text to the end.
    pub total_ms: f64,
    pub usage: SpeechUsage,
}
