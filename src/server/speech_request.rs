//! What the fields of a speech request mean together, and against the model.

use super::api::speech::{
    Beginning, Delivery as DeliveryFields, HARMLESS, Sampling, SoundFields, SpeechFields, SpeechRequest as Wire, Words,
};
use super::api::speech::{SpokenText, VoiceFields};
use super::api::values::{FormatName, StreamFormat, or_list};
use super::api::wording::Wording;
use super::api::{FieldError, Fields};
use super::error::ApiError;
use super::options;
use super::reference::References;
use super::state::App;
use super::voice_request;
use omni_audio::{AudioFormat, SAMPLE_RATES, Sound};
use omni_core::ids::Frames;
use omni_engine::{NO_ALIGNER, RequestOptions, SpeechParams, SpeechRequest, TextSource};

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
    /// Whether it is to be traced.
    pub trace: Option<bool>,
    /// Fields that mean nothing to this server.
    pub ignored: Vec<String>,
}

/// The fields of a request, and the names of those that mean nothing to this server.
fn read(fields: Fields<'_>) -> Result<(Wire<'_>, Vec<String>), FieldError> {
    Ok((Wire::read(&fields)?, fields.unknown(HARMLESS)))
}

/// Reads a request, or says what is wrong with it.
pub(super) async fn parse(
    app: &App,
    fields: Fields<'_>,
    references: &mut References<'_>,
) -> Result<SpeechCall, ApiError> {
    let (wire, ignored) = read(fields)?;
    app.check_model(wire.model.model.as_deref())?;
    let input = wire.text.input.ok_or_else(SpokenText::missing)?;
    if input.trim().is_empty() {
        return Err(FieldError::invalid("input", "there is nothing to speak in an empty text").into());
    }
    app.check_length("input", input.chars().count())?;
    let loudness = wire.level.loudness.map(|loudness| loudness.0);
    let sound = Sound { loudness, ..sound(app, &wire.sound, AudioFormat::Wav)? };
    let sound = begun(sound, &wire.beginning, &wire.speech)?;
    let words = words(app, &wire.words)?;
    let delivery = delivery(&wire.delivery, &sound, words)?;
    let options = options::read(app, &wire.deadlines, delivery != Delivery::Whole)?;
    let mut params = params(app, &wire.speech, wire.wording, wire.sampling, wire.voice, references).await?;
    (params.options, params.words) = (options, words);
    params.whole = delivery == Delivery::Whole;
    params.ignore_eos = wire.measuring.ignore_eos.unwrap_or(false);
    if params.ignore_eos && params.max_frames.is_none() {
        let message = "needs max_new_tokens, the number of frames to make";
        return Err(FieldError::invalid("ignore_eos", message).into());
    }
    let request = SpeechRequest { text: TextSource::Whole(input.to_owned()), params };
    Ok(SpeechCall { request, sound, delivery, trace: wire.tracing.trace, ignored })
}

/// How to speak, for a request and for a session.
pub(super) async fn params(
    app: &App,
    speech: &SpeechFields,
    wording: Wording,
    sampling: Sampling,
    voice: VoiceFields<'_>,
    references: &mut References<'_>,
) -> Result<SpeechParams, ApiError> {
    let asked = voice_request::resolve(app, voice, references).await?;
    let first = speech.initial_codec_chunk_frames.map(|frames| frames.0).filter(|frames| *frames > 0);
    Ok(SpeechParams {
        voice: asked.voice,
        task: asked.task,
        language: asked.language,
        instructions: asked.instructions,
        non_streaming: asked.non_streaming,
        speech: sampling.into(),
        max_frames: speech.max_new_tokens.map(|frames| Frames(frames.0)),
        ignore_eos: false,
        initial_chunk_frames: first.map(Frames),
        words: false,
        seed: speech.seed.map(|seed| seed.0),
        markup: wording.markup.and_then(|name| name.0),
        voice_names: app.voice_finder().names(),
        pronunciations: wording.pronunciations.map(|list| list.0),
        whole: false,
        options: RequestOptions::default(),
    })
}

/// Whether the times of words are asked for.
///
/// # Errors
/// 400: the checkpoint has no aligner.
pub(super) fn words(app: &App, wire: &Words) -> Result<bool, FieldError> {
    if wire.asked() && !app.service.info().word_times {
        return Err(FieldError::invalid("timestamp_granularities", NO_ALIGNER));
    }
    Ok(wire.asked())
}

/// Format, coding, sample rate and speed.
pub(super) fn sound(app: &App, wire: &SoundFields, default: AudioFormat) -> Result<Sound, FieldError> {
    let format = wire.response_format.map_or(default, |FormatName(format)| format);
    if wire.encoding.is_some() && format != AudioFormat::Wav {
        let message = format_args!(
            "is for \"wav\", not for {:?}; bare G.711 has the formats \"mulaw\" and \"alaw\"",
            format.as_str()
        );
        return Err(FieldError::invalid("encoding", message));
    }
    let sound = Sound {
        speed: wire.speed.map_or(1.0, |speed| speed.0),
        sample_rate: wire.sample_rate.map(|rate| rate.0),
        law: wire.encoding.and_then(|encoding| encoding.0),
        ..format.into()
    };
    carried(app, "response_format", &sound)?;
    Ok(sound)
}

