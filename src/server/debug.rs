//! `GET /debug/trace`: what the stages do, as a file for a Perfetto viewer. The routes exist only where the config says
//! `telemetry.trace = true`. A trace tells when the stages worked on which request, never what a client said.

use super::error::ApiError;
use super::state::App;
use super::traces::{KEPT, Traces};
use axum::body::{Body, Bytes};
use axum::extract::{Path, Query, State};
use axum::http::{HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Response};
use omni_telemetry::trace::{self, Session, Trace};
use serde::Deserialize;
use std::io::{self, Write};
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::{OwnedSemaphorePermit, mpsc};

/// Longest trace of a server.
const MAX_SECONDS: f64 = 60.0;
/// How long the handler waits for the file of a request that is just ending.
const PATIENCE: Duration = Duration::from_secs(2);
/// Bytes that are handed to the connection at once.
const PIECE: usize = 64 << 10;
/// How many such pieces the writer may be ahead of the connection.
const PIECES: usize = 8;

/// How long the trace is.
#[derive(Deserialize)]
pub(super) struct Wanted {
    seconds: Option<String>,
}

/// `GET /debug/trace?seconds=N`
pub(super) async fn now(State(app): State<Arc<App>>, Query(wanted): Query<Wanted>) -> Result<Response, ApiError> {
    let seconds = wanted.seconds.as_deref().unwrap_or("5");
    let seconds = seconds.parse().ok().filter(|seconds: &f64| *seconds > 0.0 && *seconds <= MAX_SECONDS);
    let seconds = seconds
        .ok_or_else(|| ApiError::invalid("seconds", format!("seconds: must be above 0 and at most {MAX_SECONDS}")))?;
    let permit = app.traces.as_ref().and_then(Traces::permit);
    let busy =
        || ApiError::new(StatusCode::CONFLICT, "trace_busy", "a trace is being taken; try again when it is over");
    let permit = permit.ok_or_else(busy)?;
    let session = Session::begin(&app.service.recorder());
    tokio::select! {
        () = tokio::time::sleep(Duration::from_secs_f64(seconds)) => session.settle().await,
        () = app.stopping.cancelled() => {}
    }
    let ended = tokio::task::spawn_blocking(move || session.end()).await;
    let trace = ended.map_err(|error| ApiError::internal(error.to_string()))?;
    Ok(file("trace.json", Arc::new(trace), Some(permit)))
}

/// `GET /debug/trace/{id}`
pub(super) async fn of_request(State(app): State<Arc<App>>, Path(id): Path<String>) -> Result<Response, ApiError> {
    let gone = || {
        let message = format!("there is no trace {}; the last {KEPT} are kept", super::api::short(&id));
        ApiError::new(StatusCode::NOT_FOUND, "not_found", message)
    };
    let number: u64 = id.parse().map_err(|_| gone())?;
    let found = app.traces.as_ref().and_then(|traces| traces.find(number));
    let mut trace = found.ok_or_else(gone)?;
    let complete = tokio::time::timeout(PATIENCE, trace.wait_for(Option::is_some)).await;
    let complete = match complete {
        Ok(Ok(trace)) => trace.clone(),
        // The recording broke off.
        Ok(Err(_)) => return Err(gone()),
        Err(_) => None,
    };
    let running = || {
        let error =
            ApiError::new(StatusCode::CONFLICT, "trace_running", "the request goes on; try again when it is over");
        ApiError { retry_after: Some(Duration::from_secs(1)), ..error }
    };
    Ok(file(&format!("trace-{number}.json"), complete.ok_or_else(running)?, None))
}

/// A trace as a body that is written while it is read.
fn file(name: &str, trace: Arc<Trace>, permit: Option<OwnedSemaphorePermit>) -> Response {
    let (send, mut pieces) = mpsc::channel(PIECES);
    tokio::task::spawn_blocking(move || {
        let mut body = Pieces { send, piece: Vec::with_capacity(PIECE) };
        // Fails only when the client has left.
        let _ = trace::write(&trace, &mut body);
        drop(permit);
    });
    let body = Body::from_stream(futures::stream::poll_fn(move |context| pieces.poll_recv(context)));
    let json = HeaderValue::from_static("application/json");
    let mut response = ([(header::CONTENT_TYPE, json)], body).into_response();
    // The name consists of letters and digits, which a header can carry.
    if let Ok(name) = HeaderValue::from_str(&format!("attachment; filename=\"{name}\"")) {
        response.headers_mut().insert(header::CONTENT_DISPOSITION, name);
    }
    response
}

/// The writing end of a body.
struct Pieces {
    send: mpsc::Sender<io::Result<Bytes>>,
    piece: Vec<u8>,
}

impl Write for Pieces {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.piece.extend_from_slice(bytes);
        if self.piece.len() >= PIECE {
            self.flush()?;
        }
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        let piece = std::mem::replace(&mut self.piece, Vec::with_capacity(PIECE));
        let sent = if piece.is_empty() { Ok(()) } else { self.send.blocking_send(Ok(piece.into())) };
        sent.map_err(|_| io::ErrorKind::BrokenPipe.into())
    }
}
