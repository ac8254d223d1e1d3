//! One account of the bytes that the server holds for all clients together: what they have sent, and what it owes them.
//! A buffer takes its bytes before it grows; its guard, a [`Held`], gives them back when the buffer goes.
//!
//! The last part of a budget is for small buffers alone, so that clients with large ones never keep out ordinary ones.

use super::error::ApiError;
use axum::body::Bytes;
use axum::http::StatusCode;
use metrics::Gauge;
use omni_telemetry::HttpMetrics;
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;
use tokio::sync::Notify;
use tokio::time::{Instant, timeout_at};
use tokio_util::sync::CancellationToken;

/// One part of this many of a budget is for small buffers.
const RESERVE: usize = 8;
/// How long an answer may wait for its reader before its memory may be needed for others.
const GRACE: Duration = Duration::from_secs(2);
/// How long a buffer waits for memory of others: its request keeps a place meanwhile.
const PATIENCE: Duration = Duration::from_millis(500);
/// How often it looks whether an answer has come of age.
const LOOK: Duration = Duration::from_millis(100);

/// What a budget counts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum What {
    /// Requests, from their first byte until they are answered; messages of WebSockets; what their sessions keep.
    Input,
    /// Answers in one piece, from the first sample until the client has read them.
    Output,
}

impl What {
    /// Bytes up to which a buffer counts as small: an ordinary request; 20 s of speech.
    fn small(self) -> usize {
        match self {
            What::Input => 64 << 10,
            What::Output => 1 << 20,
        }
    }
}

/// The limit, and how much of it is taken.
#[derive(Debug)]
pub(super) struct Budget {
    what: What,
    limit: usize,
    used: AtomicUsize,
    shown: Gauge,
    unread: Mutex<BTreeMap<(Instant, u64), CancellationToken>>,
    number: AtomicU64,
    freed: Notify,
}

impl Budget {
    pub fn new(what: What, limit: usize, shown: Gauge) -> Arc<Budget> {
        let (used, number) = (AtomicUsize::new(0), AtomicU64::new(0));
        Arc::new(Budget { what, limit, used, shown, unread: Mutex::default(), number, freed: Notify::new() })
    }

    /// The error of a request for which no bytes are left.
    pub fn exhausted(&self) -> ApiError {
        let (code, what, advice) = match self.what {
            What::Input => ("too_much_input", "requests are being received already (server.max_input_bytes)", ""),
            What::Output => (
                "too_much_output",
                "answers are being made or read already (server.max_output_bytes)",
                ", or ask for a stream",
            ),
        };
        let message = format!("{} bytes of {what}; try again later{advice}", self.limit);
        ApiError::new(StatusCode::SERVICE_UNAVAILABLE, code, message).with_retry_after(Duration::from_secs(1))
    }

    /// Takes bytes for a buffer that has `holds` of them already. None can always be had, however much is taken.
    fn take(&self, bytes: usize, holds: usize) -> bool {
        if bytes == 0 {
            return true;
        }
        let small = holds.saturating_add(bytes) <= self.what.small();
        let limit = if small { self.limit } else { self.limit - self.limit / RESERVE };
        let more = |used: usize| used.checked_add(bytes).filter(|used| *used <= limit);
        let taken = self.used.fetch_update(Ordering::Relaxed, Ordering::Relaxed, more).is_ok();
        if taken {
            self.shown.increment(bytes as f64);
        }
        taken
    }

    fn give_back(&self, bytes: usize) {
        if bytes > 0 {
            self.used.fetch_sub(bytes, Ordering::Relaxed);
            self.shown.decrement(bytes as f64);
            self.freed.notify_waiters();
        }
    }

    /// Closes the connection whose answer has waited longest for its reader, if one has waited for too long.
    fn evict(&self) {
        let mut unread = self.unread();
        if let Some(oldest) = unread.first_entry()
            && oldest.key().0.elapsed() >= GRACE
        {
            oldest.remove().cancel();
            HttpMetrics::evicted("unread");
        }
    }

