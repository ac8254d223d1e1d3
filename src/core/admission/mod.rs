//! Who is let in: only those who can be expected to hear in time, and nobody at the cost of a tenant's share.
//!
//! Nobody waits in a queue: whoever is not let in is told at once, with the time at which to try again. Three things
//! decide, in this order: what the tenant may have at most (`shares`), how many streams can be carried (`capacity`),
//! and how soon a first sound would come (`ttfa`).

mod capacity;
mod shares;
#[cfg(test)]
mod tests;
mod ttfa;

pub use shares::{Tenant, TenantId};

use crate::playback::Playback;
use capacity::Capacity;
use shares::Shares;
use std::collections::BTreeMap;
use std::time::Duration;
use ttfa::TtfaPredictor;

/// Silence in a stream that a player's buffer hides; more of it is a broken promise.
pub const BUFFERED: Duration = Duration::from_millis(200);
/// A stream that has so much more than was listened to yet is in no danger.
const WELL_AHEAD: Duration = Duration::from_secs(1);
/// A client that was told when to come again is expected for so long after that.
const PUNCTUAL: Duration = Duration::from_secs(2);
/// The longest wait that is advised: what is further away is not known.
const LONGEST_ADVICE: Duration = Duration::from_secs(60);

/// What a request was promised.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Slo {
    /// Nothing: it takes what others leave.
    #[default]
    BestEffort,
    /// Somebody listens: the first sound within this time, and from then on sound in real time.
    Realtime(Duration),
}

/// What is being asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Asked {
    /// By whom.
    pub tenant: Tenant,
    /// With what promise.
    pub slo: Slo,
    /// Whether speech follows its text alone, so that when it comes says something about this server. Not so where the
    /// text is still being written.
    pub steady: bool,
    /// Whether an answer has to be thought of first: first sounds of these are another population.
    pub chat: bool,
}

/// One admitted request.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Ticket(u64);

/// Why somebody was not let in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reason {
    /// Every place is taken.
    Places,
    /// With one stream more, deadlines would be missed.
    Streams {
        /// How many can be carried.
        capacity: usize,
    },
    /// The first sound would come after its deadline.
    FirstSound {
        /// When it would come.
        expected: Duration,
        /// When it has to.
        deadline: Duration,
    },
    /// Others want their share of the places, and this tenant has its own.
    Share,
    /// As many as this tenant may have at once.
    OwnPlaces(usize),
    /// As many as this tenant may have in a minute.
    OwnRate(u32),
    /// It was promised nothing, and others wait who were.
    Yields,
}

impl Reason {
    /// As metrics name it.
    pub fn as_str(self) -> &'static str {
        match self {
            Reason::Places => "places",
            Reason::Streams { .. } => "streams",
            Reason::FirstSound { .. } => "first_sound",
            Reason::Share => "share",
            Reason::OwnPlaces(_) => "own_places",
            Reason::OwnRate(_) => "own_rate",
            Reason::Yields => "yields",
        }
    }
}

/// Not let in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Refusal {
    /// Why.
    pub reason: Reason,
    /// When a place is expected.
    pub retry_after: Duration,
}

/// How things stand.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, serde::Serialize)]
pub struct AdmissionStatus {
    /// Streams that can be carried.
    pub capacity: usize,
    /// Requests that have a place.
    pub held: usize,
    /// Of those, how many somebody listens to.
    pub realtime: usize,
}

/// What became of a promise.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Kept {
    /// The first sound came in time; `None` if there was none to come.
    pub first_sound: Option<bool>,
    /// The rest came in real time; `None` if there was none.
    pub playback: Option<bool>,
}

#[derive(Debug)]
struct Stream {
    tenant: TenantId,
    slo: Slo,
    accepted: Duration,
    /// First sounds that were being made when it came.
    ahead: usize,
    /// Whether its times say something about this server.
    steady: bool,
    chat: bool,
    playback: Playback,
    /// Since when its reader waits for more.
    waits: Option<Duration>,
    /// All its sound has come.
    complete: bool,
    late: bool,
}

impl Stream {
    /// The promise is broken at `now`: its first sound is overdue, or a player would have been silent for too long.
    fn is_late(&self, now: Duration) -> bool {
        let Slo::Realtime(deadline) = self.slo else { return false };
        if self.complete || self.waits.is_none() {
            return self.playback.silence > BUFFERED;
        }
        match self.playback.time_to_first() {
            None => now.saturating_sub(self.accepted) > deadline,
            Some(_) => self.playback.silence + self.playback.dry_for(now) > BUFFERED,
        }
    }
}

