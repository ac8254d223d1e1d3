//! Admission: which requests the server accepts. It accepts a stream only if it expects the stream to be in time, and
//! never at the cost of another tenant's fair share.
//!
//! No request waits in a queue: the server refuses at once, and tells the client when to try again. Three things
//! decide, in this order: what the tenant may have at most (`shares`), how many streams the server carries
//! (`capacity`), and how soon a first sound would come (`ttfa`).

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

/// Silence in a stream that a player's buffer hides; a stream with more of it has missed its SLO.
pub const BUFFERED: Duration = Duration::from_millis(200);
/// A stream that is so far ahead of its listener is in no danger.
const WELL_AHEAD: Duration = Duration::from_secs(1);
/// For so long after the advised time the server expects a refused client to come again.
const PUNCTUAL: Duration = Duration::from_secs(2);
/// The longest wait that a refusal advises: what happens after it is not known.
const LONGEST_ADVICE: Duration = Duration::from_secs(60);

/// The service level of a request.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Slo {
    /// No deadline: it gets the time that other streams leave.
    #[default]
    BestEffort,
    /// A person listens: the first sound within this time, and from then on sound in real time.
    Realtime(Duration),
}

/// What admission knows of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Asked {
    /// The tenant that sends it.
    pub tenant: Tenant,
    /// Its service level.
    pub slo: Slo,
    /// Whether the time to its first sound tells how fast this server is. It does not where the client is still writing
    /// the text.
    pub steady: bool,
    /// Whether the thinker has to answer first: first sounds of chats are another population.
    pub chat: bool,
}

/// One admitted request.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Ticket(u64);

/// Why a request was refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reason {
    /// Every place is taken.
    Places,
    /// With one stream more, deadlines would be missed.
    Streams {
        /// How many the server carries.
        capacity: usize,
    },
    /// The first sound would come after its deadline.
    FirstSound {
        /// When it would come.
        expected: Duration,
        /// When it has to.
        deadline: Duration,
    },
    /// This tenant has its fair share of the places, and other tenants ask for theirs.
    Share,
    /// As many as this tenant may have at once.
    OwnPlaces(usize),
    /// As many as this tenant may have in a minute.
    OwnRate(u32),
    /// It has no deadline, and the server expects requests that have one.
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

/// A refused request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Refusal {
    /// Why.
    pub reason: Reason,
    /// When a place is expected.
    pub retry_after: Duration,
}

/// What admission tells of itself.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, serde::Serialize)]
pub struct AdmissionStatus {
    /// Streams that the server carries in real time.
    pub capacity: usize,
    /// Requests that have a permit.
    pub held: usize,
    /// How many of those have a deadline.
    pub realtime: usize,
}

/// Whether a stream met its SLO.
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
    /// First sounds that others were waiting for when it was accepted.
    ahead: usize,
    /// Whether its times tell how fast this server is.
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
    /// Whether it misses its SLO at `now`: its first sound is overdue, or its player has been silent for too long.
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
    /// Until when the server expects clients with a deadline that it refused for want of capacity.
    wanted: Duration,
}

impl AdmissionCore {
    /// No stream yet, and nothing known: accepts up to `most`.
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

    /// Accepts a request, or says why not and when to come again.
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
            // This may be the client that was expected.
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

    /// Sound of this length reached its reader. Sound that lay there before the reader asked for it says nothing about
    /// lateness.
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

    /// The stream has ended. Returns whether it met its SLO; `None` where it had none.
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

    /// A stage was restarted: the times of that while say nothing about load.
    pub fn disturbed(&mut self, now: Duration) {
        self.streams.values_mut().for_each(|stream| stream.steady = false);
        self.capacity.forget(now);
    }

    /// The status now.
    pub fn status(&self) -> AdmissionStatus {
        let realtime = self.streams.values().filter(|stream| stream.slo != Slo::BestEffort).count();
        let capacity = if self.by_deadlines { self.capacity.now() } else { self.most };
        AdmissionStatus { capacity, held: self.streams.len(), realtime }
    }

    /// The places for a request of this service level.
    fn places(&self, slo: Slo) -> usize {
        let no_deadlines = self.streams.values().all(|stream| stream.slo == Slo::BestEffort);
        match slo {
            _ if !self.by_deadlines => self.most,
            // Where no stream has a deadline, none can miss it.
            Slo::BestEffort if no_deadlines => self.most,
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

    /// The refusal of a stream that would miss its deadline, or would make others miss theirs.
    fn deadline(&self, asked: &Asked, now: Duration, advice: Duration) -> Option<Refusal> {
        let Slo::Realtime(deadline) = asked.slo else {
            let left = self.wanted.saturating_sub(now);
            return (!left.is_zero()).then(|| Refusal { reason: Reason::Yields, retry_after: left.max(advice) });
        };
        let sounds = &self.ttfa[usize::from(asked.chat)];
        if self.streams.is_empty() {
            // The first stream of an idle server finds out how fast it is, unless it is known to be far too slow.
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
        // Streams that are late at this moment count, whatever was learned before.
        let steady = self.streams.values().filter(|stream| stream.steady && stream.slo != Slo::BestEffort);
        let (all, late) = steady.fold((0, 0), |(all, late), stream| {
            (all + 1, late + usize::from(!stream.complete && stream.waits.is_some() && stream.is_late(now)))
        });
        let reason = Reason::Streams { capacity: self.streams.len() };
        capacity::many(late, all).then_some(Refusal { reason, retry_after: advice })
    }

    /// Learns the capacity from the streams as they are now.
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
