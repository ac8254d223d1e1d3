//! The child: one stage with all its actors, at the end of a link.
//!
//! It lives for its parent alone. It ends when the parent asks it to, when the link ends, and, by the kernel's hand,
//! when the parent is killed. It leaves signals that ask a program to end to the parent, which may have streams to
//! finish.

use super::super::journal::Edge;
use super::super::setup::{StageMaker, Wiring, edge_capacity};
use super::super::{Kept, StartError};
use futures::future::BoxFuture;
use omni_core::ids::{Attempt, Generation, Replica, RequestId, Seq, StageName};
use omni_core::scheduler::Ack;
use omni_core::suspects::Attribution;
use omni_fault::FaultPlan;
use omni_model::checkpoint::Checkpoint;
use omni_model::weights::EmbeddedFiles;
use omni_stage::process::message::{FromStage, Pulse, Setup, ToStage};
use omni_stage::{
    self as actors, AckSink, StageFailure, StageHandle, StageLoad, StageReports, StageState, StageStatus,
};
use omni_telemetry::trace::{Recorder, Session};
use omni_telemetry::{self as telemetry, LogError};
use omni_transfer::lease::LeaseBook;
use omni_transfer::link::{self, FrameReader, FrameWriter, LinkError, Malformed, Outbox, Received, outbox};
use omni_transfer::payload::Payload;
use omni_transfer::shm::{Notes, RingError, RingHandle};
use omni_transfer::transport::{Delivery, PayloadReceiver, PayloadSender, TransportError};
use std::io;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::Notify;

/// How long the first frame of a parent may take.
const HELLO: Duration = Duration::from_secs(10);
/// How often the load of a stage that has sequences is reported to the parent.
const GLANCE: Duration = Duration::from_millis(10);
/// How often records are sent: well within the time that a trace waits for them.
const FLUSH: Duration = Duration::from_millis(100);
/// Records in one message: together less than the smallest ring takes.
const RECORDS: usize = 200;
/// How long a child that has failed may take to send what is in its outbox.
const LAST_WORDS: Duration = Duration::from_secs(1);

/// Why a child ended by itself.
#[derive(Debug, thiserror::Error)]
pub enum ChildError {
    /// There is no parent at the other end of the link.
    #[error(
        "`omni-actors stage` is started by `omni-actors run` for a stage with placement = \"process\", not by hand"
    )]
    NoParent,
    /// The parent's first words make no sense.
    #[error("the parent is not of this build: {0}")]
    Setup(#[from] Malformed),
    /// The link broke, without which a child has nothing to do.
    #[error(transparent)]
    Link(#[from] LinkError),
    /// Logging or signals cannot be set up.
    #[error("{0}")]
    System(String),
    /// The stage cannot be made or went down for good; the parent has been told why.
    #[error("the {0} stage has failed: {1}")]
    Failed(StageName, String),
}

impl From<LogError> for ChildError {
    fn from(error: LogError) -> ChildError {
        ChildError::System(error.to_string())
    }
}

impl From<io::Error> for ChildError {
    fn from(error: io::Error) -> ChildError {
        ChildError::System(error.to_string())
    }
}

/// Serves the stage that the parent asks for, to its end. `link` names the two rings that were inherited from it, down
/// and up; `embedded` is what the binary carries.
///
/// # Errors
/// [`ChildError`]; the parent knows already, or is gone.
pub fn serve(link: &[String], embedded: Option<EmbeddedFiles>) -> BoxFuture<'_, Result<(), ChildError>> {
    Box::pin(serve_stage(link, embedded))
}

async fn serve_stage(link: &[String], embedded: Option<EmbeddedFiles>) -> Result<(), ChildError> {
    let [down, up] = link else { return Err(ChildError::NoParent) };
    let no_parent = |_: io::Error| ChildError::NoParent;
    let down = RingHandle::from_inherited(down).and_then(RingHandle::into_consumer).map_err(no_parent)?;
    let up = RingHandle::from_inherited(up).and_then(RingHandle::into_producer).map_err(no_parent)?;
    let notes = up.notes();
    let mut from = FrameReader::new(down, None, true);
    let hello = tokio::time::timeout(HELLO, from.next()).await;
    let hello = hello.ok().and_then(Result::ok).ok_or(ChildError::NoParent)?;
    let setup: Setup = link::take(&mut hello.as_ref())?;
    drop(hello);
    let (from, mut to) = (from.zero_copy(setup.config.transfer.zero_copy), FrameWriter::new(up, None));
    die_with(setup.parent)?;
    telemetry::init_stage_logging(&setup.config.telemetry.log, setup.config.telemetry.log_format, setup.stage)?;
    outlive_signals()?;
    go_first();

    // Samples and tokens, or sequences and tokens.
    let (out, queue) = outbox(2 * edge_capacity(&setup.config, setup.stage));
    let told = out.clone();
    let speaking = tokio::spawn(async move {
        queue.send_all(&mut to, |request, reason| _ = told.tell(FromStage::SequenceFailed(request, reason))).await
    });
    let outcome = run(&setup, embedded, from, &out, notes).await;
    if let Err(ChildError::Failed(_, reason)) = &outcome {
        let (generation, last_reason) = (setup.generation, Some(reason.clone()));
        out.tell(FromStage::Status(StageStatus { state: StageState::Failed, generation, restarts: 0, last_reason }));
    }
    out.finish();
    let _ = tokio::time::timeout(LAST_WORDS, speaking).await;
    match outcome {
        // The parent is gone: no process needs the stage or could read a report.
        Err(ChildError::Link(LinkError::Ring(RingError::Closed))) => Ok(()),
        outcome => outcome,
    }
}

