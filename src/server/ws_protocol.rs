//! Messages of `WS /v1/audio/speech/stream`, both ways.

use super::app::App;
use super::body::parse_object;
use super::error::{ApiError, short};
use super::fields::Fields;
use super::options;
use super::reference::References;
use super::speech_request::{params, refuse_what_would_change_the_answer, sound};
use omni_audio::{AudioFormat, Sound};
use omni_engine::{FinishReason, SpeechParams, Usage};
use serde_json::{Map, Value, json};
use std::time::Duration;

/// What a client says.
#[derive(Debug, PartialEq)]
pub(super) enum ClientMessage {
    Config(Map<String, Value>),
    Text(String),
    /// What has been said so far is a sentence; the client's name for it.
    Commit(Option<String>),
    /// The utterance's text is complete.
    Done,
    /// Stop now and drop what is waiting.
    Cancel,
    /// Speak what is waiting, then close.
    Close,
}

const TYPES: &str =
    "session.config, input.text, input.commit, input.done, input.cancel (or response.cancel), session.close";

impl ClientMessage {
    pub fn parse(text: &str) -> Result<ClientMessage, ApiError> {
        let map = parse_object(text.as_bytes())?;
        let fields = Fields::top(&map);
        let kind = fields.string("type")?.ok_or_else(|| fields.missing("type", TYPES))?;
        match kind {
            "session.config" => Ok(ClientMessage::Config(map)),
            "input.text" => {
                let text = fields.string("text")?.ok_or_else(|| fields.missing("text", "a piece of text"))?;
                Ok(ClientMessage::Text(text.to_owned()))
            }
            "input.commit" => Ok(ClientMessage::Commit(fields.string("commit_id")?.map(str::to_owned))),
            "input.done" => Ok(ClientMessage::Done),
            "input.cancel" | "response.cancel" => Ok(ClientMessage::Cancel),
            "session.close" => Ok(ClientMessage::Close),
            other => Err(fields.invalid("type", format_args!("{:?} is unknown; send one of: {TYPES}", short(other)))),
        }
    }
}

/// How the utterances of a session are spoken, until the next `session.config`.
#[derive(Debug)]
pub(super) struct SessionConfig {
    pub sound: Sound,
    /// A request without its text.
    pub speech: SpeechParams,
}

impl SessionConfig {
    /// Reads a whole configuration: a field that is left out has its default, whatever was set before.
    pub async fn parse(app: &App, map: &Map<String, Value>) -> Result<SessionConfig, ApiError> {
        let fields = Fields::top(map);
        app.check_model(fields.string("model")?)?;
        refuse_what_would_change_the_answer(&fields)?;
        let sound = sound(app, &fields, AudioFormat::Pcm)?;
        let mut speech = params(app, &fields, &mut References::new(&app.references)).await?;
        speech.options = options::read(app, &fields, true)?;
        if speech.ignore_eos {
            return Err(fields.invalid("ignore_eos", "is for POST /v1/audio/speech, where the text is whole"));
        }
        Ok(SessionConfig { sound, speech })
    }

    /// For the events that tell a client what is in force.
    pub fn object(&self, app: &App) -> Value {
        let info = app.service.info();
        json!({
            "model": info.id,
            "voice": self.speech.voice.name().or(info.default_voice.as_deref()),
            "response_format": self.sound.format.as_str(),
            "speed": self.sound.speed,
            "sample_rate": info.sample_rate,
            "seed": self.speech.seed,
        })
    }
}

/// An error, about an utterance or about a message.
pub(super) fn error_event(utterance: Option<u64>, error: &ApiError) -> Value {
    let mut event = json!({
        "type": "error",
        "utterance": utterance,
        "code": error.code,
        "message": error.message,
        "param": error.param,
    });
    if let Some(after) = error.retry_after {
        event["retry_after_s"] = json!(super::error::whole_seconds(after));
    }
    event
}

/// What is told at the end of an utterance.
#[derive(Clone, Copy, Debug)]
pub(super) struct Summary {
    pub reason: FinishReason,
    pub usage: Usage,
    pub samples: u64,
    pub bytes: u64,
    pub sample_rate: u32,
    /// From the first text to the first audio; `None` if there was no audio.
    pub first_audio: Option<Duration>,
    pub total: Duration,
}

/// The last event of an utterance that went well.
pub(super) fn done_event(utterance: u64, summary: &Summary) -> Value {
    let milliseconds = |time: Duration| (time.as_secs_f64() * 10_000.0).round() / 10.0;
    json!({
        "type": "audio.done",
        "utterance": utterance,
        "utterance_index": utterance - 1,
        "sentence_index": 0,
        "total_bytes": summary.bytes,
        "error": false,
        "finish_reason": summary.reason,
        "frames": summary.usage.frames,
        "samples": summary.samples,
        "seconds": summary.samples as f64 / f64::from(summary.sample_rate.max(1)),
        "ttfa_ms": summary.first_audio.map(milliseconds),
        "total_ms": milliseconds(summary.total),
        "usage": super::speech::usage_object(summary.usage),
    })
}

/// Answers an `input.done` when its utterance is over, spoken (`sentences` is 1) or not.
pub(super) fn session_done(utterance: Option<u64>, sentences: u32) -> Value {
    json!({
        "type": "session.done",
        "utterance": utterance,
        "utterance_index": utterance.map(|number| number - 1),
        "total_sentences": sentences,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn both_names_of_cancel_are_understood() {
        for name in ["input.cancel", "response.cancel"] {
            let message = ClientMessage::parse(&json!({ "type": name }).to_string());
            assert_eq!(message, Ok(ClientMessage::Cancel));
        }
    }

    #[test]
    fn malformed_messages_say_what_is_expected() {
        for (message, expected) in [
            ("{", "not valid JSON"),
            ("[]", "expected a JSON object, found an array"),
            ("{}", "type is missing"),
            (r#"{"type": "speak"}"#, "send one of: session.config"),
            (r#"{"type": 7}"#, "expected a string, found a number"),
            (r#"{"type": "input.text"}"#, "text is missing"),
        ] {
            let error = ClientMessage::parse(message).unwrap_err();
            assert!(error.message.contains(expected), "{message}: {}", error.message);
        }
    }
}