/// The state machine.
#[derive(Debug)]
pub struct AdmissionCore {
    most: usize,
    /// Whether deadlines decide, or places alone.
    by_deadlines: bool,
    shares: Shares,
    capacity: Capacity,
    ttfa: [TtfaPredictor; 2],
    streams: BTreeMap<Ticket, Stream>,
    next: u64,
    /// How long a place was held lately, smoothed.
    held: Duration,
    /// Until when listeners are expected who were refused for want of capacity.
    wanted: Duration,
}

impl AdmissionCore {
    /// Nobody is there, and nothing is known: up to `most` are let in.
    pub fn new(most: usize, by_deadlines: bool) -> AdmissionCore {
        AdmissionCore {
            most,
            by_deadlines,
            shares: Shares::default(),
            capacity: Capacity::new(most),
            ttfa: Default::default(),
            streams: BTreeMap::new(),
            next: 0,
            held: Duration::from_secs(1),
            wanted: Duration::ZERO,
        }
    }

    /// Lets a request in, or says why not and when to come again.
    ///
    /// # Errors
    /// The refusal.
    pub fn ask(&mut self, asked: &Asked, now: Duration) -> Result<Ticket, Refusal> {
        self.look(now);
        let places = self.places(asked.slo);
        let held = self.streams.len();
        let advice = self.advice(held.max(1));
        if let Err((reason, wait)) = self.shares.ask(&asked.tenant, places, now) {
            let wait = wait.unwrap_or(advice).min(LONGEST_ADVICE);
            if reason == Reason::Places {
                self.shares.wants(&asked.tenant, places, now + wait + PUNCTUAL);
                if matches!(asked.slo, Slo::Realtime(_)) {
                    self.wanted = now + wait + PUNCTUAL;
                }
            }
            let reason = match reason {
                Reason::Places if places < self.most => Reason::Streams { capacity: places },
                other => other,
            };
            return Err(Refusal { reason, retry_after: wait });
        }
        if self.by_deadlines
            && let Some(mut refusal) = self.deadline(asked, now, advice)
        {
            refusal.retry_after = refusal.retry_after.min(LONGEST_ADVICE);
            if matches!(asked.slo, Slo::Realtime(_)) && !matches!(refusal.reason, Reason::FirstSound { .. }) {
                self.wanted = now + refusal.retry_after + PUNCTUAL;
            }
            return Err(refusal);
        }
        if matches!(asked.slo, Slo::Realtime(_)) {
            // Whoever was expected may have been this one.
            self.wanted = Duration::ZERO;
        }
        self.shares.takes(&asked.tenant, now);
        let ticket = Ticket(self.next);
        self.next += 1;
        let ahead = self.first_sounds_to_come(asked.chat);
        self.streams.insert(
            ticket,
            Stream {
                tenant: asked.tenant.id,
                slo: asked.slo,
                accepted: now,
                ahead,
                steady: asked.steady,
                chat: asked.chat,
                playback: Playback::default(),
                waits: None,
                complete: false,
                late: false,
            },
        );
        self.capacity.saw(self.streams.len());
        Ok(ticket)
    }

    /// The reader of a stream waits for more.
    pub fn waits(&mut self, ticket: Ticket, now: Duration) {
        if let Some(stream) = self.streams.get_mut(&ticket) {
            stream.waits.get_or_insert(now);
        }
    }

    /// Sound of this length reached its reader. What lay there before the reader asked for it came earlier than now, so
    /// it says nothing about lateness.
    pub fn heard(&mut self, ticket: Ticket, length: Duration, now: Duration) {
        let Some(stream) = self.streams.get_mut(&ticket) else { return };
        let waited = stream.waits.take().is_some();
        let first = stream.playback.time_to_first().is_none();
        if waited || first {
            stream.playback.chunk(now, length);
        } else {
            stream.playback.chunk_in_time(now, length);
        }
        if first && waited && stream.steady {
            let (took, ahead) = (now.saturating_sub(stream.accepted), stream.ahead);
            self.ttfa[usize::from(stream.chat)].learn(ahead, took, now);
        }
        self.capacity.made(length);
    }

