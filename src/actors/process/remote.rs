//! The view of a stage that runs in a child or on a node: what its [`StageHandle`] holds instead of actors.

use super::message::{Pulse, ToStage};
use crate::{Admission, StageHandle, StageLoad};
use omni_core::ids::{Replica, RequestId};
use omni_core::scheduler::Ack;
use omni_fault::PlanState;
use omni_telemetry::trace::{Record, Recorder};
use omni_telemetry::{ClockElsewhere, LinkTraffic, clock};
use omni_transfer::link::Outbox;
use omni_transfer::payload::Payload;
use omni_transfer::transport::{PayloadSender, TransportError};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};
use tokio::sync::oneshot;

/// A child says something once it has read the configs of its checkpoint, which may lie on a slow disk.
const FIRST_WORD: Duration = Duration::from_secs(60);

/// A node as its gateway knows it.
pub struct OnNode {
    /// What people call it.
    pub name: String,
    /// Sequences that have a slot there at the same time.
    pub slots: u32,
    /// What passed on the link down to it and up from it.
    pub traffic: [Arc<LinkTraffic>; 2],
    /// Its clock, as far as it was asked for it.
    pub clock: Mutex<ClockElsewhere>,
}

impl OnNode {
    pub(super) fn new(name: String, slots: u32, traffic: [Arc<LinkTraffic>; 2]) -> OnNode {
        OnNode { name, slots, traffic, clock: Mutex::default() }
    }

    fn clock(&self) -> MutexGuard<'_, ClockElsewhere> {
        // The lock only guards a pure state.
        self.clock.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// One child or node, for as long as its link lives. Everything but admissions is passed on whatever the state of the stage: an
/// admission may have reached the stage just before it went down, and then the abort that follows must reach it as
/// well.
pub struct RemoteStage {
    /// Of the child.
    pub pid: Option<u32>,
    /// Where it is, if on a node.
    pub node: Option<OnNode>,
    out: Outbox<ToStage>,
    open: AtomicBool,
    admitted: AtomicU64,
    /// Whether its present generation has sent a payload.
    made: AtomicBool,
    pulse: Mutex<(Pulse, Instant)>,
    asked: Mutex<Vec<oneshot::Sender<String>>>,
}

impl RemoteStage {
    pub(super) fn new(pid: u32, out: Outbox<ToStage>) -> Arc<RemoteStage> {
        RemoteStage::at((Some(pid), None), out)
    }

    pub(super) fn on_node(node: OnNode, out: Outbox<ToStage>) -> Arc<RemoteStage> {
        RemoteStage::at((None, Some(node)), out)
    }

    fn at((pid, node): (Option<u32>, Option<OnNode>), out: Outbox<ToStage>) -> Arc<RemoteStage> {
        Arc::new(RemoteStage {
            pid,
            node,
            out,
            open: AtomicBool::new(false),
            admitted: AtomicU64::new(0),
            made: AtomicBool::new(false),
            pulse: Mutex::new((Pulse::default(), Instant::now() + FIRST_WORD)),
            asked: Mutex::default(),
        })
    }

    /// Opens or closes the stage to new sequences.
    pub(super) fn set_open(&self, open: bool) {
        self.open.store(open, Ordering::SeqCst);
    }

    pub(crate) fn admit(&self, admission: Admission) -> bool {
        let open = self.open.load(Ordering::SeqCst);
        open && {
            self.admitted.fetch_add(1, Ordering::Relaxed);
            self.out.tell(ToStage::Admit(Box::new(admission)))
        }
    }

    pub(crate) fn abort(&self, request: RequestId) {
        self.out.tell(ToStage::Abort(request));
    }

    pub(crate) fn acked(&self, acks: &[Ack]) {
        for Ack { request, upto } in acks {
            self.out.tell(ToStage::Acked(*request, *upto));
        }
    }

    pub(super) fn faults(&self, faults: PlanState) {
        self.out.tell(ToStage::Faults(faults));
    }

