//! `WS /v1/audio/speech/stream`: text in as it is written, speech out before the text is complete.
//!
//! One future reads and decides, one writes. Between them is a queue of few messages. When the client does not read,
//! the queue is full, so the session does not read the engine's stream and the request pauses; it still takes a cancel.

use super::auth::Caller;
use super::budget::Held;
use super::connection::ConnectionGuard;
use super::error::ApiError;
use super::reader::Reader;
use super::state::App;
use super::visit::Visit;
use super::ws_frames::Decoder;
use super::ws_session::Session;
use super::ws_socket::queue;
use axum::Extension;
use axum::body::Body;
use axum::extract::{Request, State};
use axum::http::{HeaderMap, HeaderName, HeaderValue, StatusCode, header};
use axum::response::Response;
use base64::Engine;
use base64::prelude::BASE64_STANDARD;
use hyper::upgrade::{OnUpgrade, Upgraded};
use hyper_util::rt::TokioIo;
use sha1::{Digest, Sha1};
use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::Duration;
use tokio::io::AsyncWrite;
use tokio::time::timeout;
use tracing::debug;

/// What RFC 6455 adds to a client's key.
const GUID: &str = "258EAFA5-E914-47DA-95CA-C5AB0DC85B11";
/// The one protocol: a browser that sends its key as a protocol needs the server to choose another one.
const PROTOCOL: &str = "realtime";

/// How long a connection that has to end at once may take to tell its client why. It has lost its place by then, so this
/// bounds what is open beside those that have one.
const GOODBYE: Duration = Duration::from_millis(250);

/// The handler.
pub(super) async fn connect(
    State(app): State<Arc<App>>,
    Extension(guard): Extension<ConnectionGuard>,
    Extension(caller): Extension<Caller>,
    request: Request,
) -> Result<Response, ApiError> {
    upgrade(request, guard, move |socket, guard| async move { serve(app, socket, caller, &guard).await })
}

/// Answers a request that opens a WebSocket, which `serve` then has.
pub(super) fn upgrade<F: Future<Output = ()> + Send>(
    mut request: Request,
    guard: ConnectionGuard,
    serve: impl FnOnce(Upgraded, ConnectionGuard) -> F + Send + 'static,
) -> Result<Response, ApiError> {
    let refuse = |why: &str| {
        let message = format!("this address speaks WebSocket: {why}");
        ApiError::new(StatusCode::UPGRADE_REQUIRED, "upgrade_required", message)
    };
    let headers = request.headers();
    let accept = accept(headers).map_err(refuse)?;
    let protocol = header_has(headers, &header::SEC_WEBSOCKET_PROTOCOL, PROTOCOL);
    let upgrade = request.extensions_mut().remove::<OnUpgrade>();
    let upgrade = upgrade.ok_or_else(|| refuse("this connection cannot be upgraded"))?;
    tokio::spawn(async move {
        let socket = match upgrade.await {
            Ok(socket) => socket,
            Err(error) => return debug!(%error, "the connection ended before it became a WebSocket"),
        };
        let mut serving = std::pin::pin!(serve(socket, guard.clone()));
        tokio::select! {
            () = &mut serving => return,
            () = guard.closing() => {}
        }
        // The session has seen it too and tells its client.
        let _ = timeout(GOODBYE, serving).await;
    });
    let mut response = Response::new(Body::empty());
    *response.status_mut() = StatusCode::SWITCHING_PROTOCOLS;
    let headers = response.headers_mut();
    headers.insert(header::CONNECTION, HeaderValue::from_static("upgrade"));
    headers.insert(header::UPGRADE, HeaderValue::from_static("websocket"));
    headers.insert(header::SEC_WEBSOCKET_ACCEPT, accept);
    if protocol {
        headers.insert(header::SEC_WEBSOCKET_PROTOCOL, HeaderValue::from_static(PROTOCOL));
    }
    Ok(response)
}

/// The answer to the key of a client, or why the request opens no WebSocket.
fn accept(headers: &HeaderMap) -> Result<HeaderValue, &'static str> {
    if !header_has(headers, &header::CONNECTION, "upgrade") || !header_has(headers, &header::UPGRADE, "websocket") {
        return Err("send Connection: Upgrade and Upgrade: websocket");
    }
    if !header_has(headers, &header::SEC_WEBSOCKET_VERSION, "13") {
        return Err("send Sec-WebSocket-Version: 13");
    }
    let key = headers.get(header::SEC_WEBSOCKET_KEY).ok_or("send Sec-WebSocket-Key")?;
    let digest = Sha1::new().chain_update(key.as_bytes()).chain_update(GUID).finalize();
    // Base64 is always a header.
    HeaderValue::try_from(BASE64_STANDARD.encode(digest)).map_err(|_| "the key is not one")
}

/// Whether a header, whose values are lists, has this entry, in any case.
fn header_has(headers: &HeaderMap, name: &HeaderName, entry: &str) -> bool {
    let lists = headers.get_all(name).into_iter().filter_map(|value| value.to_str().ok());
    lists.flat_map(|list| list.split(',')).any(|found| found.trim().eq_ignore_ascii_case(entry))
}

async fn serve(app: Arc<App>, socket: Upgraded, caller: Caller, guard: &ConnectionGuard) {
    let (source, sink) = tokio::io::split(TokioIo::new(socket));
    let held = Held::nothing(&app.budget);
    let mut reader = Reader::new(source, Decoder::new(app.max_body_bytes, held), app.read_timeout);
    let (out, writer) = queue();
    let mut writing = std::pin::pin!(writer.run(Counted { sink, visit: Arc::clone(&caller.visit) }));
    let mut session = Session::new(app, out, caller, guard);
    tokio::select! {
        _ = session.run(&mut reader) => {}
        // The client is gone.
        () = &mut writing => return,
    }
    drop(session);
    writing.await;
    reader.linger().await;
}

/// The writing half of a socket, whose bytes count for the request that opened it.
pub(super) struct Counted<W> {
    pub sink: W,
    pub visit: Arc<Visit>,
}

impl<W: AsyncWrite + Unpin> AsyncWrite for Counted<W> {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        let written = ready!(Pin::new(&mut self.sink).poll_write(cx, bytes))?;
        self.visit.sent(written);
        Poll::Ready(Ok(written))
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.sink).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.sink).poll_shutdown(cx)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn headers(entries: &[(&'static str, &'static str)]) -> HeaderMap {
        let entry = |(name, value): &(&'static str, &'static str)| {
            (HeaderName::from_static(name), HeaderValue::from_static(value))
        };
        entries.iter().map(entry).collect()
    }

    #[test]
    fn the_key_of_the_rfc_is_answered_as_there() {
        let good = [
            ("connection", "keep-alive, Upgrade"),
            ("upgrade", "WebSocket"),
            ("sec-websocket-version", "13"),
            ("sec-websocket-key", "dGhlIHNhbXBsZSBub25jZQ=="),
        ];
        assert_eq!(accept(&headers(&good)).unwrap(), "s3pPLMBiTxaQ9kYGzzhZRbK+xOo=");
        for missing in 0..good.len() {
            let others: Vec<_> =
                good.iter().enumerate().filter(|(at, _)| *at != missing).map(|(_, entry)| *entry).collect();
            assert!(accept(&headers(&others)).is_err(), "{}", good[missing].0);
        }
    }
}
