//! A simulated player: it starts with the first chunk and plays without pause while it has something to play.
//!
//! Admission, the metrics, `bench` and `chaos` share it, so that all of them mean the same by an underrun.

use std::time::Duration;

/// A gap that an ear and a sound card's buffer forgive.
pub const FORGIVEN: Duration = Duration::from_millis(20);

/// The player of one stream. Times are since the request was sent.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Playback {
    first: Option<Duration>,
    last: Duration,
    // When the player will have played all chunks so far, pauses included.
    dry_at: Duration,
    played: Duration,
    /// Chunks that came more than [`FORGIVEN`] after the player had run dry.
    pub underruns: u32,
    /// All the silence that the player had to fill in.
    pub silence: Duration,
}

/// What one chunk meant for the player.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Arrival {
    /// It was the first.
    pub first: bool,
    /// Time since the chunk before; zero for the first.
    pub gap: Duration,
    /// The player had run dry for longer than is forgiven.
    pub underrun: bool,
}

impl Playback {
    /// A chunk of `length` came at `now`.
    pub fn chunk(&mut self, now: Duration, length: Duration) -> Arrival {
        let first = self.first.is_none();
        let gap = if first { Duration::ZERO } else { now.saturating_sub(self.last) };
        let late = if first { Duration::ZERO } else { now.saturating_sub(self.dry_at) };
        let underrun = late > FORGIVEN;
        self.first.get_or_insert(now);
        self.last = now;
        self.dry_at = self.dry_at.max(now) + length;
        self.played += length;
        self.silence += late;
        self.underruns += u32::from(underrun);
        Arrival { first, gap, underrun }
    }

    /// A chunk came at an unknown time before `now`; it counts as in time.
    pub fn chunk_in_time(&mut self, now: Duration, length: Duration) {
        self.first.get_or_insert(now);
        self.last = now;
        self.dry_at = self.dry_at.max(now) + length;
        self.played += length;
    }

    /// For how long there has been nothing to play at `now`.
    pub fn dry_for(&self, now: Duration) -> Duration {
        if self.first.is_some() { now.saturating_sub(self.dry_at) } else { Duration::ZERO }
    }

    /// When the first chunk came.
    pub fn time_to_first(&self) -> Option<Duration> {
        self.first
    }

    /// What is left to play at `now`.
    pub fn left(&self, now: Duration) -> Duration {
        self.dry_at.saturating_sub(now)
    }

    /// Length of everything that came.
    pub fn length(&self) -> Duration {
        self.played
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const fn ms(n: u64) -> Duration {
        Duration::from_millis(n)
    }

    #[test]
    fn a_stream_ahead_of_its_player_never_underruns() {
        let mut player = Playback::default();
        for i in 0..10 {
            assert!(!player.chunk(ms(100 + 40 * i), ms(80)).underrun);
        }
        assert_eq!(player.underruns, 0);
        assert_eq!(player.silence, Duration::ZERO);
        assert_eq!(player.length(), ms(800));
        assert_eq!(player.time_to_first(), Some(ms(100)));
    }

    #[test]
    fn a_late_chunk_is_one_underrun_and_moves_the_clock() {
        let mut player = Playback::default();
        player.chunk(ms(100), ms(80));
        assert_eq!(player.chunk(ms(300), ms(80)), Arrival { first: false, gap: ms(200), underrun: true });
        // Played from 300 to 380: this one is in time only because the player had paused.
        assert!(!player.chunk(ms(370), ms(80)).underrun);
        assert_eq!(player.underruns, 1);
        assert_eq!(player.silence, ms(120));
    }

    #[test]
    fn twenty_milliseconds_are_forgiven() {
        let mut player = Playback::default();
        player.chunk(ms(0), ms(80));
        assert!(!player.chunk(ms(100), ms(80)).underrun);
        assert!(player.chunk(ms(201), ms(80)).underrun);
    }
}
