//! The Connector actors: the two ends of a stage's edges. The outbound one puts payloads on their transport; the
//! inbound one takes them off, checks that every unit comes once and in order, hands them to the runner and only then
//! tells the scheduler.
//!
//! A transport repairs nothing. When a unit is missing, because a later one came or because the sender has come
//! further, the inbound connector lets go of the sequence and reports it
//! ([`StageReports::input_lost`]): the request ledger admits the sequence again with
//! its input. Faults of an edge are injected where it ends, here.

use crate::failure::ActorFailure;
use crate::generation::{Commands, Life, Peer};
use crate::messages::{Command, InboundMessage, Ready, SchedulerMessage};
use crate::pulse::Role;
use crate::queue::QueueReceiver;
use crate::setup::{AckSink, OutEdge, RELEASED, StageReports};
use omni_core::ids::{Attempt, RequestId, Seq, StageName};
use omni_core::scheduler::Ack;
use omni_core::sequence::{Arrival, SequenceCheck};
use omni_fault::{FaultEvent, FaultKind, FaultPoint, FaultSite, InjectedFault};
use omni_model::encoder::Features;
use omni_model::stage::StageData;
use omni_telemetry::trace::{self, Component, What};
use omni_telemetry::{Queue, clock};
use omni_transfer::lease::LeaseBook;
use omni_transfer::payload::{Header, Kind, Part, Payload};
use omni_transfer::transport::{Delivery, PayloadReceiver, Sent, TransportError};
use omni_transfer::wire::{self, WireError};
use ractor::{Actor, ActorProcessingErr, ActorRef};
use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::Ordering;

/// What the outbound connector has of its stage.
pub(super) struct OutboundEnds {
    pub life: Arc<Life>,
    pub payloads: QueueReceiver<Payload>,
    pub edges: Arc<[OutEdge]>,
    pub reports: Arc<dyn StageReports>,
    pub leases: LeaseBook,
}

pub(super) struct Outbound;

pub(super) struct OutboundState {
    ends: OutboundEnds,
    fault: FaultSite,
}

impl Actor for Outbound {
    type Msg = Ready;
    type State = OutboundState;
    type Arguments = OutboundEnds;

    async fn pre_start(&self, _: ActorRef<Self::Msg>, ends: OutboundEnds) -> Result<OutboundState, ActorProcessingErr> {
        Ok(OutboundState::new(ends))
    }

    async fn handle(
        &self,
        _: ActorRef<Self::Msg>,
        Ready: Ready,
        state: &mut OutboundState,
    ) -> Result<(), ActorProcessingErr> {
        Outbound::turn(state).await
    }
}

impl OutboundState {
    pub fn new(ends: OutboundEnds) -> OutboundState {
        let fault = ends.life.site(FaultPoint::Outbound);
        OutboundState { ends, fault }
    }
}

impl Outbound {
    /// Sends what waits.
    pub async fn turn(OutboundState { ends, fault }: &mut OutboundState) -> Result<(), ActorProcessingErr> {
        ends.payloads.heard();
        while let Some(payload) = ends.payloads.next()? {
            let _at_work = ends.life.pulse.at_work(Role::Outbound);
            ends.life.in_hand.take_at(Role::Outbound, payload.header.request, payload.header.seq.0);
            fault.inject_async(|| [event(&payload.header)]).await?;
            ends.put(payload);
            ends.life.in_hand.rest(Role::Outbound);
        }
        Ok(())
    }
}

impl OutboundEnds {
    fn put(&self, mut payload: Payload) {
        let began = trace::now();
        payload.header.sent = clock::now();
        let (header, bytes) = (payload.header, payload.bytes());
        let Some(edge) = self.edges.iter().find(|edge| edge.kind == header.kind) else { return };
        match edge.sender.put(payload) {
            Ok(()) => {
                edge.metrics.sent(bytes);
                self.life.gauges.made.store(true, Ordering::Relaxed);
            }
            Err(error) => self.reports.sequence_failed(header.request, self.life.stage, error.to_string()),
        }
        edge.metrics.leases.set(self.leases.live() as f64);
        trace::since(began, self.life.track(Component::ConnectorOut), || What::Put(header.chunk(bytes, None)));
    }
}

/// What the inbound connector has of its stage.
pub(super) struct InboundEnds {
    pub life: Arc<Life>,
    pub edge: Arc<dyn PayloadReceiver>,
    pub commands: Commands,
    pub scheduler: Peer<SchedulerMessage>,
    pub acks: Arc<dyn AckSink>,
    pub reports: Arc<dyn StageReports>,
}

