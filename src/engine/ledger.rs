//! The request ledger: [`LedgerCore`] and a [`Journal`] per request, with the clients, the clock and the stages. It is
//! a lock and not an actor: its work is short, every thread on which output arrives or a client leaves must reach it,
//! and it must outlive every stage.
//!
//! Every payload between stages passes here, and the ledger records it in the journal before it passes it on. So a
//! stage may die at any moment: when it [is up](omni_stage::StageReports::stage_up) again, the ledger readmits its
//! sequences where their output ended, with their input from the journal. The stages before and behind it need not
//! notice.
//!
//! Actors that must not wait for the lock leave a [post](posts) instead: acknowledgements and lost sequences. Requests
//! that come at once do not queue for it either: one of their threads opens all of them.
//!
//! The ledger admits and aborts sequences under its lock, so it can never give a stage a request that has ended, and no
//! payload can come between a readmission and its input.

mod attempts;
mod blame;
mod ends;
mod posts;
mod reader;
mod reports;
#[cfg(test)]
mod tests;

pub(super) use posts::Acks;
pub(super) use reports::{LedgerSink, Reports};

use super::admission::{Permit, Place};
use super::api::{Event, RequestError, ResponseStream};
use super::caught::caught;
use super::client::Client;
use super::encoded::{MediaPermit, MediaPlan, MediaStore};
use super::journal::{Edge, Journal};
use super::plan::{CodeLog, FollowedText, RequestPlan};
use super::posted_lock::PostedLock;
use super::stages::Stages;
use super::stream::Expired;
use omni_core::ids::{Content, FinishReason, Replica, RequestId, StageName};
use omni_core::ledger::{Failure, LedgerCore, LedgerLimits, Owed};
use omni_core::scheduler::Ack;
use omni_core::seats::Seats;
use omni_core::suspects::Suspects;
use omni_fault::{FaultEvent, FaultPlan, FaultPoint, FaultSite};
use omni_telemetry::clock::Clock;
use omni_telemetry::{RequestKind, RequestMetrics, speech_astray};
use omni_transfer::payload::{Header, Kind, Part, Payload};
use omni_transfer::transport::PayloadSender;
use posts::Post;
use reader::Reader;
use std::collections::hash_map::RandomState;
use std::collections::{BTreeMap, VecDeque};
use std::hash::{BuildHasher, Hasher};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, OnceLock, PoisonError};
use std::time::{Duration, Instant};

/// See the module.
pub(super) struct Ledger {
    clock: Clock,
    stages: Stages,
    /// Codes of a frame, and how long a listener hears it.
    groups: usize,
    unit: Duration,
    /// How payloads get into each stage, in the order of `stages`.
    into: OnceLock<Vec<Arc<dyn PayloadSender>>>,
    metrics: RequestMetrics,
    faults: FaultPlan,
    fault: FaultSite,
    /// Between the journal and the client.
    handover: FaultSite,
    /// Number of the next request of all ledgers that have this counter.
    next: Arc<AtomicU64>,
    state: PostedLock<State, Post, Arrival>,
}

struct State {
    core: LedgerCore,
    open: BTreeMap<RequestId, Open>,
    /// Which replica of each stage has which sequences, by the stage's place in [`StageName::ALL`].
    seats: [Seats; StageName::ALL.len()],
    /// The requests that may have brought each stage down.
    suspects: [Suspects; StageName::ALL.len()],
    /// Failures that count no more and of which the replicas of each stage have not heard yet.
    excuses: [Vec<Vec<u64>>; StageName::ALL.len()],
    /// What the requests that ended last asked for, the latest last: a stage may still go down because of them.
    ended: VecDeque<(RequestId, Content)>,
    /// Whether the stages stop: no request goes on any more.
    closed: bool,
}

impl State {
    /// Whether a replica may still speak for the sequence of a request: no other has it.
    fn has(&self, replica: Replica, request: RequestId) -> bool {
        self.seats[replica.stage as usize].of(request).is_none_or(|seat| seat == usize::from(replica.number))
    }
}

