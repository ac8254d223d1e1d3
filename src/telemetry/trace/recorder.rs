//! The recorder of one engine: a buffer for each thread that records, and the sessions that listen.

use super::record::{Record, Track, What};
use crate::clock;
use omni_core::ids::Replica;
use std::cell::RefCell;
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering::Relaxed};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::Duration;
use tokio::sync::watch;

/// The records that a recorder keeps at most, of all threads and processes together: some 100 MB, which is half a
/// minute of a GPU that speaks with 16 voices at once.
pub const CAPACITY: usize = 1 << 20;

/// A process that records for another one sends its records more often than this.
const FLUSH: Duration = Duration::from_millis(250);

/// Records in one allocation: few enough that an allocation does not delay a launch thread.
const BLOCK: usize = 256;

/// Sessions of all recorders of this process. It only keeps [`super::now`] from reading the clock in vain: what is
/// recorded is each recorder's own affair.
static SESSIONS: AtomicUsize = AtomicUsize::new(0);

thread_local! {
    /// The buffers of this thread, one for each recorder that it has recorded for.
    static BUFFERS: RefCell<Vec<(Weak<Inner>, Arc<Buffer>)>> = const { RefCell::new(Vec::new()) };
}

type Block = Vec<Record>;

/// The records of one thread that the store does not have yet.
#[derive(Default)]
struct Buffer(Mutex<Vec<Block>>);

/// What one engine records about itself. Engines in one process have a recorder each, for their requests have the same
/// ids. A clone is the same recorder.
#[derive(Clone, Default)]
pub struct Recorder(Arc<Inner>);

struct Inner {
    on: AtomicBool,
    /// Records in buffers and in the store.
    kept: AtomicUsize,
    /// Records that did not fit, ever.
    lost: AtomicU64,
    /// Whether another process records for the present sessions.
    elsewhere: AtomicBool,
    state: Mutex<State>,
    switch: watch::Sender<bool>,
}

#[derive(Default)]
struct State {
    buffers: Vec<Arc<Buffer>>,
    /// What has been taken out of buffers.
    store: Vec<Block>,
    sessions: Vec<Listening>,
    /// The nodes that have sent records, by the replica that ran there, and by how much their clocks may be wrong.
    nodes: BTreeMap<Replica, BTreeMap<String, Duration>>,
    next: u64,
    /// [`Recorder::drain`] has told of the records that were lost up to this one.
    told: u64,
}

struct Listening {
    id: u64,
    since: u64,
}

/// One track of a recorder: what a part of a stage writes to.
#[derive(Clone, Copy, Debug)]
pub struct TrackWriter<'a> {
    recorder: &'a Recorder,
    track: Track,
}

impl TrackWriter<'_> {
    /// Whether a session listens.
    pub(super) fn on(self) -> bool {
        self.recorder.on()
    }

    pub(super) fn push(self, began: u64, ended: u64, what: What) {
        self.recorder.push(self.track, began, ended, what);
    }
}

/// Whether a session listens to any recorder of this process.
#[inline]
pub(super) fn anybody_listens() -> bool {
    SESSIONS.load(Relaxed) > 0
}

impl Recorder {
    /// Whether a session listens.
    #[inline]
    pub fn on(&self) -> bool {
        self.0.on.load(Relaxed)
    }

