//! Reads the JSON object of a request within the limits on size and time.

use super::api::measure::{JsonLimits, measure};
use super::api::{kind, short};
use super::budget::{Budget, Held};
use super::error::ApiError;
use super::state::App;
use axum::body::HttpBody;
use axum::extract::Request;
use axum::http::{HeaderMap, StatusCode, header};
use futures::StreamExt;
use serde_json::{Map, Value};
use std::sync::Arc;
use std::time::Duration;

/// How many bytes beyond the limit the server still reads and drops, so that the client, busy sending, gets to see the
/// error. Beyond them it closes the connection.
const DISCARD_LIMIT: usize = 16 << 20;
/// How long it reads and drops the body of a request that it has refused: anyone may send one, and slowly.
const LINGER: Duration = Duration::from_secs(1);

/// Most parts of a form: each field once, and some that mean nothing here.
pub(super) const MAX_PARTS: usize = 16;

/// JSON up to this many bytes is read at once; more would keep a thread from others for too long.
const AT_ONCE: usize = 64 << 10;

/// The body as a JSON object, and its part of the budget, which the caller holds as long as the object.
pub(super) async fn read_object(app: &App, request: Request) -> Result<(Map<String, Value>, Held), ApiError> {
    if let Err(error) = check_content_type(request.headers()) {
        discard(request).await;
        return Err(error);
    }
    let (bytes, held) = read_all(app, request).await?;
    parse_object(bytes, app.json, held).await
}

/// The bytes of the body within the limits on size and time, and its part of the budget.
pub(super) async fn read_all(app: &App, request: Request) -> Result<(Vec<u8>, Held), ApiError> {
    let read = read_bytes(request, app.max_body_bytes, &app.budget);
    tokio::time::timeout(app.read_timeout, read).await.map_err(|_| {
        let message = format!("the request body did not arrive within {:.1} s", app.read_timeout.as_secs_f32());
        ApiError::new(StatusCode::REQUEST_TIMEOUT, "request_timeout", message)
    })?
}

async fn read_bytes(request: Request, limit: usize, budget: &Arc<Budget>) -> Result<(Vec<u8>, Held), ApiError> {
    let too_large = || {
        let message = format!("the request body is larger than {limit} bytes");
        ApiError::new(StatusCode::PAYLOAD_TOO_LARGE, "request_too_large", message)
    };
    let announced = request.headers().get(header::CONTENT_LENGTH).and_then(|value| value.to_str().ok()?.parse().ok());
    if announced.is_some_and(|bytes: usize| bytes > limit.saturating_add(DISCARD_LIMIT)) {
        return Err(too_large());
    }
    let mut body = request.into_body().into_data_stream();
    let mut held = Held::nothing(budget);
    let mut bytes: Vec<u8> = Vec::new();
    let mut total = 0usize;
    let mut refused = None;
    while let Some(piece) = body.next().await {
        let piece = piece.map_err(|error| {
            ApiError::new(StatusCode::BAD_REQUEST, "incomplete_body", format!("the request body broke off: {error}"))
        })?;
        total = total.saturating_add(piece.len());
        if refused.is_none() && total > limit {
            refused = Some(too_large());
        }
        if refused.is_none() && bytes.capacity() < total {
            // Half more than is there, but not more than was announced.
            let room = announced.unwrap_or(usize::MAX).min(total + total / 2).max(total);
            if held.resize(room) {
                bytes.reserve_exact(room - bytes.len());
            } else {
                refused = Some(budget.exhausted());
            }
        }
        if refused.is_none() {
            bytes.extend_from_slice(&piece);
            continue;
        }
        // The rest is read and dropped; nothing of it needs memory.
        (bytes, held) = (Vec::new(), Held::nothing(budget));
        if total > limit.saturating_add(DISCARD_LIMIT) {
            break;
        }
    }
    match refused {
        Some(error) => Err(error),
        None => Ok((bytes, held)),
    }
}

/// Reads and drops the body of a request that was refused by its head, so that the client, busy sending, gets to see
/// why: not for long, and not more than [`DISCARD_LIMIT`].
pub(super) async fn discard(request: Request) {
    let asks_first = request.headers().contains_key(header::EXPECT);
    let body = request.into_body();
    // One that asks first sends nothing now.
    if asks_first || body.size_hint().lower() > DISCARD_LIMIT as u64 {
        return;
    }
    let mut body = body.into_data_stream();
    let mut left = DISCARD_LIMIT;
    let dropping = async {
        while let Some(Ok(piece)) = body.next().await
            && left > piece.len()
        {
            left -= piece.len();
        }
    };
    // It is the client's loss.
    let _ = tokio::time::timeout(LINGER, dropping).await;
}

/// JSON only. This keeps pages of other origins out too: a browser sends JSON across origins only after it has asked,
/// and this server never allows it.
fn check_content_type(headers: &HeaderMap) -> Result<(), ApiError> {
    let value = headers.get(header::CONTENT_TYPE).and_then(|value| value.to_str().ok()).unwrap_or("");
    let media_type = value.split(';').next().unwrap_or("").trim().to_ascii_lowercase();
    if media_type == "application/json" || (media_type.starts_with("application/") && media_type.ends_with("+json")) {
        return Ok(());
    }
    let message = match value {
        "" => "send the header Content-Type: application/json".to_owned(),
        other => format!(
            "the content type {:?} is not supported; send JSON with Content-Type: application/json",
            short(other)
        ),
    };
    Err(ApiError::new(StatusCode::UNSUPPORTED_MEDIA_TYPE, "unsupported_media_type", message))
}

/// Bytes as a JSON object. `held` is their part of the budget; what comes back is the object's.
pub(super) async fn parse_object(
    bytes: Vec<u8>,
    limits: JsonLimits,
    held: Held,
) -> Result<(Map<String, Value>, Held), ApiError> {
    if bytes.len() <= AT_ONCE {
        return parse_now(bytes, limits, held);
    }
    let parsing = tokio::task::spawn_blocking(move || parse_now(bytes, limits, held));
    parsing.await.unwrap_or_else(|error| Err(ApiError::internal(format!("the JSON was not read: {error}"))))
}

/// The same at once, for few bytes.
pub(super) fn parse_now(
    bytes: Vec<u8>,
    limits: JsonLimits,
    mut held: Held,
) -> Result<(Map<String, Value>, Held), ApiError> {
    let bad = |message: String| ApiError::new(StatusCode::BAD_REQUEST, "invalid_json", message);
    let size = measure(&bytes, limits).map_err(|error| bad(format!("this JSON is too much: {error}")))?;
    if !held.resize(size.max(bytes.len())) {
        return Err(held.exhausted());
    }
    let parsed = match serde_json::from_slice(&bytes) {
        Ok(Value::Object(map)) => Ok(map),
        Ok(other) => Err(bad(format!("expected a JSON object, found {}", kind(&other)))),
        Err(_) if bytes.is_empty() => Err(bad("the request body is empty; send a JSON object".to_owned())),
        Err(error) => Err(bad(format!("this is not valid JSON: {error}"))),
    };
    drop(bytes);
    held.resize(size); // not more than before
    parsed.map(|object| (object, held))
}
