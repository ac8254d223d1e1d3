//! The Connector actors: the two ends of a stage's edges. The outbound one puts payloads on their transport; the inbound
//! one takes them off, checks that every unit comes once and in order, hands them to the runner and only then tells the
//! scheduler.

use super::model_runner::Command;
use super::scheduler::SchedulerMessage;
use super::stage::{ActorFailure, Admission, Queued, RELEASED, Role, StageGeneration};
use omni_core::ids::{Attempt, RequestId, Seq};
use omni_core::scheduler::Ack;
use omni_core::sequence::{Arrival, SequenceCheck};
use omni_fault::{FaultEvent, FaultPoint, FaultSite};
use omni_model::stage::StageData;
use omni_telemetry::trace::{self, Component, What};
use omni_telemetry::{Queue, clock};
use omni_transfer::payload::{Header, Kind, Part, Payload};
use omni_transfer::transport::TransportError;
use ractor::{Actor, ActorProcessingErr, ActorRef};
use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::Ordering;

/// What the outbound connector is told.
#[derive(Debug)]
pub(super) enum OutboundMessage {
    /// There are payloads.
    Ready,
}

pub(super) struct Outbound;

pub(super) struct OutboundState {
    stage: Arc<StageGeneration>,
    fault: FaultSite,
}

impl Actor for Outbound {
    type Msg = OutboundMessage;
    type State = OutboundState;
    type Arguments = Arc<StageGeneration>;

    async fn pre_start(
        &self,
        _: ActorRef<Self::Msg>,
        stage: Arc<StageGeneration>,
    ) -> Result<OutboundState, ActorProcessingErr> {
        let fault = stage.setup.faults.site(stage.setup.name, FaultPoint::Outbound);
        Ok(OutboundState { stage, fault })
    }

    async fn handle(
        &self,
        _: ActorRef<Self::Msg>,
        OutboundMessage::Ready: OutboundMessage,
        OutboundState { stage, fault }: &mut OutboundState,
    ) -> Result<(), ActorProcessingErr> {
        while let Ok(queued) = stage.payloads.recv.try_recv() {
            let _at_work = stage.at_work(Role::Outbound);
            match queued {
                Queued::Item(payload) => {
                    fault.inject_async(|| [event(&payload.header)]).await?;
                    put(stage, payload);
                }
                Queued::News(news) => stage.tell_scheduler(news),
            }
        }
        Ok(())
    }
}

fn put(stage: &StageGeneration, mut payload: Payload) {
    let began = trace::now();
    payload.header.sent = clock::now();
    let setup = &stage.setup;
    let (header, bytes) = (payload.header, payload.bytes());
    let Some(edge) = setup.outbound.iter().find(|edge| edge.kind == header.kind) else { return };
    match edge.sender.put(payload) {
        Ok(()) => edge.metrics.sent(bytes),
        Err(error) => setup.reports.sequence_failed(header.request, setup.name, error.to_string()),
    }
    edge.metrics.leases.set(setup.leases.live() as f64);
    trace::since(began, stage.track(Component::ConnectorOut), || What::Put(header.chunk(bytes, None)));
}

/// What the inbound connector is told.
pub(super) enum InboundMessage {
    /// Payloads of this request will come.
    Admit(Box<Admission>),
    /// From the scheduler: the model has a sequence for it now.
    Opened(RequestId, Attempt),
    /// From the scheduler: the sequence has ended; whatever still comes is not needed.
    Closed(RequestId, Attempt),
    /// From the scheduler: the sequence could not go on; another one may.
    Lost(RequestId, Attempt),
    /// From the scheduler, which does not know these requests yet.
    Acked(Vec<Ack>),
    /// The request is gone.
    Abort(RequestId),
    /// A payload is in the inbox.
    Arrived,
    /// The transport broke.
    Broken(TransportError),
}

pub(super) struct Inbound;

pub(super) struct InboundState {
    stage: Arc<StageGeneration>,
    inbox: flume::Receiver<Payload>,
    sequence: SequenceCheck,
    sequences: HashMap<RequestId, InboundSequence>,
    fault: FaultSite,
    receiving: tokio::task::JoinHandle<()>,
}

#[derive(Default)]
struct InboundSequence {
    attempt: Attempt,
    open: bool,
    /// What came before the model had a sequence for it; bounded by the window of the stage before.
    waiting: Vec<Payload>,
}

/// Payloads taken off the transport and not yet handed on: enough to keep this actor busy, few enough to leave the
/// back-pressure to the transport.
const INBOX: usize = 64;

impl Actor for Inbound {
    type Msg = InboundMessage;
    type State = InboundState;
    type Arguments = Arc<StageGeneration>;

