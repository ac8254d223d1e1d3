//! `WS /v1/audio/speech/stream`: text in as it is written, speech out before the text is complete.
//!
//! One future reads and decides, one writes. Between them is a queue of [`OUT_QUEUE`] messages. When the client does
//! not read, the queue is full, so the session does not read the engine's stream and the request pauses; it still takes
//! a cancel.

use super::auth::Caller;
use super::budget::Intake;
use super::connection::ConnectionGuard;
use super::error::ApiError;
use super::state::App;
use super::visit::Visit;
use super::ws_session::{Session, length};
use axum::Extension;
use axum::extract::State;
use axum::extract::ws::rejection::WebSocketUpgradeRejection;
use axum::extract::ws::{Message, WebSocket, WebSocketUpgrade};
use axum::http::StatusCode;
use axum::response::Response;
use futures::stream::SplitSink;
use futures::{SinkExt, StreamExt};
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
    upgrade: Result<WebSocketUpgrade, WebSocketUpgradeRejection>,
) -> Result<Response, ApiError> {
    let upgrade = upgrade.map_err(|why| {
        let message = format!("this address speaks WebSocket: {}", why.body_text());
        ApiError::new(StatusCode::UPGRADE_REQUIRED, "upgrade_required", message)
    })?;
    let limit = app.max_body_bytes;
    // A browser that sends its key as a protocol needs the server to choose another one.
    let upgrade = upgrade.max_message_size(limit).max_frame_size(limit).protocols(["realtime"]);
    guard.intake().begin();
    Ok(upgrade.on_upgrade(move |socket| async move {
        tokio::select! {
            () = serve(app, socket, caller, Arc::clone(guard.intake())) => {}
            () = guard.closing() => {}
        }
    }))
}

async fn serve(app: Arc<App>, socket: WebSocket, caller: Caller, intake: Arc<Intake>) {
    let (sink, mut source) = socket.split();
    let (out, queue) = mpsc::channel(OUT_QUEUE);
    let mut writer = std::pin::pin!(write(sink, queue, Arc::clone(&caller.visit)));
    let mut session = Session::new(app, out, caller, intake);
    tokio::select! {
        _ = session.run(&mut source) => {}
        // The client is gone.
        () = &mut writer => return,
    }
    drop(session);
    writer.await;
}

/// Ends when the queue is closed and empty, or the socket fails.
async fn write(mut sink: SplitSink<WebSocket, Message>, mut queue: mpsc::Receiver<Message>, visit: Arc<Visit>) {
    while let Some(message) = queue.recv().await {
        visit.sent(length(&message));
        if let Err(error) = sink.send(message).await {
            debug!(%error, "websocket writer ended");
            return;
        }
    }
    // The peer may be gone already.
    let _ = sink.close().await;
}