    fn unread(&self) -> MutexGuard<'_, BTreeMap<(Instant, u64), CancellationToken>> {
        self.unread.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A part of a budget, held for one buffer. Dropping it gives the part back.
#[derive(Debug)]
pub(super) struct Held {
    budget: Arc<Budget>,
    bytes: usize,
}

impl Held {
    /// An empty part.
    pub fn nothing(budget: &Arc<Budget>) -> Held {
        Held { budget: Arc::clone(budget), bytes: 0 }
    }

    /// Adds bytes to the part; false if the budget has not as many left.
    pub fn take(&mut self, bytes: usize) -> bool {
        let taken = self.budget.take(bytes, self.bytes);
        self.bytes += if taken { bytes } else { 0 };
        taken
    }

    /// The same, but lets others give back what they do not need: it waits a while, and closes connections whose
    /// answers are read too slowly.
    pub async fn take_patiently(&mut self, bytes: usize) -> bool {
        let until = Instant::now() + PATIENCE;
        loop {
            let budget = Arc::clone(&self.budget);
            let mut freed = std::pin::pin!(budget.freed.notified());
            // From here on nothing that is given back goes unnoticed.
            freed.as_mut().enable();
            if self.take(bytes) {
                return true;
            }
            budget.evict();
            if Instant::now() >= until {
                return false;
            }
            let look_again = Instant::now() + LOOK;
            // Woken or not, it tries again.
            let _ = timeout_at(until.min(look_again), freed).await;
        }
    }

    /// Makes the part as large as this; false, and nothing changed, if the budget has not as many left.
    pub fn resize(&mut self, bytes: usize) -> bool {
        match bytes.checked_sub(self.bytes) {
            Some(more) => self.take(more),
            None => {
                self.budget.give_back(self.bytes - bytes);
                self.bytes = bytes;
                true
            }
        }
    }

    /// An empty part of the same budget.
    pub fn another(&self) -> Held {
        Held::nothing(&self.budget)
    }

    /// How large the part is.
    pub fn bytes(&self) -> usize {
        self.bytes
    }

    /// The part as it is, and an empty one in its place.
    pub fn split_off(&mut self) -> Held {
        let budget = Arc::clone(&self.budget);
        Held { budget, bytes: std::mem::take(&mut self.bytes) }
    }

    /// What is said where [`take`](Self::take) fails.
    pub fn exhausted(&self) -> ApiError {
        self.budget.exhausted()
    }

    /// Says that an answer waits for its reader until this is dropped.
    pub fn unread(&self, connection: Option<CancellationToken>) -> Option<Unread> {
        connection.map(|connection| Unread::new(&self.budget, connection))
    }

