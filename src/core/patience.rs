//! How long a request may live, and how long its client may keep it waiting: a place belongs to a client that uses it.
//!
//! A client that hears or writes saves time up, and a request that waits for its client uses it. So a listener in real
//! time, who takes sound as it is played, is never slow, and a client that takes or writes a little now and then is.

use std::time::Duration;

/// The least pace of a listener is half of real time: each second that it hears is good for so many.
const PER_HEARD: u32 = 2;
/// Characters that a person says in a second: the worth of text as sound.
const CHARS_PER_SECOND: u32 = 15;
/// The least pace of a writer is a character in so long: slower than any typist.
const PER_WRITTEN: Duration = Duration::from_secs(1);

/// How long a request may live that has `timeout` and whose client has heard so much.
pub fn life(timeout: Duration, heard: Duration) -> Duration {
    timeout.saturating_add(heard.saturating_mul(PER_HEARD))
}

/// How long text of so many characters takes to be said.
pub fn said(chars: usize) -> Duration {
    Duration::from_secs(chars as u64) / CHARS_PER_SECOND
}

/// What one client has saved up, or owes.
#[derive(Clone, Debug, Default)]
pub struct Patience {
    saved: Duration,
    owed: Duration,
    /// Since when its request waits for it.
    since: Option<Duration>,
}

impl Patience {
    /// The request waits for its client from now on.
    pub fn waits(&mut self, now: Duration) {
        self.since.get_or_insert(now);
    }

    /// It waits no more.
    pub fn goes_on(&mut self, now: Duration) {
        let Some(since) = self.since.take() else { return };
        let waited = now.saturating_sub(since);
        self.owed += waited.saturating_sub(self.saved);
        self.saved = self.saved.saturating_sub(waited);
    }

    /// For so much of the time until `now` the server itself stood still: that is not the client's doing.
    pub fn excuse(&mut self, late: Duration, now: Duration) {
        self.since = self.since.map(|since| since.saturating_add(late).min(now).max(since));
    }

    /// For how long its request has waited for it.
    pub fn waited(&self, now: Duration) -> Duration {
        self.since.map_or(Duration::ZERO, |since| now.saturating_sub(since))
    }

    /// Whether its request waits for it.
    pub fn is_waiting(&self) -> bool {
        self.since.is_some()
    }

    /// The client heard so much; it can save up `most`.
    pub fn heard(&mut self, length: Duration, most: Duration) {
        self.earns(length.saturating_mul(PER_HEARD), most);
    }

    /// The client wrote so many characters.
    pub fn wrote(&mut self, chars: usize, most: Duration) {
        self.earns(PER_WRITTEN.saturating_mul(u32::try_from(chars).unwrap_or(u32::MAX)), most);
    }

    fn earns(&mut self, earned: Duration, most: Duration) {
        let paid = earned.min(self.owed);
        self.owed -= paid;
        self.saved = (self.saved + (earned - paid)).min(most);
    }

    /// How much more its request has waited for it than it may; zero for a client that uses its place.
    pub fn owed(&self, now: Duration) -> Duration {
        self.owed + self.waited(now).saturating_sub(self.saved)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const MOST: Duration = Duration::from_secs(30);

    const fn ms(n: u64) -> Duration {
        Duration::from_millis(n)
    }

    /// What a client owes that takes chunks of `length` every `every`.
    fn listener(length: Duration, every: Duration, chunks: u32) -> Duration {
        let (mut patience, mut now) = (Patience::default(), Duration::ZERO);
        for _ in 0..chunks {
            patience.goes_on(now);
            patience.heard(length, MOST);
            patience.waits(now);
            now += every;
        }
        patience.owed(now)
    }

    #[test]
    fn a_listener_in_real_time_owes_nothing_and_one_that_is_ten_times_slower_owes_most_of_the_time() {
        assert_eq!(listener(ms(640), ms(640), 10_000), Duration::ZERO);
        assert_eq!(listener(ms(640), ms(1280), 10_000), Duration::ZERO, "half of real time is the least pace");
        assert!(listener(ms(640), ms(6400), 10) > Duration::from_secs(45));
    }

    #[test]
    fn a_player_that_fetches_in_bursts_is_not_slow() {
        let mut patience = Patience::default();
        for burst in 0..100 {
            let now = Duration::from_secs(burst * 20);
            patience.goes_on(now);
            (0..20).for_each(|_| patience.heard(Duration::from_secs(1), MOST));
            patience.waits(now);
            assert_eq!(patience.owed(now + Duration::from_secs(20)), Duration::ZERO);
        }
    }

    #[test]
    fn a_letter_every_ten_seconds_is_too_slow_and_a_typist_is_not() {
        let wait = |every, letters: u64| {
            let mut patience = Patience::default();
            for letter in 0..letters {
                patience.waits(ms(letter * every));
                patience.goes_on(ms((letter + 1) * every));
                patience.wrote(1, MOST);
            }
            patience.owed(ms(letters * every))
        };
        assert_eq!(wait(300, 1000), Duration::ZERO);
        assert!(wait(10_000, 4) > MOST);
    }

    #[test]
    fn time_in_which_the_server_stood_still_is_not_the_clients() {
        let mut patience = Patience::default();
        patience.excuse(ms(1000), ms(1000));
        patience.waits(ms(1000));
        patience.excuse(ms(60_000), ms(61_500));
        assert_eq!((patience.waited(ms(61_500)), patience.owed(ms(62_000))), (ms(500), ms(1000)));
        patience.excuse(ms(9000), ms(62_000));
        assert_eq!(patience.owed(ms(62_000)), Duration::ZERO, "no more than it waited");
    }

    #[test]
    fn life_grows_with_what_is_heard() {
        let minute = Duration::from_secs(60);
        assert_eq!(life(minute, Duration::ZERO), minute);
        assert_eq!(life(minute, minute), 3 * minute);
        assert_eq!(life(Duration::MAX, minute), Duration::MAX);
    }

    proptest! {
        /// A client owes at most the time that its request waited for it, and what it saved up is bounded.
        #[test]
        fn no_client_owes_more_than_it_kept_waiting(steps in proptest::collection::vec((0..4u8, 0..20_000u64), 0..200)) {
            let (mut patience, mut now, mut waited, mut since) = (Patience::default(), Duration::ZERO, Duration::ZERO, None);
            for (kind, time) in steps {
                now += ms(time);
                match kind {
                    0 => { patience.waits(now); since.get_or_insert(now); }
                    1 => { patience.goes_on(now); waited += since.take().map_or(Duration::ZERO, |since| now - since); }
                    2 => patience.heard(ms(time), MOST),
                    _ => patience.wrote(time as usize % 50, MOST),
                }
                let all = waited + since.map_or(Duration::ZERO, |since| now - since);
                prop_assert!(patience.owed(now) <= all);
                prop_assert!(patience.saved <= MOST);
            }
        }
    }
}
