//! How long an actor of a stage, or a stage's process, may show no sign of life before it is taken for hung.
//!
//! It is judged by the time in which it could have run. The supervisor takes from its silence what the machine kept
//! from it: the time by which the supervisor itself woke late, since the process or the whole host was stopped, and the
//! time for which threads of the process waited for a processor ([`Waits`](crate::waits::Waits)). That is an estimate,
//! because work is spread over threads, so it has a bound: silence of [`LONGEST`] limits during which the supervisor was
//! there is a hang on any machine, but no request is blamed for it.
//!
//! Where a machine is busy, a step may take longer than a short watchdog allows. A stage that is started again begins
//! that step again, and would never get through. So a generation that is taken for hung before anything has left it
//! leaves all that follow twice the time, as long as it may only have been slow.

use std::time::Duration;

/// An actor that could run for less than this may only have been slow.
const SURELY_HUNG: Duration = Duration::from_secs(5);
/// Limits of silence after which it does not matter any more how long threads waited for a processor.
const LONGEST: u32 = 4;
/// Looks in a limit as it is configured.
const LOOKS: u32 = 4;

/// The time that the current generation has.
#[derive(Clone, Copy, Debug)]
pub(super) struct Limit {
    configured: Duration,
    now: Duration,
}

impl Limit {
    /// The first generation has the time that is configured.
    pub fn new(configured: Duration) -> Limit {
        Limit { configured, now: configured }
    }

    /// How long an actor of the current generation may be silent.
    pub fn now(self) -> Duration {
        self.now
    }

    /// The current generation is taken for hung. `made`: something had left it.
    pub fn struck(&mut self, made: bool) {
        if !made {
            self.now = (self.now * 2).min(self.configured.max(SURELY_HUNG));
        }
    }
}

/// Something that has been silent for too long.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Strike {
    /// How long.
    pub silent: Duration,
    /// How much of that the machine kept from it.
    pub kept: Duration,
    limit: Duration,
}

impl Strike {
    /// For how long it could have run.
    fn ran(self) -> Duration {
        self.silent.saturating_sub(self.kept)
    }

    /// It may only have been slow, so that no request is to be blamed: it could not run for long, or the machine kept
    /// more from it than it gave.
    pub fn may_be_slow(self) -> bool {
        self.ran() < SURELY_HUNG || self.ran() <= self.limit || self.is_starved()
    }

    /// The machine kept more from it than it gave.
    pub fn is_starved(self) -> bool {
        self.kept > self.ran()
    }
}

/// Watches a number of actors, looking [`Watchdog::period`] by period.
#[derive(Debug)]
pub(super) struct Watchdog {
    pub limit: Limit,
    period: Duration,
    looked: Duration,
    watched: Vec<Watched>,
}

/// One actor.
#[derive(Clone, Copy, Debug, Default)]
struct Watched {
    /// Since when it has been at one thing.
    since: Option<Duration>,
    /// For how much of that time the supervisor itself was late.
    late: Duration,
    /// What the machine has kept from it.
    kept: Duration,
}

impl Watchdog {
    /// For actors that may be silent for so long.
    pub fn new(configured: Duration) -> Watchdog {
        Watchdog {
            limit: Limit::new(configured),
            period: configured / LOOKS,
            looked: Duration::ZERO,
            watched: Vec::new(),
        }
    }

    /// How often to look.
    pub fn period(&self) -> Duration {
        self.period
    }

    /// Other actors are watched from now on, by a clock that begins now.
    pub fn begin(&mut self) {
        (self.looked, self.watched) = (Duration::ZERO, Vec::new());
    }

