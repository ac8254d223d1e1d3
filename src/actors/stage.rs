//! What the actors of one stage share, and the handle through which the engine and other stages speak to it.

use super::arbiter::Arbiter;
use super::connector::{InboundMessage, OutboundMessage};
use super::model_runner::{Busy, Command, RunnerMessage, RunnerPulse};
use super::packager::{Output, PackagerMessage};
use super::process::RemoteStage;
use super::sampler::{SamplerMessage, Ticket};
use super::scheduler::SchedulerMessage;
use super::supervisor::SupervisorMessage;
use omni_core::ids::{Attempt, Generation, RequestId, StageName};
use omni_core::restart::RestartLimits;
use omni_core::scheduler::{Ack, SchedulerConfig, SequenceParams, Start};
use omni_fault::FaultPlan;
use omni_model::stage::{SequenceSpec, StageFactory};
use omni_telemetry::trace::{Component, Recorder, Track, TrackWriter};
use omni_telemetry::{EdgeMetrics, StageMetrics};
use omni_transfer::lease::LeaseBook;
use omni_transfer::payload::{Kind, Payload};
use omni_transfer::transport::{PayloadReceiver, PayloadSender};
use ractor::{ActorCell, ActorRef};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::{Duration, Instant};

/// An acknowledgement of everything that may ever come: the consumer is done with the request, the producer need not
/// wait for it any more.
pub const RELEASED: u32 = u32::MAX;

/// Everything about a stage that outlives its actors.
pub struct StageSetup {
    /// Which stage.
    pub name: StageName,
    /// Its batching and windows.
    pub scheduler: SchedulerConfig,
    /// Of the device, where other stages compute on it at the same time.
    pub arbiter: Option<Arc<Arbiter>>,
    /// Makes the device state; holds the weights.
    pub factory: Arc<dyn StageFactory>,
    /// When to start again, and when to give up.
    pub restart: RestartLimits,
    /// A runner that has been busy with one command for longer than this counts as hung.
    pub watchdog: Duration,
    /// What breaks on purpose.
    pub faults: FaultPlan,
    /// Where the stage counts.
    pub metrics: StageMetrics,
    /// The engine's, where the stage records what it does when.
    pub recorder: Recorder,
    /// Where its output goes.
    pub outbound: Vec<OutEdge>,
    /// Where its input comes from.
    pub inbound: Arc<dyn PayloadReceiver>,
    /// Whether the scheduler hears of a step's tokens before its payloads are made. Off is the serialized order, for
    /// measuring: the scheduler hears of them once the payloads of the step are on their transport.
    pub early_handoff: bool,
    /// Told when input was taken over.
    pub acks: Arc<dyn AckSink>,
    /// Told what becomes of requests.
    pub reports: Arc<dyn StageReports>,
    /// Counts output that is still in use.
    pub leases: LeaseBook,
    /// Whether the stage has its process to itself: what a start of its actors does not mend ends in [`State::Failed`],
    /// for the process to be replaced.
    pub own_process: bool,
}

/// One edge out of a stage.
pub struct OutEdge {
    /// What travels on it.
    pub kind: Kind,
    /// How.
    pub sender: Arc<dyn PayloadSender>,
    /// Whether the consumer can use what is on the producer's device; if not, it is brought to the host.
    pub handles: bool,
    /// Where it is counted.
    pub metrics: EdgeMetrics,
}

/// A consumer tells it which units it took over, so that the producer may go on.
pub trait AckSink: Send + Sync {
    /// Takes the acknowledgements of one event, each in addition to earlier ones; [`RELEASED`] units are all that may
    /// ever come. Implementations must not block: a scheduler calls this.
    fn acked(&self, acks: &[Ack]);
}

/// What a stage tells the engine. Implementations must not block.
pub trait StageReports: Send + Sync {
    /// One sequence cannot go on: the stage has let go of it, and takes it again.
    fn sequence_failed(&self, request: RequestId, stage: StageName, reason: String);
    /// The stage takes sequences from now on; those it had before are lost.
    fn stage_up(&self, stage: StageName);
    /// All sequences of the stage are lost. `for_good`: it will not come up again.
    fn stage_down(&self, stage: StageName, reason: &str, for_good: bool);
}

/// A sequence that a request needs in one stage.
#[derive(Clone, Debug, bincode::Encode, bincode::Decode)]
pub struct Admission {
    /// Whose.
    pub request: RequestId,
    /// For the scheduler.
    pub params: SequenceParams,
    /// For the model.
    pub spec: SequenceSpec,
    /// What is to be made of the sequence's output.
    pub deliver: Outputs,
    /// Where it goes on, if an earlier attempt had come some way.
    pub from: Resume,
}

