//! The ModelRunner actor and its OS thread, the launch thread: it owns the device state and launches. It waits for
//! commands and for nothing else: never for a step that a device computes, a packager, a connector, the server or a
//! client. What comes of a step is the business of the [sampler](super::sampler).

use crate::failure::{ActorFailure, ThreadError, failure, injected};
use crate::generation::{Life, Peer};
use crate::messages::{Command, LaunchEvent, LaunchedStep, RunnerMessage, SupervisorMessage};
use crate::pulse::Role;
use crate::sampler::{HandOver, SamplerEnds};
use omni_core::ids::{RequestId, Slot};
use omni_core::scheduler::Plan;
use omni_fault::{Begun, FaultEvent, FaultKind, FaultPoint, FaultSite};
use omni_model::ModelError;
use omni_model::no_block;
use omni_model::stage::{SequenceWork, StageFactory, StageModel};
use omni_telemetry::Queue;
use omni_telemetry::trace::{self, Component, What};
use ractor::{Actor, ActorProcessingErr, ActorRef};
use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Instant;

/// What the launch thread has of its stage.
pub(super) struct RunnerEnds {
    pub life: Arc<Life>,
    pub factory: Arc<dyn StageFactory>,
    pub commands: flume::Receiver<Command>,
    pub supervisor: Peer<SupervisorMessage>,
    /// The sampler runs on the launch thread until a step is pending.
    pub sampler: SamplerEnds,
}

/// The actor, which stands for its thread.
pub(super) struct ModelRunner;

pub(super) struct RunnerState {
    life: Arc<Life>,
    supervisor: Peer<SupervisorMessage>,
}

impl Actor for ModelRunner {
    type Msg = RunnerMessage;
    type State = RunnerState;
    type Arguments = RunnerEnds;

    async fn pre_start(
        &self,
        myself: ActorRef<Self::Msg>,
        ends: RunnerEnds,
    ) -> Result<Self::State, ActorProcessingErr> {
        let state = RunnerState { life: Arc::clone(&ends.life), supervisor: ends.supervisor.clone() };
        let name = format!("{}-runner", state.life.stage);
        std::thread::Builder::new().name(name).spawn(move || run(ends, &myself))?;
        Ok(state)
    }

    async fn handle(
        &self,
        _: ActorRef<Self::Msg>,
        message: RunnerMessage,
        state: &mut RunnerState,
    ) -> Result<(), ActorProcessingErr> {
        match message {
            RunnerMessage::Built => {
                state.supervisor.tell(SupervisorMessage::Ready(state.life.generation));
                Ok(())
            }
            RunnerMessage::Died(reason) => Err(ActorFailure::Thread(reason).into()),
        }
    }
}

/// The launch thread.
fn run(ends: RunnerEnds, actor: &ActorRef<RunnerMessage>) {
    let life = Arc::clone(&ends.life);
    let mut runner = None;
    let died = failure(|| {
        let runner = runner.insert(Runner::new(ends)?);
        let _ = actor.cast(RunnerMessage::Built);
        runner.turn()
    });
    // At once: what follows waits for the steps that are out.
    if let Some(reason) = died {
        let _ = actor.cast(RunnerMessage::Died(reason));
    }
    let taken_down = failure(|| {
        drop(runner);
        Ok::<_, ThreadError>(())
    });
    if let Some(reason) = taken_down {
        tracing::error!(stage = %life.stage, reason, "the device state was not taken down in order");
    }
    life.gauges.slots.store(0, Ordering::Relaxed);
    life.pulse.set_gone();
}

/// The state of the thread.
pub(super) struct Runner {
    life: Arc<Life>,
    commands: flume::Receiver<Command>,
    /// Dropped before the model, which must outlive the steps it launched.
    sampler: HandOver,
    model: Box<dyn StageModel>,
    slots: HashMap<RequestId, Slot>,
    requests: HashMap<Slot, RequestId>,
    fault: FaultSite,
    fault_open: FaultSite,
    begun: Begun,
}

impl Runner {
    pub fn new(ends: RunnerEnds) -> Result<Runner, ThreadError> {
        let RunnerEnds { life, factory, commands, sampler, .. } = ends;
        life.site(FaultPoint::Build).inject(|| None, || false).map_err(injected)?;
        let model = factory.build().map_err(|error| ActorFailure::Thread(error.to_string()))?;
        let (fault, fault_open) = (life.site(FaultPoint::Runner), life.site(FaultPoint::Open));
        let sampler = HandOver::new(sampler);
        let (slots, requests, begun) = (HashMap::new(), HashMap::new(), Begun::default());
        Ok(Runner { life, commands, sampler, model, slots, requests, fault, fault_open, begun })
    }