    /// All its sound has come.
    pub fn complete(&mut self, ticket: Ticket) {
        if let Some(stream) = self.streams.get_mut(&ticket) {
            stream.complete = true;
        }
    }

    /// A place is given back; tells whether the promise was kept.
    pub fn left(&mut self, ticket: Ticket, now: Duration) -> Option<Kept> {
        self.look(now);
        let stream = self.streams.remove(&ticket)?;
        self.shares.leaves(stream.tenant);
        self.held = (self.held * 7 + now.saturating_sub(stream.accepted)) / 8;
        let Slo::Realtime(deadline) = stream.slo else { return None };
        let first = stream.playback.time_to_first();
        let in_time = first.map(|first| first.saturating_sub(stream.accepted) <= deadline);
        let playback = first.map(|_| stream.playback.silence <= BUFFERED);
        Some(Kept { first_sound: in_time, playback })
    }

    /// A stage went down and came up again: what was seen meanwhile says nothing about load.
    pub fn disturbed(&mut self, now: Duration) {
        self.streams.values_mut().for_each(|stream| stream.steady = false);
        self.capacity.forget(now);
    }

    /// How things stand.
    pub fn standing(&self) -> AdmissionStatus {
        let realtime = self.streams.values().filter(|stream| stream.slo != Slo::BestEffort).count();
        let capacity = if self.by_deadlines { self.capacity.now() } else { self.most };
        AdmissionStatus { capacity, held: self.streams.len(), realtime }
    }

    /// The places that there are for a request of this kind.
    fn places(&self, slo: Slo) -> usize {
        let nobody_listens = self.streams.values().all(|stream| stream.slo == Slo::BestEffort);
        match slo {
            _ if !self.by_deadlines => self.most,
            // Where nobody listens, nobody can hear too late.
            Slo::BestEffort if nobody_listens => self.most,
            _ => self.capacity.now(),
        }
    }

    /// When one of `held` places is expected to become free.
    fn advice(&self, held: usize) -> Duration {
        (self.held / held as u32).min(LONGEST_ADVICE)
    }

    fn first_sounds_to_come(&self, chat: bool) -> usize {
        let to_come =
            |stream: &&Stream| stream.chat == chat && !stream.complete && stream.playback.time_to_first().is_none();
        self.streams.values().filter(to_come).count()
    }

    /// What deadlines have against one stream more.
    fn deadline(&self, asked: &Asked, now: Duration, advice: Duration) -> Option<Refusal> {
        let Slo::Realtime(deadline) = asked.slo else {
            let left = self.wanted.saturating_sub(now);
            return (!left.is_zero()).then(|| Refusal { reason: Reason::Yields, retry_after: left.max(advice) });
        };
        let sounds = &self.ttfa[usize::from(asked.chat)];
        if self.streams.is_empty() {
            // Whoever comes to an idle server finds out what it can do, unless that is known to be far from enough.
            let expected = sounds.expect(0, now).filter(|expected| *expected > deadline * 2)?;
            return Some(Refusal { reason: Reason::FirstSound { expected, deadline }, retry_after: ttfa::FORGETS });
        }
        let ahead = self.first_sounds_to_come(asked.chat);
        if let Some(expected) = sounds.expect(ahead, now)
            && expected > deadline
        {
            let reason = Reason::FirstSound { expected, deadline };
            return Some(Refusal { reason, retry_after: (expected - deadline).max(advice) });
        }
        // Some hear too late at this moment, whatever was learned.
        let steady = self.streams.values().filter(|stream| stream.steady && stream.slo != Slo::BestEffort);
        let (all, late) = steady.fold((0, 0), |(all, late), stream| {
            (all + 1, late + usize::from(!stream.complete && stream.waits.is_some() && stream.is_late(now)))
        });
        let reason = Reason::Streams { capacity: self.streams.len() };
        capacity::many(late, all).then_some(Refusal { reason, retry_after: advice })
    }

    /// Draws conclusions from what has been seen.
    fn look(&mut self, now: Duration) {
        let (mut realtime, mut ahead) = (0, 0);
        for stream in self.streams.values_mut().filter(|stream| stream.steady && stream.slo != Slo::BestEffort) {
            realtime += 1;
            ahead += usize::from(stream.playback.left(now) >= WELL_AHEAD);
            if !stream.late && stream.is_late(now) {
                stream.late = true;
                self.capacity.late();
            }
        }
        self.capacity.look((self.streams.len(), realtime, ahead), now);
    }
}
