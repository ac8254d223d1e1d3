//! `POST /v1/chat/completions`: answers a conversation in text, or in text and speech.

use super::api::Fields;
use super::api::chat::{
    self as wire, AnswerAudio, ChatEvent, Choice, Chunk, ChunkChoice, Completion, Delta, DeltaAudio,
};
use super::api::speech::Finish;
use super::auth::Caller;
use super::body::read_object;
use super::chat_request::{ChatCall, parse};
use super::error::ApiError;
use super::media::{self, Loaded};
use super::response::{Answer, Piece, Whole, ends, note_ignored, room, whole};
use super::sse;
use super::state::{App, unix_seconds};
use axum::Extension;
use axum::extract::{Request, State};
use axum::http::{HeaderName, HeaderValue, header};
use axum::response::sse::Event;
use axum::response::{IntoResponse, Response};
use base64::Engine;
use base64::prelude::BASE64_STANDARD;
use futures::{StreamExt, stream};
use omni_audio::{AudioError, AudioFormat, AudioWriter, Sound};
use omni_engine::{FinishReason, Output, Usage};
use std::sync::Arc;
use tokio_util::sync::CancellationToken;

/// The handler.
pub(super) async fn completions(
    State(app): State<Arc<App>>,
    Extension(caller): Extension<Caller>,
    request: Request,
) -> Result<Response, ApiError> {
    let ends = ends(&request);
    let (body, held) = read_object(&app, request).await?;
    let app = app.chosen(Fields::top(&body)).await?;
    let mut call = parse(&app, &body)?;
    call.request.options.tenant = caller.tenant;
    let recording = app.record(call.trace)?;
    let ChatCall { mut request, media, sound, stream, by_modality, include_usage, ignored, trace: _ } = call;
    let speaks = request.output == Output::TextAndAudio;
    if speaks {
        caller.may_speak()?;
    }
    let sample_rate = app.service.info().sample_rate;
    let writer = app.writer(sound)?;
    let Loaded { sources, held: files } = media::load(&app, &media).await?;
    request.media = sources;
    let stream_of = app.service.submit(request).await.map_err(|error| media::told(&media, error))?;
    drop((media, files));
    let answer = Answer::begin(stream_of, caller, sample_rate).await?.recorded(recording);
    drop((body, held));
    let info = app.service.info();
    let mut headers = answer.headers();
    note_ignored(&mut headers, &ignored);
    if speaks {
        headers.insert(HeaderName::from_static("x-sample-rate"), HeaderValue::from(writer.sample_rate()));
    }
    let head = Head {
        id: format!("chatcmpl-{}-{}", app.started, answer.id),
        audio_id: format!("audio-{}-{}", app.started, answer.id),
        created: unix_seconds(),
        model: info.id.clone(),
        speaks,
        by_modality,
    };
    let response = if stream {
        let writer = Box::new(writer);
        let encoder = if by_modality { Encoder::Files(writer, sample_rate) } else { Encoder::Samples(writer) };
        sse::response(chunks(head, answer, encoder, include_usage))
    } else {
        completion(&head, whole(&app, answer, writer).await?, ends).await?
    };
    Ok((headers, response).into_response())
}

/// Fields that every object of one answer has.
struct Head {
    id: String,
    audio_id: String,
    created: u64,
    model: String,
    speaks: bool,
    /// Whether `modality` tells what a chunk of a stream has.
    by_modality: bool,
}

/// What makes the bytes of a streamed answer.
enum Encoder {
    /// One run of samples. Its format has no end of its own: the writer is not finished.
    Samples(Box<AudioWriter>),
    /// A whole wav file for each chunk, at this sample rate; the answer's writer, which fades in, makes the first.
    Files(Box<AudioWriter>, u32),
}

impl Encoder {
    fn encode(&mut self, samples: &[f32]) -> Result<String, AudioError> {
        let bytes = match self {
            Encoder::Samples(writer) => writer.push(samples)?,
            Encoder::Files(next, sample_rate) => {
                let mut writer = std::mem::replace(&mut **next, Sound::from(AudioFormat::Wav).writer(*sample_rate)?);
                let mut file = writer.push(samples)?;
                writer.complete(&mut file)?;
                file
            }
        };
        Ok(BASE64_STANDARD.encode(bytes))
    }
}

async fn completion(head: &Head, whole: Whole, ends: Option<CancellationToken>) -> Result<Response, ApiError> {
    let Whole { text, file, mut held, reason, usage, .. } = whole;
    let mut audio = None;
    if head.speaks {
        // In base64, and that within the JSON.
        let held_before = held.bytes();
        room(&mut held, held_before + file.len().div_ceil(3) * 8).await?;
        let data = BASE64_STANDARD.encode(file);
        // No audio is kept, so its id is of no use from the start.
        audio = Some(AnswerAudio { id: &head.audio_id, data, transcript: &text, expires_at: head.created });
    }
    let message = wire::Answer { role: "assistant", content: &text, refusal: (), audio };
    let completion = Completion {
        id: &head.id,
        object: "chat.completion",
        created: head.created,
        model: &head.model,
        choices: [Choice { index: 0, message, logprobs: (), finish_reason: reason.into() }],
        usage: usage.into(),
    };
    // A struct of strings and numbers is always JSON.
    let body = held.guard(serde_json::to_vec(&completion).unwrap_or_default(), ends);
    Ok(([(header::CONTENT_TYPE, HeaderValue::from_static("application/json"))], body).into_response())
}