/// Where a sequence goes on. All zero for one that begins.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, bincode::Encode, bincode::Decode)]
pub struct Resume {
    /// Which admission this is.
    pub attempt: Attempt,
    /// For the scheduler.
    pub start: Start,
    /// Number of the first unit that the model emits.
    pub first: u32,
    /// Number of the first unit that is still wanted: those before it have been passed on.
    pub deliver_from: u32,
    /// Tokens that have been passed on.
    pub tokens: u32,
}

/// What is to be made of a sequence's output.
#[derive(Clone, Copy, Debug, bincode::Encode, bincode::Decode)]
pub struct Outputs {
    /// Sampled tokens go to the client.
    pub tokens: bool,
    /// What the sequence emits goes to the next stage.
    pub speech: bool,
}

/// What the supervisor knows of its stage.
#[derive(Clone, Debug, bincode::Encode, bincode::Decode)]
pub struct StageStatus {
    /// What the stage does.
    pub state: State,
    /// Counted from 1; 0 before the first start.
    pub generation: Generation,
    /// Starts after the first.
    pub restarts: u32,
    /// Why it failed last.
    pub last_reason: Option<String>,
}

/// What a stage does.
#[derive(Clone, Copy, Debug, PartialEq, Eq, bincode::Encode, bincode::Decode)]
pub enum State {
    /// The first start.
    Starting,
    /// Serving.
    Running,
    /// Down after a failure, about to start again.
    Restarting,
    /// Down for good.
    Failed,
}

/// The stage as others see it. Stays the same over restarts; what is said while the stage is down is lost: whoever gives it
/// sequences gives it those again, with all that they need, when [it is up](StageReports::stage_up).
pub struct StageHandle {
    name: StageName,
    current: Mutex<Current>,
    status: tokio::sync::watch::Sender<StageStatus>,
    supervisor: OnceLock<ActorCell>,
}

/// What a handle speaks to.
#[derive(Clone)]
enum Current {
    /// The stage is down.
    Nobody,
    /// Actors of this process.
    Here(Arc<StageGeneration>),
    /// Actors of a child.
    Remote(Arc<RemoteStage>),
}

impl StageHandle {
    /// A stage that has not started.
    pub fn new(name: StageName) -> Arc<StageHandle> {
        StageHandle::after(name, Generation(0))
    }

    /// The same where generations have been before, in other processes.
    pub fn after(name: StageName, generation: Generation) -> Arc<StageHandle> {
        let status = StageStatus { state: State::Starting, generation, restarts: 0, last_reason: None };
        let (status, _) = tokio::sync::watch::channel(status);
        Arc::new(StageHandle { name, current: Mutex::new(Current::Nobody), status, supervisor: OnceLock::new() })
    }

    /// Which stage.
    pub fn name(&self) -> StageName {
        self.name
    }

    /// Gives the stage a sequence. False if it is down.
    pub fn admit(&self, admission: Admission) -> bool {
        match self.current() {
            Current::Nobody => false,
            Current::Here(now) => now.tell_inbound(InboundMessage::Admit(Box::new(admission))),
            Current::Remote(remote) => remote.admit(admission),
        }
    }

    /// Frees a request's sequence, if there is one.
    pub fn abort(&self, request: RequestId) {
        match self.current() {
            Current::Nobody => {}
            Current::Here(now) => _ = now.tell_inbound(InboundMessage::Abort(request)),
            Current::Remote(remote) => remote.abort(request),
        }
    }

    /// What the stage does now, and every change of it.
    pub fn status(&self) -> tokio::sync::watch::Receiver<StageStatus> {
        self.status.subscribe()
    }

    /// Sequences that hold a slot or wait for one, and input and output on its way inside the stage: all 0 when it is idle.
    pub fn load(&self) -> StageLoad {
        match self.current() {
            Current::Nobody => StageLoad::default(),
            Current::Here(now) => now.load(),
            Current::Remote(remote) => remote.load(),
        }
    }

    /// The process of the stage, where it has one of its own.
    pub fn pid(&self) -> Option<u32> {
        self.remote().map(|remote| remote.pid)
    }

    /// The metrics of that process, in Prometheus' text format.
    pub async fn process_metrics(&self) -> Option<String> {
        self.remote()?.metrics().await
    }

