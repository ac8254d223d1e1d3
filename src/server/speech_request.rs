//! The fields of `POST /v1/audio/speech`.

use super::app::App;
use super::error::{ApiError, short};
use super::fields::Fields;
use super::options;
use super::reference::References;
use super::sampling;
use super::voice_request;
use omni_audio::{AudioFormat, MAX_SPEED, MIN_SPEED, Sound};
use omni_core::ids::Frames;
use omni_engine::{RequestOptions, SpeechParams, SpeechRequest, TextSource};
use serde_json::{Map, Value};

/// How the audio is sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Delivery {
    /// One body with its length.
    Whole,
    /// Raw bytes as they are made.
    Raw,
    /// Server-sent events with base64.
    Events,
}

/// A request, understood.
#[derive(Debug)]
pub(super) struct SpeechCall {
    pub request: SpeechRequest,
    pub sound: Sound,
    pub delivery: Delivery,
    /// Fields that mean nothing to this server.
    pub ignored: Vec<String>,
}

/// Fields besides the sampling ones.
const FIELDS: [&str; 11] = [
    "model",
    "input",
    "response_format",
    "speed",
    "stream",
    "stream_format",
    "seed",
    "max_new_tokens",
    "initial_codec_chunk_frames",
    "ignore_eos",
    "trace",
];
/// Known to peers, without meaning here.
const HARMLESS: [&str; 2] = ["user", "metadata"];
/// Known to peers; they would change the answer, so leaving them out silently would be wrong.
const REFUSED: [(&str, &str); 3] = [
    ("sample_rate", "the sample rate is the model's; resample in the player"),
    ("word_timestamps", "word timestamps are not supported"),
    ("extra_params", "there are no model-specific parameters"),
];

/// Reads a request, or says what is wrong with it.
pub(super) async fn parse(
    app: &App,
    body: &Map<String, Value>,
    references: &mut References<'_>,
) -> Result<SpeechCall, ApiError> {
    let fields = Fields::top(body);
    app.check_model(fields.string("model")?)?;
    let input = fields.string("input")?.ok_or_else(|| fields.missing("input", "the text to speak"))?;
    if input.trim().is_empty() {
        return Err(fields.invalid("input", "there is nothing to speak in an empty text"));
    }
    app.check_length("input", input.chars().count())?;
    refuse_what_would_change_the_answer(&fields)?;
    let sound = sound(app, &fields, AudioFormat::Wav)?;
    let delivery = delivery(&fields, sound.format)?;
    let mut params = params(app, &fields, references).await?;
    params.options = options::read(app, &fields, delivery != Delivery::Whole)?;
    let request = SpeechRequest { text: TextSource::Whole(input.to_owned()), params };
    let refused = REFUSED.map(|(field, _)| field);
    let ignored =
        fields.unknown(&[&FIELDS, &sampling::FIELDS, &voice_request::FIELDS, &options::FIELDS, &refused, &HARMLESS]);
    Ok(SpeechCall { request, sound, delivery, ignored })
}

/// Fields that peers know and we cannot honour.
pub(super) fn refuse_what_would_change_the_answer(fields: &Fields<'_>) -> Result<(), ApiError> {
    REFUSED.into_iter().try_for_each(|(field, why)| fields.refuse(field, why))
}

/// The fields that say how to speak, shared with the WebSocket's `session.config`.
pub(super) async fn params(
    app: &App,
    fields: &Fields<'_>,
    references: &mut References<'_>,
) -> Result<SpeechParams, ApiError> {
    let max_frames = fields.count("max_new_tokens")?.map(Frames);
    let ignore_eos = fields.boolean("ignore_eos")?.unwrap_or(false);
    if ignore_eos && max_frames.is_none() {
        return Err(fields.invalid("ignore_eos", "needs max_new_tokens, the number of frames to make"));
    }
    // For peers, 0 is no wish.
    let first = fields.integer("initial_codec_chunk_frames", 0..=i64::from(u32::MAX))?.filter(|frames| *frames > 0);
    let seed = fields.seed()?;
    let speech = sampling::overrides(fields)?;
    let asked = voice_request::read(app, fields, references).await?;
    Ok(SpeechParams {
        voice: asked.voice,
        task: asked.task,
        language: asked.language,
        instructions: asked.instructions,
        non_streaming: asked.non_streaming,
        speech,
        max_frames,
        ignore_eos,
        initial_chunk_frames: first.and_then(|frames| u32::try_from(frames).ok()).map(Frames),
        seed,
        options: RequestOptions::default(),
    })
}

