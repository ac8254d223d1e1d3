//! What a session is told and how it is configured: between the messages of the wire and the engine.

use super::api::Fields;
use super::api::measure::JsonLimits;
use super::api::session::{AudioDone, ClientMessage, ServerMessage, SessionFields, SessionState};
use super::body::parse_object;
use super::budget::Held;
use super::error::{ApiError, whole_seconds};
use super::options;
use super::reference::References;
use super::speech_request::{begun, params, sound, words};
use super::state::App;
use omni_audio::{AudioFormat, Sound};
use omni_engine::{FinishReason, RequestOptions, Slo, SpeechParams, Usage, VoiceChoice};
use serde_json::{Map, Value};
use std::sync::Arc;
use std::time::Duration;

/// Reads a message of a client. `held` is its part of the budget; what comes back is that of its fields.
pub(super) async fn read(text: String, limits: JsonLimits, held: Held) -> Result<(ClientMessage, Held), ApiError> {
    let (object, held) = parse_object(text.into_bytes(), limits, held).await?;
    Ok((ClientMessage::read(object)?, held))
}

/// What a recording is refused with where it would be kept in vain.
const NO_CLONING: &str =
    "ref_audio: voice cloning needs a Qwen3-TTS Base checkpoint; choose a voice of /v1/audio/voices";

/// Bytes that the texts and numbers of a configuration take, recordings not counted.
fn size(speech: &SpeechParams) -> usize {
    let text = |text: &Option<String>| text.as_ref().map_or(0, String::len);
    let voice = match &speech.voice {
        VoiceChoice::Clone(recording) => text(&recording.text),
        VoiceChoice::Embedding(embedding) => size_of_val(&embedding[..]),
        _ => 0,
    };
    let pronunciations = speech.pronunciations.as_ref().map_or(0, |list| list.bytes());
    pronunciations + voice + text(&speech.instructions) + text(&speech.language)
}

/// How the utterances of a session are spoken, until the next `session.config`.
#[derive(Debug)]
pub(super) struct SessionConfig {
    /// Where it begins is for the next utterance alone.
    pub sound: Sound,
    /// A request without its text.
    pub speech: SpeechParams,
    /// The parts of the budget for the texts and for the recording.
    _held: (Held, Option<Arc<Held>>),
}

impl SessionConfig {
    /// The configuration of a session that was not told any.
    pub fn initial(app: &App) -> SessionConfig {
        let slo = Slo::Realtime(app.limits().first_audio_deadline);
        let options = RequestOptions { slo, ..RequestOptions::default() };
        let speech = SpeechParams { options, ..SpeechParams::default() };
        SessionConfig { sound: AudioFormat::Pcm.into(), speech, _held: (Held::nothing(&app.budget), None) }
    }

    /// Reads a whole configuration: a field that is left out has its default, whatever was set before.
    pub async fn parse(app: &App, map: &Map<String, Value>) -> Result<SessionConfig, ApiError> {
        let wire = SessionFields::read(&Fields::top(map))?;
        app.check_model(wire.model.model.as_deref())?;
        let sound = sound(app, &wire.sound, AudioFormat::Pcm)?;
        let sound = begun(sound, &wire.beginning, &wire.speech)?;
        let options = options::read(app, &wire.deadlines, true)?;
        let words = words(app, &wire.words)?;
        if wire.voice.ref_audio.is_some() && !app.clones() {
            return Err(ApiError::invalid("ref_audio", NO_CLONING));
        }
        let mut references = References::new(&app.references, &app.budget);
        let speech = params(app, &wire.speech, wire.wording, wire.sampling, wire.voice, &mut references).await?;
        let mut held = Held::nothing(&app.budget);
        if !held.take(size(&speech)) {
            return Err(held.exhausted());
        }
        let speech = SpeechParams { options, words, ..speech };
        Ok(SessionConfig { sound, speech, _held: (held, references.held()) })
    }

    /// What is in force.
    pub fn state<'a>(&'a self, app: &'a App) -> SessionState<'a> {
        let info = app.service.info();
        SessionState {
            model: &info.id,
            voice: self.speech.voice.name().or(info.default_voice.as_deref()),
            response_format: self.sound.format.as_str(),
            speed: self.sound.speed,
            sample_rate: self.sound.rate(info.sample_rate),
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

/// Why a connection is closed, as RFC 6455 numbers it.
pub(super) mod close_code {
    pub const NORMAL: u16 = 1000;
    pub const AWAY: u16 = 1001;
    pub const PROTOCOL: u16 = 1002;
    pub const INVALID: u16 = 1007;
    pub const POLICY: u16 = 1008;
    pub const SIZE: u16 = 1009;
    pub const AGAIN: u16 = 1013;
}

#[cfg(test)]
mod tests {
    use super::super::budget::{Budget, What};
    use super::*;
    use metrics::Gauge;
    use serde_json::json;

    fn read(text: &str) -> Result<ClientMessage, ApiError> {
        let budget = Budget::new(What::Input, 1 << 20, Gauge::noop());
        let read = super::read(text.to_owned(), JsonLimits { values: 100, depth: 8 }, Held::nothing(&budget));
        futures::executor::block_on(read).map(|(message, _)| message)
    }

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
