//! Server-sent events: one `data:` line of JSON per event. While there is nothing to send, a comment every few seconds
//! keeps proxies from closing the connection.

use axum::http::{HeaderName, HeaderValue, header};
use axum::response::sse::{Event, KeepAlive, Sse};
use axum::response::{IntoResponse, Response};
use futures::Stream;
use serde::Serialize;

/// What ends a stream of chat that went well.
pub(super) fn done() -> Event {
    Event::default().data("[DONE]")
}

/// One event.
pub(super) fn event(data: &impl Serialize) -> Result<Event, axum::Error> {
    Event::default().json_data(data)
}

/// An event of a file, of which so many bytes have come with it: what `Last-Event-ID` says to go on behind it.
pub(super) fn event_of_file(data: &impl Serialize, length: u64) -> Result<Event, axum::Error> {
    Event::default().id(length.to_string()).json_data(data)
}

/// A response that sends `events` as they come.
pub(super) fn response(events: impl Stream<Item = Result<Event, axum::Error>> + Send + 'static) -> Response {
    let headers = [
        (header::CONTENT_TYPE, HeaderValue::from_static("text/event-stream; charset=utf-8")),
        // Tells proxies of the nginx kind not to hold events back.
        (HeaderName::from_static("x-accel-buffering"), HeaderValue::from_static("no")),
    ];
    (headers, Sse::new(events).keep_alive(KeepAlive::default())).into_response()
}