async fn run(
    setup: &Setup,
    embedded: Option<EmbeddedFiles>,
    from: FrameReader,
    out: &Outbox<FromStage>,
    notes: Notes,
) -> Result<(), ChildError> {
    let name = setup.stage;
    let failed = |error: StartError| ChildError::Failed(name, error.to_string());
    let checkpoint = Checkpoint::reopen(&setup.checkpoint, embedded).map_err(|error| failed(error.into()))?;
    let maker = StageMaker::new(&checkpoint, &setup.config, &[name], Kept::new(&setup.config)).map_err(failed)?;
    maker.faults.follow(setup.faults.clone());
    let told = out.clone();
    maker.faults.doomed_by(move |counts| _ = told.tell(FromStage::Doomed(counts)));
    let handle = StageHandle::after(name, setup.generation);
    // For each payload at most one announcement.
    let (inbox, arrived) = flume::bounded(2 * edge_capacity(&setup.config, name).max(1 << 16));
    let faults = maker.faults.clone();
    let parent = Arc::new(Parent { out: out.clone(), stage: Arc::clone(&handle), faults });
    let edge = |edge: Edge| (edge.kind(), Arc::clone(&parent) as Arc<dyn PayloadSender>);
    let wiring = Wiring {
        inbound: Arc::new(Inbox { arrived, _open: inbox.clone() }),
        outbound: Edge::from_stage(name).map(edge).collect(),
        handles: false,
        acks: Arc::clone(&parent) as Arc<dyn AckSink>,
        reports: Arc::clone(&parent) as Arc<dyn StageReports>,
        own_process: true,
        notes: Some(notes),
    };
    let child = Child {
        handle,
        out: out.clone(),
        inbox,
        faults: maker.faults.clone(),
        recorder: maker.recorder.clone(),
        leases: maker.leases.clone(),
        admitted: AtomicU64::new(0),
        busy: Notify::new(),
        session: Mutex::default(),
        beat: setup.config.supervision.watchdog / 4,
    };
    let started = actors::start(
        maker.stage(Replica { stage: name, number: setup.replica }, false, wiring),
        Arc::clone(&child.handle),
    )
    .await;
    started.map_err(|error| failed(StartError::Stage(name, error.to_string())))?;
    tokio::select! {
        ended = child.listen(from) => ended?,
        reason = child.tell_status() => return Err(ChildError::Failed(name, reason)),
        never = child.tell_pulse() => match never {},
        never = child.tell_trace() => match never {},
    }
    child.handle.stop().await;
    Ok(())
}

/// What the tasks of a child share.
struct Child {
    handle: Arc<StageHandle>,
    out: Outbox<FromStage>,
    inbox: flume::Sender<Delivery>,
    faults: FaultPlan,
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
                Received::Delivery(delivery) => {
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
            ToStage::Trace(on) => {
                let session = on.then(|| Session::begin(&self.recorder));
                *self.session.lock().unwrap_or_else(PoisonError::into_inner) = session;
            }
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
            let pulse = Pulse { load, admitted, faults: self.faults.counts() };
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
    fn stage_up(&self, _: StageName) {}

    /// The parent knows the requests, and counts.
    fn stage_down(&self, _: StageName, failure: &StageFailure) -> Attribution {
        let generation: Generation = self.stage.status().borrow().generation;
        self.out.tell(FromStage::StageDown(generation, failure.clone(), self.faults.counts()));
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

/// Has the kernel end this process when the parent's thread that started it ends.
fn die_with(parent: u32) -> Result<(), ChildError> {
    rustix::process::set_parent_process_death_signal(Some(rustix::process::Signal::KILL)).map_err(io::Error::from)?;
    // The parent may have died before that.
    if std::os::unix::process::parent_id() == parent { Ok(()) } else { Err(ChildError::NoParent) }
}

/// Has the kernel end this process before the parent when memory runs out: the parent replaces it, and its streams go
/// on.
fn go_first() {
    /// Half of the machine's memory, in the kernel's count.
    const WORSE: i32 = 500;
    const WORST: i32 = 1000;
    const FILE: &str = "/proc/self/oom_score_adj";
    let raise = || {
        let now: i32 = std::fs::read_to_string(FILE)?.trim().parse().map_err(io::Error::other)?;
        std::fs::write(FILE, (now + WORSE).min(WORST).to_string())
    };
    if let Err(error) = raise() {
        tracing::warn!(%error, "{FILE} cannot be written: out of memory, the kernel may end the server first");
    }
}

/// Ignores signals that ask programs to end, to read their config again or to make room for another: those to all
/// processes of a service or a user are the parent's to answer.
fn outlive_signals() -> io::Result<()> {
    let kinds = [SignalKind::terminate(), SignalKind::interrupt(), SignalKind::hangup()];
    for kind in kinds.into_iter().chain([SignalKind::user_defined1(), SignalKind::user_defined2()]) {
        let mut signals = signal(kind)?;
        tokio::spawn(async move {
            while signals.recv().await.is_some() {
                tracing::debug!("a signal is left to the parent");
            }
        });
    }
    Ok(())
}