    pub(super) fn trace(&self, on: bool) {
        self.out.tell(ToStage::Trace(on));
    }

    /// Asks a node for its clock.
    pub(super) fn ask_clock(&self) {
        self.out.tell(ToStage::Clock(clock::now()));
    }

    /// A node has answered.
    pub(super) fn told_clock(&self, asked: u64, theirs: u64) {
        if let Some(node) = &self.node {
            node.clock().answered(asked, theirs, clock::now());
        }
    }

    /// Gives the recorder what the other side has recorded of a replica, by the clock of this host.
    pub(super) fn recorded(&self, place: Replica, mut records: Vec<Record>, recorder: &Recorder) {
        let Some(node) = &self.node else { return recorder.absorb(records) };
        let theirs = *node.clock();
        // Times by an unknown clock would be anywhere.
        let Some(wrong) = theirs.error(clock::now()) else { return };
        for record in &mut records {
            (record.began, record.ended) = (theirs.here(record.began), theirs.here(record.ended));
        }
        recorder.absorb_from(place, &node.name, wrong, records);
    }

    pub(super) fn stop(&self) {
        self.out.tell(ToStage::Stop);
    }

    /// The child's last report, and what it cannot have counted yet.
    pub(crate) fn load(&self) -> StageLoad {
        let Pulse { mut load, admitted, .. } = self.pulse().0.clone();
        load.sequences += self.admitted.load(Ordering::Relaxed).saturating_sub(admitted) as usize;
        load.queued += self.out.waiting();
        load
    }

    /// The child lives.
    pub(super) fn heard(&self) {
        self.pulse().1 = Instant::now();
    }

    pub(super) fn pulsed(&self, pulse: Pulse) {
        *self.pulse() = (pulse, Instant::now());
    }

    /// A generation of it came up.
    pub(super) fn made_nothing_yet(&self) {
        self.made.store(false, Ordering::Relaxed);
    }

    /// It has sent a payload.
    pub(super) fn made(&self) {
        self.made.store(true, Ordering::Relaxed);
    }

    pub(super) fn has_made(&self) -> bool {
        self.made.load(Ordering::Relaxed)
    }

    /// When the child was heard of last; in the future as long as it has time for its first word.
    pub(super) fn last_heard(&self) -> Instant {
        self.pulse().1
    }

    /// The child's metrics in Prometheus' text format; `None` if it ends meanwhile.
    pub(crate) async fn metrics(&self) -> Option<String> {
        let (tell, told) = oneshot::channel();
        let first = {
            let mut asked = self.asked.lock().unwrap_or_else(PoisonError::into_inner);
            // A caller that has given up needs no answer.
            asked.retain(|waiting| !waiting.is_closed());
            asked.push(tell);
            asked.len() == 1
        };
        // A caller that comes while an answer is on its way gets that one.
        if first {
            self.out.tell(ToStage::Metrics);
        }
        told.await.ok()
    }

    pub(super) fn told_metrics(&self, text: &str) {
        let asked = std::mem::take(&mut *self.asked.lock().unwrap_or_else(PoisonError::into_inner));
        for tell in asked {
            let _ = tell.send(text.to_owned());
        }
    }

    fn pulse(&self) -> MutexGuard<'_, (Pulse, Instant)> {
        // The lock only guards assignments.
        self.pulse.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The edge that leads into a stage process. Payloads that come while there is no process are dropped: the ledger gives
/// the next one all of them again.
pub struct IntoStage(pub Arc<StageHandle>);

impl PayloadSender for IntoStage {
    fn put(&self, payload: Payload) -> Result<(), TransportError> {
        match self.0.remote().map(|remote| remote.out.put(payload)) {
            // The link ended just now: the supervisor reports the stage as down.
            None | Some(Err(TransportError::Closed)) => Ok(()),
            Some(done) => done,
        }
    }
}
