//! The request ledger: [`LedgerCore`] and a [`Journal`] per request, with the clients, the clock and the stages. It is
//! a lock and not an actor: its work is short, every thread on which output arrives or a client leaves must reach it,
//! and it must outlive every stage.
//!
//! Every payload between stages passes here, and the ledger records it in the journal before it passes it on. So a
//! stage may die at any moment: when it [is up](StageReports::stage_up) again, the ledger readmits its sequences where
//! their output ended, with their input from the journal. The stages before and behind it need not notice.
//!
//! Actors that must not wait for the lock leave a [post](posts) instead: acknowledgements and lost sequences.
//!
//! The ledger admits and aborts sequences under its lock, so it can never give a stage a request that has ended, and no
//! payload can come between a readmission and its input.

mod posts;
#[cfg(test)]
mod tests;

pub(super) use posts::Acks;

use super::admission::Permit;
use super::api::{Event, Listener, RequestError, ResponseStream};
use super::caught::caught;
use super::client::Client;
use super::journal::{Edge, Journal, Readmission, TRIES};
use super::plan::{CodeLog, FollowedText, RequestPlan};
use super::stages::Stages;
use super::stream::Expired;
use omni_core::ids::{Attempt, Content, RequestId, Seq, StageName};
use omni_core::ledger::{Effect, Failure, LedgerCore, LedgerLimits};
use omni_core::scheduler::Ack;
use omni_core::suspects::{Attribution, Concerned, Judgement, Suspects};
use omni_fault::{FaultEvent, FaultPlan, FaultPoint, FaultSite};
use omni_stage::{InHands, RELEASED, StageFailure, StageReports};
use omni_telemetry::clock::Clock;
use omni_telemetry::{Outcome, RequestKind, RequestMetrics, edge_lost, request_guilty};
use omni_transfer::payload::{Header, Kind, Part, Payload};
use omni_transfer::transport::{PayloadSender, TransportError};
use posts::{Post, PostedLock};
use std::collections::{BTreeMap, VecDeque};
use std::hash::{DefaultHasher, Hasher};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock, PoisonError};
use std::time::{Duration, Instant};

/// Requests that ended and whose contents are remembered.
const ENDED: usize = 64;

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
    state: PostedLock<State, Post>,
}

struct State {
    core: LedgerCore,
    open: BTreeMap<RequestId, Open>,
    /// Stages that take sequences, by their place in [`StageName::ALL`].
    up: [bool; 3],
    /// The requests that may have brought each stage down.
    suspects: [Suspects; 3],
    /// What the requests that ended last asked for, the latest last: a stage may still go down because of them.
    ended: VecDeque<(RequestId, Content)>,
}

