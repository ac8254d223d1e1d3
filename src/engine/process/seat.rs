//! A stage with all its actors at the end of a link; at the other end is the parent of a stage process, or a gateway.

use super::super::StartError;
use super::super::journal::Edge;
use super::super::setup::{StageMaker, Wiring, edge_capacity};
use super::child::ChildError;
use futures::future::BoxFuture;
use omni_core::ids::{Attempt, Generation, Replica, RequestId, Seq, StageName};
use omni_core::scheduler::Ack;
use omni_core::suspects::Attribution;
use omni_fault::{FaultPlan, RuleCount};
use omni_stage::process::message::{FromStage, Pulse, ToStage};
use omni_stage::{self as actors, AckSink, StageFailure, StageHandle, StageLoad, StageReports, StageState};
use omni_telemetry::trace::{Recorder, Session};
use omni_telemetry::{self as telemetry, clock};
use omni_transfer::lease::LeaseBook;
use omni_transfer::link::{self, FrameReader, Outbox, Received};
use omni_transfer::payload::Payload;
use omni_transfer::shm::Notes;
use omni_transfer::transport::{Delivery, PayloadReceiver, PayloadSender, TransportError};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;
use tokio::sync::Notify;

/// How often the load of a stage that has sequences is reported to the parent.
const GLANCE: Duration = Duration::from_millis(10);
/// How often records are sent: well within the time that a trace waits for them.
const FLUSH: Duration = Duration::from_millis(100);
/// Records in one message: together less than the smallest ring takes.
const RECORDS: usize = 200;

/// Which replica serves at the end of a link, and how.
pub(crate) struct Seat {
    /// Which.
    pub place: Replica,
    /// Whether its series get its number.
    pub several: bool,
    /// Of the last generation before this link.
    pub last: Generation,
    /// Where it is written down what the actors have in hand, if the parent is to see it.
    pub notes: Option<Notes>,
    /// Whether faults are the parent's: a node has its own.
    pub obeys: bool,
    /// What the stage records for the one at the other end of the link.
    pub recorder: Recorder,
}

impl Seat {
    /// Serves until the other end says `Stop`, the link ends or the stage fails for good. What the maker has is used
    /// before this returns.
    pub fn serve(
        self,
        maker: &StageMaker<'_>,
        from: FrameReader,
        out: Outbox<FromStage>,
    ) -> BoxFuture<'static, Result<(), ChildError>> {
        let Seat { place, several, last, notes, obeys, recorder } = self;
        let name = place.stage;
        let handle = StageHandle::after(name, last);
        // For each payload at most one announcement.
        let (inbox, arrived) = flume::bounded(2 * edge_capacity(maker.config(), name).max(1 << 16));
        let faults = maker.faults.clone();
        let parent = Arc::new(Parent { out: out.clone(), stage: Arc::clone(&handle), faults, obeys });
        let edge = |edge: Edge| (edge.kind(), Arc::clone(&parent) as Arc<dyn PayloadSender>);
        let wiring = Wiring {
            inbound: Arc::new(Inbox { arrived, _open: inbox.clone() }),
            outbound: Edge::from_stage(name).map(edge).collect(),
            handles: false,
            acks: Arc::clone(&parent) as Arc<dyn AckSink>,
            reports: Arc::clone(&parent) as Arc<dyn StageReports>,
            recorder: recorder.clone(),
            own_process: true,
            notes,
        };
        let child = Child {
            handle,
            out,
            inbox,
            faults: maker.faults.clone(),
            obeys,
            recorder,
            leases: maker.leases.clone(),
            admitted: AtomicU64::new(0),
            busy: Notify::new(),
            session: Mutex::default(),
            beat: maker.config().supervision.watchdog / 4,
        };
        let setup = maker.stage(place, several, wiring);
        Box::pin(async move {
            let started = actors::start(setup, Arc::clone(&child.handle)).await;
            let failed = |error: StartError| ChildError::Failed(name, error.to_string());
            started.map_err(|error| failed(StartError::Stage(name, error.to_string())))?;
            let outcome = tokio::select! {
                ended = child.listen(from) => ended,
                reason = child.tell_status() => Err(ChildError::Failed(name, reason)),
                never = child.tell_pulse() => match never {},
                never = child.tell_trace() => match never {},
            };
            // A stage that has failed is down, and one that was told to end, or whose gateway is gone, makes room.
            let ends = match outcome {
                Ok(()) => true,
                Err(ChildError::Failed(..)) => false,
                // The process ends with its link.
                Err(_) => !obeys,
            };
            if ends {
                child.handle.stop().await;
            }
            outcome
        })
    }
}

/// What the tasks of a seat share.
struct Child {
    handle: Arc<StageHandle>,
    out: Outbox<FromStage>,
    inbox: flume::Sender<Delivery>,
    faults: FaultPlan,
    /// See [`Seat::obeys`].
    obeys: bool,
    recorder: Recorder,
    leases: LeaseBook,
    admitted: AtomicU64,
    /// Notified when something comes from the parent.
    busy: Notify,
    /// While the parent takes a trace.
    session: Mutex<Option<Session>>,
    /// How often an idle child sends a sign of life.
    beat: Duration,
}

