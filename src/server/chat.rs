//! `POST /v1/chat/completions`: answers a conversation in text, or in text and speech.

use super::app::{App, unix_seconds};
use super::auth::caller;
use super::body::read_object;
use super::chat_request::{ChatCall, parse};
use super::debug;
use super::error::ApiError;
use super::fields::Fields;
use super::response::{Answer, Piece, note_ignored};
use super::sse;
use axum::Json;
use axum::extract::{Request, State};
use axum::http::{HeaderName, HeaderValue};
use axum::response::{IntoResponse, Response};
use base64::Engine;
use base64::prelude::BASE64_STANDARD;
use futures::{StreamExt, stream};
use omni_audio::{AudioWriter, Sound};
use omni_engine::{FinishReason, Output, Usage};
use serde_json::{Value, json};
use std::sync::Arc;

/// The handler.
pub(super) async fn completions(State(app): State<Arc<App>>, request: Request) -> Result<Response, ApiError> {
    let tenant = caller(&request);
    let (body, held) = read_object(&app, request).await?;
    let mut call = parse(&app, &body)?;
    call.request.options.tenant = tenant;
    let recording = debug::asked(&app, &Fields::top(&body))?;
    let ChatCall { request, format, stream, include_usage, ignored } = call;
    let speaks = request.output == Output::TextAndAudio;
    let writer = Sound::from(format).writer(app.service.info().sample_rate)?;
    let answer = Answer::begin(app.service.submit(request).await?).await?.recorded(recording);
    drop((body, held));
    let info = app.service.info();
    let mut headers = answer.headers();
    note_ignored(&mut headers, &ignored);
    if speaks {
        headers.insert(HeaderName::from_static("x-sample-rate"), HeaderValue::from(info.sample_rate));
    }
    let head = Head {
        id: format!("chatcmpl-{}-{}", app.started, answer.id),
        audio_id: format!("audio-{}-{}", app.started, answer.id),
        created: unix_seconds(),
        model: info.id.clone(),
        speaks,
    };
    let response = if stream {
        sse::response(chunks(head, answer, writer, include_usage))
    } else {
        Json(completion(&head, answer, writer).await?).into_response()
    };
    Ok((headers, response).into_response())
}

/// What every object of one answer repeats.
struct Head {
    id: String,
    audio_id: String,
    created: u64,
    model: String,
    speaks: bool,
}

async fn completion(head: &Head, mut answer: Answer, mut writer: AudioWriter) -> Result<Value, ApiError> {
    let mut text = String::new();
    let mut file = Vec::new();
    let (reason, usage) = loop {
        match answer.next().await? {
            Piece::Text(delta) => text.push_str(&delta),
            Piece::Audio(chunk) => file.append(&mut writer.push(&chunk.samples)?),
            Piece::Finished { reason, usage } => break (reason, usage),
        }
    };
    let mut message = json!({ "role": "assistant", "content": text, "refusal": null });
    if head.speaks {
        writer.complete(&mut file)?;
        message["audio"] = json!({
            "id": head.audio_id,
            "data": BASE64_STANDARD.encode(file),
            "transcript": text,
            // Nothing is kept, so the id is of no use from the start.
            "expires_at": head.created,
        });
    }
    Ok(json!({
        "id": head.id,
        "object": "chat.completion",
        "created": head.created,
        "model": head.model,
        "choices": [{ "index": 0, "message": message, "logprobs": null, "finish_reason": reason }],
        "usage": usage_object(usage),
    }))
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
///
/// The format of a stream has no end of its own: `writer` is not finished.
fn chunks(
    head: Head,
    answer: Answer,
    writer: AudioWriter,
    include_usage: bool,
) -> impl futures::Stream<Item = String> + Send {
    let state = (head, answer, writer, Stage::Role);
    let steps = stream::unfold(state, move |(head, mut answer, mut writer, state)| async move {
        let (events, next) = match state {
            Stage::Role => {
                let delta = json!({ "role": "assistant", "content": "", "refusal": null });
                (vec![chunk(&head, &delta, None, include_usage)], Stage::Pieces)
            }
            Stage::Pieces => match answer.next().await {
                Ok(Piece::Text(text)) => {
                    let mut delta = json!({ "content": text });
                    if head.speaks {
                        delta["audio"] = json!({ "id": head.audio_id, "transcript": text });
                    }
                    (vec![chunk(&head, &delta, None, include_usage)], Stage::Pieces)
                }
                Ok(Piece::Audio(audio)) => match writer.push(&audio.samples) {
                    Ok(bytes) => {
                        let delta = json!({ "audio": { "id": head.audio_id, "data": BASE64_STANDARD.encode(bytes) } });
                        (vec![chunk(&head, &delta, None, include_usage)], Stage::Pieces)
                    }
                    Err(error) => (vec![sse::event(&ApiError::from(error).body())], Stage::Over),
                },
                Ok(Piece::Finished { reason, usage }) => (Vec::new(), Stage::Tail(reason, usage)),
                Err(error) => (vec![sse::event(&error.body())], Stage::Over),
            },
            Stage::Tail(reason, usage) => (tail(&head, reason, usage, include_usage), Stage::Over),
            Stage::Over => return None,
        };
        Some((stream::iter(events), (head, answer, writer, next)))
    });
    steps.flatten()
}

fn tail(head: &Head, reason: FinishReason, usage: Usage, include_usage: bool) -> Vec<String> {
    let mut events = Vec::new();
    if head.speaks {
        let delta = json!({ "audio": { "id": head.audio_id, "expires_at": head.created } });
        events.push(chunk(head, &delta, None, include_usage));
    }
    events.push(chunk(head, &json!({}), Some(reason), include_usage));
    if include_usage {
        let mut last = chunk_object(head, &json!([]));
        last["usage"] = usage_object(usage);
        events.push(sse::event(&last));
    }
    events.push(sse::DONE.to_owned());
    events
}

fn chunk(head: &Head, delta: &Value, reason: Option<FinishReason>, include_usage: bool) -> String {
    let choices = json!([{ "index": 0, "delta": delta, "logprobs": null, "finish_reason": reason }]);
    let mut object = chunk_object(head, &choices);
    if include_usage {
        object["usage"] = Value::Null;
    }
    sse::event(&object)
}

fn chunk_object(head: &Head, choices: &Value) -> Value {
    json!({
        "id": head.id,
        "object": "chat.completion.chunk",
        "created": head.created,
        "model": head.model,
        "choices": choices,
    })
}

/// OpenAI's names for what an answer used; its audio tokens are our frames.
fn usage_object(usage: Usage) -> Value {
    let completion = usage.text_tokens.saturating_add(usage.frames.0);
    json!({
        "prompt_tokens": usage.prompt_tokens,
        "completion_tokens": completion,
        "total_tokens": usage.prompt_tokens.saturating_add(completion),
        "prompt_tokens_details": { "text_tokens": usage.prompt_tokens, "audio_tokens": 0, "cached_tokens": 0 },
        "completion_tokens_details": { "text_tokens": usage.text_tokens, "audio_tokens": usage.frames, "reasoning_tokens": 0 },
    })
}