    /// Ends the stage. Resolves when its device state is gone.
    pub async fn stop(&self) {
        if let Some(supervisor) = self.supervisor.get() {
            let _ = supervisor.stop_and_wait(Some("shutdown".into()), None).await;
        }
    }

    /// Asks the stage to end and does not wait for it.
    pub fn halt(&self) {
        if let Some(supervisor) = self.supervisor.get() {
            supervisor.stop(Some("nobody needs it any more".into()));
        }
    }

    /// Whether the stage is down for good.
    pub fn is_given_up(&self) -> bool {
        self.status.borrow().state == State::Failed
    }

    pub(super) fn supervised_by(&self, supervisor: ActorCell) {
        let _ = self.supervisor.set(supervisor);
    }

    pub(super) fn set_current(&self, current: Option<Arc<StageGeneration>>) {
        *self.lock() = current.map_or(Current::Nobody, Current::Here);
    }

    pub(super) fn set_remote(&self, current: Option<Arc<RemoteStage>>) {
        *self.lock() = current.map_or(Current::Nobody, Current::Remote);
    }

    pub(super) fn update(&self, change: impl FnOnce(&mut StageStatus)) {
        self.status.send_modify(change);
    }

    pub(super) fn remote(&self) -> Option<Arc<RemoteStage>> {
        match &*self.lock() {
            Current::Remote(remote) => Some(Arc::clone(remote)),
            _ => None,
        }
    }

    fn current(&self) -> Current {
        self.lock().clone()
    }

    fn lock(&self) -> MutexGuard<'_, Current> {
        // The lock only guards an assignment, so a panic cannot leave it half done.
        self.current.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl AckSink for StageHandle {
    fn acked(&self, acks: &[Ack]) {
        match self.current() {
            Current::Nobody => {}
            Current::Here(now) => {
                if let Some(scheduler) = now.scheduler.get() {
                    let _ = scheduler.cast(SchedulerMessage::Acked { acks: acks.to_vec(), behind: false });
                }
            }
            Current::Remote(remote) => remote.acked(acks),
        }
    }
}

/// What a stage holds at one moment.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, bincode::Encode, bincode::Decode)]
pub struct StageLoad {
    /// Sequences, as the scheduler counts them.
    pub sequences: usize,
    /// Sequences that the model holds state for.
    pub slots: usize,
    /// Requests that the inbound connector accepts payloads for.
    pub inputs: usize,
    /// Commands, tickets, outputs and payloads in queues.
    pub queued: usize,
    /// Outputs still in use in a process of the stage's own.
    pub leases: u64,
}

/// One generation of a stage: its queues and, once they are there, its actors.
pub(super) struct StageGeneration {
    pub setup: Arc<StageSetup>,
    pub generation: Generation,
    pub born: Instant,
    pub commands: Channel<Command>,
    pub tickets: Channel<Ticket>,
    pub outputs: Channel<Queued<Output>>,
    pub payloads: Channel<Queued<Payload>>,
    pub pulse: RunnerPulse,
    busy: [Busy; Role::ALL.len()],
    pub gauges: Gauges,
    pub scheduler: OnceLock<ActorRef<SchedulerMessage>>,
    pub sampler: OnceLock<ActorRef<SamplerMessage>>,
    pub packager: OnceLock<ActorRef<PackagerMessage>>,
    pub outbound: OnceLock<ActorRef<OutboundMessage>>,
    pub inbound: OnceLock<ActorRef<InboundMessage>>,
    pub runner: OnceLock<ActorRef<RunnerMessage>>,
    pub supervisor: ActorRef<SupervisorMessage>,
}

/// What waits in the queues behind the sampler.
pub(super) enum Queued<T> {
    /// Something to package or to send.
    Item(T),
    /// Without early hand-off: news of a step for the scheduler, which follow all that the step left behind.
    News(SchedulerMessage),
}

/// The actors that are tasks and not threads.
#[derive(Clone, Copy, Debug)]
pub(super) enum Role {
    Scheduler,
    Sampler,
    Packager,
    Inbound,
    Outbound,
}

impl Role {
    const ALL: [Role; 5] = [Role::Scheduler, Role::Sampler, Role::Packager, Role::Inbound, Role::Outbound];

    fn as_str(self) -> &'static str {
        match self {
            Role::Scheduler => "scheduler",
            Role::Sampler => "sampler",
            Role::Packager => "packager",
            Role::Inbound => "inbound connector",
            Role::Outbound => "outbound connector",
        }
    }
}

/// An actor is at work for as long as this lives.
pub(super) struct AtWork(Arc<StageGeneration>, Role);

