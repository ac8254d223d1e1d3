//! When a stage that failed is started again, and when it is given up.

use crate::suspects::Attribution;
use std::collections::VecDeque;
use std::time::Duration;

/// Limits of restarting.
#[derive(Clone, Copy, Debug)]
pub struct RestartLimits {
    /// Pause before the first restart of a series; doubles with each.
    pub backoff: Duration,
    /// Longest pause.
    pub max_backoff: Duration,
    /// More failures than this within `window` and the stage stays down.
    pub max_restarts: usize,
    /// See `max_restarts`.
    pub window: Duration,
}

/// What to do about a failure.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// Start again after this pause.
    Restart(Duration),
    /// Too many failures in too short a time: something is wrong that a restart does not mend.
    GiveUp,
}

/// Remembers failures.
#[derive(Debug)]
pub struct RestartPolicy {
    limits: RestartLimits,
    /// Those that count: their numbers, and when.
    failures: VecDeque<(u64, Duration)>,
}

impl RestartPolicy {
    /// No failure yet.
    pub fn new(limits: RestartLimits) -> RestartPolicy {
        RestartPolicy { limits, failures: VecDeque::new() }
    }

    /// Records a failure at `now`, a time since any fixed moment. One that does not count never has the stage given up.
    pub fn failed(&mut self, now: Duration, attribution: &Attribution) -> Verdict {
        let Attribution { number, counts, excused } = attribution;
        let oldest = now.saturating_sub(self.limits.window);
        self.failures.retain(|(number, at)| *at >= oldest && !excused.contains(number));
        if *counts {
            self.failures.push_back((*number, now));
            if self.failures.len() > self.limits.max_restarts {
                return Verdict::GiveUp;
            }
        }
        let doublings = u32::try_from(self.failures.len().saturating_sub(1)).unwrap_or(u32::MAX).min(16);
        Verdict::Restart((self.limits.backoff * 2u32.pow(doublings)).min(self.limits.max_backoff))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LIMITS: RestartLimits = RestartLimits {
        backoff: Duration::from_millis(20),
        max_backoff: Duration::from_millis(100),
        max_restarts: 4,
        window: Duration::from_secs(10),
    };

    fn seconds(at: &[u64]) -> Vec<Verdict> {
        let mut policy = RestartPolicy::new(LIMITS);
        at.iter().map(|second| policy.failed(Duration::from_secs(*second), &Attribution::default())).collect()
    }

    #[test]
    fn what_is_excused_or_does_not_count_gives_up_no_stage() {
        let mut policy = RestartPolicy::new(LIMITS);
        for number in 0..100u64 {
            let excused = number.checked_sub(1).into_iter().collect();
            let attribution = Attribution { number, counts: number % 3 > 0, excused };
            let verdict = policy.failed(Duration::from_millis(number), &attribution);
            assert_eq!(verdict, Verdict::Restart(Duration::from_millis(20)), "failure {number}");
        }
    }

    #[test]
    fn pauses_double_up_to_the_longest_and_then_the_stage_is_given_up() {
        let pause = |ms| Verdict::Restart(Duration::from_millis(ms));
        assert_eq!(seconds(&[0, 1, 2, 3, 4]), [pause(20), pause(40), pause(80), pause(100), Verdict::GiveUp]);
    }

    #[test]
    fn old_failures_are_forgiven() {
        assert_eq!(seconds(&[0, 1, 2, 3, 30]).last(), Some(&Verdict::Restart(Duration::from_millis(20))));
    }
}
