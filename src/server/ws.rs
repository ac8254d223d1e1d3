//! `WS /v1/audio/speech/stream`: text in as it is written, speech out before the text is complete.
//!
//! One task reads and decides, one writes. Between them is a queue of [`OUT_QUEUE`] messages: when the client does not
//! read, the queue is full, the engine's stream is not read, and this request pauses; cancel is still heard.

use super::app::App;
use super::auth::Caller;
use super::budget::Intake;
use super::error::ApiError;
use super::listen::ConnectionGuard;
use super::ws_session::Session;
use axum::Extension;
use axum::extract::State;
use axum::extract::ws::rejection::WebSocketUpgradeRejection;
use axum::extract::ws::{Message, WebSocket, WebSocketUpgrade};
use axum::http::{HeaderMap, StatusCode, Uri, header};
use axum::response::Response;
use futures::stream::SplitSink;
use futures::{SinkExt, StreamExt};
use omni_engine::Tenant;
use std::sync::Arc;
use tokio::sync::mpsc;
use tracing::debug;

/// Messages on their way to the socket.
const OUT_QUEUE: usize = 2;

/// The handler.
pub(super) async fn connect(
    State(app): State<Arc<App>>,
    Extension(guard): Extension<ConnectionGuard>,
    Extension(caller): Extension<Caller>,
    headers: HeaderMap,
    upgrade: Result<WebSocketUpgrade, WebSocketUpgradeRejection>,
) -> Result<Response, ApiError> {
    let upgrade = upgrade.map_err(|why| {
        let message = format!("this address speaks WebSocket: {}", why.body_text());
        ApiError::new(StatusCode::UPGRADE_REQUIRED, "upgrade_required", message)
    })?;
    check_origin(&headers)?;
    let limit = app.max_body_bytes;
    // Browser clients that say their key as a protocol need another one to be chosen.
    let upgrade = upgrade.max_message_size(limit).max_frame_size(limit).protocols(["realtime"]);
    guard.intake().begin();
    Ok(upgrade.on_upgrade(move |socket| async move {
        tokio::select! {
            () = serve(app, socket, caller.tenant, Arc::clone(guard.intake())) => {}
            () = guard.closing() => {}
        }
    }))
}

/// Browsers let any page open a WebSocket anywhere, but say which page it was. Only our own is welcome.
pub(super) fn check_origin(headers: &HeaderMap) -> Result<(), ApiError> {
    let Some(origin) = headers.get(header::ORIGIN) else { return Ok(()) };
    let host = headers.get(header::HOST).and_then(|host| host.to_str().ok());
    let from = origin.to_str().ok().and_then(|origin| origin.parse::<Uri>().ok());
    let from = from.as_ref().and_then(Uri::authority);
    match (from, host) {
        (Some(from), Some(host)) if from.as_str().eq_ignore_ascii_case(host) => Ok(()),
        _ => {
            let message = "pages of other origins may not connect; open the page of this server, or connect from a \
                           program that sends no Origin header";
            Err(ApiError::new(StatusCode::FORBIDDEN, "origin_not_allowed", message))
        }
    }
}

async fn serve(app: Arc<App>, socket: WebSocket, tenant: Tenant, intake: Arc<Intake>) {
    let (sink, mut source) = socket.split();
    let (out, queue) = mpsc::channel(OUT_QUEUE);
    let mut writer = std::pin::pin!(write(sink, queue));
    let mut session = Session::new(app, out, tenant, intake);
    tokio::select! {
        _ = session.run(&mut source) => {}
        // Nobody hears us any more.
        () = &mut writer => return,
    }
    drop(session);
    writer.await;
}

/// Ends when the queue is closed and empty, or the socket fails.
async fn write(mut sink: SplitSink<WebSocket, Message>, mut queue: mpsc::Receiver<Message>) {
    while let Some(message) = queue.recv().await {
        if let Err(error) = sink.send(message).await {
            debug!(%error, "websocket writer ended");
            return;
        }
    }
    // The peer may be gone already.
    let _ = sink.close().await;
}

#[cfg(test)]
mod tests {
    use super::*;

    fn origin(origin: Option<&str>, host: &str) -> bool {
        let mut headers = HeaderMap::new();
        headers.insert(header::HOST, host.parse().unwrap());
        if let Some(origin) = origin {
            headers.insert(header::ORIGIN, origin.parse().unwrap());
        }
        check_origin(&headers).is_ok()
    }

    #[test]
    fn programs_and_our_own_page_may_connect() {
        assert!(origin(None, "127.0.0.1:8080"));
        assert!(origin(Some("http://127.0.0.1:8080"), "127.0.0.1:8080"));
        assert!(origin(Some("https://Voice.example"), "voice.example"));
    }

    #[test]
    fn other_pages_may_not() {
        for other in
            ["http://evil.example", "http://127.0.0.1:9", "null", "file://", "http://127.0.0.1:8080.evil.example"]
        {
            assert!(!origin(Some(other), "127.0.0.1:8080"), "{other}");
        }
    }
}
