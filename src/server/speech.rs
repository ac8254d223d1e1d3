//! `POST /v1/audio/speech`: speaks a text as it is.

use super::api::speech::{SpeechEvent, SpeechUsage};
use super::auth::Caller;
use super::body::read_object;
use super::error::ApiError;
use super::reference::References;
use super::response::{Answer, Piece, note_ignored};
use super::speech_request::{Delivery, parse};
use super::sse;
use super::state::App;
use axum::Extension;
use axum::body::{Body, Bytes};
use axum::extract::{Request, State};
use axum::http::{HeaderMap, HeaderName, HeaderValue, header};
use axum::response::sse::Event;
use axum::response::{IntoResponse, Response};
use base64::Engine;
use base64::prelude::BASE64_STANDARD;
use futures::stream;
use omni_audio::{AudioFormat, AudioWriter};
use omni_engine::{FinishReason, Usage};
use std::sync::Arc;

/// The handler.
pub(super) async fn speech(
    State(app): State<Arc<App>>,
    Extension(caller): Extension<Caller>,
    request: Request,
) -> Result<Response, ApiError> {
    let (body, held) = read_object(&app, request).await?;
    let mut call = parse(&app, &body, &mut References::new(&app.references)).await?;
    let recording = app.record(call.trace)?;
    call.request.params.options.tenant = caller.tenant;
    let sample_rate = app.service.info().sample_rate;
    let writer = call.sound.writer(sample_rate)?;
    let answer = Answer::begin(app.service.speak(call.request).await?, caller, sample_rate).await?.recorded(recording);
    drop((body, held));
    let headers = headers(&answer, sample_rate, &call.ignored);
    let response = match call.delivery {
        Delivery::Whole => audio_body(call.sound.format, whole(answer, writer).await?.0.into()),
        Delivery::Raw => audio_body(call.sound.format, raw_body(Encoded { answer, writer, end: None })),
        Delivery::Events => sse::response(events(Encoded { answer, writer, end: None })),
    };
    Ok((headers, response).into_response())
}

fn headers(answer: &Answer, sample_rate: u32, ignored: &[String]) -> HeaderMap {
    let mut headers = answer.headers();
    headers.insert(HeaderName::from_static("x-sample-rate"), HeaderValue::from(sample_rate));
    note_ignored(&mut headers, ignored);
    headers
}

/// A body with the type of its format, and a name for clients that save it.
fn audio_body(format: AudioFormat, body: Body) -> Response {
    let name = format!("inline; filename=\"speech.{}\"", format.as_str());
    let mut response =
        ([(header::CONTENT_TYPE, HeaderValue::from_static(format.content_type()))], body).into_response();
    // The name consists of constants that a header can carry.
    if let Ok(name) = HeaderValue::from_str(&name) {
        response.headers_mut().insert(header::CONTENT_DISPOSITION, name);
    }
    response
}

/// An answer as the bytes of its format.
struct Encoded {
    answer: Answer,
    writer: AudioWriter,
    /// Set when the last bytes have been given.
    end: Option<(FinishReason, Usage)>,
}

impl Encoded {
    /// The next bytes, never empty. `None` is the end.
    async fn next(&mut self) -> Result<Option<Vec<u8>>, ApiError> {
        while self.end.is_none() {
            let bytes = match self.answer.next().await? {
                Piece::Audio(chunk) => self.writer.push(&chunk.samples)?,
                Piece::Text(_) => continue,
                Piece::Finished { reason, usage } => {
                    self.end = Some((reason, usage));
                    self.writer.finish()?
                }
            };
            if !bytes.is_empty() {
                return Ok(Some(bytes));
            }
        }
        Ok(None)
    }
}

/// The whole file, and what it took.
pub(super) async fn whole(mut answer: Answer, mut writer: AudioWriter) -> Result<(Vec<u8>, Usage), ApiError> {
    let mut file = Vec::new();
    loop {
        match answer.next().await? {
            Piece::Audio(chunk) => file.append(&mut writer.push(&chunk.samples)?),
            Piece::Text(_) => {}
            Piece::Finished { usage, .. } => {
                writer.complete(&mut file)?;
                return Ok((file, usage));
            }
        }
    }
}

/// Chunked. A failure half way is an error of the body: the connection breaks, so that no client takes half for whole.
fn raw_body(pieces: Encoded) -> Body {
    Body::from_stream(stream::try_unfold(pieces, |mut pieces| async move {
        match pieces.next().await {
            Ok(Some(bytes)) => Ok(Some((Bytes::from(bytes), pieces))),
            Ok(None) => Ok(None),
            Err(error) => Err(std::io::Error::other(error.message)),
        }
    }))
}

/// `speech.audio.delta` ... `speech.audio.done`; or `error`, and then nothing more.
fn events(pieces: Encoded) -> impl futures::Stream<Item = Result<Event, axum::Error>> + Send {
    stream::unfold(Some(pieces), |state| async move {
        let mut pieces = state?;
        let (event, over) = match pieces.next().await {
            Ok(Some(bytes)) => (sse::event(&SpeechEvent::Delta { audio: BASE64_STANDARD.encode(bytes) }), false),
            Ok(None) => {
                let (reason, usage) = pieces.end.unwrap_or((FinishReason::Stop, Usage::default()));
                let done = SpeechEvent::Done { finish_reason: reason.into(), usage: SpeechUsage::from(usage) };
                (sse::event(&done), true)
            }
            Err(error) => (sse::event(&SpeechEvent::Error { error: error.object() }), true),
        };
        Some((event, (!over).then_some(pieces)))
    })
}
