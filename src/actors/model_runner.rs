//! The ModelRunner actor and its OS thread, which owns the device state and does nothing but launch. It waits for
//! commands and for nobody else: never for a step that a device computes, a packager, a connector, the server or a client.
//! What comes of a step is the business of its [completion](super::completion).

use super::completion::{Event, HandOver, LaunchedStep, RunnerError};
use super::stage::{ActorFailure, Outputs, Resume, StageGeneration};
use super::supervisor::SupervisorMessage;
use omni_core::ids::{RequestId, Slot};
use omni_core::scheduler::Plan;
use omni_fault::{Begun, FaultEvent, FaultKind, FaultPoint, FaultSite, Injected};
use omni_model::ModelError;
use omni_model::no_block;
use omni_model::stage::{SequenceSpec, SequenceWork, StageData, StageModel};
use omni_telemetry::Queue;
use omni_telemetry::trace::{self, Component, What};
use omni_transfer::lease::Lease;
use omni_transfer::payload::Header;
use ractor::{Actor, ActorProcessingErr, ActorRef};
use std::collections::HashMap;
use std::panic::AssertUnwindSafe;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

/// What the thread is told. All commands of a stage travel in one channel, so that input is always there before the plan
/// that needs it, and a slot is closed before it is opened again.
pub(super) enum Command {
    Open {
        slot: Slot,
        request: RequestId,
        spec: Box<SequenceSpec>,
        deliver: Outputs,
        from: Resume,
    },
    Input {
        header: Header,
        input: Option<StageData>,
        end: bool,
        leases: Vec<Lease>,
    },
    Step(Plan),
    Close(Slot),
    /// Only wakes the thread, which then sees that it has to stop.
    Wake,
}

/// Signs of life of the launch thread and the completion thread, read by the watchdog.
#[derive(Default)]
pub(super) struct RunnerPulse {
    pub launch: Busy,
    pub completion: Busy,
    stopping: AtomicBool,
    gone: tokio::sync::watch::Sender<bool>,
}

/// Since when a thread, or an actor, has been at one thing: milliseconds after birth, plus one; 0 while it waits for work.
#[derive(Default)]
pub(super) struct Busy(AtomicU64);

impl Busy {
    /// The thread took something up.
    pub fn take(&self, now: Duration) {
        self.0.store(now.as_millis() as u64 + 1, Ordering::Relaxed);
    }

    /// It is done with it.
    pub fn rest(&self) {
        self.0.store(0, Ordering::Relaxed);
    }

    /// For how long it has been at it.
    pub fn busy_for(&self, now: Duration) -> Duration {
        match self.0.load(Ordering::Relaxed) {
            0 => Duration::ZERO,
            since => now.saturating_sub(Duration::from_millis(since - 1)),
        }
    }
}

impl RunnerPulse {
    /// For how long one of the threads has been at its current command or step.
    pub fn busy_for(&self, now: Duration) -> Duration {
        self.launch.busy_for(now).max(self.completion.busy_for(now))
    }

    /// Asks the launch thread to end before its next command, and the completion thread to make nothing more of the steps
    /// that it waits for.
    pub fn stop(&self) {
        self.stopping.store(true, Ordering::Relaxed);
    }

    pub fn is_stopping(&self) -> bool {
        self.stopping.load(Ordering::Relaxed)
    }

    /// Resolves when both threads have ended and the device state is gone.
    pub async fn gone(&self) {
        let mut gone = self.gone.subscribe();
        // The sender lives in `self`, so waiting cannot fail.
        let _ = gone.wait_for(|gone| *gone).await;
    }
}

/// What the thread tells its actor.
#[derive(Debug)]
pub(super) enum RunnerMessage {
    /// The model is built.
    Ready,
    /// One of the threads ended without being asked to.
    Died(String),
}

pub(super) struct ModelRunner;

impl Actor for ModelRunner {
    type Msg = RunnerMessage;
    type State = Arc<StageGeneration>;
    type Arguments = Arc<StageGeneration>;

