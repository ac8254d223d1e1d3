//! Scheduling for playback: which stream needs the device most. A listener hears one unit after the other at a fixed
//! pace. A stream that is ahead of its listener gains nothing by more speed; a listener who has heard nothing yet gains
//! everything.
//!
//! Each stream has a time at which it is *due*, and the stream that is due first goes first. A new sequence is due when
//! it came, or when its listener will have heard what went before it in the same stream; any other sequence is due when
//! its listener will run dry. So a new sequence goes before every stream with lead, and a rush of new sequences does
//! not starve a stream that has run dry.

use std::time::Duration;

/// What is left of a listener's sound when the stream counts as due: the way of a chunk from the device to the ear.
const MARGIN: Duration = Duration::from_millis(40);

/// What a stage makes for its listeners.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PlaybackPolicy {
    /// Playback time of one unit.
    pub unit: Duration,
    /// Units that the next stage gathers at most before it makes sound of them; 0 where sound is made.
    pub gathers: u32,
    /// A stream this far ahead of its listener waits while another is due. `None`: no stream waits for that reason.
    pub lead_cap: Option<Duration>,
}

/// What is known of one stream.
#[derive(Clone, Copy, Debug)]
pub struct Stream {
    /// When its listener began, or will begin, to wait for the first unit.
    pub since: Duration,
    /// When its listener began to hear; `None` before the first unit is even in the making.
    pub heard: Option<Duration>,
    /// Units made, and those in the making.
    pub units: u32,
}

/// How much a stream needs the device now, most urgent first. Times as in [`Priority::due`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Urgency {
    /// Its listener waits, or is about to.
    Due,
    /// Its listener is served for a while.
    Ahead,
    /// It is past the lead cap.
    Parked,
}

/// Where a stream stands among others: earlier ones go first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Priority {
    /// When it is, or was, due.
    pub due: Duration,
    /// What follows from that at this moment.
    pub urgency: Urgency,
}

impl PlaybackPolicy {
    /// Where a stream stands at `now`.
    pub fn priority(&self, stream: &Stream, now: Duration) -> Priority {
        let due = match stream.heard {
            None => stream.since,
            Some(start) => {
                // A unit is heard no sooner than the chunk it is part of is whole. Chunks double until they are as long
                // as they get, so at most half of the units so far wait for theirs.
                let waiting = self.gathers.min(stream.units / 2);
                (start + self.unit * (stream.units - waiting)).saturating_sub(MARGIN)
            }
        };
        let urgency = if due <= now {
            Urgency::Due
        } else if self.lead_cap.is_some_and(|cap| due - now >= cap) {
            Urgency::Parked
        } else {
            Urgency::Ahead
        };
        Priority { due, urgency }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const EARS: PlaybackPolicy = PlaybackPolicy { unit: ms(80), gathers: 0, lead_cap: Some(ms(2000)) };

    const fn ms(ms: u64) -> Duration {
        Duration::from_millis(ms)
    }

    fn at(heard: Option<u64>, units: u32, now: u64) -> Priority {
        EARS.priority(&Stream { since: ms(100), heard: heard.map(ms), units }, ms(now))
    }

    #[test]
    fn a_new_stream_is_due_since_it_came() {
        assert_eq!(at(None, 0, 100), Priority { due: ms(100), urgency: Urgency::Due });
        assert!(at(None, 0, 500) < at(Some(450), 2, 500), "and goes before streams with lead");
    }

    #[test]
    fn a_stream_that_has_run_dry_before_a_new_one_came_goes_first() {
        let dry = EARS.priority(&Stream { since: ms(0), heard: Some(ms(10)), units: 1 }, ms(100));
        assert_eq!(dry.urgency, Urgency::Due);
        assert!(dry < at(None, 0, 100));
    }

    #[test]
    fn whoever_runs_dry_first_goes_first() {
        assert!(at(Some(100), 3, 110) < at(Some(100), 4, 110));
        assert!(at(Some(100), 4, 110) < at(Some(200), 3, 110));
    }

    #[test]
    fn a_stream_is_ahead_until_little_is_left_and_parked_past_the_cap() {
        assert_eq!(at(Some(1000), 2, 1119).urgency, Urgency::Ahead);
        assert_eq!(at(Some(1000), 2, 1120).urgency, Urgency::Due, "160 ms of sound, 40 ms before they end");
        assert_eq!(at(Some(1000), 26, 1041).urgency, Urgency::Ahead);
        assert_eq!(at(Some(1000), 26, 1040).urgency, Urgency::Parked);
        let uncapped = PlaybackPolicy { lead_cap: None, ..EARS };
        assert_eq!(
            uncapped.priority(&Stream { since: ms(0), heard: Some(ms(0)), units: 9999 }, ms(1)).urgency,
            Urgency::Ahead
        );
    }

    #[test]
    fn units_that_wait_for_their_chunk_are_no_lead() {
        let talker = PlaybackPolicy { gathers: 8, ..EARS };
        let due = |units| talker.priority(&Stream { since: ms(0), heard: Some(ms(1000)), units }, ms(1000)).due;
        assert_eq!(due(1), ms(1040), "the first unit is a chunk of its own");
        assert_eq!(due(6), ms(1200), "three of six are heard, the others may wait for a chunk of four");
        assert_eq!(due(100), ms(1000 + 92 * 80 - 40));
    }
}
