//! What one client may have in a period: requests, bytes, seconds of speech. A bucket that fills at an even pace; a full
//! one holds a whole period.
//!
//! What a request will take is not known when it begins, so a client may spend into debt, once: while it owes, it gets
//! nothing.

use std::time::Duration;

/// The smallest amount for which a client has to wait: less is an error of rounding.
const CRUMB: f64 = 1e-9;

/// An amount for each period.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Rate {
    /// How much.
    pub amount: f64,
    /// In how long.
    pub period: Duration,
}

impl Rate {
    fn per_second(&self) -> f64 {
        self.amount / self.period.as_secs_f64()
    }
}

/// See the module. Times are those of one clock, from any beginning.
#[derive(Clone, Debug)]
pub struct Bucket {
    rate: Rate,
    level: f64,
    filled: Duration,
}

impl Bucket {
    /// A full one.
    pub fn new(rate: Rate, now: Duration) -> Bucket {
        Bucket { rate, level: rate.amount, filled: now }
    }

    /// How it fills.
    pub fn rate(&self) -> Rate {
        self.rate
    }

    /// Fills it at another pace from now on; what was spent stays spent.
    pub fn change(&mut self, rate: Rate, now: Duration) {
        self.fill(now);
        let spent = self.rate.amount - self.level;
        self.level = rate.amount - spent;
        self.rate = rate;
    }

    /// Whether there is as much in it, or it is full and more can never be; else how long that takes.
    pub fn ask(&mut self, amount: f64, now: Duration) -> Result<(), Duration> {
        self.fill(now);
        let missing = amount.min(self.rate.amount) - self.level;
        if missing <= CRUMB {
            return Ok(());
        }
        Err(Duration::try_from_secs_f64(missing / self.rate.per_second()).unwrap_or(self.rate.period))
    }

    /// Whether anything is in it; else how long until something is.
    pub fn any(&mut self, now: Duration) -> Result<(), Duration> {
        self.ask(2.0 * CRUMB, now)
    }

    /// Takes an amount out of it, also one that is not there.
    pub fn spend(&mut self, amount: f64, now: Duration) {
        self.fill(now);
        self.level -= amount;
    }

    fn fill(&mut self, now: Duration) {
        let passed = now.saturating_sub(self.filled).as_secs_f64();
        self.level = (self.level + passed * self.rate.per_second()).min(self.rate.amount);
        self.filled = self.filled.max(now);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const MINUTE: Duration = Duration::from_secs(60);

    fn at(seconds: f64) -> Duration {
        Duration::from_secs_f64(seconds)
    }

    #[test]
    fn a_minutes_amount_may_go_at_once_and_comes_back_evenly() {
        let mut bucket = Bucket::new(Rate { amount: 3.0, period: MINUTE }, at(0.0));
        for _ in 0..3 {
            assert_eq!(bucket.ask(1.0, at(1.0)), Ok(()));
            bucket.spend(1.0, at(1.0));
        }
        assert_eq!(bucket.ask(1.0, at(1.0)), Err(at(20.0)));
        assert_eq!(bucket.ask(1.0, at(21.0)), Ok(()));
    }

    #[test]
    fn debt_is_worked_off_before_there_is_anything() {
        let mut bucket = Bucket::new(Rate { amount: 60.0, period: MINUTE }, at(0.0));
        bucket.spend(90.0, at(0.0));
        assert!(bucket.any(at(29.0)).is_err());
        assert_eq!(bucket.any(at(31.0)), Ok(()));
    }

    #[test]
    fn another_rate_forgives_nothing_and_takes_nothing() {
        let mut bucket = Bucket::new(Rate { amount: 10.0, period: MINUTE }, at(0.0));
        bucket.spend(10.0, at(0.0));
        bucket.change(Rate { amount: 30.0, period: MINUTE }, at(0.0));
        assert_eq!(bucket.ask(20.0, at(0.0)), Ok(()));
        assert!(bucket.ask(21.0, at(0.0)).is_err());
        bucket.change(Rate { amount: 5.0, period: MINUTE }, at(0.0));
        assert!(bucket.any(at(0.0)).is_err());
    }

    proptest! {
        /// Whatever is asked for and when, no more is given than a full bucket, what has come since, and one request.
        #[test]
        fn no_history_gets_more_than_the_rate(
            amount in 1.0..1000.0,
            steps in prop::collection::vec((0.0..30.0, 0.0..200.0), 1..60),
        ) {
            let mut bucket = Bucket::new(Rate { amount, period: MINUTE }, at(0.0));
            let (mut now, mut given, mut largest) = (0.0, 0.0, 0.0_f64);
            for (pause, wanted) in steps {
                now += pause;
                if bucket.any(at(now)).is_ok() {
                    bucket.spend(wanted, at(now));
                    given += wanted;
                    largest = largest.max(wanted);
                }
                prop_assert!(given <= amount + now * amount / 60.0 + largest + 1e-6);
            }
        }

        /// The wait that a refusal tells is true: before it nothing, after it what was asked for.
        #[test]
        fn the_wait_is_true(amount in 1.0..1000.0, spent in 0.0..3000.0, wanted in 0.1..2000.0) {
            let mut bucket = Bucket::new(Rate { amount, period: MINUTE }, at(0.0));
            bucket.spend(spent, at(0.0));
            if let Err(wait) = bucket.ask(wanted, at(0.0)) {
                prop_assert!(bucket.clone().ask(wanted, wait.mul_f64(0.99)).is_err());
                prop_assert!(bucket.ask(wanted, wait + Duration::from_micros(10)).is_ok());
            }
        }

        /// A clock that stands still or goes back fills nothing.
        #[test]
        fn time_that_goes_back_gives_nothing(times in prop::collection::vec(0.0..10.0, 1..20)) {
            let mut bucket = Bucket::new(Rate { amount: 10.0, period: MINUTE }, at(10.0));
            bucket.spend(10.0, at(10.0));
            for time in times {
                prop_assert!(bucket.any(at(time)).is_err());
            }
        }
    }
}