impl Drop for AtWork {
    fn drop(&mut self) {
        self.0.busy[self.1 as usize].rest();
    }
}

/// Both ends of a bounded queue.
pub(super) struct Channel<T> {
    pub send: flume::Sender<T>,
    pub recv: flume::Receiver<T>,
}

impl<T> Channel<T> {
    fn new(capacity: usize) -> Channel<T> {
        let (send, recv) = flume::bounded(capacity);
        Channel { send, recv }
    }
}

/// Counts that actors keep for [`StageHandle::load`].
#[derive(Default)]
pub(super) struct Gauges {
    pub sequences: std::sync::atomic::AtomicUsize,
    pub slots: std::sync::atomic::AtomicUsize,
    pub inputs: std::sync::atomic::AtomicUsize,
    /// Steps whose tokens the scheduler has seen.
    pub seen: std::sync::atomic::AtomicU64,
}

impl StageGeneration {
    pub fn new(
        setup: Arc<StageSetup>,
        generation: Generation,
        supervisor: ActorRef<SupervisorMessage>,
    ) -> StageGeneration {
        let SchedulerConfig { slots, window, run_ahead, .. } = setup.scheduler;
        // The windows bound what any sequence can have in any queue of the stage: its outputs, its inputs (the window of the
        // stage before, which is taken to be of the same order), its commands. A full queue is a bug, not a state.
        let sequences = slots as usize;
        let units = sequences * (window as usize + 64) * 4 + 1024;
        StageGeneration {
            generation,
            born: Instant::now(),
            commands: Channel::new(units),
            tickets: Channel::new(run_ahead as usize + sequences * 2 + 1),
            outputs: Channel::new(units),
            payloads: Channel::new(units),
            pulse: RunnerPulse::default(),
            busy: Default::default(),
            gauges: Gauges::default(),
            scheduler: OnceLock::new(),
            sampler: OnceLock::new(),
            packager: OnceLock::new(),
            outbound: OnceLock::new(),
            inbound: OnceLock::new(),
            runner: OnceLock::new(),
            supervisor,
            setup,
        }
    }

    /// An actor takes something up, and is done with it when it drops what it gets.
    pub fn at_work(self: &Arc<Self>, role: Role) -> AtWork {
        self.busy[role as usize].take(self.now());
        AtWork(Arc::clone(self), role)
    }

    /// Who of those that are tasks has been at one thing for longer than the others, and for how long.
    pub fn busiest(&self) -> (&'static str, Duration) {
        let now = self.now();
        let busy = Role::ALL.map(|role| (role.as_str(), self.busy[role as usize].busy_for(now)));
        busy.into_iter().max_by_key(|(_, busy)| *busy).unwrap_or_default()
    }

    /// Where a part of this generation records what it does.
    pub fn track(&self, component: Component) -> TrackWriter<'_> {
        self.setup.recorder.writer(Track::of(self.setup.name, self.generation, component))
    }

    /// Passes news on to the scheduler.
    pub fn tell_scheduler(&self, message: SchedulerMessage) {
        if let Some(scheduler) = self.scheduler.get() {
            let _ = scheduler.cast(message);
        }
    }

    /// Time since this generation began, the clock of its cores.
    pub fn now(&self) -> Duration {
        self.born.elapsed()
    }

    fn tell_inbound(&self, message: InboundMessage) -> bool {
        self.inbound.get().is_some_and(|actor| actor.cast(message).is_ok())
    }

    fn load(&self) -> StageLoad {
        use std::sync::atomic::Ordering::Relaxed;
        StageLoad {
            sequences: self.gauges.sequences.load(Relaxed),
            slots: self.gauges.slots.load(Relaxed),
            inputs: self.gauges.inputs.load(Relaxed),
            queued: self.commands.recv.len()
                + self.tickets.recv.len()
                + self.outputs.recv.len()
                + self.payloads.recv.len(),
            leases: 0,
        }
    }
}

/// Why an actor ends itself.
#[derive(Debug, thiserror::Error)]
pub(super) enum ActorFailure {
    /// More in a queue than the windows allow.
    #[error("the {0} queue is full or closed")]
    Queue(&'static str),
    /// A fault plan says so.
    #[error(transparent)]
    Injected(#[from] omni_fault::Injected),
    /// An edge broke.
    #[error("edge: {0}")]
    Edge(#[from] omni_transfer::transport::TransportError),
    /// The runner's thread ended.
    #[error("{0}")]
    Runner(String),
}
