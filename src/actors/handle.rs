//! A stage as the engine and other stages see it.

use crate::generation::StageGeneration;
use crate::messages::{Admission, InboundMessage, SchedulerMessage};
use crate::process::RemoteStage;
use crate::setup::AckSink;
use omni_core::ids::{Generation, Replica, RequestId, StageName};
use omni_core::scheduler::Ack;
use omni_telemetry::ReplicaOnNode;
use ractor::ActorCell;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::{Duration, Instant};

/// What the supervisor knows of its stage.
#[derive(Clone, Debug, bincode::Encode, bincode::Decode)]
pub struct StageStatus {
    /// What the stage does.
    pub state: StageState,
    /// Counted from 1; 0 before the first start.
    pub generation: Generation,
    /// Starts after the first.
    pub restarts: u32,
    /// Why it failed last.
    pub last_reason: Option<String>,
}

/// What a stage does.
#[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Serialize, bincode::Encode, bincode::Decode)]
#[serde(rename_all = "lowercase")]
pub enum StageState {
    /// The stage loads its weights or makes its device state, for the first time.
    Starting,
    /// Serving.
    Running,
    /// Down after a failure, about to start again.
    Restarting,
    /// Down for good: it failed too often, and a person must look.
    Failed,
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
    /// Commands, outputs and payloads in queues.
    pub queued: usize,
    /// Outputs still in use in a process of the stage's own.
    pub leases: u64,
}

/// A stage, over all its generations. A message to a stage that is down is lost: the engine admits its sequences again,
/// with all that they need, when the stage [is up](crate::StageReports::stage_up).
pub struct StageHandle {
    name: StageName,
    /// Which replica, where the stage has several.
    replica: Option<usize>,
    /// It runs on nodes, as far as there are any.
    on_nodes: bool,
    current: Mutex<Current>,
    status: tokio::sync::watch::Sender<StageStatus>,
    supervisor: OnceLock<ActorCell>,
    made: Instant,
    /// When the supervisor took a message last, in milliseconds since `made`.
    turned: AtomicU64,
}

/// What a handle speaks to.
#[derive(Clone)]
enum Current {
    /// The stage is down.
    Down,
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

    /// A replica of a stage, counted from 0, that has not started.
    pub fn replica_of(name: StageName, replica: usize) -> Arc<StageHandle> {
        StageHandle::made(name, Some(replica), false, Generation(0))
    }

    /// One of the replicas that a stage on nodes can have, counted from 0.
    pub fn on_nodes(name: StageName, replica: usize) -> Arc<StageHandle> {
        StageHandle::made(name, Some(replica), true, Generation(0))
    }

    /// A stage that has not started here, and whose earlier generations ran in other processes.
    pub fn after(name: StageName, generation: Generation) -> Arc<StageHandle> {
        StageHandle::made(name, None, false, generation)
    }

    fn made(name: StageName, replica: Option<usize>, on_nodes: bool, generation: Generation) -> Arc<StageHandle> {
        let status = StageStatus { state: StageState::Starting, generation, restarts: 0, last_reason: None };
        let (status, _) = tokio::sync::watch::channel(status);
        Arc::new(StageHandle {
            name,
            replica,
            on_nodes,
            current: Mutex::new(Current::Down),
            status,
            supervisor: OnceLock::new(),
            made: Instant::now(),
            turned: AtomicU64::new(0),
        })
    }

    /// Which stage.
    pub fn name(&self) -> StageName {
        self.name
    }

    /// Which replica of the stage, where it has several.
    pub fn replica(&self) -> Option<usize> {
        self.replica
    }

    /// Whether it comes and goes with the nodes that have joined.
    pub fn is_on_nodes(&self) -> bool {
        self.on_nodes
    }

    /// Whether no node has run it yet.
    pub fn is_vacant(&self) -> bool {
        self.on_nodes && self.status.borrow().generation == Generation(0)
    }