/// An open request.
struct Open {
    client: Client,
    journal: Journal,
    /// The place of the request that it is, or is a part of; `None` for a request of the engine's own.
    place: Option<Arc<Place>>,
    /// Where the relay of a described voice reads its codes.
    codes: Option<CodeLog>,
    /// Keeps the embeddings of its media.
    store: Option<MediaStore>,
    /// Memory of its media.
    _media: Option<MediaPermit>,
}

impl Open {
    /// It has no place, so no stage may have a sequence of it.
    fn is_paused(&self) -> bool {
        self.place.as_ref().is_some_and(|place| place.is_paused())
    }
}

/// A request that is accepted and not open yet.
struct Arrival {
    request: RequestId,
    /// When it was accepted.
    at: Duration,
    owed: Owed,
    stages: Vec<StageName>,
    open: Open,
    /// Embeddings of its media that were made before, and the text that its talker follows.
    known: Vec<Payload>,
    follow: Option<Payload>,
}

/// By what right a request is made.
#[derive(Default)]
pub(super) struct Right {
    permit: Option<Permit>,
    place: Option<Arc<Place>>,
}

impl From<Permit> for Right {
    /// It is the whole of what the permit is for.
    fn from(permit: Permit) -> Right {
        Right { place: Some(permit.place()), permit: Some(permit) }
    }
}

impl From<Arc<Place>> for Right {
    /// It is a part of what a permit is for that others hold.
    fn from(place: Arc<Place>) -> Right {
        Right { permit: None, place: Some(place) }
    }
}

impl Ledger {
    pub fn new(
        limits: LedgerLimits,
        stages: Stages,
        groups: usize,
        unit: Duration,
        metrics: RequestMetrics,
        faults: FaultPlan,
    ) -> Ledger {
        let seats = StageName::ALL.map(|stage| {
            let replicas = stages.replicas(stage);
            let seats = Seats::new(replicas.len());
            // A number that no other gateway has: its hasher is seeded by the system.
            let number = || RandomState::new().build_hasher().finish();
            if replicas.iter().any(|replica| replica.is_on_nodes()) { seats.in_order_of(number()) } else { seats }
        });
        let state = PostedLock::new(State {
            core: LedgerCore::new(limits),
            open: BTreeMap::new(),
            seats,
            suspects: Default::default(),
            excuses: StageName::ALL.map(|stage| vec![Vec::new(); stages.replicas(stage).len()]),
            ended: VecDeque::new(),
            closed: false,
        });
        let (fault, handover) = (faults.site(None, FaultPoint::Ledger), faults.site(None, FaultPoint::Handover));
        let (clock, into) = (Clock::system(), OnceLock::new());
        let next = Arc::new(AtomicU64::new(1));
        Ledger { clock, stages, groups, unit, into, metrics, faults, fault, handover, next, state }
    }

    /// Numbers its requests by this counter, which other ledgers may have too.
    pub fn numbered_by(self, next: Arc<AtomicU64>) -> Ledger {
        Ledger { next, ..self }
    }

    /// Tells the time by this clock.
    pub fn on(self, clock: Clock) -> Ledger {
        Ledger { clock, ..self }
    }

    /// Says how payloads get into each stage, upstream first, replica by replica. Once, before the first request.
    pub fn leads_into(&self, edges: Vec<Arc<dyn PayloadSender>>) {
        let _ = self.into.set(edges);
    }

