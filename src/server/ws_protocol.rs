//! What a session is told and how it is configured: between the messages of the wire and the engine.

use super::api::Fields;
use super::api::session::{AudioDone, ClientMessage, ServerMessage, SessionFields, SessionState};
use super::body::parse_object;
use super::error::{ApiError, whole_seconds};
use super::options;
use super::reference::References;
use super::speech_request::{params, sound};
use super::state::App;
use omni_audio::{AudioFormat, Sound};
use omni_engine::{FinishReason, SpeechParams, Usage};
use serde_json::{Map, Value};
use std::time::Duration;

/// Reads a message of a client.
pub(super) fn read(text: &str) -> Result<ClientMessage, ApiError> {
    Ok(ClientMessage::read(parse_object(text.as_bytes())?)?)
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
        let wire = SessionFields::read(&Fields::top(map))?;
        app.check_model(wire.model.model.as_deref())?;
        let sound = sound(app, &wire.sound, AudioFormat::Pcm)?;
        let options = options::read(app, &wire.deadlines, true)?;
        let mut references = References::new(&app.references);
        let speech = params(app, &wire.speech, wire.sampling, wire.voice, &mut references).await?;
        Ok(SessionConfig { sound, speech: SpeechParams { options, ..speech } })
    }

    /// What is in force.
    pub fn state<'a>(&'a self, app: &'a App) -> SessionState<'a> {
        let info = app.service.info();
        SessionState {
            model: &info.id,
            voice: self.speech.voice.name().or(info.default_voice.as_deref()),
            response_format: self.sound.format.as_str(),
            speed: self.sound.speed,
            sample_rate: info.sample_rate,
            seed: self.speech.seed,
        }
    }
}

/// An error, about an utterance or about a message.
pub(super) fn error_event(utterance: Option<u64>, error: &ApiError) -> ServerMessage<'_> {
    ServerMessage::Error {
        utterance,
        code: error.code,
        message: &error.message,
        param: error.param.as_deref(),
        retry_after_s: error.retry_after.map(whole_seconds),
    }
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
pub(super) fn done_event(utterance: u64, summary: &Summary) -> ServerMessage<'static> {
    let milliseconds = |time: Duration| (time.as_secs_f64() * 10_000.0).round() / 10.0;
    ServerMessage::Done(AudioDone {
        utterance,
        utterance_index: utterance - 1,
        sentence_index: 0,
        total_bytes: summary.bytes,
        error: false,
        finish_reason: summary.reason.into(),
        frames: summary.usage.frames.0,
        samples: summary.samples,
        seconds: summary.samples as f64 / f64::from(summary.sample_rate.max(1)),
        ttfa_ms: summary.first_audio.map(milliseconds),
        total_ms: milliseconds(summary.total),
        usage: summary.usage.into(),
    })
}

/// Answers an `input.done` when its utterance is over, spoken (`sentences` is 1) or not.
pub(super) fn session_done(utterance: Option<u64>, sentences: u32) -> ServerMessage<'static> {
    let utterance_index = utterance.map(|number| number - 1);
    ServerMessage::SessionDone { utterance, utterance_index, total_sentences: sentences }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn both_names_of_cancel_are_understood() {
        for name in ["input.cancel", "response.cancel"] {
            let message = read(&json!({ "type": name }).to_string());
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
            let error = read(message).unwrap_err();
            assert!(error.message.contains(expected), "{message}: {}", error.message);
        }
    }
}