    /// A track to record in.
    pub fn writer(&self, track: Track) -> TrackWriter<'_> {
        TrackWriter { recorder: self, track }
    }

    /// Changes when the first session begins and when the last one ends: a parent tells its stage processes of both.
    pub fn switched(&self) -> watch::Receiver<bool> {
        self.0.switch.subscribe()
    }

    /// Takes all records out, each thread's oldest first; sessions of this process get none of them. A stage process
    /// sends them to its parent. The last record tells how many were lost since the call before.
    pub fn drain(&self) -> Vec<Record> {
        let mut state = self.lock();
        state.gather();
        let mut records: Vec<Record> = std::mem::take(&mut state.store).into_iter().flatten().collect();
        self.0.kept.fetch_sub(records.len(), Relaxed);
        let lost = self.0.lost.load(Relaxed);
        if let (missing @ 1.., Some(last)) = (lost - state.told, records.last()) {
            records.push(Record { what: What::Missing(missing), ..last.clone() });
            state.told = lost;
        }
        records
    }

    /// Another process records, too, from now on: what it has recorded comes some time later.
    pub fn others_record(&self) {
        let state = self.lock();
        self.0.elsewhere.store(!state.sessions.is_empty(), Relaxed);
    }

    /// Adds records that a stage process has drained. Drops them if no session listens.
    pub fn absorb(&self, records: Vec<Record>) {
        let mut state = self.lock();
        if !state.sessions.is_empty() && self.room_for(records.len()) {
            self.0.elsewhere.store(true, Relaxed);
            state.store.push(records);
        }
    }

    /// [`absorb`](Recorder::absorb)s what a node has recorded of a replica, whose times are by the clock of this host already,
    /// wrong by so much at most.
    pub fn absorb_from(&self, place: Replica, node: &str, wrong: Duration, records: Vec<Record>) {
        let mut state = self.lock();
        if !state.sessions.is_empty() {
            state.nodes.entry(place).or_default().insert(node.to_owned(), wrong);
        }
        drop(state);
        self.absorb(records);
    }

    /// Waits until stage processes have sent what they have recorded by now; returns at once if none records.
    pub async fn settle(&self) {
        if self.0.elsewhere.load(Relaxed) {
            tokio::time::sleep(FLUSH).await;
        }
    }

    /// Keeps a record, or counts it as lost.
    fn push(&self, track: Track, began: u64, ended: u64, what: What) {
        let record = Record { process: std::process::id(), track, began, ended: ended.max(began), what };
        if !self.room_for(1) {
            return;
        }
        // A thread that has no locals any more is about to end; what it still does is not recorded.
        let kept = BUFFERS.try_with(|buffers| {
            let mut buffers = buffers.borrow_mut();
            let own = buffers.iter().position(|(of, _)| std::ptr::eq(of.as_ptr(), Arc::as_ptr(&self.0)));
            let own = own.unwrap_or_else(|| {
                buffers.retain(|(of, _)| of.strong_count() > 0);
                buffers.push((Arc::downgrade(&self.0), self.new_buffer()));
                buffers.len() - 1
            });
            let mut blocks = lock(&buffers[own].1.0);
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
            self.0.kept.fetch_sub(1, Relaxed);
        }
    }

    fn room_for(&self, records: usize) -> bool {
        if self.0.kept.fetch_add(records, Relaxed) + records <= CAPACITY {
            return true;
        }
        self.0.kept.fetch_sub(records, Relaxed);
        self.0.lost.fetch_add(records as u64, Relaxed);
        false
    }

    fn new_buffer(&self) -> Arc<Buffer> {
        let buffer = Arc::<Buffer>::default();
        self.lock().buffers.push(Arc::clone(&buffer));
        buffer
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        lock(&self.0.state)
    }

    /// Forgets a session, and what no other session wants.
    fn leave(&self, id: u64) {
        let mut state = self.lock();
        let before = state.sessions.len();
        state.sessions.retain(|session| session.id != id);
        if state.sessions.len() == before {
            return;
        }
        SESSIONS.fetch_sub(1, Relaxed);
        let oldest = state.sessions.iter().map(|session| session.since).min();
        if oldest.is_none() {
            self.0.on.store(false, Relaxed);
            self.0.elsewhere.store(false, Relaxed);
            state.nodes.clear();
            self.0.switch.send_replace(false);
        }
        self.forget(&mut state, oldest);
    }

    /// Drops what ended before a moment; without one, everything.
    fn forget(&self, state: &mut State, oldest: Option<u64>) {
        state.gather();
        state.store.retain(|block| {
            let wanted = oldest.is_some_and(|oldest| block.iter().any(|record| record.ended >= oldest));
            if !wanted {
                self.0.kept.fetch_sub(block.len(), Relaxed);
            }
            wanted
        });
    }
}