pub(super) struct Inbound;

pub(super) struct InboundState {
    ends: InboundEnds,
    inbox: flume::Receiver<Delivery>,
    sequence: SequenceCheck,
    sequences: HashMap<RequestId, InboundSequence>,
    fault: FaultSite,
    /// Of the edge that ends here.
    edge: FaultSite,
    /// A payload that a fault lets the next one overtake.
    held_back: Option<Payload>,
    /// The task that fills the inbox; none where a simulation fills it.
    receiving: Option<tokio::task::JoinHandle<()>>,
}

#[derive(Default)]
struct InboundSequence {
    attempt: Attempt,
    open: bool,
    /// What came before the model had a sequence for it; bounded by the window of the stage before.
    waiting: Vec<Payload>,
}

/// Deliveries taken off the transport and not yet handed on: enough to keep this actor busy, few enough to leave the
/// back-pressure to the transport.
pub(super) const INBOX: usize = 64;

impl Actor for Inbound {
    type Msg = InboundMessage;
    type State = InboundState;
    type Arguments = InboundEnds;

    async fn pre_start(
        &self,
        myself: ActorRef<Self::Msg>,
        ends: InboundEnds,
    ) -> Result<InboundState, ActorProcessingErr> {
        let (send, inbox) = flume::bounded(INBOX);
        let receiver = Arc::clone(&ends.edge);
        let receiving = tokio::spawn(async move {
            loop {
                let message = match receiver.get().await {
                    Ok(delivery) => match send.send_async(delivery).await {
                        Ok(()) => InboundMessage::Arrived,
                        Err(_) => return,
                    },
                    Err(error) => InboundMessage::Broken(error),
                };
                let last = matches!(message, InboundMessage::Broken(_));
                if myself.cast(message).is_err() || last {
                    return;
                }
            }
        });
        Ok(InboundState::new(ends, inbox, Some(receiving)))
    }

    async fn handle(
        &self,
        _: ActorRef<Self::Msg>,
        message: InboundMessage,
        state: &mut InboundState,
    ) -> Result<(), ActorProcessingErr> {
        Inbound::turn(message, state).await
    }
}

impl Inbound {
    /// Handles one message.
    pub async fn turn(message: InboundMessage, state: &mut InboundState) -> Result<(), ActorProcessingErr> {
        let _at_work = state.ends.life.pulse.at_work(Role::Inbound);
        match message {
            InboundMessage::Admit(admission) => {
                let (request, from) = (admission.request, admission.from);
                state.ends.life.in_hand.take(Role::Inbound, request);
                let sequence = InboundSequence { attempt: from.attempt, ..InboundSequence::default() };
                state.sequence.open(request, from.attempt, Seq(from.start.input));
                if state.sequences.insert(request, sequence).is_some() {
                    // The engine has heard that the sequence was lost, so this is its next attempt.
                    state.ends.scheduler.tell(SchedulerMessage::Abort(request));
                }
                state.ends.scheduler.tell(SchedulerMessage::Admit(admission));
            }
            InboundMessage::Opened(request, attempt) => state.opened(request, attempt)?,
            InboundMessage::Closed(request, attempt) if state.is_at(request, attempt) => state.released(request),
            InboundMessage::Lost(request, attempt) if state.is_at(request, attempt) => _ = state.forgotten(request),
            InboundMessage::Closed(..) | InboundMessage::Lost(..) => {}
            InboundMessage::Acked(acks) => {
                state.ends.scheduler.tell(SchedulerMessage::Acked { acks, behind: true });
            }
            InboundMessage::Abort(request) => {
                // Not released: a request that is paused goes on, and then its producer has to wait as before.
                state.forgotten(request);
                state.ends.scheduler.tell(SchedulerMessage::Abort(request));
            }
            InboundMessage::Arrived => {
                // One message, one delivery: draining would overtake the admission of a request whose payload is in the
                // inbox already, and drop that payload as if its request were gone.
                match state.inbox.try_recv() {
                    Ok(Delivery::Payload(payload)) => state.delivered(payload).await?,
                    Ok(Delivery::Broken(error)) => broken(&error),
                    Ok(Delivery::Sent(positions)) => positions.into_iter().for_each(|sent| state.sent(sent)),
                    Err(_) => {}
                }
                let metrics = &state.ends.life.metrics;
                metrics.queue_depth(Queue::Input, state.inbox.len());
            }
            InboundMessage::Broken(error) => return Err(ActorFailure::Edge(error).into()),
        }
        state.ends.life.gauges.inputs.store(state.sequences.len(), Ordering::Relaxed);
        state.ends.life.in_hand.rest(Role::Inbound);
        Ok(())
    }
}