    /// The replica of the stage; the first where there is one.
    pub fn place(&self) -> Replica {
        Replica { stage: self.name, number: self.replica.unwrap_or(0) as u8 }
    }

    /// Gives the stage a sequence. False if it is down.
    pub fn admit(&self, admission: Admission) -> bool {
        match self.current() {
            Current::Down => false,
            Current::Here(now) => now.inbound.tell(InboundMessage::Admit(Box::new(admission))),
            Current::Remote(remote) => remote.admit(admission),
        }
    }

    /// Frees a request's sequence, if there is one.
    pub fn abort(&self, request: RequestId) {
        match self.current() {
            Current::Down => {}
            Current::Here(now) => _ = now.inbound.tell(InboundMessage::Abort(request)),
            Current::Remote(remote) => remote.abort(request),
        }
    }

    /// What the stage does now, and every change of it.
    pub fn status(&self) -> tokio::sync::watch::Receiver<StageStatus> {
        self.status.subscribe()
    }

    /// Sequences that hold a slot or wait for one, and input and output on its way inside the stage: all 0 when it is
    /// idle.
    pub fn load(&self) -> StageLoad {
        match self.current() {
            Current::Down => StageLoad::default(),
            Current::Here(now) => now.load(),
            Current::Remote(remote) => remote.load(),
        }
    }

    /// The process of the stage, where it has one of its own.
    pub fn pid(&self) -> Option<u32> {
        self.remote()?.pid
    }

    /// The node that runs it, where one does.
    pub fn node(&self) -> Option<String> {
        Some(self.remote()?.node.as_ref()?.name.clone())
    }

    /// How many sequences have a slot on the node that runs it, where one does.
    pub fn slots(&self) -> Option<u32> {
        Some(self.remote()?.node.as_ref()?.slots)
    }

    /// The series of the node that runs it, where one does.
    pub fn node_metrics(&self) -> Option<ReplicaOnNode> {
        let remote = self.remote()?;
        let node = remote.node.as_ref()?;
        Some(ReplicaOnNode {
            node: node.name.clone(),
            stage: self.name,
            replica: self.replica.unwrap_or(0),
            sequences: remote.load().sequences,
            restarts: self.status.borrow().restarts,
            link: node.traffic.clone(),
        })
    }

    /// The metrics of its process, in Prometheus' text format. A node tells its own.
    pub async fn process_metrics(&self) -> Option<String> {
        self.remote().filter(|remote| remote.pid.is_some())?.metrics().await
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
            supervisor.stop(Some("the engine was dropped".into()));
        }
    }

    /// How long ago its supervisor took a message. Each looks after its stage several times in a watchdog's time.
    pub fn unsupervised(&self) -> Duration {
        self.made.elapsed().saturating_sub(Duration::from_millis(self.turned.load(Ordering::Relaxed)))
    }

    pub(super) fn supervisor_turned(&self) {
        let now = u64::try_from(self.made.elapsed().as_millis()).unwrap_or(u64::MAX);
        self.turned.store(now, Ordering::Relaxed);
    }

    /// Whether the stage is down for good.
    pub fn is_given_up(&self) -> bool {
        self.status.borrow().state == StageState::Failed
    }

    pub(super) fn supervised_by(&self, supervisor: ActorCell) {
        let _ = self.supervisor.set(supervisor);
    }

    pub(super) fn set_current(&self, current: Option<Arc<StageGeneration>>) {
        *self.lock() = current.map_or(Current::Down, Current::Here);
    }

    pub(super) fn set_remote(&self, current: Option<Arc<RemoteStage>>) {
        *self.lock() = current.map_or(Current::Down, Current::Remote);
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
            Current::Down => {}
            Current::Here(now) => {
                now.scheduler.tell(SchedulerMessage::Acked { acks: acks.to_vec(), behind: false });
            }
            Current::Remote(remote) => remote.acked(acks),
        }
    }
}