    /// Accepts a request and gives it a sequence in every stage that it needs. A stage that is down gets it when it is
    /// up. Does not queue for the lock behind others that open one.
    pub fn open_request(
        self: &Arc<Self>,
        plan: RequestPlan,
        kind: RequestKind,
        right: impl Into<Right>,
        expired: Expired,
    ) -> ResponseStream {
        let Right { permit, place } = right.into();
        let request = RequestId(self.next.fetch_add(1, Ordering::Relaxed));
        // One place more for the last event, whatever happens.
        let (send, events) = flume::bounded(plan.max_events + 1);
        self.come_in(self.arrival(request, plan, kind, place, send));
        if let Some(permit) = &permit {
            let ledger = Arc::downgrade(self);
            permit.ends_by(move |error| {
                if let Some(ledger) = ledger.upgrade() {
                    ledger.end(request, error);
                }
            });
        }
        let pace = self.faults.site(None, FaultPoint::Client);
        let (ledger, heard, ended) = (Arc::clone(self), AtomicBool::default(), AtomicBool::default());
        let listener = Reader { ledger, request, pace, heard, ended, expired, _permit: permit };
        ResponseStream::heard_by(events, listener)
    }

    /// What of a request can be made without the lock.
    fn arrival(
        &self,
        request: RequestId,
        plan: RequestPlan,
        kind: RequestKind,
        place: Option<Arc<Place>>,
        events: flume::Sender<Event>,
    ) -> Arrival {
        let content = plan.content();
        self.faults.accepted(request, content);
        let stages = plan.sequences.iter().map(|(stage, _)| *stage).collect();
        let meter = self.metrics.accepted(request, kind, Instant::now());
        let mut client =
            Client::new(events, plan.text, plan.owed.audio, plan.prompt_tokens, plan.samples_per_second, meter);
        // The channel is empty.
        let _ = client.event(Event::Started { id: request, seed: plan.seed });
        client.followed(plan.follow.as_ref().map_or(0, |text| text.tokens.len() as u32));
        let frame = (self.unit.as_secs_f64() * f64::from(plan.samples_per_second)).round() as usize;
        let MediaPlan { feed, known, store, permit: media, .. } = plan.media;
        let journal = Journal::new(request, plan.sequences, (self.groups, frame))
            .asking_for(content)
            .on(self.clock.clone())
            .guarded_by(plan.guard)
            .fed_by(feed);
        Arrival {
            request,
            at: self.now(),
            owed: plan.owed,
            stages,
            open: Open { client, journal, place, codes: plan.codes, store, _media: media },
            known: known.into_iter().map(|known| known.named(request)).collect(),
            follow: plan.follow.map(|text| text.payload(request, 0)),
        }
    }

    /// Opens a request that has arrived: gives it its sequences.
    fn begin(&self, state: &mut State, arrival: Arrival) {
        let Arrival { request, at, owed, stages, open, known, follow } = arrival;
        let (content, waiting): (_, Vec<_>) = (open.journal.content(), open.journal.unfinished().collect());
        state.core.accept(request, owed, stages, at);
        if state.closed {
            // The next piece of a text, for one: no stage would ever take it, and nothing ends what is too old.
            state.open.insert(request, open);
            let effect = state.core.fail(request, Failure::ShuttingDown);
            return self.carry_out(state, effect.into_iter().collect());
        }
        waiting.iter().for_each(|stage| state.suspects[*stage as usize].came(request, content));
        state.open.insert(request, open);
        for payload in known {
            // No stage has a sequence of it yet: each gets its input when it is admitted.
            self.write_down(state, Edge::Media, payload);
        }
        let lost = waiting.iter().find(|stage| self.is_lost(**stage)).copied();
        for stage in waiting {
            self.admit(state, request, stage);
        }
        if let Some(text) = follow {
            self.pass(state, Edge::Text, text);
        }
        if let Some(stage) = lost {
            // The stage was given up after the engine had found it ready.
            let failure = Failure::StageFailed(stage, "it went down just now".into());
            let effect = state.core.fail(request, failure);
            self.carry_out(state, effect.into_iter().collect());
        }
    }

    /// More text for a request that follows one, `before` tokens of which it has. Does nothing for one that has ended.
    pub fn push_text(&self, request: RequestId, before: u32, text: FollowedText) {
        let mut state = self.lock();
        let Some(open) = state.open.get_mut(&request) else { return };
        open.client.followed(text.tokens.len() as u32);
        self.pass(&mut state, Edge::Text, text.payload(request, before));
    }

