//! The clock that all processes of a host share, in nanoseconds: what crosses a process border carries its readings.
//!
//! It is the system's monotonic clock, the one behind [`Instant`], whose own readings mean nothing to another process.

use rustix::time::{ClockId, clock_gettime};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, LazyLock};
use std::time::{Duration, Instant};

/// One moment on both clocks.
static ANCHOR: LazyLock<(Instant, u64)> = LazyLock::new(|| {
    // The closest of a few readings: the system may put the thread to sleep between the two clocks of one.
    let reading = |_| {
        let before = Instant::now();
        let nanos = now();
        (before.elapsed(), before, nanos)
    };
    let closest = (0..8).map(reading).min_by_key(|(apart, ..)| *apart);
    closest.map_or_else(|| (Instant::now(), now()), |(_, at, nanos)| (at, nanos))
});

/// Now.
pub fn now() -> u64 {
    let time = clock_gettime(ClockId::Monotonic);
    time.tv_sec as u64 * 1_000_000_000 + time.tv_nsec as u64
}

/// The reading for a moment of this process.
pub fn nanos(at: Instant) -> u64 {
    let (anchor, nanos) = *ANCHOR;
    match at.checked_duration_since(anchor) {
        Some(after) => nanos + after.as_nanos() as u64,
        None => nanos.saturating_sub((anchor - at).as_nanos() as u64),
    }
}

/// How long ago a reading was taken, here or in another process; zero for one of the future.
pub fn since(nanos: u64) -> Duration {
    Duration::from_nanos(now().saturating_sub(nanos))
}

/// What cores are told the time by: time since the clock was made. A simulation sets its clock by hand.
#[derive(Clone, Debug)]
pub enum Clock {
    /// The system's, from this moment on.
    System(Instant),
    /// Set by a simulation, in nanoseconds.
    Simulated(Arc<AtomicU64>),
}

impl Clock {
    /// The system's clock, from now on.
    pub fn system() -> Clock {
        Clock::System(Instant::now())
    }

    /// Time since the clock was made.
    pub fn now(&self) -> Duration {
        match self {
            Clock::System(born) => born.elapsed(),
            Clock::Simulated(nanos) => Duration::from_nanos(nanos.load(Ordering::Relaxed)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_instant_and_a_reading_of_the_same_moment_agree() {
        let (before, at, after) = (now(), Instant::now(), now());
        // The anchor is as exact as two readings are apart.
        let slack = 100_000;
        assert!(nanos(at) + slack >= before && nanos(at) <= after + slack);
        assert_eq!(nanos(at + Duration::from_millis(5)), nanos(at) + 5_000_000);
        assert_eq!(since(now() + 1_000_000_000_000), Duration::ZERO);
    }
}