/// `response_format` and `speed`.
pub(super) fn sound(app: &App, fields: &Fields<'_>, default: AudioFormat) -> Result<Sound, ApiError> {
    let speed = fields.float("speed", f64::from(MIN_SPEED)..=f64::from(MAX_SPEED))?.unwrap_or(1.0);
    Ok(Sound { format: format(app, fields, "response_format", default)?, speed })
}

/// An audio format field.
pub(super) fn format(
    app: &App,
    fields: &Fields<'_>,
    field: &str,
    default: AudioFormat,
) -> Result<AudioFormat, ApiError> {
    let Some(name) = fields.string(field)? else { return Ok(default) };
    let format = AudioFormat::parse(&short(name)).map_err(|why| fields.invalid(field, why))?;
    let rate = app.service.info().sample_rate;
    if !format.carries(rate) {
        let why =
            format_args!("{name:?} cannot carry this model's {rate} samples per second; ask for \"wav\" or \"flac\"");
        return Err(fields.invalid(field, why));
    }
    Ok(format)
}

/// What `stream` and `stream_format` mean together: OpenAI's clients send at most the latter, others the former.
fn delivery(fields: &Fields<'_>, format: AudioFormat) -> Result<Delivery, ApiError> {
    let stream = fields.boolean("stream")?;
    let stream_format = fields.string("stream_format")?;
    match (stream, stream_format) {
        (Some(false), Some("sse")) => {
            Err(fields.invalid("stream_format", "\"sse\" streams, but stream is false; leave one of them out"))
        }
        (Some(false), Some("audio") | None) => Ok(Delivery::Whole),
        (Some(true), None) | (_, Some("sse")) => Ok(Delivery::Events),
        (_, Some("audio")) => Ok(Delivery::Raw),
        // Some files say in front how long they are; what does not can leave at once.
        (None, None) if format.tells_length() => Ok(Delivery::Whole),
        (None, None) => Ok(Delivery::Raw),
        (_, Some(other)) => Err(fields
            .invalid("stream_format", format_args!("{:?} is unknown; ask for \"sse\" or \"audio\"", short(other)))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn delivered(body: &Value, format: AudioFormat) -> Delivery {
        delivery(&Fields::top(body.as_object().unwrap()), format).unwrap()
    }

    #[test]
    fn stream_alone_means_events_as_in_vllm_omni() {
        assert_eq!(delivered(&json!({"stream": true}), AudioFormat::Wav), Delivery::Events);
        assert_eq!(delivered(&json!({"stream": true, "stream_format": "audio"}), AudioFormat::Wav), Delivery::Raw);
    }

    #[test]
    fn stream_format_alone_is_enough_as_in_openai() {
        assert_eq!(delivered(&json!({"stream_format": "sse"}), AudioFormat::Pcm), Delivery::Events);
        assert_eq!(delivered(&json!({"stream_format": "audio"}), AudioFormat::Wav), Delivery::Raw);
    }

    #[test]
    fn without_either_what_says_its_length_is_whole_and_the_rest_flows() {
        for format in [AudioFormat::Pcm, AudioFormat::Mp3, AudioFormat::Opus] {
            assert_eq!(delivered(&json!({}), format), Delivery::Raw);
        }
        for format in [AudioFormat::Wav, AudioFormat::Flac] {
            assert_eq!(delivered(&json!({}), format), Delivery::Whole);
        }
        assert_eq!(delivered(&json!({"stream": false}), AudioFormat::Pcm), Delivery::Whole);
    }
}