impl Drop for InboundState {
    fn drop(&mut self) {
        if let Some(receiving) = &self.receiving {
            receiving.abort();
        }
    }
}

impl InboundState {
    pub fn new(
        ends: InboundEnds,
        inbox: flume::Receiver<Delivery>,
        receiving: Option<tokio::task::JoinHandle<()>>,
    ) -> InboundState {
        let fault = ends.life.site(FaultPoint::Connector);
        let edge = stage_before(ends.life.stage).map(|from| ends.life.site_behind(from));
        InboundState {
            ends,
            inbox,
            sequence: SequenceCheck::default(),
            sequences: HashMap::new(),
            fault,
            edge: edge.unwrap_or_default(),
            held_back: None,
            receiving,
        }
    }

    /// Entries of its tables; none when it has no sequence.
    pub fn entries(&self) -> usize {
        self.sequences.len() + self.sequence.open_positions()
    }

    fn is_at(&self, request: RequestId, attempt: Attempt) -> bool {
        self.sequences.get(&request).is_some_and(|sequence| sequence.attempt == attempt)
    }

    fn opened(&mut self, request: RequestId, attempt: Attempt) -> Result<(), ActorFailure> {
        self.ends.life.in_hand.take(Role::Inbound, request);
        let Some(sequence) = self.sequences.get_mut(&request).filter(|sequence| sequence.attempt == attempt) else {
            return Ok(());
        };
        sequence.open = true;
        for payload in std::mem::take(&mut sequence.waiting) {
            self.push_input(payload)?;
        }
        Ok(())
    }

    /// Drops what is known of a request; false if nothing was.
    fn forgotten(&mut self, request: RequestId) -> bool {
        self.sequence.close(request);
        self.sequences.remove(&request).is_some()
    }

    /// The input that still comes is not needed: the producer must not wait for it to be used.
    fn released(&mut self, request: RequestId) {
        if self.forgotten(request) {
            self.ends.acks.acked(&[Ack { request, upto: RELEASED }]);
        }
    }

    /// A payload came over the edge: what a fault plan makes of that.
    async fn delivered(&mut self, payload: Payload) -> Result<(), ActorProcessingErr> {
        self.ends.life.in_hand.take(Role::Inbound, payload.header.request);
        let hit = self.edge.occurs(|| [event(&payload.header)]);
        let overtaken = self.held_back.take();
        match hit.map(|hit| (hit.kind, hit)) {
            None => self.taken(payload).await?,
            Some((FaultKind::Drop, _)) => {}
            Some((FaultKind::Duplicate, _)) => {
                let Payload { header, parts, .. } = &payload;
                let twin = Payload { header: *header, parts: parts.clone(), leases: Vec::new() };
                self.taken(payload).await?;
                self.taken(twin).await?;
            }
            // Not where it came: it must not hold up the ring.
            Some((FaultKind::Reorder, _)) => self.held_back = Some(payload.detached()),
            Some((FaultKind::Corrupt, hit)) => corrupted(&payload, hit),
            Some((FaultKind::Delay(pause), _)) => {
                tokio::time::sleep(pause).await;
                self.taken(payload).await?;
            }
            Some((FaultKind::Cut, _)) => return Err(ActorFailure::Edge(TransportError::Closed).into()),
            // Other kinds are not for edges: the config refuses them.
            Some(_) => self.taken(payload).await?,
        }
        if let Some(overtaken) = overtaken {
            self.taken(overtaken).await?;
        }
        Ok(())
    }

    async fn taken(&mut self, payload: Payload) -> Result<(), ActorProcessingErr> {
        let (began, chunk) = (trace::now(), payload.header.chunk(payload.bytes(), None));
        let request = payload.header.request;
        self.ends.life.in_hand.take(Role::Inbound, request);
        // What is for a request that is gone is not handed to the stage.
        if self.sequences.contains_key(&request) {
            self.fault.inject_async(|| [event(&payload.header)]).await?;
        }
        self.arrived(payload)?;
        trace::since(began, self.ends.life.track(Component::ConnectorIn), || What::Took(chunk));
        Ok(())
    }

    /// The sender has come this far with a sequence.
    fn sent(&mut self, Sent { request, attempt, next, ended }: Sent) {
        if let Some(expected) = self.sequence.sent(request, attempt, next, ended) {
            self.input_lost(request, attempt, expected);
        }
    }

