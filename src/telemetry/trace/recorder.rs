//! Buffers of records, one per thread, and those who listen.

use super::record::{Record, Track, What};
use crate::clock;
use std::cell::OnceCell;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering::Relaxed};
use std::sync::{Arc, LazyLock, Mutex, MutexGuard, PoisonError};
use std::time::Duration;
use tokio::sync::watch;

/// Most records that are kept, of all threads and processes together: some 100 MB, and half a minute of a GPU that speaks
/// with 16 voices at once.
pub const CAPACITY: usize = 1 << 20;

/// A process that records for another one sends what it has more often than this.
const FLUSH: Duration = Duration::from_millis(250);

/// Records of one allocation: little enough that no thread stumbles over getting it.
const BLOCK: usize = 256;

static ON: AtomicBool = AtomicBool::new(false);
/// Records in buffers and in the store.
static KEPT: AtomicUsize = AtomicUsize::new(0);
/// Records that did not fit, since the process began.
static LOST: AtomicU64 = AtomicU64::new(0);
/// Whether another process sent records since somebody began to listen.
static ELSEWHERE: AtomicBool = AtomicBool::new(false);
static SHARED: LazyLock<Mutex<Shared>> = LazyLock::new(Mutex::default);
static SWITCH: LazyLock<watch::Sender<bool>> = LazyLock::new(|| watch::channel(false).0);

thread_local! {
    static MINE: OnceCell<Arc<Buffer>> = const { OnceCell::new() };
}

type Block = Vec<Record>;

/// Of one thread.
#[derive(Default)]
struct Buffer(Mutex<Vec<Block>>);

#[derive(Default)]
struct Shared {
    buffers: Vec<Arc<Buffer>>,
    /// What has been taken out of buffers.
    store: Vec<Block>,
    sessions: Vec<Listening>,
    next: u64,
    /// [`LOST`] up to here has been told by [`drain`].
    told: u64,
}

struct Listening {
    id: u64,
    since: u64,
}

/// Whether anybody listens.
#[inline]
pub fn on() -> bool {
    ON.load(Relaxed)
}

/// Tells each time somebody begins to listen and when nobody does any more, for those who pass it on to other processes.
pub fn switched() -> watch::Receiver<bool> {
    SWITCH.subscribe()
}

/// Keeps a record, or counts it as lost.
pub(super) fn push(track: Track, began: u64, ended: u64, what: What) {
    let record = Record { process: std::process::id(), track, began, ended: ended.max(began), what };
    if !room_for(1) {
        return;
    }
    // A thread whose locals are gone already is about to end: what it still does is nothing to see.
    let kept = MINE.try_with(|mine| {
        let mut blocks = lock(&mine.get_or_init(join).0);
        match blocks.last_mut() {
            Some(block) if block.len() < BLOCK => block.push(record),
            _ => {
                let mut block = Vec::with_capacity(BLOCK);
                block.push(record);
                blocks.push(block);
            }
        }
    });
    if kept.is_err() {
        KEPT.fetch_sub(1, Relaxed);
    }
}

fn room_for(records: usize) -> bool {
    if KEPT.fetch_add(records, Relaxed) + records <= CAPACITY {
        return true;
    }
    KEPT.fetch_sub(records, Relaxed);
    LOST.fetch_add(records as u64, Relaxed);
    false
}

