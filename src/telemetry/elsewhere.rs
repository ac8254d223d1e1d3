//! The clock of another host, as far as round trips tell: what was recorded there is shown by the clock of this one. Pure.
//!
//! This side asks, and the other one answers with its time. It was read somewhere between the question and the answer, so
//! taking the middle is wrong by half of the round trip at most (as in NTP, RFC 5905). The shortest round trip tells most,
//! until the clocks may have drifted apart by more than a longer one would be wrong.

use std::time::Duration;

/// Clocks of hosts drift apart by less than this: 100 us in a second, twice what a bad quartz does.
const DRIFT: u64 = 10_000;

/// See the module. Times are nanoseconds of each side's [clock](crate::clock).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ClockElsewhere(Option<Best>);

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Best {
    /// What is to be added to their time for that of this host.
    behind: i128,
    /// By how much that was wrong at most.
    error: u64,
    /// When, by the clock of this host.
    at: u64,
}

impl Best {
    fn error_at(&self, now: u64) -> u64 {
        self.error + now.saturating_sub(self.at) / DRIFT
    }
}

impl ClockElsewhere {
    /// It was asked and answered at these times of this host, and read that in between.
    pub fn answered(&mut self, asked: u64, theirs: u64, now: u64) {
        let trip = now.saturating_sub(asked);
        let behind = i128::from(asked) + i128::from(trip / 2) - i128::from(theirs);
        let best = Best { behind, error: trip.div_ceil(2), at: now };
        if self.0.is_none_or(|before| best.error <= before.error_at(now)) {
            self.0 = Some(best);
        }
    }

    /// Their time by the clock of this host; as it is where nothing was answered yet.
    pub fn here(&self, theirs: u64) -> u64 {
        let here = i128::from(theirs) + self.0.map_or(0, |best| best.behind);
        u64::try_from(here.max(0)).unwrap_or(u64::MAX)
    }

    /// By how much that is wrong at most; `None` where nothing was answered yet.
    pub fn error(&self, now: u64) -> Option<Duration> {
        self.0.map(|best| Duration::from_nanos(best.error_at(now)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn without_an_answer_times_stay_as_they_are() {
        let clock = ClockElsewhere::default();
        assert_eq!((clock.here(7), clock.error(9)), (7, None));
    }

    #[test]
    fn the_shortest_round_trip_counts_until_it_is_old() {
        let mut clock = ClockElsewhere::default();
        // Theirs is 1000 behind; the first answer took long to come back.
        clock.answered(10_000, 9_000 + 100, 12_000);
        assert_eq!((clock.here(9_100), clock.error(12_000)), (11_000, Some(Duration::from_nanos(1_000))));
        clock.answered(20_000, 19_000 + 100, 20_200);
        assert_eq!((clock.here(19_100), clock.error(20_200)), (20_100, Some(Duration::from_nanos(100))));
        clock.answered(30_000, 29_000 + 400, 31_000);
        assert_eq!(clock.here(29_000), 30_000, "one that is worse changes nothing");
        // By now the best may be wrong by more than 500.
        let late = 20_200 + 401 * DRIFT;
        clock.answered(late, late + 5_000_000 + 250, late + 500);
        assert_eq!(clock.here(late + 5_000_250), late + 250);
    }

    proptest! {
        #[test]
        fn a_time_is_never_wrong_by_more_than_is_said(
            ahead in -1_000_000_000_000i64..1_000_000_000_000,
            trips in prop::collection::vec((0u64..1_000_000, 0u64..1_000_000), 1..20)
        ) {
            let (mut clock, mut now) = (ClockElsewhere::default(), 2_000_000_000_000u64);
            for (there, back) in trips {
                let theirs = (now + there).saturating_add_signed(ahead);
                clock.answered(now, theirs, now + there + back);
                now += there + back;
            }
            let error = clock.error(now).unwrap().as_nanos() as u64;
            let here = clock.here(now.saturating_add_signed(ahead));
            prop_assert!(here.abs_diff(now) <= error, "{} {} {}", here, now, error);
        }
    }
}