    /// Pauses what is made for a place, or lets it go on, as the place says. A paused request has no sequence in any
    /// stage: it goes on from its journal, as after a restart of all of them.
    pub fn settle(&self, place: &Arc<Place>) {
        let mut state = self.lock();
        let Some(paused) = place.settle() else { return };
        let is_its = |open: &Open| open.place.as_ref().is_some_and(|of| Arc::ptr_eq(of, place));
        let requests = state.open.iter().filter(|(_, open)| is_its(open));
        let requests: Vec<_> =
            requests.map(|(request, open)| (*request, open.journal.unfinished().collect())).collect();
        for (request, unfinished) in requests {
            let unfinished: Vec<StageName> = unfinished;
            for stage in unfinished {
                if paused {
                    self.abort(&mut state, request, stage);
                } else {
                    self.admit(&mut state, request, stage);
                }
            }
        }
    }

    /// Ends a request whose place was taken away. What was made of it by now is still read.
    fn end(&self, request: RequestId, error: RequestError) {
        let failure = match error {
            RequestError::SlowClient(limit) => Failure::SlowClient(limit),
            RequestError::TimedOut(limit) => Failure::TimedOut(limit),
            _ => Failure::Yielded,
        };
        let mut state = self.lock();
        let effect = state.core.fail(request, failure);
        self.carry_out(&mut state, effect.into_iter().collect());
    }

    /// Ends what has taken too long.
    pub fn tick(&self) {
        let mut state = self.lock();
        let effects = state.core.tick(self.now());
        self.carry_out(&mut state, effects);
        for stage in StageName::ALL {
            state.suspects[stage as usize].look();
            self.let_in(&mut state, stage);
        }
        self.metrics.journals(state.open.values().map(|open| open.journal.bytes()).sum());
    }

    /// Ends everything, and at once what is opened from now on.
    pub fn shut_down(&self) {
        let mut state = self.lock();
        state.closed = true;
        let effects = state.core.shut_down();
        self.carry_out(&mut state, effects);
    }

    /// Requests open now.
    pub fn open(&self) -> usize {
        self.lock().core.open()
    }

    /// Entries, journals and their bytes: nothing when no request is open.
    pub fn held(&self) -> (usize, usize, usize) {
        let state = self.lock();
        let bytes = state.open.values().map(|open| open.journal.bytes()).sum();
        (state.core.open(), state.open.len(), bytes)
    }

    /// Delivers a payload to a client.
    fn deliver(&self, payload: Payload) {
        let (request, edge) = (payload.header.request, Edge::of(payload.header.kind));
        let mut state = self.lock();
        // A panic is the only fault that can be planned here.
        let event = FaultEvent::units(request, payload.header.seq, payload.header.end.is_some());
        let _ = self.fault.inject(|| [event], || false);
        // The client may have left: then there is nothing to deliver and nothing to acknowledge.
        let Some(new) = self.write_down(&mut state, edge, payload) else { return };
        let (units, kind, end) = (new.header.units, new.header.kind, new.header.end);
        let Some(Open { client, .. }) = state.open.get_mut(&request) else { return };
        let text_only = client.is_text_only();
        let events = match self.hand_over(client, &new) {
            Ok(events) => events,
            Err(reason) => {
                let stage = edge.producer().unwrap_or(StageName::Thinker);
                tracing::error!(%request, %stage, reason, "output could not be handed over");
                let effect = state.core.sequence_failed(request, stage, reason);
                return self.carry_out(&mut state, effect.into_iter().collect());
            }
        };
        let now = self.now();
        for _ in 0..events {
            state.core.handed_over(request, now);
        }
        // The talker paces the thinker of a spoken answer. A text-only answer has no such consumer, and its client
        // reads pieces of text, not tokens, so its tokens are acknowledged at once.
        if kind == Kind::Tokens && text_only {
            self.ack(&mut state, Edge::Tokens, vec![Ack { request, upto: new.header.seq.0 + units }]);
        }
        let effect = match (kind, end) {
            (Kind::Tokens, Some(_)) => state.core.text_done(request),
            (Kind::Audio, Some(_)) => state.core.audio_done(request),
            _ => None,
        };
        self.carry_out(&mut state, effect.into_iter().collect());
    }