/// An open request.
struct Open {
    client: Client,
    journal: Journal,
    /// Where the relay of a described voice reads its codes.
    codes: Option<CodeLog>,
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
        let (core, open, up) = (LedgerCore::new(limits), BTreeMap::new(), [false; 3]);
        let state = PostedLock::new(State { core, open, up, suspects: Default::default(), ended: VecDeque::new() });
        let (fault, handover) = (faults.site(None, FaultPoint::Ledger), faults.site(None, FaultPoint::Handover));
        let (clock, into) = (Clock::system(), OnceLock::new());
        Ledger { clock, stages, groups, unit, into, metrics, faults, fault, handover, state }
    }

    /// Tells the time by this clock.
    pub fn on(self, clock: Clock) -> Ledger {
        Ledger { clock, ..self }
    }

    /// Says how payloads get into each stage, upstream first. Once, before the first request.
    pub fn leads_into(&self, edges: Vec<Arc<dyn PayloadSender>>) {
        let _ = self.into.set(edges);
    }

    /// Accepts a request and gives it a sequence in every stage that it needs. A stage that is down gets it when it is
    /// up.
    pub fn open_request(
        self: &Arc<Self>,
        plan: RequestPlan,
        kind: RequestKind,
        permit: Option<Permit>,
        expired: Expired,
    ) -> ResponseStream {
        let mut state = self.lock();
        let stages = plan.sequences.iter().map(|(stage, _)| *stage).collect();
        let request = state.core.accept(plan.owed, stages, self.now());
        let content = plan.content();
        self.faults.accepted(request, content);
        // One place more for the last event, whatever happens.
        let (send, events) = flume::bounded(plan.max_events + 1);
        let meter = self.metrics.accepted(request, kind, Instant::now());
        let mut client =
            Client::new(send, plan.text, plan.owed.audio, plan.prompt_tokens, plan.samples_per_second, meter);
        // The channel is empty.
        let _ = client.event(Event::Started { id: request, seed: plan.seed });
        client.followed(plan.follow.as_ref().map_or(0, |text| text.tokens.len() as u32));
        let frame = (self.unit.as_secs_f64() * f64::from(plan.samples_per_second)).round() as usize;
        let journal =
            Journal::new(request, plan.sequences, (self.groups, frame)).asking_for(content).on(self.clock.clone());
        let waiting: Vec<_> = journal.unfinished().collect();
        waiting.iter().for_each(|stage| state.suspects[*stage as usize].came(request, content));
        state.open.insert(request, Open { client, journal, codes: plan.codes });
        state.core.handed_over(request, self.now());
        let lost = waiting.iter().find(|stage| self.is_lost(**stage)).copied();
        for stage in waiting {
            self.admit(&mut state, request, stage);
        }
        if let Some(text) = plan.follow {
            self.pass(&mut state, Edge::Text, text.payload(request, 0));
        }
        if let Some(stage) = lost {
            // The stage was given up after the engine had found it ready.
            let failure = Failure::StageFailed(stage, "it went down just now".into());
            let effect = state.core.fail(request, failure);
            self.carry_out(&mut state, effect.into_iter().collect());
        }
        drop(state);
        if let Some(permit) = &permit {
            let ledger = Arc::downgrade(self);
            permit.ends_by(move |error| {
                if let Some(ledger) = ledger.upgrade() {
                    ledger.end(request, error);
                }
            });
        }
        let pace = self.faults.site(None, FaultPoint::Client);
        let (ledger, heard) = (Arc::clone(self), AtomicBool::new(false));
        let listener = Reader { ledger, request, pace, heard, expired, _permit: permit };
        ResponseStream::heard_by(events, listener)
    }

    /// More text for a request that follows one, `before` tokens of which it has. Does nothing for one that has ended.
    pub fn push_text(&self, request: RequestId, before: u32, text: FollowedText) {
        let mut state = self.lock();
        let Some(open) = state.open.get_mut(&request) else { return };
        open.client.followed(text.tokens.len() as u32);
        self.pass(&mut state, Edge::Text, text.payload(request, before));
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

    /// Ends everything.
    pub fn shut_down(&self) {
        let mut state = self.lock();
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

    /// Gives the client what the journal has written down as delivered: no stage makes it again. So a panic on the way is
    /// no reason to lose it, and what cannot be handed over ends the request.
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
        let Some((stage, _)) = consumer.filter(|(stage, _)| state.up[*stage as usize]) else { return };
        if state.open.get(&request).is_some_and(|open| open.journal.starved(stage).is_some()) {
            self.admit(state, request, stage);
        } else if let Err(error) = self.put(stage, new) {
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
        if let Some(reason) = new.header.end {
            if edge != Edge::Text {
                open.client.stage_ended(reason);
            }
            for stage in StageName::ALL {
                if state.open.get(&request).is_some_and(|open| open.journal.is_done(stage)) {
                    state.core.stage_done(request, stage);
                }
            }
        }
        Some(new)
    }

    /// Admits the sequence of a request to a stage that is up, with its input so far.
    fn admit(&self, state: &mut State, request: RequestId, stage: StageName) {
        if !state.up[stage as usize] {
            return;
        }
        if !state.suspects[stage as usize].may_enter(request) {
            return;
        }
        let alone = state.suspects[stage as usize].alone(request);
        let Some(open) = state.open.get_mut(&request) else { return };
        let readmission = match caught(|| open.journal.admit(stage, self.unit, alone)) {
            Ok(Some(readmission)) => readmission,
            Ok(None) => {
                // The producer must not wait for a stage that has no sequence.
                if let Some((edge, upto)) = open.journal.used_up(stage) {
                    self.ack(state, edge, vec![Ack { request, upto }]);
                }
                return;
            }
            Err(reason) => {
                // Those who call this have other requests to admit.
                let effect = state.core.sequence_failed(request, stage, reason);
                return self.carry_out(state, effect.into_iter().collect());
            }
        };
        let Readmission { admission, input } = readmission;
        let Some(handle) = self.stages.get(stage) else { return };
        // A stage that has just gone down drops this; it is admitted again when the stage is up.
        handle.admit(admission);
        for payload in input {
            if let Err(error) = self.put(stage, payload) {
                self.sequence_lost(state, request, stage, error.to_string());
                return;
            }
        }
    }

    /// Admits suspects that had to wait for others.
    fn let_in(&self, state: &mut State, stage: StageName) {
        while state.up[stage as usize]
            && let Some(request) = state.suspects[stage as usize].next_to_enter()
        {
            self.admit(state, request, stage);
        }
    }

    fn put(&self, stage: StageName, payload: Payload) -> Result<(), TransportError> {
        let place = self.stages.iter().position(|handle| handle.name() == stage);
        let edge = place.and_then(|at| self.into.get()?.get(at));
        edge.map_or(Ok(()), |edge| edge.put(payload))
    }

    /// A sequence failed. It gets another attempt, unless it has failed at the same unit too often.
    fn sequence_lost(&self, state: &mut State, request: RequestId, stage: StageName, reason: String) {
        let Some(open) = state.open.get_mut(&request) else { return };
        if open.journal.may_try_again(stage) {
            tracing::warn!(%request, %stage, reason, "sequence failed; it is tried again");
            self.admit(state, request, stage);
            return;
        }
        tracing::warn!(%request, %stage, reason, "sequence failed");
        let effect = state.core.sequence_failed(request, stage, reason);
        self.carry_out(state, effect.into_iter().collect());
    }

    /// Input of a sequence got lost on its edge. The sequence gets another attempt with all of its input, unless this
    /// unit has been lost too often.
    fn input_lost(&self, state: &mut State, request: RequestId, stage: StageName, attempt: Attempt, unit: Seq) {
        let Some(open) = state.open.get_mut(&request) else { return };
        let edge = open.journal.edge_into(stage);
        // Of an attempt that another one has taken the place of.
        if open.journal.consumer(edge) != Some((stage, attempt)) {
            return;
        }
        let from = edge.producer();
        edge_lost(from);
        if open.journal.may_send_again(stage, unit) {
            tracing::warn!(%request, %stage, %unit, "input got lost on its edge; the sequence is tried again");
            self.admit(state, request, stage);
            return;
        }
        let reason = format!("input from unit {unit} on did not get through the edge in {TRIES} attempts");
        tracing::warn!(%request, %stage, reason, "sequence failed");
        let effect = state.core.sequence_failed(request, stage, reason);
        self.carry_out(state, effect.into_iter().collect());
    }

    fn is_lost(&self, stage: StageName) -> bool {
        self.stages.get(stage).is_none_or(|stage| stage.is_given_up())
    }

    fn carry_out(&self, state: &mut State, effects: Vec<Effect>) {
        for effect in effects {
            let (request, last, outcome) = match effect {
                Effect::Complete(request) => (request, None, Outcome::Finished),
                Effect::Release(request) => (request, None, Outcome::Aborted),
                Effect::Fail(request, failure) => {
                    let outcome = outcome(&failure);
                    (request, Some(Event::Failed(error(failure))), outcome)
                }
            };
            if outcome != Outcome::Finished {
                self.stages.iter().for_each(|stage| stage.abort(request));
            }
            state.suspects.iter_mut().for_each(|suspects| suspects.gone(request));
            if let Some(open) = state.open.remove(&request) {
                if state.ended.len() >= ENDED {
                    state.ended.pop_front();
                }
                state.ended.push_back((request, open.journal.content()));
                if outcome == Outcome::Finished {
                    // What a stage still makes is not needed, and no consumer is left that would take it over.
                    let left = open.journal.unfinished().filter_map(|stage| self.stages.get(stage));
                    left.for_each(|stage| stage.abort(request));
                }
                open.client.end(last, outcome);
            }
        }
    }

    fn now(&self) -> Duration {
        self.clock.now()
    }
}

impl StageReports for Ledger {
    fn sequence_failed(&self, request: RequestId, stage: StageName, reason: String) {
        self.post(Post::SequenceFailed(request, stage, reason));
    }

    fn input_lost(&self, request: RequestId, stage: StageName, attempt: Attempt, unit: Seq) {
        self.post(Post::InputLost(request, stage, attempt, unit));
    }

    fn stage_up(&self, stage: StageName) {
        let mut state = self.lock();
        state.up[stage as usize] = true;
        let mut waiting: Vec<_> =
            state.open.iter().filter(|(_, open)| !open.journal.is_done(stage)).map(|(request, _)| *request).collect();
        // Those that are least likely to bring it down again get through first.
        waiting.sort_by_key(|request| state.suspects[stage as usize].failures_of(*request));
        // A stage may die between its last payload and the news that it needs no more input.
        let released =
            state.open.iter().filter_map(|(request, open)| Some((open.journal.released_by(stage)?, *request)));
        for (edge, request) in released.collect::<Vec<_>>() {
            self.ack(&mut state, edge, vec![Ack { request, upto: RELEASED }]);
        }
        if !waiting.is_empty() {
            tracing::info!(%stage, requests = waiting.len(), "the stage goes on with its requests");
        }
        for request in waiting {
            self.admit(&mut state, request, stage);
        }
    }

    fn stage_down(&self, stage: StageName, failure: &StageFailure) -> Attribution {
        let StageFailure { reason, in_hands, slow } = failure;
        let mut state = self.lock();
        state.up[stage as usize] = false;
        let gone = |request: &RequestId| !state.open.contains_key(request);
        let had_it = |request: RequestId, unit: Option<u32>| {
            let Some(Open { journal, .. }) = state.open.get(&request) else {
                let (_, content) = *state.ended.iter().rev().find(|(ended, _)| *ended == request)?;
                return Some(Concerned { request, content, unit: unit.unwrap_or(0) });
            };
            let (content, made) = (journal.content(), journal.made(stage));
            (!journal.is_done(stage)).then_some(Concerned { request, content, unit: unit.unwrap_or(made).max(made) })
        };
        let concerned: Vec<Concerned> = match in_hands {
            InHands::These(these) => these.iter().filter_map(|(request, unit)| had_it(*request, *unit)).collect(),
            InHands::All => state.open.keys().filter_map(|request| had_it(*request, None)).collect(),
        };
        let left: Vec<RequestId> = concerned.iter().map(|one| one.request).filter(gone).collect();
        let suspects = &mut state.suspects[stage as usize];
        let Judgement { guilty, attribution } = suspects.failed(&concerned, (!slow).then(|| cause(reason)));
        left.into_iter().for_each(|request| suspects.gone(request));
        if let Some((request, times)) = guilty {
            tracing::warn!(%request, %stage, times, reason, "the request brought the stage down each time and is ended");
            request_guilty(stage);
            let effect = state.core.fail(request, Failure::BroughtDown(stage, times, reason.clone()));
            self.carry_out(&mut state, effect.into_iter().collect());
        }
        attribution
    }

    fn stage_given_up(&self, stage: StageName, reason: &str) {
        let mut state = self.lock();
        let effects = state.core.stage_lost(stage, reason);
        self.carry_out(&mut state, effects);
    }
}

/// The sending end of every stage: its payloads go through the ledger.
pub(super) struct LedgerSink(pub Arc<Ledger>);

impl PayloadSender for LedgerSink {
    fn put(&self, payload: Payload) -> Result<(), TransportError> {
        match payload.header.kind {
            Kind::Tokens | Kind::Audio => self.0.deliver(payload),
            kind @ (Kind::Embeddings | Kind::Codes) => {
                let mut state = self.0.lock();
                self.0.pass(&mut state, Edge::of(kind), payload);
            }
        }
        Ok(())
    }
}

/// Follows how the client reads one response.
struct Reader {
    ledger: Arc<Ledger>,
    request: RequestId,
    /// The fault point of a slow client, and whether the client has heard anything.
    pace: FaultSite,
    heard: AtomicBool,
    /// Set where the stream is dropped because its time is over.
    expired: Expired,
    _permit: Option<Permit>,
}

impl Listener for Reader {
    fn hesitates(&self, event: &Event) -> Option<Duration> {
        let event = || match event {
            Event::Audio(_) => FaultEvent::output(self.request, !self.heard.swap(true, Ordering::Relaxed), false),
            Event::Finished { .. } | Event::Failed(_) => FaultEvent::output(self.request, false, true),
            Event::Started { .. } | Event::Text(_) => FaultEvent::of(self.request),
        };
        self.pace.occurs(|| [event()])?.kind.delay()
    }

    fn read(&self, event: &Event) {
        let now = self.ledger.now();
        let mut state = self.ledger.lock();
        state.core.read(self.request, now);
        if let Event::Audio(chunk) = event {
            state.core.heard(self.request, self.ledger.unit * chunk.frames.0);
            let before = state.open.get(&self.request).map(|open| open.journal.acknowledged(Edge::Audio));
            let upto = before.unwrap_or(0).saturating_add(chunk.frames.0);
            self.ledger.ack(&mut state, Edge::Audio, vec![Ack { request: self.request, upto }]);
        }
    }
}

impl Drop for Reader {
    fn drop(&mut self) {
        let mut state = self.ledger.lock();
        let effect = match self.expired.get() {
            Some(life) => state.core.fail(self.request, Failure::TimedOut(*life)),
            None => state.core.client_gone(self.request),
        };
        self.ledger.carry_out(&mut state, effect.into_iter().collect());
    }
}

/// A number for what was seen, without the counts and positions in it, which differ from one time to the next.
fn cause(reason: &str) -> u64 {
    let mut hash = DefaultHasher::new();
    // Behind the first line may be a backtrace.
    let said = reason.lines().next().unwrap_or_default();
    said.bytes().filter(|byte| !byte.is_ascii_digit()).for_each(|byte| hash.write_u8(byte));
    hash.finish()
}

fn outcome(failure: &Failure) -> Outcome {
    match failure {
        Failure::StageFailed(..) | Failure::SequenceFailed(..) | Failure::BroughtDown(..) => Outcome::Failed,
        Failure::TimedOut(_) | Failure::SlowClient(_) | Failure::Yielded => Outcome::TimedOut,
        Failure::ShuttingDown => Outcome::ShutDown,
    }
}

fn error(failure: Failure) -> RequestError {
    match failure {
        Failure::StageFailed(stage, reason) => RequestError::StageFailed { stage, reason },
        Failure::SequenceFailed(stage, reason) => RequestError::SequenceFailed { stage, reason },
        Failure::BroughtDown(stage, times, reason) => RequestError::BroughtDown { stage, times, reason },
        Failure::TimedOut(limit) => RequestError::TimedOut(limit),
        Failure::SlowClient(limit) => RequestError::SlowClient(limit),
        Failure::Yielded => RequestError::Yielded,
        Failure::ShuttingDown => RequestError::ShuttingDown,
    }
}
