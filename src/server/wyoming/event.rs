//! The events of the Wyoming protocol that a server of speech takes and sends, as their data.

use super::frame::encode;
use crate::api::{FieldError, Fields, short};
use crate::error::ApiError;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

/// Bytes of one sample, and samples at a time.
const WIDTH: u32 = 2;
const CHANNELS: u32 = 1;
/// Longest text of a ping, bytes: it goes back.
const MAX_PING: usize = 256;

/// Who shall speak. Empty texts count as absent.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Voice {
    pub name: Option<String>,
    pub language: Option<String>,
    /// One of several speakers that a voice has; ours have names of their own.
    pub speaker: Option<String>,
}

/// An event of a client.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum ClientEvent {
    Describe,
    Ping {
        text: Option<String>,
    },
    /// A whole text.
    Synthesize {
        text: String,
        voice: Voice,
    },
    /// A text that comes in pieces.
    Start {
        voice: Voice,
    },
    Chunk {
        text: String,
    },
    Stop,
    /// An event of other servers, which the protocol wants ignored.
    Other,
}

#[derive(Deserialize)]
struct PingFields {
    text: Option<String>,
}

#[derive(Deserialize)]
struct TextFields {
    text: Option<String>,
}

#[derive(Deserialize)]
struct FormatFields {
    text_format: Option<String>,
}

#[derive(Deserialize)]
struct VoiceFields {
    name: Option<String>,
    language: Option<String>,
    speaker: Option<String>,
}

impl ClientEvent {
    /// Reads the data of an event.
    ///
    /// # Errors
    /// A field that is missing, of another type, too long, or asks for what the server cannot do.
    pub fn read(name: &str, data: &Map<String, Value>) -> Result<ClientEvent, FieldError> {
        let fields = Fields::top(data);
        Ok(match name {
            "describe" => ClientEvent::Describe,
            "ping" => {
                let PingFields { text } = fields.read()?;
                if text.as_ref().is_some_and(|text| text.len() > MAX_PING) {
                    return Err(FieldError::invalid("text", format_args!("is longer than {MAX_PING} bytes")));
                }
                ClientEvent::Ping { text }
            }
            "synthesize" => ClientEvent::Synthesize { text: text(&fields)?, voice: voice(&fields)? },
            "synthesize-start" => ClientEvent::Start { voice: voice(&fields)? },
            "synthesize-chunk" => ClientEvent::Chunk { text: text(&fields)? },
            "synthesize-stop" => ClientEvent::Stop,
            _ => ClientEvent::Other,
        })
    }
}

fn text(fields: &Fields<'_>) -> Result<String, FieldError> {
    let TextFields { text } = fields.read()?;
    text.ok_or_else(|| FieldError::missing("text", "the text to speak"))
}

fn voice(fields: &Fields<'_>) -> Result<Voice, FieldError> {
    let FormatFields { text_format } = fields.read()?;
    if let Some(format) = text_format.filter(|format| !format.is_empty() && format != "text") {
        let message = format_args!("{:?} is not spoken; send plain text, with \"text\" or no format", short(&format));
        return Err(FieldError { code: "unsupported_parameter", ..FieldError::invalid("text_format", message) });
    }
    let Some(fields) = fields.object("voice")? else { return Ok(Voice::default()) };
    let VoiceFields { name, language, speaker } = fields.read()?;
    let given = |text: Option<String>| text.filter(|text| !text.trim().is_empty());
    Ok(Voice { name: given(name), language: given(language), speaker: given(speaker) })
}

/// What a program or a voice is, and who made it.
#[derive(Serialize)]
pub(super) struct Attribution {
    pub name: String,
    pub url: &'static str,
}

/// A voice that clients may name.
#[derive(Serialize)]
pub(super) struct VoiceEntry {
    pub name: String,
    pub attribution: Attribution,
    pub installed: bool,
    pub description: Option<String>,
    pub version: Option<String>,
    /// Codes, such as `en`.
    pub languages: Vec<String>,
    /// Always `None`: each of our voices is one speaker.
    pub speakers: Option<()>,
}

/// What speaks.
#[derive(Serialize)]
pub(super) struct Program {
    pub name: &'static str,
    pub attribution: Attribution,
    pub installed: bool,
    pub description: String,
    pub version: &'static str,
    pub voices: Vec<VoiceEntry>,
    pub supports_synthesize_streaming: bool,
}