    /// Gives the client what the journal has written down as delivered: no stage makes it again. So a panic on the way
    /// is no reason to lose it, and what cannot be handed over ends the request.
    fn hand_over(&self, client: &mut Client, payload: &Payload) -> Result<usize, String> {
        let Header { request, seq, end, .. } = payload.header;
        let mut attempt = || {
            // A panic is the only fault that can be planned here.
            let _ = self.handover.inject(|| [FaultEvent::units(request, seq, end.is_some())], || false);
            client.take(payload)
        };
        let handed = caught(&mut attempt).or_else(|_| caught(&mut attempt));
        handed.and_then(|handed| handed.map_err(|full| full.to_string()))
    }

    /// Passes a payload on to the next stage. A stage that is down gets it from the journal when it is up.
    fn pass(&self, state: &mut State, edge: Edge, payload: Payload) {
        let request = payload.header.request;
        let Some(new) = self.write_down(state, edge, payload) else { return };
        let consumer = state.open.get(&request).and_then(|open| open.journal.consumer(edge));
        let Some((stage, _)) = consumer.filter(|(stage, _)| state.seats[*stage as usize].is_up()) else { return };
        if state.open.get(&request).is_some_and(Open::is_paused) {
            return;
        }
        if state.open.get(&request).is_some_and(|open| open.journal.starved(stage).is_some()) {
            self.admit(state, request, stage);
        } else if let Some(seat) = state.seats[stage as usize].of(request)
            && let Err(error) = self.put(stage, seat, new)
        {
            self.sequence_lost(state, request, stage, error.to_string());
        }
    }

    /// Records a payload in the journal; returns the part of it that is new.
    fn write_down(&self, state: &mut State, edge: Edge, payload: Payload) -> Option<Payload> {
        let request = payload.header.request;
        let open = state.open.get_mut(&request)?;
        let new = match open.journal.record(edge, payload) {
            Ok(new) => new?,
            Err(error) => {
                let from = edge.producer().unwrap_or(StageName::Thinker);
                let effect = state.core.sequence_failed(request, from, error.to_string());
                self.carry_out(state, effect.into_iter().collect());
                return None;
            }
        };
        if let Some(stage) = edge.producer() {
            let suspects = &mut state.suspects[stage as usize];
            if !suspects.is_idle() {
                suspects.made(request, open.journal.made(stage), open.journal.is_done(stage));
                self.let_in(state, stage);
            }
        }
        let open = state.open.get_mut(&request)?;
        if let (Edge::Codes, Some(log), Some(Part::U32(codes))) = (edge, &open.codes, new.parts.first()) {
            log.lock().unwrap_or_else(PoisonError::into_inner).extend_from_slice(codes);
        }
        if let (Edge::Media, Some(store)) = (edge, &mut open.store) {
            store.keep(open.journal.embeddings_of_media());
        }
        if let Some(reason) = new.header.end {
            if edge != Edge::Text {
                open.client.stage_ended(reason);
            }
            if reason.is_astray() {
                speech_astray(reason);
            }
            if let (FinishReason::Runaway, Some(stage)) = (reason, edge.producer()) {
                self.cut_short(state, request, stage);
            }
            for stage in StageName::ALL {
                if state.open.get(&request).is_some_and(|open| open.journal.is_done(stage)) {
                    state.core.stage_done(request, stage);
                    state.seats[stage as usize].leave(request);
                }
            }
        }
        Some(new)
    }

    fn is_lost(&self, stage: StageName) -> bool {
        self.stages.is_given_up(stage)
    }

    fn now(&self) -> Duration {
        self.clock.now()
    }
}
