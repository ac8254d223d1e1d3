//! How many streams the server carries in real time.
//!
//! Optimistic until streams are late. Then the speech that the engine made in that window tells how many it could have
//! carried: with fewer streams it makes at most as much, so it carries `n` only if it made `n` seconds of speech per
//! second. The limit then rises again one by one, and the more slowly the more often that was too much.

use std::time::Duration;

/// The window in which streams are counted together.
const WINDOW: Duration = Duration::from_secs(1);
/// After a change: how long all has to go well at the limit before one stream more is tried, at first and at last.
const TRIAL: (Duration, Duration) = (Duration::from_secs(3), Duration::from_secs(60));

/// An idle server takes one stream more for each such time: what slowed it may have passed.
const RECOVERS: Duration = Duration::from_secs(1);
/// What is left over when a stream counts as carried: speech per second beyond real time.
const MARGIN: f64 = 1.1;

/// One in eight: a single hiccup of one stream among many is no overload.
pub(super) fn many(late: usize, all: usize) -> bool {
    late > 0 && late * 8 >= all
}

#[derive(Debug)]
pub(super) struct Capacity {
    most: usize,
    now: usize,
    /// When the window began.
    began: Duration,
    /// In this window: most streams at once, speech made, streams that became late.
    peak: usize,
    made: Duration,
    late: usize,
    changed: Duration,
    patience: Duration,
    /// The last change was one stream more.
    trying: bool,
    /// Since when no stream is there, and of that time nothing has been made up for.
    idle: Option<Duration>,
}

impl Capacity {
    pub fn new(most: usize) -> Capacity {
        Capacity {
            most,
            now: most,
            began: Duration::ZERO,
            peak: 0,
            made: Duration::ZERO,
            late: 0,
            changed: Duration::ZERO,
            patience: TRIAL.0,
            trying: false,
            idle: None,
        }
    }

    /// No stream is there at `now`.
    pub fn idles(&mut self, now: Duration) {
        let since = *self.idle.get_or_insert(now);
        let passed = now.saturating_sub(since).as_secs() / RECOVERS.as_secs();
        if passed > 0 {
            self.idle = Some(since + RECOVERS * u32::try_from(passed).unwrap_or(u32::MAX));
            self.now = self.now.saturating_add(usize::try_from(passed).unwrap_or(usize::MAX)).min(self.most);
            self.patience = TRIAL.0;
            self.forget(now);
        }
    }

    pub fn now(&self) -> usize {
        self.now
    }

    /// So many streams are there at once.
    pub fn saw(&mut self, streams: usize) {
        self.idle = None;
        self.peak = self.peak.max(streams);
    }

    /// So much speech was made.
    pub fn made(&mut self, length: Duration) {
        self.made += length;
    }

    /// One more stream is late.
    pub fn late(&mut self) {
        self.late += 1;
    }

    /// Discards this window.
    pub fn forget(&mut self, now: Duration) {
        (self.began, self.peak, self.made, self.late) = (now, 0, Duration::ZERO, 0);
    }

    /// Draws the conclusion of a window that is over. `held` streams are there, of which `realtime` could be late;
    /// `ahead` of these are well ahead of their listeners.
    pub fn look(&mut self, (held, realtime, ahead): (usize, usize, usize), now: Duration) {
        let took = now.saturating_sub(self.began);
        if took < WINDOW {
            return;
        }
        let all = realtime.max(self.late);
        if many(self.late, all) && self.peak > 0 {
            self.lower(self.late * 2 >= all, took, now);
        } else if self.late == 0 && self.peak >= self.now && self.now < self.most {
            // Streams that are well ahead pause, so the engine could have made more than it did.
            let spare = self.carried(took) > self.now || ahead * 2 > realtime;
            if spare && now.saturating_sub(self.changed) >= self.patience {
                self.now += 1;
                (self.changed, self.trying) = (now, true);
            }
        } else if self.late == 0 && took > TRIAL.1 {
            // No stream came for a long time: what slowed the machine may have passed.
            self.patience = TRIAL.0;
        }
        self.forget(now);
        self.peak = held;
    }

    /// Streams for which what was made in a window would have been enough.
    fn carried(&self, took: Duration) -> usize {
        (self.made.as_secs_f64() / took.as_secs_f64() / MARGIN).floor() as usize
    }

    fn lower(&mut self, plainly: bool, took: Duration, now: Duration) {
        let carried = self.carried(took);
        // Streams from before the last change say nothing against the limit since.
        let highest = if self.peak > self.now { self.now } else { self.peak.saturating_sub(1) };
        // A window without a clear result says less than the windows before it.
        let lowest = if plainly { 1 } else { highest * 3 / 4 };
        let lowered = carried.clamp(lowest.min(highest), highest).max(1);
        if lowered < self.now {
            self.patience = match self.trying {
                true if now.saturating_sub(self.changed) < self.patience * 2 => (self.patience * 2).min(TRIAL.1),
                _ => TRIAL.0.max(self.patience / 2),
            };
            self.now = lowered;
            (self.changed, self.trying) = (now, false);
        }
    }
}