impl Child {
    /// Carries out what the parent sends, in its order, until it sends `Stop`.
    async fn listen(&self, mut from: FrameReader) -> Result<(), ChildError> {
        loop {
            match link::receive::<ToStage>(&mut from).await? {
                Received::Delivery(mut delivery) => {
                    if let (Delivery::Payload(payload), false) = (&mut delivery, self.obeys) {
                        // Its time is by the clock of another host.
                        payload.header.sent = clock::now();
                    }
                    if let Err(refused) = self.inbox.try_send(delivery) {
                        let reason = TransportError::Full(self.inbox.len()).to_string();
                        match refused.into_inner() {
                            Delivery::Payload(payload) => {
                                self.out.tell(FromStage::SequenceFailed(payload.header.request, reason));
                            }
                            // The windows bound what can be here: this is a bug.
                            Delivery::Broken(_) | Delivery::Sent(_) => tracing::error!(reason, "input is dropped"),
                        }
                    }
                }
                Received::Control(words) => {
                    for word in words {
                        if self.execute(word) {
                            return Ok(());
                        }
                    }
                }
            }
            self.busy.notify_one();
        }
    }

    /// True after `Stop`.
    fn execute(&self, word: ToStage) -> bool {
        match word {
            ToStage::Admit(admission) => {
                self.faults.asks_for(admission.request, admission.content);
                // A stage that went down just now reports that, and is given its sequences again when it is up.
                self.handle.admit(*admission);
                self.admitted.fetch_add(1, Ordering::Relaxed);
            }
            ToStage::Abort(request) => self.handle.abort(request),
            ToStage::Acked(request, upto) => self.handle.acked(&[Ack { request, upto }]),
            ToStage::Faults(_) if !self.obeys => {}
            ToStage::Trace(on) => {
                let session = on.then(|| Session::begin(&self.recorder));
                *self.session.lock().unwrap_or_else(PoisonError::into_inner) = session;
            }
            ToStage::Clock(asked) => _ = self.out.tell(FromStage::Clock(asked, clock::now())),
            ToStage::Faults(faults) => self.faults.follow(faults),
            ToStage::Metrics => _ = self.out.tell(FromStage::Metrics(telemetry::render())),
            ToStage::Stop => return true,
        }
        false
    }

    /// Reports each change of the stage's state. Returns the reason when the stage is down for good.
    async fn tell_status(&self) -> String {
        let mut changes = self.handle.status();
        loop {
            let status = changes.borrow_and_update().clone();
            if status.state == StageState::Failed {
                return status.last_reason.unwrap_or_default();
            }
            self.out.tell(FromStage::Status(status));
            if changes.changed().await.is_err() {
                return "its supervisor is gone".to_owned();
            }
        }
    }

    /// Sends records for as long as the parent takes a trace.
    async fn tell_trace(&self) -> std::convert::Infallible {
        let mut switched = self.recorder.switched();
        loop {
            // The switch is never taken away.
            let _ = switched.wait_for(|on| *on).await;
            tokio::time::sleep(FLUSH).await;
            for records in self.recorder.drain().chunks(RECORDS) {
                self.out.tell(FromStage::Trace(records.to_vec()));
            }
        }
    }

    /// Reports what the stage holds when that changes, and sends a sign of life from time to time.
    async fn tell_pulse(&self) -> std::convert::Infallible {
        let (mut last, mut told) = (Pulse::default(), tokio::time::Instant::now());
        loop {
            let admitted = self.admitted.load(Ordering::Relaxed);
            let mut load = self.handle.load();
            load.queued += self.inbox.len();
            load.leases = self.leases.live();
            let pulse = Pulse { load, admitted, faults: counts(&self.faults, self.obeys) };
            if pulse != last || told.elapsed() >= self.beat {
                told = tokio::time::Instant::now();
                last = pulse.clone();
                self.out.tell(FromStage::Pulse(pulse));
            }
            if load == StageLoad::default() {
                let _ = tokio::time::timeout_at(told + self.beat, self.busy.notified()).await;
            } else {
                tokio::time::sleep(GLANCE.min(self.beat)).await;
            }
        }
    }
}

/// Stands for the next stage, the stage before and the engine in front of the stage's actors.
struct Parent {
    out: Outbox<FromStage>,
    stage: Arc<StageHandle>,
    faults: FaultPlan,
    obeys: bool,
}

impl PayloadSender for Parent {
    fn put(&self, payload: Payload) -> Result<(), TransportError> {
        self.out.put(payload)
    }
}

impl AckSink for Parent {
    fn acked(&self, acks: &[Ack]) {
        for Ack { request, upto } in acks {
            self.out.tell(FromStage::Acked(*request, *upto));
        }
    }
}

impl StageReports for Parent {
    fn sequence_failed(&self, request: RequestId, _: StageName, reason: String) {
        self.out.tell(FromStage::SequenceFailed(request, reason));
    }

    fn input_lost(&self, request: RequestId, _: StageName, attempt: Attempt, unit: Seq) {
        self.out.tell(FromStage::InputLost(request, attempt, unit));
    }

    /// The parent learns it from the stage's status.
    fn stage_up(&self, _: StageName, show: &mut dyn FnMut()) {
        show();
    }

    /// The parent knows the requests, and counts.
    fn stage_down(&self, _: StageName, failure: &StageFailure) -> Attribution {
        let generation: Generation = self.stage.status().borrow().generation;
        self.out.tell(FromStage::StageDown(generation, failure.clone(), counts(&self.faults, self.obeys)));
        Attribution::default()
    }

    /// The parent learns it from the stage's status.
    fn stage_given_up(&self, _: StageName, _: &str) {}
}

/// The inbound edge: what the parent sent.
struct Inbox {
    arrived: flume::Receiver<Delivery>,
    /// The edge stays open: when the link ends, the process ends.
    _open: flume::Sender<Delivery>,
}

impl PayloadReceiver for Inbox {
    fn get(&self) -> BoxFuture<'_, Result<Delivery, TransportError>> {
        Box::pin(async { self.arrived.recv_async().await.map_err(|_| TransportError::Closed) })
    }
}

/// What a plan of the parent's has counted.
fn counts(faults: &FaultPlan, obeys: bool) -> Vec<RuleCount> {
    if obeys { faults.counts() } else { Vec::new() }
}