    /// Bytes that hold this part until the last of them is dropped: until they are in the socket. If they stay for long
    /// and the budget runs out, `connection` is cancelled.
    pub fn guard(mut self, mut bytes: Vec<u8>, connection: Option<CancellationToken>) -> Bytes {
        bytes.shrink_to_fit();
        // What another form of the same answer took more or less. It is there already, so it must be counted.
        self.budget.used.fetch_add(bytes.len(), Ordering::Relaxed);
        self.budget.shown.increment(bytes.len() as f64);
        self.budget.give_back(self.bytes);
        self.bytes = bytes.len();
        let unread = self.unread(connection);
        Bytes::from_owner(Guarded { bytes, _held: self, _unread: unread })
    }
}

impl Drop for Held {
    fn drop(&mut self) {
        self.budget.give_back(self.bytes);
    }
}

/// Bytes and their guard.
struct Guarded {
    bytes: Vec<u8>,
    _held: Held,
    _unread: Option<Unread>,
}

impl AsRef<[u8]> for Guarded {
    fn as_ref(&self) -> &[u8] {
        &self.bytes
    }
}

/// An answer that waits for its reader.
pub(super) struct Unread {
    budget: Arc<Budget>,
    key: (Instant, u64),
}

impl Unread {
    fn new(budget: &Arc<Budget>, connection: CancellationToken) -> Unread {
        let key = (Instant::now(), budget.number.fetch_add(1, Ordering::Relaxed));
        budget.unread().insert(key, connection);
        Unread { budget: Arc::clone(budget), key }
    }
}

impl Drop for Unread {
    fn drop(&mut self) {
        self.budget.unread().remove(&self.key);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn used(budget: &Budget) -> usize {
        budget.used.load(Ordering::Relaxed)
    }

    #[test]
    fn what_is_held_is_held_together_and_given_back() {
        let budget = Budget::new(What::Input, 100, Gauge::noop());
        let (mut one, mut other) = (Held::nothing(&budget), Held::nothing(&budget));
        assert!(one.take(60) && !other.take(41) && other.take(40));
        assert!(!one.take(1));
        drop(other);
        assert!(one.take(40) && !one.resize(101) && one.resize(30));
        let moved = one.split_off();
        drop(one);
        assert_eq!(used(&budget), 30);
        drop(moved);
        assert_eq!(used(&budget), 0);
    }

    fn one_more(budget: &Arc<Budget>, bytes: usize) -> Held {
        let mut held = Held::nothing(budget);
        assert!(held.take(bytes));
        held
    }

    #[test]
    fn large_buffers_leave_room_for_small_ones() {
        let budget = Budget::new(What::Input, 64 << 20, Gauge::noop());
        let large: Vec<Held> = std::iter::from_fn(|| {
            let mut held = Held::nothing(&budget);
            held.take(1 << 20).then_some(held)
        })
        .collect();
        assert_eq!(large.len(), 56);
        let mut small = one_more(&budget, 64 << 10);
        assert!(!small.take(1), "it is large now");
    }

    #[tokio::test(start_paused = true)]
    async fn who_needs_no_more_is_neither_refused_nor_given_the_place_of_a_reader() {
        let budget = Budget::new(What::Output, 16 << 20, Gauge::noop());
        let mut large = one_more(&budget, 14 << 20);
        let reader = CancellationToken::new();
        let unread = one_more(&budget, 1 << 20).guard(vec![0; 1 << 20], Some(reader.clone()));
        tokio::time::advance(GRACE).await;
        assert!(!large.take(1), "the rest is for small ones");
        assert!(large.take(0) && large.take_patiently(0).await && large.resize(14 << 20));
        assert!(!reader.is_cancelled());
        drop(unread);
    }

    #[test]
    fn bytes_are_counted_until_the_last_of_them_is_gone() {
        let budget = Budget::new(What::Output, 1 << 20, Gauge::noop());
        let bytes = one_more(&budget, 10).guard(vec![7; 1000], None);
        let part = bytes.slice(990..);
        drop(bytes);
        assert_eq!((used(&budget), part.len()), (1000, 10));
        drop(part);
        assert_eq!(used(&budget), 0);
    }

    #[tokio::test(start_paused = true)]
    async fn the_answer_that_waited_longest_makes_room_and_its_reader_alone_is_cut() {
        let budget = Budget::new(What::Output, 1000, Gauge::noop());
        let readers = [(); 2].map(|()| CancellationToken::new());
        let answers = readers.clone().map(|reader| one_more(&budget, 500).guard(vec![0; 500], Some(reader)));
        let [first, second] = answers;
        // The connection drops what it had to write.
        let closing = tokio::spawn({
            let reader = readers[0].clone();
            async move {
                reader.cancelled().await;
                drop(first);
            }
        });
        let mut more = Held::nothing(&budget);
        assert!(!more.take_patiently(400).await, "a reader has a while");
        tokio::time::advance(GRACE - PATIENCE).await;
        assert!(more.take_patiently(400).await);
        closing.await.unwrap();
        assert!(!readers[1].is_cancelled());
        drop(second);
    }

    #[tokio::test(start_paused = true)]
    async fn where_nothing_can_be_given_back_the_wait_ends() {
        let budget = Budget::new(What::Output, 1000, Gauge::noop());
        let _all = one_more(&budget, 1000);
        assert!(!Held::nothing(&budget).take_patiently(1).await);
    }
}