    async fn pre_start(
        &self,
        myself: ActorRef<Self::Msg>,
        stage: Arc<StageGeneration>,
    ) -> Result<Self::State, ActorProcessingErr> {
        let shared = Arc::clone(&stage);
        std::thread::Builder::new()
            .name(format!("{}-runner", stage.setup.name))
            .spawn(move || run(&shared, &myself))?;
        Ok(stage)
    }

    async fn handle(
        &self,
        _: ActorRef<Self::Msg>,
        message: RunnerMessage,
        stage: &mut Arc<StageGeneration>,
    ) -> Result<(), ActorProcessingErr> {
        match message {
            RunnerMessage::Ready => {
                let _ = stage.supervisor.cast(SupervisorMessage::Ready(stage.generation));
                Ok(())
            }
            RunnerMessage::Died(reason) => Err(ActorFailure::Runner(reason).into()),
        }
    }
}

/// The thread, whatever happens on it.
fn run(stage: &Arc<StageGeneration>, actor: &ActorRef<RunnerMessage>) {
    let mut runner = None;
    let died = failure(|| {
        let runner = runner.insert(Runner::new(Arc::clone(stage), actor.clone())?);
        let _ = actor.cast(RunnerMessage::Ready);
        runner.turn()
    });
    // At once: what follows waits for the steps that are out.
    if let Some(reason) = died {
        let _ = actor.cast(RunnerMessage::Died(reason));
    }
    let taken_down = failure(|| {
        drop(runner);
        Ok::<_, RunnerError>(())
    });
    if let Some(reason) = taken_down {
        tracing::error!(stage = %stage.setup.name, reason, "the device state was not taken down in order");
    }
    stage.gauges.slots.store(0, Ordering::Relaxed);
    stage.pulse.launch.rest();
    stage.pulse.gone.send_replace(true);
}

/// Why `work` did not end well, if so.
pub(super) fn failure<E: std::fmt::Display>(work: impl FnOnce() -> Result<(), E>) -> Option<String> {
    match std::panic::catch_unwind(AssertUnwindSafe(work)) {
        Ok(outcome) => outcome.err().map(|error| error.to_string()),
        Err(panic) => Some(format!("panic: {}", panic_text(panic.as_ref()))),
    }
}

fn panic_text(panic: &(dyn std::any::Any + Send)) -> &str {
    let text = panic.downcast_ref::<&str>().copied();
    text.or_else(|| panic.downcast_ref::<String>().map(String::as_str)).unwrap_or("without a message")
}

/// A fault that a plan asks for, as the runner would see a real one.
fn harm(injected: Injected) -> RunnerError {
    match injected.kind {
        FaultKind::Oom => ModelError::Device(candle_core::Error::msg(format!("out of memory ({injected})"))).into(),
        _ => ActorFailure::from(injected).into(),
    }
}

/// The state of the thread.
struct Runner {
    stage: Arc<StageGeneration>,
    /// Dropped before the model, which must outlive the steps it launched.
    completion: HandOver,
    model: Box<dyn StageModel>,
    slots: HashMap<RequestId, Slot>,
    requests: HashMap<Slot, RequestId>,
    fault: FaultSite,
    fault_open: FaultSite,
    begun: Begun,
}

impl Runner {
    fn new(stage: Arc<StageGeneration>, actor: ActorRef<RunnerMessage>) -> Result<Runner, RunnerError> {
        let site = |point| stage.setup.faults.site(stage.setup.name, point);
        site(FaultPoint::Build).inject(|| None, || false).map_err(harm)?;
        let built = stage.setup.factory.build();
        let model = built.map_err(|error| ActorFailure::Runner(error.to_string()))?;
        let (fault, fault_open) = (site(FaultPoint::Runner), site(FaultPoint::Open));
        let completion = HandOver::new(Arc::clone(&stage), actor);
        let (slots, requests, begun) = (HashMap::new(), HashMap::new(), Begun::default());
        Ok(Runner { stage, completion, model, slots, requests, fault, fault_open, begun })
    }

