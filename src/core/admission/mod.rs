//! Admission: which requests the server accepts. It accepts a stream only if it expects the stream to be in time, and
//! never at the cost of another tenant's fair share.
//!
//! No request waits in a queue: the server refuses at once, and tells the client when to try again. Three things
//! decide, in this order: what the tenant may have at most (`shares`), how many streams the server carries
//! (`capacity`), and how soon a first sound would come (`ttfa`).
//!
//! It learns from the server's own doing alone. Lateness is measured against the server's deadline, of streams that owe
//! sound and ask for nothing special; a client's deadline decides only what is refused to that client; and what one
//! tenant sees while the others are served in time is no overload. An idle server takes any request that does not ask
//! for more than the server promises.
//!
//! A place belongs to a client that uses it ([`Patience`]): a request that has waited for its client for too long ends,
//! and one that waits at all gives its place to the next request while all places are taken: it pauses until its client
//! is back and there is a place (`pauses`). What nobody waits for takes what is left (`background`).

mod background;
mod capacity;
mod pauses;
mod request;
mod shares;
mod stream;
#[cfg(test)]
mod tests;
mod ttfa;
#[cfg(test)]
mod wishes;

pub use request::{Accepted, AdmissionLimits, AdmissionStatus, Asked, Ended, Kept, Reason, Refusal, Slo, Ticket};
pub use shares::{Tenant, TenantId};

use crate::patience::{Patience, life, said};
use crate::playback::Playback;
use capacity::Capacity;
use shares::Shares;
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::time::Duration;
use stream::Stream;
use ttfa::TtfaPredictors;

/// Silence in a stream that a player's buffer hides; a stream with more of it has missed its SLO.
pub const BUFFERED: Duration = Duration::from_millis(200);
/// A stream that is so far ahead of its listener is in no danger.
const WELL_AHEAD: Duration = Duration::from_secs(1);
/// For so long after the advised time the server expects a refused client to come again.
const PUNCTUAL: Duration = Duration::from_secs(2);
/// After so long without a stream, what is known of first sounds is of another day.
const FORGETS_IDLE: Duration = Duration::from_secs(5);
/// The longest wait that a refusal advises: what happens after it is not known.
const LONGEST_ADVICE: Duration = Duration::from_secs(60);

/// The state machine.
#[derive(Debug)]
pub struct AdmissionCore {
    limits: AdmissionLimits,
    shares: Shares,
    capacity: Capacity,
    first_sounds: TtfaPredictors,
    /// When the last stream ended, while none is there.
    idle: Option<Duration>,
    streams: BTreeMap<Ticket, Stream>,
    /// Requests that nobody waits for, the oldest first.
    background: VecDeque<Ticket>,
    next: u64,
    /// How long a place was held lately, smoothed.
    held: Duration,
    /// Until when the server expects clients with a deadline that it refused for want of capacity.
    wanted: Duration,
    /// Requests that were paused, or go on, in this order, and have not been asked for.
    changes: Vec<(Ticket, bool)>,
}

impl AdmissionCore {
    /// No stream yet, and nothing known: accepts as many as there are places.
    pub fn new(limits: AdmissionLimits) -> AdmissionCore {
        AdmissionCore {
            limits,
            shares: Shares::default(),
            capacity: Capacity::new(limits.places),
            first_sounds: TtfaPredictors::default(),
            idle: Some(Duration::ZERO),
            streams: BTreeMap::new(),
            background: VecDeque::new(),
            next: 0,
            held: Duration::from_secs(1),
            wanted: Duration::ZERO,
            changes: Vec::new(),
        }
    }

    /// Takes another [`AdmissionLimits::first_audio`].
    pub fn set_first_audio(&mut self, deadline: Duration) {
        self.limits.first_audio = deadline;
    }