fn join() -> Arc<Buffer> {
    let buffer = Arc::<Buffer>::default();
    lock(&SHARED).buffers.push(Arc::clone(&buffer));
    buffer
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    // Lists of plain data: a panic cannot leave them half done.
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Takes all records out that there are, the oldest first for each thread; whoever listens in this process gets none of
/// them. For a process that sends its records to another one, and for measuring. What was lost since the last call is told
/// by a last record.
pub fn drain() -> Vec<Record> {
    let mut shared = lock(&SHARED);
    shared.gather();
    let mut records: Vec<Record> = std::mem::take(&mut shared.store).into_iter().flatten().collect();
    KEPT.fetch_sub(records.len(), Relaxed);
    let lost = LOST.load(Relaxed);
    if let (missing @ 1.., Some(last)) = (lost - shared.told, records.last()) {
        records.push(Record { what: What::Missing(missing), ..last.clone() });
        shared.told = lost;
    }
    records
}

/// Adds records that another process drained. Dropped while nobody listens.
pub fn absorb(records: Vec<Record>) {
    let mut shared = lock(&SHARED);
    if !shared.sessions.is_empty() && room_for(records.len()) {
        ELSEWHERE.store(true, Relaxed);
        shared.store.push(records);
    }
}

/// Waits until other processes that take part have sent what they have recorded by now; returns at once if none does.
pub async fn settle() {
    if ELSEWHERE.load(Relaxed) {
        tokio::time::sleep(FLUSH).await;
    }
}

/// Somebody who listens. Until the last one ends or is dropped, everything is recorded.
#[derive(Debug)]
pub struct Session {
    id: u64,
    since: u64,
    lost: u64,
}

/// What went on during a session.
#[derive(Clone, Debug, Default)]
pub struct Trace {
    /// From when, in nanoseconds of the [host's clock](clock).
    pub began: u64,
    /// Until when.
    pub ended: u64,
    /// By the time they began.
    pub records: Vec<Record>,
    /// Records that are not here because there was no room.
    pub missing: u64,
}

impl Session {
    /// Listens from now on.
    pub fn begin() -> Session {
        let mut shared = lock(&SHARED);
        if shared.sessions.is_empty() {
            // What was on its way while the last one ended.
            shared.forget(None);
        }
        let (id, since) = (shared.next, clock::now());
        shared.next += 1;
        shared.sessions.push(Listening { id, since });
        ON.store(true, Relaxed);
        SWITCH.send_replace(true);
        Session { id, since, lost: LOST.load(Relaxed) }
    }

    /// Listens no longer.
    pub fn end(self) -> Trace {
        let ended = clock::now();
        let mut shared = lock(&SHARED);
        shared.gather();
        let inside = |record: &&Record| record.began >= self.since && record.began <= ended;
        let mut records: Vec<Record> = shared.store.iter().flatten().filter(inside).cloned().collect();
        shared.leave(self.id);
        drop(shared);
        let mut missing = LOST.load(Relaxed) - self.lost;
        records.retain(|record| match record.what {
            What::Missing(elsewhere) => {
                missing += elsewhere;
                false
            }
            _ => true,
        });
        records.sort_by_key(|record| (record.began, record.ended));
        Trace { began: self.since, ended, records, missing }
    }
}

impl Drop for Session {
    fn drop(&mut self) {
        lock(&SHARED).leave(self.id);
    }
}

impl Shared {
    /// Empties the buffers into the store. Threads are kept from recording for as long as a pointer is swapped.
    fn gather(&mut self) {
        let Shared { buffers, store, .. } = self;
        for buffer in buffers.iter() {
            store.append(&mut *lock(&buffer.0));
        }
        buffers.retain(|buffer| Arc::strong_count(buffer) > 1);
    }

    /// Forgets a session, and what no other session wants.
    fn leave(&mut self, id: u64) {
        let before = self.sessions.len();
        self.sessions.retain(|session| session.id != id);
        if self.sessions.len() == before {
            return;
        }
        let oldest = self.sessions.iter().map(|session| session.since).min();
        if oldest.is_none() {
            ON.store(false, Relaxed);
            ELSEWHERE.store(false, Relaxed);
            SWITCH.send_replace(false);
        }
        self.forget(oldest);
    }

    /// Drops what ended before a moment; without one, everything.
    fn forget(&mut self, oldest: Option<u64>) {
        self.gather();
        self.store.retain(|block| {
            let wanted = oldest.is_some_and(|oldest| block.iter().any(|record| record.ended >= oldest));
            if !wanted {
                KEPT.fetch_sub(block.len(), Relaxed);
            }
            wanted
        });
    }
}
