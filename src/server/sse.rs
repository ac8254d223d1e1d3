//! Server-sent events: one `data:` line of JSON per event.

use axum::body::{Body, Bytes};
use axum::http::{HeaderValue, header};
use axum::response::{IntoResponse, Response};
use futures::Stream;
use serde_json::Value;
use std::convert::Infallible;

/// What ends a stream that went well.
pub(super) const DONE: &str = "data: [DONE]\n\n";

/// One event.
pub(super) fn event(data: &Value) -> String {
    format!("data: {data}\n\n")
}

/// A response that sends `events` as they come.
pub(super) fn response(events: impl Stream<Item = String> + Send + 'static) -> Response {
    use futures::StreamExt;
    let body = Body::from_stream(events.map(|event| Ok::<_, Infallible>(Bytes::from(event))));
    let headers = [
        (header::CONTENT_TYPE, HeaderValue::from_static("text/event-stream; charset=utf-8")),
        (header::CACHE_CONTROL, HeaderValue::from_static("no-cache")),
        // Tells proxies of the nginx kind not to hold events back.
        (header::HeaderName::from_static("x-accel-buffering"), HeaderValue::from_static("no")),
    ];
    (headers, body).into_response()
}