    /// Accepts a request, or says why not and when to come again.
    ///
    /// # Errors
    /// The refusal.
    pub fn ask(&mut self, asked: &Asked, now: Duration) -> Result<Accepted, Refusal> {
        self.look(now);
        // A refusal costs as much as an answer, so that a tenant cannot ask without end.
        let refused = |(reason, wait): (Reason, Duration)| Refusal { reason, retry_after: wait.min(LONGEST_ADVICE) };
        if !asked.charged {
            self.shares.charge(&asked.tenant, now).map_err(refused)?;
        }
        self.resume(now);
        let places = self.places(asked.slo);
        let held = self.running();
        let advice = self.advice(held.max(1));
        // What is paused is still the tenant's.
        let paused = self.paused_of(asked.tenant.id);
        let most = asked.tenant.max_requests;
        let tenant = Tenant { max_requests: most.map(|most| most.saturating_sub(paused)), ..asked.tenant };
        let mut answer = self.shares.ask(&tenant, places, now);
        let (mut instead_of, mut yielded) = (None, false);
        if matches!(answer, Err((Reason::Places, _)))
            && self.in_use(now) < places
            && let Some((idle, its_tenant)) = self.idlest(now)
        {
            // Its place is the next request's, unless that is one too many all the same. More places may be held than
            // streams are carried by now: what waits for its client needs no capacity.
            self.shares.leaves(its_tenant.id);
            answer = self.shares.ask(&tenant, places.max(held), now);
            yielded = answer.is_ok();
            if yielded {
                instead_of = self.pause(idle, now);
            } else {
                self.shares.stays(&its_tenant, now);
            }
        }
        if let Err((reason, wait)) = answer {
            let wait = wait.unwrap_or(advice).min(LONGEST_ADVICE);
            if reason == Reason::Places {
                self.shares.wants(&asked.tenant, places, now + wait + PUNCTUAL);
                if matches!(asked.slo, Slo::Realtime(_)) {
                    self.wanted = now + wait + PUNCTUAL;
                }
            }
            let reason = match (reason, most) {
                (Reason::OwnPlaces(_), Some(most)) => Reason::OwnPlaces(most),
                (reason, _) => reason,
            };
            let reason = match reason {
                Reason::Places if places < self.limits.places => Reason::Streams { capacity: places },
                other => other,
            };
            return Err(Refusal { reason, retry_after: wait });
        }
        if !yielded
            && self.limits.by_deadlines
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
                tenant: asked.tenant,
                slo: asked.slo,
                accepted: now,
                ahead,
                steady: asked.steady,
                chat: asked.chat,
                playback: Playback::default(),
                waits: None,
                complete: false,
                late: false,
                paused: None,
                reads: Patience::default(),
                writes: Patience::default(),
            },
        );
        self.idle = None;
        self.capacity.saw(self.running());
        Ok(Accepted { ticket, instead_of })
    }

    /// Ends what waited for its client for too long, or lived for too long; to be called now and then.
    pub fn tick(&mut self, now: Duration) -> Vec<(Ticket, Ended)> {
        self.rest(now);
        let AdmissionLimits { slow_client, life: lives, .. } = self.limits;
        let ended = |(ticket, stream): (&Ticket, &Stream)| {
            let lived = now.saturating_sub(stream.accepted);
            let why = if stream.owed(now) > slow_client {
                Ended::Slow(slow_client)
            } else if lived > life(lives, stream.playback.length()) {
                Ended::Old(lives)
            } else {
                return None;
            };
            Some((*ticket, why))
        };
        let ended: Vec<_> = self.streams.iter().filter_map(ended).collect();
        for (ticket, _) in &ended {
            self.left(*ticket, now);
        }
        self.resume(now);
        ended
    }

    /// Lets an idle server forget.
    fn rest(&mut self, now: Duration) {
        if !self.streams.is_empty() {
            return;
        }
        self.capacity.idles(now);
        if now.saturating_sub(*self.idle.get_or_insert(now)) >= FORGETS_IDLE {
            self.first_sounds.forget();
        }
    }

    /// The request waits for text that its client is still writing.
    pub fn waits_for_text(&mut self, ticket: Ticket, now: Duration) {
        if let Some(stream) = self.streams.get_mut(&ticket) {
            stream.writes.waits(now);
        }
    }

    /// Its client wrote so many characters; none where the text has ended.
    pub fn wrote(&mut self, ticket: Ticket, chars: usize, now: Duration) {
        if let Some(stream) = self.streams.get_mut(&ticket) {
            stream.writes.goes_on(now);
            stream.writes.wrote(chars, self.limits.slow_client);
            self.comes_back(ticket, now);
        }
    }

    /// The reader of a stream waits for more.
    pub fn waits(&mut self, ticket: Ticket, now: Duration) {
        if let Some(stream) = self.streams.get_mut(&ticket) {
            stream.waits.get_or_insert(now);
            stream.reads.goes_on(now);
            self.comes_back(ticket, now);
        }
    }

    /// Text of so many characters reached its reader.
    pub fn read(&mut self, ticket: Ticket, chars: usize, now: Duration) {
        let most = self.limits.slow_client;
        if let Some(stream) = self.streams.get_mut(&ticket) {
            stream.took(said(chars), most, now);
        }
    }

    /// Sound of this length reached its reader. Sound that lay there before the reader asked for it says nothing about
    /// lateness.
    pub fn heard(&mut self, ticket: Ticket, length: Duration, now: Duration) {
        let Some(stream) = self.streams.get_mut(&ticket) else { return };
        let waited = stream.waits.take().is_some();
        let first = stream.playback.time_to_first().is_none();
        stream.took(length, self.limits.slow_client, now);
        if waited || first {
            stream.playback.chunk(now, length);
        } else {
            stream.playback.chunk_in_time(now, length);
        }
        if first && waited && stream.steady {
            let (took, ahead) = (now.saturating_sub(stream.accepted), stream.ahead);
            self.first_sounds.learn((stream.chat, stream.tenant.id), ahead, took, now);
        }
        self.capacity.made(length);
    }

    /// All its sound has come.
    pub fn complete(&mut self, ticket: Ticket) {
        if let Some(stream) = self.streams.get_mut(&ticket) {
            stream.complete = true;
            // What is left is to be read, which another limit is for.
            (stream.reads, stream.writes) = Default::default();
        }
    }

    /// The stream has ended. Returns whether it met its SLO; `None` where it had none.
    pub fn left(&mut self, ticket: Ticket, now: Duration) -> Option<Kept> {
        if self.background_left(ticket) {
            return None;
        }
        self.look(now);
        let stream = self.streams.remove(&ticket)?;
        if stream.paused.is_none() {
            self.shares.leaves(stream.tenant.id);
        }
        self.held = (self.held * 7 + now.saturating_sub(stream.accepted)) / 8;
        if self.streams.is_empty() {
            self.idle = Some(now);
            self.capacity.idles(now);
        }
        self.resume(now);
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
        AdmissionStatus { capacity: self.capacity(), held: self.held(), realtime }
    }

    /// Streams that the server carries in real time.
    pub fn capacity(&self) -> usize {
        if self.limits.by_deadlines { self.capacity.now() } else { self.limits.places }
    }

    /// Streams that have a place or wait for theirs.
    pub fn held(&self) -> usize {
        self.streams.len()
    }

    /// The places for a request of this service level.
    fn places(&self, slo: Slo) -> usize {
        let no_deadlines = self.streams.values().all(|stream| stream.slo == Slo::BestEffort);
        match slo {
            _ if !self.limits.by_deadlines => self.limits.places,
            // Where no stream has a deadline, none can miss it.
            Slo::BestEffort if no_deadlines => self.limits.places,
            _ => self.capacity.now(),
        }
    }

    /// When one of `held` places is expected to become free.
    fn advice(&self, held: usize) -> Duration {
        (self.held / held as u32).min(LONGEST_ADVICE)
    }

    fn first_sounds_to_come(&self, chat: bool) -> usize {
        let to_come = |stream: &&Stream| {
            stream.chat == chat
                && stream.paused.is_none()
                && !stream.complete
                && stream.playback.time_to_first().is_none()
        };
        self.streams.values().filter(to_come).count()
    }

    /// The refusal of a stream that would miss its deadline, or would make others miss theirs.
    fn deadline(&self, asked: &Asked, now: Duration, advice: Duration) -> Option<Refusal> {
        let Slo::Realtime(deadline) = asked.slo else {
            let left = self.wanted.saturating_sub(now);
            let yields = !left.is_zero() && !self.streams.is_empty();
            return yields.then(|| Refusal { reason: Reason::Yields, retry_after: left.max(advice) });
        };
        let ahead = self.first_sounds_to_come(asked.chat);
        let expected = self.first_sounds.expect((asked.chat, asked.tenant.id), ahead, now);
        if self.streams.values().all(|stream| stream.complete) {
            // The first stream of an idle server finds out how fast it is. Only a client that wants more than the server
            // promises is told that it would be too slow.
            let wants_more = deadline < self.limits.first_audio;
            let expected = expected.filter(|expected| wants_more && *expected > deadline * 2)?;
            return Some(Refusal { reason: Reason::FirstSound { expected, deadline }, retry_after: FORGETS_IDLE });
        }
        if let Some(expected) = expected.filter(|expected| *expected > deadline) {
            let reason = Reason::FirstSound { expected, deadline };
            return Some(Refusal { reason, retry_after: (expected - deadline).max(advice) });
        }
        // Streams that are late at this moment count, whatever was learned before.
        let all = self.streams.values().filter(|stream| stream.counts()).count();
        let waiting = |stream: &Stream| !stream.complete && stream.waits.is_some();
        let late =
            self.late(now).into_iter().filter_map(|ticket| self.streams.get(&ticket)).filter(|s| waiting(s)).count();
        let reason = Reason::Streams { capacity: self.streams.len() };
        capacity::many(late, all).then_some(Refusal { reason, retry_after: advice })
    }

    /// The streams that are late by the server's doing. Where one tenant alone is late and another is served in time,
    /// the server is not at fault: in an overload all are late.
    fn late(&self, now: Duration) -> Vec<Ticket> {
        let (mut late, mut late_tenants, mut in_time) = (Vec::new(), BTreeSet::new(), BTreeSet::new());
        for (ticket, stream) in self.streams.iter().filter(|(_, stream)| stream.counts()) {
            if stream.is_late(self.limits.first_audio, now) {
                late.push(*ticket);
                late_tenants.insert(stream.tenant.id);
            } else if !stream.complete && stream.playback.time_to_first().is_some() {
                in_time.insert(stream.tenant.id);
            }
        }
        let alone = late_tenants.len() == 1 && in_time.iter().any(|tenant| !late_tenants.contains(tenant));
        if alone { Vec::new() } else { late }
    }

    /// Learns the capacity from the streams as they are now.
    fn look(&mut self, now: Duration) {
        self.rest(now);
        let (mut realtime, mut ahead) = (0, 0);
        for stream in self.streams.values().filter(|stream| stream.counts()) {
            realtime += 1;
            ahead += usize::from(stream.playback.left(now) >= WELL_AHEAD);
        }
        for ticket in self.late(now) {
            if let Some(stream) = self.streams.get_mut(&ticket).filter(|stream| !stream.late) {
                stream.late = true;
                self.capacity.late();
            }
        }
        self.capacity.look((self.running(), realtime, ahead), now);
    }
}