    async fn pre_start(
        &self,
        myself: ActorRef<Self::Msg>,
        stage: Arc<StageGeneration>,
    ) -> Result<InboundState, ActorProcessingErr> {
        let (send, inbox) = flume::bounded(INBOX);
        let receiver = Arc::clone(&stage.setup.inbound);
        let receiving = tokio::spawn(async move {
            loop {
                let message = match receiver.get().await {
                    Ok(payload) => match send.send_async(payload).await {
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
        let fault = stage.setup.faults.site(stage.setup.name, FaultPoint::Connector);
        let sequence = SequenceCheck::default();
        Ok(InboundState { stage, inbox, sequence, sequences: HashMap::new(), fault, receiving })
    }

    async fn handle(
        &self,
        _: ActorRef<Self::Msg>,
        message: InboundMessage,
        state: &mut InboundState,
    ) -> Result<(), ActorProcessingErr> {
        let _at_work = state.stage.at_work(Role::Inbound);
        match message {
            InboundMessage::Admit(admission) => {
                let (request, from) = (admission.request, admission.from);
                let sequence = InboundSequence { attempt: from.attempt, ..InboundSequence::default() };
                state.sequence.open(request, from.attempt, Seq(from.start.input));
                if state.sequences.insert(request, sequence).is_some() {
                    // Whoever sent this had been told that the sequence was lost, and knows better.
                    state.stage.tell_scheduler(SchedulerMessage::Abort(request));
                }
                state.stage.tell_scheduler(SchedulerMessage::Admit(admission));
            }
            InboundMessage::Opened(request, attempt) => state.opened(request, attempt)?,
            InboundMessage::Closed(request, attempt) if state.is_at(request, attempt) => state.released(request),
            InboundMessage::Lost(request, attempt) if state.is_at(request, attempt) => _ = state.forgotten(request),
            InboundMessage::Closed(..) | InboundMessage::Lost(..) => {}
            InboundMessage::Acked(acks) => {
                state.stage.tell_scheduler(SchedulerMessage::Acked { acks, behind: true });
            }
            InboundMessage::Abort(request) => {
                state.released(request);
                state.stage.tell_scheduler(SchedulerMessage::Abort(request));
            }
            InboundMessage::Arrived => {
                // One message, one payload: draining would overtake the admission of a request whose payload is in the
                // inbox already, and drop that payload as nobody's.
                if let Ok(payload) = state.inbox.try_recv() {
                    let (began, chunk) = (trace::now(), payload.header.chunk(payload.bytes(), None));
                    state.fault.inject_async(|| [event(&payload.header)]).await?;
                    state.arrived(payload)?;
                    trace::since(began, state.stage.track(Component::ConnectorIn), || What::Took(chunk));
                }
                let metrics = &state.stage.setup.metrics;
                metrics.queue_depth(Queue::Input, state.inbox.len());
            }
            InboundMessage::Broken(error) => return Err(ActorFailure::Edge(error).into()),
        }
        state.stage.gauges.inputs.store(state.sequences.len(), Ordering::Relaxed);
        Ok(())
    }
}

impl Drop for InboundState {
    fn drop(&mut self) {
        self.receiving.abort();
    }
}

impl InboundState {
    fn is_at(&self, request: RequestId, attempt: Attempt) -> bool {
        self.sequences.get(&request).is_some_and(|sequence| sequence.attempt == attempt)
    }

    fn opened(&mut self, request: RequestId, attempt: Attempt) -> Result<(), ActorFailure> {
        let Some(sequence) = self.sequences.get_mut(&request).filter(|sequence| sequence.attempt == attempt) else {
            return Ok(());
        };
        sequence.open = true;
        for payload in std::mem::take(&mut sequence.waiting) {
            self.push_input(payload)?;
        }
        Ok(())
    }

    /// Whether there was anything to forget.
    fn forgotten(&mut self, request: RequestId) -> bool {
        self.sequence.close(request);
        self.sequences.remove(&request).is_some()
    }

    /// Nothing that still comes is needed.
    fn released(&mut self, request: RequestId) {
        if self.forgotten(request) {
            self.stage.setup.acks.acked(&[Ack { request, units: RELEASED }]);
        }
    }

    fn arrived(&mut self, payload: Payload) -> Result<(), ActorFailure> {
        let header = payload.header;
        let setup = &self.stage.setup;
        match self.sequence.arrived(header.request, header.attempt, header.seq, header.units) {
            Arrival::Next if header.sent > 0 => setup.metrics.connector_seconds.record(clock::since(header.sent)),
            Arrival::Next => {}
            Arrival::Stale => return Ok(()),
            Arrival::Gap { expected } => {
                let reason = format!("input unit {} came where {expected} was due", header.seq);
                self.stage.tell_scheduler(SchedulerMessage::SequenceFailed { request: header.request, reason });
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
                self.stage.tell_scheduler(SchedulerMessage::SequenceFailed { request, reason });
                return Ok(());
            }
        };
        let (last, mut leases) = (inputs.len() - 1, Some(leases));
        for (at, input) in inputs.into_iter().enumerate() {
            let leases = leases.take_if(|_| at == last).unwrap_or_default();
            let command = Command::Input { header, input, end: end && at == last, leases };
            self.stage.commands.send.try_send(command).map_err(|_| ActorFailure::Queue("command"))?;
        }
        self.stage.tell_scheduler(SchedulerMessage::Input { request, units, end });
        Ok(())
    }
}

/// What a payload is to a fault plan.
fn event(header: &Header) -> FaultEvent {
    FaultEvent::units(header.request, header.seq, header.end.is_some())
}

/// What a part of a payload is to a stage.
fn input(kind: Kind, part: Part) -> Option<StageData> {
    match (kind, part) {
        (Kind::Embeddings, Part::Embeddings(sequences)) => Some(StageData::Embeddings(sequences)),
        (Kind::Codes, Part::U32(codes)) => Some(StageData::Codes(codes)),
        (Kind::Tokens, Part::U32(tokens)) => Some(StageData::Tokens(tokens)),
        _ => None,
    }
}
