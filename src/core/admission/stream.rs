//! An admitted request: how its client reads and writes, and whether it is late.

use super::BUFFERED;
use super::request::Slo;
use super::shares::Tenant;
use crate::patience::Patience;
use crate::playback::Playback;
use std::time::Duration;

/// One admitted request.
#[derive(Debug)]
pub(super) struct Stream {
    pub tenant: Tenant,
    pub slo: Slo,
    pub accepted: Duration,
    /// First sounds that others were waiting for when it was accepted.
    pub ahead: usize,
    /// Whether its times tell how fast this server is.
    pub steady: bool,
    pub chat: bool,
    pub playback: Playback,
    /// Since when its reader waits for more.
    pub waits: Option<Duration>,
    /// All its sound has come.
    pub complete: bool,
    pub late: bool,
    /// Since when it has no place, because it waited for its client.
    pub paused: Option<Duration>,
    /// How its client reads, and how it writes.
    pub reads: Patience,
    pub writes: Patience,
}

impl Stream {
    /// Whether its lateness would be the server's doing.
    pub fn counts(&self) -> bool {
        self.steady && self.slo != Slo::BestEffort && self.paused.is_none()
    }

    /// How much longer it has waited for its client than it may.
    pub fn owed(&self, now: Duration) -> Duration {
        self.reads.owed(now).max(self.writes.owed(now))
    }

    /// Its reader took what takes so long to hear, and has to come back for more.
    pub fn took(&mut self, length: Duration, most: Duration, now: Duration) {
        self.reads.goes_on(now);
        self.reads.heard(length, most);
        self.reads.waits(now);
    }

    /// Whether it misses the server's `deadline` at `now`: its first sound is overdue, or its player has been silent for
    /// too long.
    pub fn is_late(&self, deadline: Duration, now: Duration) -> bool {
        if self.slo == Slo::BestEffort {
            return false;
        }
        if self.complete || self.waits.is_none() {
            return self.playback.silence > BUFFERED;
        }
        match self.playback.time_to_first() {
            None => now.saturating_sub(self.accepted) > deadline,
            Some(_) => self.playback.silence + self.playback.dry_for(now) > BUFFERED,
        }
    }
}
