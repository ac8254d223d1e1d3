//! The Sampler actor: the host's half of sampling. Tokens are drawn inside the step, from the request's seed and on the
//! device; here they are read back, and here is decided who hears of them in which order: the scheduler first, for the
//! next launch may wait for it; then the packager; then telemetry. (Without early hand-off, which exists to measure what it
//! is worth, the news for the scheduler go the way of the payloads and reach it behind them.)

use super::packager::{Output, PackagerMessage};
use super::scheduler::SchedulerMessage;
use super::stage::{ActorFailure, Queued, Role, StageGeneration};
use omni_core::ids::{RequestId, StepId};
use omni_core::scheduler::{SequenceDone, StepDone};
use omni_fault::{FaultEvent, FaultPoint, FaultSite};
use omni_telemetry::Queue;
use omni_telemetry::trace::{self, Component, What};
use ractor::{Actor, ActorProcessingErr, ActorRef};
use std::sync::Arc;
use std::time::Instant;

/// What a runner says about something it did: the only thing that leaves the launch thread.
pub(super) enum Ticket {
    /// A step was computed.
    Step { step: StepId, ended: Instant, sequences: Vec<TicketSequence> },
    /// A sequence could not be opened or fed.
    SequenceFailed { request: RequestId, reason: String },
}

impl Ticket {
    fn step(&self) -> Option<StepId> {
        if let Ticket::Step { step, .. } = self { Some(*step) } else { None }
    }

    /// What it is about.
    fn events(&self) -> Vec<FaultEvent> {
        let of = |sequence: &TicketSequence| match sequence {
            TicketSequence::Done { output: Some(output), .. } => {
                FaultEvent::units(output.request, output.seq, output.end.is_some())
            }
            TicketSequence::Done { done, output: None } => FaultEvent::prompt(done.request),
            TicketSequence::Failed { request, .. } => FaultEvent::of(*request),
        };
        match self {
            Ticket::Step { sequences, .. } => sequences.iter().map(of).collect(),
            Ticket::SequenceFailed { request, .. } => vec![FaultEvent::of(*request)],
        }
    }
}

/// What a step did to one sequence.
pub(super) enum TicketSequence {
    /// All is well.
    Done { done: SequenceDone, output: Option<Output> },
    /// This sequence cannot go on.
    Failed { request: RequestId, reason: String },
}

/// What the sampler is told.
#[derive(Debug)]
pub(super) enum SamplerMessage {
    /// There are tickets.
    Ready,
}

pub(super) struct Sampler;

pub(super) struct SamplerState {
    stage: Arc<StageGeneration>,
    fault: FaultSite,
}

impl Actor for Sampler {
    type Msg = SamplerMessage;
    type State = SamplerState;
    type Arguments = Arc<StageGeneration>;

    async fn pre_start(
        &self,
        _: ActorRef<Self::Msg>,
        stage: Arc<StageGeneration>,
    ) -> Result<SamplerState, ActorProcessingErr> {
        let fault = stage.setup.faults.site(stage.setup.name, FaultPoint::Sampler);
        Ok(SamplerState { stage, fault })
    }

    async fn handle(
        &self,
        _: ActorRef<Self::Msg>,
        SamplerMessage::Ready: SamplerMessage,
        state: &mut SamplerState,
    ) -> Result<(), ActorProcessingErr> {
        while let Ok(ticket) = state.stage.tickets.recv.try_recv() {
            let _at_work = state.stage.at_work(Role::Sampler);
            let (began, step) = (trace::now(), ticket.step());
            state.fault.inject_async(|| ticket.events()).await?;
            state.pass_on(ticket)?;
            if let Some(step) = step {
                trace::since(began, state.stage.track(Component::Sampler), || What::Sampled(step));
            }
        }
        Ok(())
    }
}

impl SamplerState {
    fn pass_on(&self, ticket: Ticket) -> Result<(), ActorFailure> {
        let (step, ended, sequences) = match ticket {
            Ticket::Step { step, ended, sequences } => (step, ended, sequences),
            Ticket::SequenceFailed { request, reason } => {
                self.stage.tell_scheduler(SchedulerMessage::SequenceFailed { request, reason });
                return Ok(());
            }
        };
        let (mut done, mut failed, mut outputs) = (Vec::with_capacity(sequences.len()), Vec::new(), Vec::new());
        for sequence in sequences {
            match sequence {
                TicketSequence::Done { done: sequence, output } => {
                    done.push(sequence);
                    outputs.extend(output);
                }
                TicketSequence::Failed { request, reason } => {
                    done.push(SequenceDone { request, emitted: 0, finished: false });
                    failed.push((request, reason));
                }
            }
        }
        let news = SchedulerMessage::Done { done: StepDone { step, sequences: done }, failed };
        let setup = &self.stage.setup;
        let behind = if setup.early_handoff {
            self.stage.tell_scheduler(news);
            None
        } else {
            Some(Queued::News(news))
        };

        let metrics = &setup.metrics;
        if !outputs.is_empty() || behind.is_some() {
            for queued in outputs.into_iter().map(Queued::Item).chain(behind) {
                self.stage.outputs.send.try_send(queued).map_err(|_| ActorFailure::Queue("output"))?;
            }
            metrics.queue_depth(Queue::Packager, self.stage.outputs.recv.len());
            if let Some(packager) = self.stage.packager.get() {
                let _ = packager.cast(PackagerMessage::Ready);
            }
        }
        metrics.sample_seconds.record(ended.elapsed());
        Ok(())
    }
}
