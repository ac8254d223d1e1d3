//! How long an actor of a stage may show no sign of life before it is taken for hung.
//!
//! Where a machine is busy, a step may take longer than a short watchdog allows. A stage that is started again begins
//! that step again, and would never get through. So a generation that is taken for hung before anything has left it
//! leaves all that follow twice the time, as long as it may only have been slow.

use crate::setup::SURELY_HUNG;
use std::time::Duration;

/// The time that the current generation has.
#[derive(Debug)]
pub(super) struct Watchdog {
    configured: Duration,
    limit: Duration,
}

impl Watchdog {
    /// The first generation has the time that is configured.
    pub fn new(configured: Duration) -> Watchdog {
        Watchdog { configured, limit: configured }
    }

    /// How long an actor of the current generation may be silent.
    pub fn limit(&self) -> Duration {
        self.limit
    }

    /// The current generation is taken for hung. `made`: something had left it.
    pub fn struck(&mut self, made: bool) {
        if !made {
            self.limit = (self.limit * 2).min(self.configured.max(SURELY_HUNG));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The limits after each of these failures, in milliseconds.
    fn limits(configured: u64, made: &[bool]) -> Vec<u128> {
        let mut watchdog = Watchdog::new(Duration::from_millis(configured));
        let struck = |made: &bool| {
            watchdog.struck(*made);
            watchdog.limit().as_millis()
        };
        made.iter().map(struck).collect()
    }

    #[test]
    fn a_stage_that_gets_nothing_done_has_more_time_up_to_where_it_is_surely_hung() {
        assert_eq!(limits(1000, &[false; 4]), [2000, 4000, 5000, 5000]);
        assert_eq!(limits(10_000, &[false; 2]), [10_000; 2], "a long watchdog is long enough");
    }

    #[test]
    fn a_stage_that_got_something_done_has_the_time_that_it_had() {
        assert_eq!(limits(1000, &[true, false, true, false, true]), [1000, 2000, 2000, 4000, 4000]);
    }
}