/// The answer to `describe`: every kind of server, and that this one speaks.
#[derive(Default, Serialize)]
pub(super) struct Info {
    pub asr: [(); 0],
    pub tts: Vec<Program>,
    pub handle: [(); 0],
    pub intent: [(); 0],
    pub wake: [(); 0],
    pub mic: [(); 0],
    pub snd: [(); 0],
}

#[derive(Serialize)]
struct Pong<'a> {
    text: Option<&'a str>,
}

#[derive(Serialize)]
struct Audio {
    rate: u32,
    width: u32,
    channels: u32,
    /// Milliseconds of speech before.
    timestamp: u64,
}

#[derive(Serialize)]
struct Stop {
    timestamp: u64,
}

#[derive(Serialize)]
struct Error<'a> {
    text: &'a str,
    code: &'static str,
}

#[derive(Serialize)]
struct Nothing {}

pub(super) fn info(info: &Info) -> Vec<u8> {
    encode("info", info, &[])
}

pub(super) fn pong(text: Option<&str>) -> Vec<u8> {
    encode("pong", &Pong { text }, &[])
}

/// Speech of this sample rate begins: 16 bits, mono.
pub(super) fn audio_start(rate: u32) -> Vec<u8> {
    encode("audio-start", &Audio { rate, width: WIDTH, channels: CHANNELS, timestamp: 0 }, &[])
}

/// Samples as little-endian PCM, after `before` others.
pub(super) fn audio_chunk(rate: u32, before: u64, pcm: &[u8]) -> Vec<u8> {
    let timestamp = milliseconds(rate, before);
    encode("audio-chunk", &Audio { rate, width: WIDTH, channels: CHANNELS, timestamp }, pcm)
}

/// Speech ends after so many samples.
pub(super) fn audio_stop(rate: u32, samples: u64) -> Vec<u8> {
    encode("audio-stop", &Stop { timestamp: milliseconds(rate, samples) }, &[])
}

/// All text of a stream has been spoken.
pub(super) fn synthesize_stopped() -> Vec<u8> {
    encode("synthesize-stopped", &Nothing {}, &[])
}

pub(super) fn error(error: &ApiError) -> Vec<u8> {
    encode("error", &Error { text: &error.message, code: error.code }, &[])
}

fn milliseconds(rate: u32, samples: u64) -> u64 {
    samples.saturating_mul(1000) / u64::from(rate.max(1))
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn read(name: &str, data: Value) -> Result<ClientEvent, FieldError> {
        ClientEvent::read(name, data.as_object().unwrap())
    }

    #[test]
    fn events_of_home_assistant_are_read() {
        let voice = Voice { name: Some("heart".to_owned()), ..Voice::default() };
        let asked = json!({"text": "Hi.", "voice": {"name": "heart", "speaker": null}, "context": {"a": [1]}});
        let event = ClientEvent::Synthesize { text: "Hi.".to_owned(), voice: voice.clone() };
        assert_eq!(read("synthesize", asked), Ok(event));
        assert_eq!(read("synthesize-start", json!({"voice": {"name": "heart"}})), Ok(ClientEvent::Start { voice }));
        let none = ClientEvent::Start { voice: Voice::default() };
        assert_eq!(read("synthesize-start", json!({"voice": {"language": ""}, "text_format": "text"})), Ok(none));
        assert_eq!(read("transcribe", json!({"text": 7})), Ok(ClientEvent::Other));
    }

    #[test]
    fn bad_fields_are_named() {
        for (name, data, says) in [
            ("synthesize", json!({}), "text is missing"),
            ("synthesize-chunk", json!({"text": ["a"]}), "text: expected a string, found an array"),
            ("synthesize", json!({"text": "a", "voice": "heart"}), "voice: expected an object, found a string"),
            ("synthesize", json!({"text": "a", "voice": {"name": 3}}), "voice.name: expected a string"),
            ("synthesize-start", json!({"text_format": "ssml"}), "text_format: \"ssml\" is not spoken"),
            ("ping", json!({"text": "x".repeat(257)}), "text: is longer than 256 bytes"),
        ] {
            let error = read(name, data).unwrap_err();
            assert!(error.message.contains(says), "{name}: {}", error.message);
        }
    }
}
