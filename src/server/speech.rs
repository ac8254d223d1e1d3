//! `POST /v1/audio/speech`: speaks a text as it is.

use super::answer::{Answer, Piece, note_ignored};
use super::app::App;
use super::audio::{AudioFormat, StreamEncoder, push_pcm16, whole};
use super::body::read_object;
use super::error::ApiError;
use super::speech_request::{Delivery, parse};
use super::sse;
use crate::engine::Usage;
use axum::body::{Body, Bytes};
use axum::extract::{Request, State};
use axum::http::{HeaderMap, HeaderName, HeaderValue, header};
use axum::response::{IntoResponse, Response};
use base64::Engine;
use base64::prelude::BASE64_STANDARD;
use futures::stream;
use serde_json::{Value, json};
use std::sync::Arc;

/// The handler.
pub(super) async fn speech(State(app): State<Arc<App>>, request: Request) -> Result<Response, ApiError> {
    let body = read_object(&app, request).await?;
    let call = parse(&app, &body)?;
    let answer = Answer::begin(app.service.speak(call.request).await?).await?;
    let sample_rate = app.service.info().sample_rate;
    let headers = headers(&answer, sample_rate, &call.ignored);
    let encoder = StreamEncoder::new(call.format, sample_rate);
    let response = match call.delivery {
        Delivery::Whole => whole_body(answer, call.format, sample_rate).await?,
        Delivery::Raw => raw_body(answer, encoder, call.format),
        Delivery::Events => sse::response(events(answer, encoder)),
    };
    Ok((headers, response).into_response())
}

fn headers(answer: &Answer, sample_rate: u32, ignored: &[String]) -> HeaderMap {
    let mut headers = answer.headers();
    headers.insert(HeaderName::from_static("x-sample-rate"), HeaderValue::from(sample_rate));
    note_ignored(&mut headers, ignored);
    headers
}

async fn whole_body(mut answer: Answer, format: AudioFormat, sample_rate: u32) -> Result<Response, ApiError> {
    let mut pcm = Vec::new();
    loop {
        match answer.next().await? {
            Piece::Audio(chunk) => push_pcm16(&chunk.samples, &mut pcm),
            Piece::Text(_) => {}
            Piece::Finished { .. } => break,
        }
    }
    let content_type = HeaderValue::from_static(format.content_type());
    Ok(([(header::CONTENT_TYPE, content_type)], whole(format, sample_rate, pcm)).into_response())
}

/// Chunked. A failure half way is an error of the body: the connection breaks, so that nobody takes half for whole.
fn raw_body(answer: Answer, encoder: StreamEncoder, format: AudioFormat) -> Response {
    let bytes = stream::try_unfold(Some((answer, encoder)), |state| async move {
        let Some((mut answer, mut encoder)) = state else { return Ok(None) };
        loop {
            match answer.next().await {
                Ok(Piece::Audio(chunk)) => {
                    let bytes = Bytes::from(encoder.encode(&chunk.samples));
                    return Ok(Some((bytes, Some((answer, encoder)))));
                }
                Ok(Piece::Text(_)) => {}
                Ok(Piece::Finished { .. }) => {
                    // Only an answer without a single sample has its header still to come.
                    let rest = encoder.encode(&[]);
                    return Ok((!rest.is_empty()).then(|| (Bytes::from(rest), None)));
                }
                Err(error) => return Err(std::io::Error::other(error.message)),
            }
        }
    });
    let content_type = HeaderValue::from_static(format.content_type());
    ([(header::CONTENT_TYPE, content_type)], Body::from_stream(bytes)).into_response()
}

/// `speech.audio.delta` ... `speech.audio.done`; or `error`, and then nothing more.
fn events(answer: Answer, encoder: StreamEncoder) -> impl futures::Stream<Item = String> + Send {
    stream::unfold(Some((answer, encoder)), |state| async move {
        let (mut answer, mut encoder) = state?;
        loop {
            match answer.next().await {
                Ok(Piece::Audio(chunk)) => {
                    let audio = BASE64_STANDARD.encode(encoder.encode(&chunk.samples));
                    let event = sse::event(&json!({ "type": "speech.audio.delta", "audio": audio }));
                    return Some((event, Some((answer, encoder))));
                }
                Ok(Piece::Text(_)) => {}
                Ok(Piece::Finished { reason, usage }) => {
                    let done =
                        json!({ "type": "speech.audio.done", "usage": usage_object(usage), "finish_reason": reason });
                    return Some((sse::event(&done), None));
                }
                Err(error) => {
                    let failed = json!({ "type": "error", "error": error.object() });
                    return Some((sse::event(&failed), None));
                }
            }
        }
    })
}

/// OpenAI's names for what speech used; its output tokens are our frames.
pub(super) fn usage_object(usage: Usage) -> Value {
    let (input, output) = (usage.prompt_tokens, usage.frames.0);
    json!({
        "input_tokens": input,
        "output_tokens": output,
        "total_tokens": input.saturating_add(output),
        "text_tokens": usage.text_tokens,
    })
}