/// Where a streamed answer is.
enum Stage {
    Role,
    Pieces,
    Tail(FinishReason, Usage),
    Over,
}

/// Chunks: the role, then text and audio as they are made, the reason, the usage if asked for, `[DONE]`. After an error
/// chunk comes nothing more, not even `[DONE]`.
fn chunks(
    head: Head,
    answer: Answer,
    encoder: Encoder,
    include_usage: bool,
) -> impl futures::Stream<Item = Result<Event, axum::Error>> + Send {
    let state = (head, answer, encoder, Stage::Role);
    let steps = stream::unfold(state, move |(head, mut answer, mut encoder, state)| async move {
        let chunk = |delta| sse::event(&ChatEvent::Chunk(chunk(&head, delta, None, include_usage)));
        let file = |data: &str| {
            let delta = Delta { content: Some(data), ..Delta::default() };
            let chunk = self::chunk(&head, delta, None, include_usage);
            sse::event(&ChatEvent::Chunk(Chunk { modality: Some("audio"), ..chunk }))
        };
        let (events, next) = match state {
            Stage::Role => {
                let (role, content, refusal) = (Some("assistant"), Some(""), Some(()));
                (vec![chunk(Delta { role, content, refusal, audio: None })], Stage::Pieces)
            }
            Stage::Pieces => match answer.next().await {
                Ok(Piece::Text(text)) => {
                    let transcript =
                        || DeltaAudio { id: &head.audio_id, transcript: Some(&text), ..DeltaAudio::default() };
                    let audio = (head.speaks && !head.by_modality).then(transcript);
                    (vec![chunk(Delta { content: Some(&text), audio, ..Delta::default() })], Stage::Pieces)
                }
                Ok(Piece::Audio(audio)) => match encoder.encode(&audio.samples) {
                    Ok(data) if head.by_modality => (vec![file(&data)], Stage::Pieces),
                    Ok(data) => {
                        let audio = DeltaAudio { id: &head.audio_id, data: Some(data), ..DeltaAudio::default() };
                        (vec![chunk(Delta { audio: Some(audio), ..Delta::default() })], Stage::Pieces)
                    }
                    Err(error) => (vec![failed(&error.into())], Stage::Over),
                },
                Ok(Piece::Word(_)) => (Vec::new(), Stage::Pieces),
                Ok(Piece::Finished { reason, usage }) => (Vec::new(), Stage::Tail(reason, usage)),
                Err(error) => (vec![failed(&error)], Stage::Over),
            },
            Stage::Tail(reason, usage) => (tail(&head, reason, usage, include_usage), Stage::Over),
            Stage::Over => return None,
        };
        Some((stream::iter(events), (head, answer, encoder, next)))
    });
    steps.flatten()
}

fn failed(error: &ApiError) -> Result<Event, axum::Error> {
    sse::event(&ChatEvent::Error { error: error.object() })
}

fn tail(head: &Head, reason: FinishReason, usage: Usage, include_usage: bool) -> Vec<Result<Event, axum::Error>> {
    let chunk = |delta, reason| chunk(head, delta, reason, include_usage);
    let mut chunks = Vec::new();
    if head.speaks && !head.by_modality {
        let audio = DeltaAudio { id: &head.audio_id, expires_at: Some(head.created), ..DeltaAudio::default() };
        chunks.push(chunk(Delta { audio: Some(audio), ..Delta::default() }, None));
    }
    chunks.push(chunk(Delta::default(), Some(reason)));
    if include_usage {
        let last = chunk(Delta::default(), None);
        chunks.push(Chunk { choices: Vec::new(), usage: Some(Some(usage.into())), ..last });
    }
    let mut events: Vec<_> = chunks.into_iter().map(|chunk| sse::event(&ChatEvent::Chunk(chunk))).collect();
    events.push(Ok(sse::done()));
    events
}

fn chunk<'a>(head: &'a Head, delta: Delta<'a>, reason: Option<FinishReason>, include_usage: bool) -> Chunk<'a> {
    let finish_reason = reason.map(Finish::from);
    Chunk {
        id: &head.id,
        object: "chat.completion.chunk",
        created: head.created,
        model: &head.model,
        modality: head.by_modality.then_some("text"),
        choices: vec![ChunkChoice { index: 0, delta, logprobs: (), finish_reason }],
        usage: include_usage.then_some(None),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    #[test]
    fn of_files_only_the_first_fades_in() {
        let writer = Sound::from(AudioFormat::Wav).writer(24_000).unwrap().fading_in(Duration::from_millis(10));
        let mut encoder = Encoder::Files(Box::new(writer), 24_000);
        let mut samples = || -> Vec<i16> {
            let file = BASE64_STANDARD.decode(encoder.encode(&[0.5; 480]).unwrap()).unwrap();
            let (_, samples) = file.split_at(file.len() - 960);
            samples.chunks_exact(2).map(|pair| i16::from_le_bytes([pair[0], pair[1]])).collect()
        };
        let (first, second) = (samples(), samples());
        assert!(first[0] == 0 && first[120] < 16_384 && first[240..] == [16_384; 240]);
        assert_eq!(second, [16_384; 480]);
    }
}