    /// Looks at the actors: since when each has been at one thing, in a fixed order; `None`, it waits for work. A thread
    /// of theirs waited for a processor for as long as `waited` since the last look. Returns the first one that hangs.
    pub fn look(&mut self, now: Duration, waited: Duration, busy: &[Option<Duration>]) -> Option<(usize, Strike)> {
        let looked = std::mem::replace(&mut self.looked, now);
        let late = now.saturating_sub(looked).saturating_sub(self.period);
        self.watched.resize(busy.len(), Watched::default());
        let limit = self.limit.now();
        let mut struck = None;
        for (at, (since, watched)) in busy.iter().zip(&mut self.watched).enumerate() {
            if watched.since != *since {
                *watched = Watched { since: *since, ..Watched::default() };
            }
            let Some(since) = *since else { continue };
            let most = now.saturating_sub(since.max(looked));
            watched.late += late.min(most);
            watched.kept += late.max(waited).min(most);
            let strike = Strike { silent: now.saturating_sub(since), kept: watched.kept, limit };
            let hangs = strike.ran() > limit || strike.silent.saturating_sub(watched.late) > limit * LONGEST;
            if hangs && struck.is_none() {
                struck = Some((at, strike));
            }
        }
        struck
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const LIMIT: Duration = Duration::from_secs(10);

    const fn ms(n: u64) -> Duration {
        Duration::from_millis(n)
    }

    /// The limits after each of these failures, in milliseconds.
    fn limits(configured: u64, made: &[bool]) -> Vec<u128> {
        let mut limit = Limit::new(ms(configured));
        let struck = |made: &bool| {
            limit.struck(*made);
            limit.now().as_millis()
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

    /// When an actor that is busy from 1 s on is struck, where each look comes `late` and a thread of its waited for
    /// `waited` before it.
    fn struck(late: Duration, waited: Duration) -> Strike {
        let mut watchdog = Watchdog::new(LIMIT);
        (1..1000u32)
            .find_map(|look| watchdog.look((ms(2500) + late) * look, waited, &[None, Some(ms(1000))]))
            .map(|(which, strike)| {
                assert_eq!(which, 1);
                strike
            })
            .unwrap()
    }

    #[test]
    fn an_actor_that_has_its_processor_hangs_after_its_limit() {
        let strike = struck(ms(0), ms(0));
        assert_eq!((strike.silent, strike.kept, strike.may_be_slow()), (ms(11_500), ms(0), false));
        // A little waiting is everywhere.
        let strike = struck(ms(0), ms(20));
        assert_eq!((strike.silent, strike.may_be_slow()), (ms(11_500), false));
    }

    #[test]
    fn what_the_machine_kept_from_it_does_not_count() {
        // Half of the time, so it has had its processor for the limit when twice that has passed.
        let waited = struck(ms(0), ms(1250));
        assert!((ms(20_000)..ms(22_500)).contains(&(waited.silent - ms(250))), "{waited:?}");
        // The supervisor as well: the whole process stood still.
        let late = struck(ms(2500), ms(0));
        assert!(late.silent > ms(20_000) && late.silent <= ms(25_000), "{late:?}");
        // Both were seen of the same time.
        assert_eq!(struck(ms(2500), ms(2000)), late);
    }

    #[test]
    fn a_hang_on_a_machine_that_gives_it_nothing_is_found_and_blames_no_request() {
        let strike = struck(ms(0), ms(2500));
        assert!(strike.silent > LIMIT * LONGEST && strike.silent <= LIMIT * LONGEST + ms(2500), "{strike:?}");
        assert!(strike.may_be_slow());
    }

    #[test]
    fn a_stopped_process_strikes_nobody_when_it_goes_on() {
        let mut watchdog = Watchdog::new(LIMIT);
        assert_eq!(watchdog.look(ms(2500), ms(0), &[Some(ms(2400))]), None);
        let hour = Duration::from_secs(3600);
        assert_eq!(watchdog.look(hour, ms(0), &[Some(ms(2400))]), None);
        assert_eq!(watchdog.look(hour + ms(2500), ms(0), &[Some(hour + ms(1))]), None);
    }

    #[test]
    fn another_thing_at_hand_is_judged_anew() {
        let mut watchdog = Watchdog::new(LIMIT);
        for look in 1..100 {
            let now = ms(2500) * look;
            assert_eq!(watchdog.look(now, ms(2500), &[Some(now - ms(2000))]), None);
        }
        // What was kept from it before is not set off against this silence.
        let since = ms(250_000 - 2000);
        let strike = (100..200).find_map(|look| watchdog.look(ms(2500) * look, ms(0), &[Some(since)])).unwrap().1;
        assert!(strike.silent <= LIMIT + ms(2500), "{strike:?}");
    }

    proptest! {
        /// Whatever the machine does: nothing is struck within its limit, and everything is after so many looks.
        #[test]
        fn silence_is_judged_within_its_bounds(looks in proptest::collection::vec((2500..20_000u64, 0..30_000u64), 1..60)) {
            let (mut watchdog, mut now) = (Watchdog::new(LIMIT), Duration::ZERO);
            for (count, (after, waited)) in looks.into_iter().enumerate() {
                now += ms(after);
                let strike = watchdog.look(now, ms(waited), &[Some(ms(500))]).map(|(_, strike)| strike);
                let silent = now.saturating_sub(ms(500));
                prop_assert!(strike.is_none() || silent > LIMIT);
                prop_assert!(strike.is_some() || count as u32 <= LOOKS * LONGEST);
                if let Some(strike) = strike {
                    prop_assert!(strike.kept <= strike.silent && strike.silent == silent);
                }
            }
        }
    }
}
