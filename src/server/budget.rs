//! Limits the bytes of requests that the server holds for all clients together.

use super::error::ApiError;
use axum::http::StatusCode;
use metrics::Gauge;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

/// Most bytes that a frame of a WebSocket client has besides its payload.
const FRAME_HEAD: usize = 14;

/// The limit, and how much of it is taken.
#[derive(Debug)]
pub(super) struct Budget {
    limit: usize,
    used: AtomicUsize,
    shown: Gauge,
}

impl Budget {
    pub fn new(limit: usize, shown: Gauge) -> Arc<Budget> {
        Arc::new(Budget { limit, used: AtomicUsize::new(0), shown })
    }

    /// The error of a request for which no bytes are left.
    pub fn exhausted(&self) -> ApiError {
        let message = format!("{} bytes of requests are being received already; try again later", self.limit);
        let error = ApiError::new(StatusCode::SERVICE_UNAVAILABLE, "too_much_input", message);
        ApiError { retry_after: Some(Duration::from_secs(1)), ..error }
    }

    fn take(&self, bytes: usize) -> bool {
        let more = |used: usize| used.checked_add(bytes).filter(|used| *used <= self.limit);
        let taken = self.used.fetch_update(Ordering::Relaxed, Ordering::Relaxed, more).is_ok();
        if taken {
            self.shown.increment(bytes as f64);
        }
        taken
    }

    fn give_back(&self, bytes: usize) {
        self.used.fetch_sub(bytes, Ordering::Relaxed);
        self.shown.decrement(bytes as f64);
    }
}

/// A part of the budget. Dropping it gives the part back.
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
        let taken = self.budget.take(bytes);
        self.bytes += if taken { bytes } else { 0 };
        taken
    }

    /// Gives bytes back, at most those of the part.
    pub fn give_back(&mut self, bytes: usize) {
        let bytes = bytes.min(self.bytes);
        self.bytes -= bytes;
        self.budget.give_back(bytes);
    }
}

impl Drop for Held {
    fn drop(&mut self) {
        self.budget.give_back(self.bytes);
    }
}

/// The bytes that one connection has read since it became a WebSocket and that its session has not taken yet. Bodies of
/// earlier requests are counted where the handlers read them.
#[derive(Debug)]
pub(super) struct Intake {
    counts: AtomicBool,
    full: AtomicBool,
    held: Mutex<Held>,
}

impl Intake {
    pub fn new(budget: &Arc<Budget>) -> Arc<Intake> {
        let held = Mutex::new(Held::nothing(budget));
        Arc::new(Intake { counts: AtomicBool::new(false), full: AtomicBool::new(false), held })
    }

    /// Counts bytes from now on.
    pub fn begin(&self) {
        self.counts.store(true, Ordering::Relaxed);
    }

    /// Counts bytes that came off the socket; false if the budget has no room for them.
    pub fn read(&self, bytes: usize) -> bool {
        if !self.counts.load(Ordering::Relaxed) || bytes == 0 {
            return true;
        }
        let fits = self.held.lock().unwrap_or_else(PoisonError::into_inner).take(bytes);
        self.full.fetch_or(!fits, Ordering::Relaxed);
        fits
    }

    /// The session took a message of this length.
    pub fn taken(&self, length: usize) {
        self.held.lock().unwrap_or_else(PoisonError::into_inner).give_back(length + FRAME_HEAD);
    }

    /// Whether the budget had no room at some time.
    pub fn was_full(&self) -> bool {
        self.full.load(Ordering::Relaxed)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_held_is_held_together_and_given_back() {
        let budget = Budget::new(100, Gauge::noop());
        let (mut one, mut other) = (Held::nothing(&budget), Held::nothing(&budget));
        assert!(one.take(60) && !other.take(41) && other.take(40));
        assert!(!one.take(1));
        drop(other);
        assert!(one.take(40));
        one.give_back(1000);
        assert_eq!(budget.used.load(Ordering::Relaxed), 0);
    }

    #[test]
    fn a_socket_counts_only_once_it_is_a_websocket() {
        let budget = Budget::new(100, Gauge::noop());
        let intake = Intake::new(&budget);
        assert!(intake.read(1000));
        intake.begin();
        assert!(intake.read(100) && !intake.was_full());
        assert!(!intake.read(1) && intake.was_full());
        intake.taken(100);
        assert!(intake.read(100));
    }
}
