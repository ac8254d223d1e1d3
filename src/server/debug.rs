//! `GET /debug/trace`: what the stages do, as a file for a Perfetto viewer. The routes exist only where the config says
//! `telemetry.trace = true`; they tell when which request was worked on, but never what anybody said.

use super::app::App;
use super::error::ApiError;
use super::fields::Fields;
use axum::body::{Body, Bytes};
use axum::extract::{Path, Query, State};
use axum::http::{HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Response};
use omni_telemetry::trace::{self, Recorder, Session, Trace};
use serde::Deserialize;
use std::collections::VecDeque;
use std::io::{self, Write};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;
use tokio::sync::{OwnedSemaphorePermit, Semaphore, mpsc, watch};

/// Longest trace of a server.
const MAX_SECONDS: f64 = 60.0;
/// Traces of single requests that are kept, running ones included: the oldest goes when another comes.
const KEPT: usize = 16;
/// Records of all kept traces together, some 200 MB.
const KEPT_RECORDS: usize = 2 * trace::CAPACITY;
/// How long a file of a request that is just ending is waited for.
const PATIENCE: Duration = Duration::from_secs(2);
/// Bytes that are handed to the connection at once, and how often that may be ahead of it.
const PIECE: usize = 64 << 10;
const PIECES: usize = 8;

/// The traces of a server that takes some.
pub(super) struct Traces {
    /// One trace of the whole server at a time.
    free: Arc<Semaphore>,
    kept: Mutex<Kept>,
}

#[derive(Default)]
struct Kept {
    next: u64,
    traces: VecDeque<Entry>,
}

struct Entry {
    id: u64,
    trace: watch::Receiver<Option<Arc<Trace>>>,
}

impl Traces {
    pub fn new() -> Traces {
        Traces { free: Arc::new(Semaphore::new(1)), kept: Mutex::default() }
    }

    fn lock(&self) -> MutexGuard<'_, Kept> {
        // A list of handles: a panic cannot leave it half done.
        self.kept.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn begin(&self, recorder: &Recorder) -> Recording {
        let (done, trace) = watch::channel(None);
        let mut kept = self.lock();
        kept.next += 1;
        let id = kept.next;
        kept.traces.push_back(Entry { id, trace });
        let size = |entry: &Entry| entry.trace.borrow().as_ref().map_or(0, |trace: &Arc<Trace>| trace.records.len());
        while kept.traces.len() > KEPT
            || (kept.traces.len() > 1 && kept.traces.iter().map(size).sum::<usize>() > KEPT_RECORDS)
        {
            kept.traces.pop_front();
        }
        Recording { id, session: Some(Session::begin(recorder)), done }
    }
}

/// The trace of one request, from before its acceptance until this is dropped.
pub(super) struct Recording {
    id: u64,
    session: Option<Session>,
    done: watch::Sender<Option<Arc<Trace>>>,
}

impl Recording {
    /// Where the file will be.
    pub fn path(&self) -> String {
        format!("/debug/trace/{}", self.id)
    }
}

impl std::fmt::Debug for Recording {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.path())
    }
}

impl Drop for Recording {
    fn drop(&mut self) {
        let Some(session) = self.session.take() else { return };
        let done = std::mem::replace(&mut self.done, watch::channel(None).0);
        // Without a runtime the server is gone, and with it everybody who could ask.
        if let Ok(runtime) = tokio::runtime::Handle::try_current() {
            runtime.spawn(async move {
                session.settle().await;
                let ended = tokio::task::spawn_blocking(move || session.end()).await;
                done.send_replace(ended.ok().map(Arc::new));
            });
        }
    }
}

/// The field `trace` of a request: begins a recording if it is set.
pub(super) fn asked(app: &App, fields: &Fields<'_>) -> Result<Option<Recording>, ApiError> {
    match (fields.boolean("trace")?, &app.traces) {
        (None | Some(false), _) => Ok(None),
        (Some(true), Some(traces)) => Ok(Some(traces.begin(&app.service.recorder()))),
        (Some(true), None) => {
            Err(fields
                .invalid("trace", "this server takes no traces; telemetry.trace = true in its config allows them"))
        }
    }
}

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
    let permit = app.traces.as_ref().and_then(|traces| Arc::clone(&traces.free).try_acquire_owned().ok());
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
        let message = format!("there is no trace {}; the last {KEPT} are kept", super::error::short(&id));
        ApiError::new(StatusCode::NOT_FOUND, "not_found", message)
    };
    let number: u64 = id.parse().map_err(|_| gone())?;
    let found = app.traces.as_ref().and_then(|traces| {
        let kept = traces.lock();
        kept.traces.iter().find(|entry| entry.id == number).map(|entry| entry.trace.clone())
    });
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
    // Made of letters and digits, which a header can carry.
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