    /// Unit `expected` did not come: the sequence is let go of, for the ledger to admit it again with all of its input.
    fn input_lost(&mut self, request: RequestId, attempt: Attempt, expected: Seq) {
        self.forgotten(request);
        self.ends.scheduler.tell(SchedulerMessage::Abort(request));
        self.ends.reports.input_lost(request, self.ends.life.stage, attempt, expected);
    }

    fn arrived(&mut self, payload: Payload) -> Result<(), ActorFailure> {
        let Header { request, attempt, seq, units, end, sent, .. } = payload.header;
        let header = payload.header;
        match self.sequence.arrived(request, attempt, seq, units, end.is_some()) {
            Arrival::Next if sent > 0 => self.ends.life.metrics.connector_seconds.record(clock::since(sent)),
            Arrival::Next => {}
            Arrival::Stale => return Ok(()),
            Arrival::Gap { expected } => {
                self.input_lost(request, attempt, expected);
                return Ok(());
            }
        }
        match self.sequences.get_mut(&header.request) {
            Some(sequence) if sequence.open => self.push_input(payload),
            Some(sequence) => {
                sequence.waiting.push(payload.detached());
                Ok(())
            }
            None => Ok(()),
        }
    }

    /// The runner first, then the scheduler: a plan can never be ahead of its input.
    fn push_input(&self, payload: Payload) -> Result<(), ActorFailure> {
        let Payload { header, parts, leases } = payload;
        let (request, units, end) = (header.request, header.units, header.end.is_some());
        let inputs = match parts.into_iter().map(|part| input(header.kind, part).map(Some)).collect::<Option<Vec<_>>>()
        {
            _ if units == 0 => vec![None],
            Some(inputs) if !inputs.is_empty() => inputs,
            _ => {
                let reason = format!("a payload of {} without its data", header.kind.as_str());
                self.ends.scheduler.tell(SchedulerMessage::SequenceFailed { request, reason });
                return Ok(());
            }
        };
        let (last, mut leases) = (inputs.len() - 1, Some(leases));
        for (at, input) in inputs.into_iter().enumerate() {
            let leases = leases.take_if(|_| at == last).unwrap_or_default();
            let command = Command::Input { header, input, end: end && at == last, leases };
            self.ends.commands.put(command)?;
        }
        self.ends.scheduler.tell(SchedulerMessage::Input { request, units, end });
        Ok(())
    }
}

/// Whose output comes over the edge into a stage; `None` where the input is a client's.
fn stage_before(stage: StageName) -> Option<StageName> {
    match stage {
        StageName::Encoder => None,
        StageName::Thinker => Some(StageName::Encoder),
        StageName::Talker => Some(StageName::Thinker),
        StageName::Vocoder => Some(StageName::Talker),
    }
}

/// A payload arrived damaged. The gap that it leaves says whose it was.
fn broken(error: &WireError) {
    tracing::warn!(%error, "a payload arrived damaged and is dropped");
}

/// Damages a payload as bits that change on the way do, and drops what its frame is then.
fn corrupted(payload: &Payload, hit: InjectedFault) {
    let frame = wire::encode(payload).map(Vec::from);
    let damaged = frame.and_then(|mut frame| {
        // Somewhere else each time, and the same in each run.
        let at = hit.injected.occurrence as usize * 37 % frame.len();
        frame[at] ^= 0x55;
        wire::decode(&frame.into(), false)
    });
    match damaged {
        Err(error) => broken(&error),
        Ok(payload) => tracing::error!(request = %payload.header.request, "a damaged frame was not recognized"),
    }
}

/// The event of a payload for fault plans.
fn event(header: &Header) -> FaultEvent {
    FaultEvent::units(header.request, header.seq, header.end.is_some())
}

/// A part of a payload as input of a stage.
fn input(kind: Kind, part: Part) -> Option<StageData> {
    match (kind, part) {
        (Kind::Features, Part::Features(features)) => Some(StageData::Features(features)),
        (Kind::Features, Part::F32(numbers)) => Some(StageData::Features(Features::Numbers(numbers))),
        (Kind::Embeddings | Kind::Media, Part::Embeddings(sequences)) => Some(StageData::Embeddings(sequences)),
        (Kind::Codes, Part::U32(codes)) => Some(StageData::Codes(codes)),
        (Kind::Tokens, Part::U32(tokens)) => Some(StageData::Tokens(tokens)),
        _ => None,
    }
}
