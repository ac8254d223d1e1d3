//! Traces of single requests: begins them, keeps the last ones, ends each with its request. Routes that hand them out
//! are in `debug`.

use omni_telemetry::trace::{self, Recorder, Session, Trace};
use std::collections::VecDeque;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use tokio::sync::{OwnedSemaphorePermit, Semaphore, watch};

/// Traces of single requests that are kept, running ones included: the oldest goes when another comes.
pub(super) const KEPT: usize = 16;
/// Records of all kept traces together, some 200 MB.
const KEPT_RECORDS: usize = 2 * trace::CAPACITY;

/// The traces of a server whose config allows them.
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

    /// The permit to trace the whole server, which one client has at a time.
    pub fn permit(&self) -> Option<OwnedSemaphorePermit> {
        Arc::clone(&self.free).try_acquire_owned().ok()
    }

    /// The trace of this number, complete or on its way; `None` if it is not kept.
    pub fn find(&self, id: u64) -> Option<watch::Receiver<Option<Arc<Trace>>>> {
        self.lock().traces.iter().find(|entry| entry.id == id).map(|entry| entry.trace.clone())
    }

    fn lock(&self) -> MutexGuard<'_, Kept> {
        // A list of handles: a panic cannot leave it half done.
        self.kept.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Begins the trace of a request.
    pub fn begin(&self, recorder: &Recorder) -> Recording {
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
    /// The path at which clients find the file.
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
        // Without a runtime the server is gone, and its clients with it.
        if let Ok(runtime) = tokio::runtime::Handle::try_current() {
            runtime.spawn(async move {
                session.settle().await;
                let ended = tokio::task::spawn_blocking(move || session.end()).await;
                done.send_replace(ended.ok().map(Arc::new));
            });
        }
    }
}