/// The sound from the sample on where it is to begin.
pub(super) fn begun(sound: Sound, wire: &Beginning, speech: &SpeechFields) -> Result<Sound, FieldError> {
    let start = wire.start_sample.map_or(0, |sample| sample.0);
    if start > 0 {
        needs_seed(speech.seed.map(|seed| seed.0))?;
    }
    Ok(Sound { start, ..sound })
}

/// Refuses to begin behind the start of an answer that would not be the same again.
///
/// # Errors
/// 400: the request has no seed.
pub(super) fn needs_seed(seed: Option<u64>) -> Result<(), FieldError> {
    match seed {
        Some(_) => Ok(()),
        None => Err(FieldError::missing("seed", "the seed of the answer that is to go on, which X-Seed told")),
    }
}

/// Refuses a sample rate that the format does not carry; `field` is that of the format.
pub(super) fn carried(app: &App, field: &str, sound: &Sound) -> Result<(), FieldError> {
    let (format, rate) = (sound.format, sound.rate(app.service.info().sample_rate));
    if format.carries(rate) {
        return Ok(());
    }
    let name = format.as_str();
    if sound.sample_rate.is_none() {
        let why = format_args!("{name:?} cannot carry this model's {rate} samples per second; ask for sample_rate too");
        return Err(FieldError::invalid(field, why));
    }
    let carried: Vec<u32> = SAMPLE_RATES.into_iter().filter(|rate| format.carries(*rate)).collect();
    let why = format_args!("{name:?} cannot carry {rate} samples per second; ask for {}", or_list(&carried));
    Err(FieldError::invalid("sample_rate", why))
}

/// What `stream` and `stream_format` mean together: OpenAI's clients send at most the latter, others the former.
fn delivery(wire: &DeliveryFields, sound: &Sound, words: bool) -> Result<Delivery, FieldError> {
    if words && wire.stream_format == Some(StreamFormat::Audio) {
        let message =
            "\"audio\" is the bytes of the file alone, without times of words; ask for \"sse\", or leave it out";
        return Err(FieldError::invalid("stream_format", message));
    }
    if sound.loudness.is_some() {
        let streams = wire.stream == Some(true) || wire.stream_format.is_some() && wire.stream != Some(false);
        let message = "is known at the end of the speech, so that the answer comes whole; leave the stream out";
        return if streams { Err(FieldError::invalid("loudness", message)) } else { Ok(Delivery::Whole) };
    }
    match (wire.stream, wire.stream_format) {
        (Some(false), Some(StreamFormat::Sse)) => {
            let message = "\"sse\" streams, but stream is false; leave one of them out";
            Err(FieldError::invalid("stream_format", message))
        }
        (Some(false), Some(StreamFormat::Audio) | None) => Ok(Delivery::Whole),
        (Some(true), None) | (_, Some(StreamFormat::Sse)) => Ok(Delivery::Events),
        (_, Some(StreamFormat::Audio)) => Ok(Delivery::Raw),
        // A format that says in front how long the file is waits for its end; the others leave at once.
        (None, None) if words || sound.format.tells_length() => Ok(Delivery::Whole),
        (None, None) => Ok(Delivery::Raw),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::{Value, json};

    fn delivered(body: &Value, format: AudioFormat) -> Delivery {
        let wire = Fields::top(body.as_object().unwrap()).read().unwrap();
        delivery(&wire, &format.into(), false).unwrap()
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
    fn without_either_a_format_that_says_its_length_comes_whole() {
        for format in [AudioFormat::Pcm, AudioFormat::Mp3, AudioFormat::Opus] {
            assert_eq!(delivered(&json!({}), format), Delivery::Raw);
        }
        for format in [AudioFormat::Wav, AudioFormat::Flac] {
            assert_eq!(delivered(&json!({}), format), Delivery::Whole);
        }
        assert_eq!(delivered(&json!({"stream": false}), AudioFormat::Pcm), Delivery::Whole);
    }

    #[test]
    fn an_answer_of_a_loudness_comes_whole_and_is_not_streamed() {
        let sound = Sound { loudness: Some(-16.0), ..AudioFormat::Pcm.into() };
        let read = |body: Value| {
            let wire = Fields::top(body.as_object().unwrap()).read().unwrap();
            delivery(&wire, &sound, false)
        };
        assert_eq!(read(json!({})), Ok(Delivery::Whole));
        assert_eq!(read(json!({"stream": false})), Ok(Delivery::Whole));
        for body in [json!({"stream": true}), json!({"stream_format": "sse"}), json!({"stream_format": "audio"})] {
            assert_eq!(read(body).unwrap_err().param, "loudness");
        }
    }
}