    fn turn(&mut self) -> Result<(), RunnerError> {
        loop {
            let Ok(command) = self.stage.commands.recv.recv() else { return Ok(()) };
            if self.stage.pulse.is_stopping() {
                return Ok(());
            }
            self.stage.pulse.launch.take(self.stage.now());
            {
                let _section = no_block::section();
                self.execute(command)?;
            }
            self.stage.pulse.launch.rest();
        }
    }

    fn execute(&mut self, command: Command) -> Result<(), RunnerError> {
        match command {
            Command::Open { slot, request, spec, deliver, from } => {
                let stopping = || self.stage.pulse.is_stopping();
                self.fault_open.inject(|| [FaultEvent::prompt(request)], stopping).map_err(harm)?;
                self.slots.insert(request, slot);
                self.requests.insert(slot, request);
                self.completion.tell(Event::Opened { slot, deliver, from })?;
                let began = trace::now();
                let opened = self.model.open(slot, *spec);
                trace::since(began, self.stage.track(Component::Launch), || What::Opened(request));
                self.sequence_result(request, opened)?;
            }
            Command::Input { header, input, end, leases } => {
                let request = header.request;
                // A sequence that ended early takes no more input.
                if let Some(slot) = self.slots.get(&request) {
                    let began = trace::now();
                    let pushed = self.model.push_input(*slot, input, end);
                    trace::since(began, self.stage.track(Component::Launch), || {
                        What::InputPushed(header.chunk(0, None))
                    });
                    self.sequence_result(request, pushed)?;
                }
                drop(leases);
            }
            Command::Step(plan) => self.launch(plan)?,
            Command::Close(slot) => {
                self.model.close(slot);
                if let Some(request) = self.requests.remove(&slot) {
                    self.slots.remove(&request);
                    self.begun.forget(request);
                }
                self.completion.tell(Event::Closed(slot))?;
            }
            Command::Wake => {}
        }
        self.stage.gauges.slots.store(self.model.live_sequences(), Ordering::Relaxed);
        Ok(())
    }

    fn launch(&mut self, plan: Plan) -> Result<(), RunnerError> {
        let begun = &mut self.begun;
        let events = || {
            plan.sequences
                .iter()
                .map(|sequence| begun.event(sequence.request, sequence.prompt, false))
                .collect::<Vec<_>>()
        };
        if let Err(injected) = self.fault.inject(events, || self.stage.pulse.is_stopping()) {
            if injected.kind != FaultKind::Device {
                return Err(harm(injected));
            }
            // What comes of it is seen as it would be by accident: in this launch, or when a step is waited for.
            self.model.break_device()?;
        }
        let metrics = &self.stage.setup.metrics;
        let ahead = plan.step.0.saturating_sub(self.stage.gauges.seen.load(Ordering::Relaxed));
        metrics.run_ahead.record(ahead as f64);
        metrics.queue_depth(Queue::Plans, self.stage.commands.recv.len());
        let work: Vec<_> = plan
            .sequences
            .iter()
            .map(|sequence| SequenceWork { slot: sequence.slot, advance: sequence.advance })
            .collect();
        let began = Instant::now();
        let launched = self.model.launch(&work)?;
        let (returned, step, sequences) = (Instant::now(), plan.step, plan.sequences.len() as u32);
        let what = || What::Launched { step, sequences, ahead: ahead as u32 };
        trace::span(self.stage.track(Component::Launch), began, returned, what);
        self.completion.tell(Event::Step(LaunchedStep { plan, launched, began, returned }))
    }

    fn sequence_result(&mut self, request: RequestId, result: Result<(), ModelError>) -> Result<(), RunnerError> {
        match result {
            Ok(()) => Ok(()),
            Err(ModelError::Sequence(reason)) => self.completion.tell(Event::SequenceFailed { request, reason }),
            Err(error) => Err(error.into()),
        }
    }
}