    fn turn(&mut self) -> Result<(), ThreadError> {
        loop {
            let Ok(command) = self.commands.recv() else { return Ok(()) };
            if self.life.pulse.is_stopping() {
                return Ok(());
            }
            self.run(command)?;
        }
    }

    /// Does what one command says.
    pub fn run(&mut self, command: Command) -> Result<(), ThreadError> {
        self.life.pulse.take(Role::Runner);
        {
            let _section = no_block::section();
            self.execute(command)?;
        }
        self.life.pulse.rest(Role::Runner);
        Ok(())
    }

    fn execute(&mut self, command: Command) -> Result<(), ThreadError> {
        match command {
            Command::Open { slot, request, spec, deliver, from } => {
                self.life.in_hand.take(Role::Runner, request);
                let stopping = || self.life.pulse.is_stopping();
                self.fault_open.inject(|| [FaultEvent::prompt(request)], stopping).map_err(injected)?;
                self.slots.insert(request, slot);
                self.requests.insert(slot, request);
                self.sampler.tell(LaunchEvent::Opened { slot, deliver, from })?;
                let began = trace::now();
                let opened = self.model.open(slot, *spec);
                trace::since(began, self.life.track(Component::Launch), || What::Opened(request));
                self.sequence_result(request, opened)?;
            }
            Command::Input { header, input, end, leases } => {
                let request = header.request;
                self.life.in_hand.take(Role::Runner, request);
                // A sequence that ended early takes no more input.
                if let Some(slot) = self.slots.get(&request) {
                    let began = trace::now();
                    let pushed = self.model.push_input(*slot, input, end);
                    trace::since(began, self.life.track(Component::Launch), || {
                        What::InputPushed(header.chunk(0, None))
                    });
                    self.sequence_result(request, pushed)?;
                }
                drop(leases);
            }
            Command::Step(plan) => self.launch(plan)?,
            Command::Close(slot) => {
                if let Some(request) = self.requests.get(&slot) {
                    self.life.in_hand.take(Role::Runner, *request);
                }
                self.model.close(slot);
                if let Some(request) = self.requests.remove(&slot) {
                    self.slots.remove(&request);
                    self.begun.forget(request);
                }
                self.sampler.tell(LaunchEvent::Closed(slot))?;
            }
            Command::Wake => {}
        }
        self.life.in_hand.rest(Role::Runner);
        self.life.gauges.slots.store(self.model.live_sequences(), Ordering::Relaxed);
        Ok(())
    }

    fn launch(&mut self, plan: Plan) -> Result<(), ThreadError> {
        self.life.in_hand.launching(&plan);
        let begun = &mut self.begun;
        let events = || {
            plan.sequences
                .iter()
                .map(|sequence| begun.event(sequence.request, sequence.prompt, false))
                .collect::<Vec<_>>()
        };
        if let Err(fault) = self.fault.inject(events, || self.life.pulse.is_stopping()) {
            if fault.kind != FaultKind::Device {
                return Err(injected(fault));
            }
            // What comes of it is seen as it would be by accident: in this launch, or when a step is waited for.
            self.model.break_device()?;
        }
        let metrics = &self.life.metrics;
        let ahead = plan.step.0.saturating_sub(self.life.gauges.seen.load(Ordering::Relaxed));
        metrics.run_ahead.record(ahead as f64);
        metrics.queue_depth(Queue::Plans, self.commands.len());
        let work: Vec<_> = plan
            .sequences
            .iter()
            .map(|sequence| SequenceWork { slot: sequence.slot, advance: sequence.advance })
            .collect();
        let began = Instant::now();
        let launched = self.model.launch(&work)?;
        let (returned, step, sequences) = (Instant::now(), plan.step, plan.sequences.len() as u32);
        let what = || What::Launched { step, sequences, ahead: ahead as u32 };
        trace::span(self.life.track(Component::Launch), began, returned, what);
        Ok(self.sampler.tell(LaunchEvent::Step(LaunchedStep { plan, launched, began, returned }))?)
    }

    fn sequence_result(&mut self, request: RequestId, result: Result<(), ModelError>) -> Result<(), ThreadError> {
        match result {
            Ok(()) => Ok(()),
            Err(ModelError::Sequence(reason)) => {
                Ok(self.sampler.tell(LaunchEvent::SequenceFailed { request, reason })?)
            }
            Err(error) => Err(error.into()),
        }
    }
}