impl std::fmt::Debug for Recorder {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Recorder").field("on", &self.on()).finish_non_exhaustive()
    }
}

impl Default for Inner {
    fn default() -> Inner {
        Inner {
            on: AtomicBool::new(false),
            kept: AtomicUsize::new(0),
            lost: AtomicU64::new(0),
            elsewhere: AtomicBool::new(false),
            state: Mutex::default(),
            switch: watch::channel(false).0,
        }
    }
}

impl State {
    /// Empties the buffers into the store. A thread that records waits for as long as one vector is moved.
    fn gather(&mut self) {
        let State { buffers, store, .. } = self;
        for buffer in buffers.iter() {
            store.append(&mut *lock(&buffer.0));
        }
        buffers.retain(|buffer| Arc::strong_count(buffer) > 1);
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    // Lists of plain data: a panic cannot leave them half done.
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Listens to one recorder, which records for as long as it has a session.
#[derive(Debug)]
pub struct Session {
    recorder: Recorder,
    id: u64,
    since: u64,
    lost: u64,
}

/// What an engine did during a session.
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
    /// Replicas that ran on nodes, on which ones, and by how much the times of each may be wrong.
    pub nodes: BTreeMap<Replica, BTreeMap<String, Duration>>,
}

impl Session {
    /// Listens from now on.
    pub fn begin(recorder: &Recorder) -> Session {
        let mut state = recorder.lock();
        if state.sessions.is_empty() {
            // Records that a thread wrote while the last session ended.
            recorder.forget(&mut state, None);
        }
        let (id, since) = (state.next, clock::now());
        state.next += 1;
        state.sessions.push(Listening { id, since });
        SESSIONS.fetch_add(1, Relaxed);
        recorder.0.on.store(true, Relaxed);
        recorder.0.switch.send_replace(true);
        let lost = recorder.0.lost.load(Relaxed);
        drop(state);
        Session { recorder: recorder.clone(), id, since, lost }
    }

    /// See [`Recorder::settle`].
    pub async fn settle(&self) {
        self.recorder.settle().await;
    }

    /// What ended since it began, or since the last call, up to a moment ago: by then stage processes have sent what they
    /// recorded. It goes on listening.
    pub fn collect(&mut self) -> Vec<Record> {
        let until = clock::now().saturating_sub(2 * FLUSH.as_nanos() as u64).max(self.since);
        let mut state = self.recorder.lock();
        state.gather();
        let new = |record: &&Record| record.ended >= self.since && record.ended < until;
        let records = state.store.iter().flatten().filter(new).cloned().collect();
        self.since = until;
        if let Some(own) = state.sessions.iter_mut().find(|session| session.id == self.id) {
            own.since = until;
        }
        let oldest = state.sessions.iter().map(|session| session.since).min();
        self.recorder.forget(&mut state, oldest);
        records
    }

    /// Listens no longer.
    pub fn end(self) -> Trace {
        let ended = clock::now();
        let mut state = self.recorder.lock();
        state.gather();
        let inside = |record: &&Record| record.began >= self.since && record.began <= ended;
        let mut records: Vec<Record> = state.store.iter().flatten().filter(inside).cloned().collect();
        let nodes = state.nodes.clone();
        drop(state);
        self.recorder.leave(self.id);
        let mut missing = self.recorder.0.lost.load(Relaxed) - self.lost;
        records.retain(|record| match record.what {
            What::Missing(elsewhere) => {
                missing += elsewhere;
                false
            }
            _ => true,
        });
        records.sort_by_key(|record| (record.began, record.ended));
        Trace { began: self.since, ended, records, missing, nodes }
    }
}

impl Drop for Session {
    fn drop(&mut self) {
        self.recorder.leave(self.id);
    }
}
