//! The child: one stage with all its actors, at the end of a link.
//!
//! It lives for its parent alone. It ends when the parent asks it to, when the link ends, and, by the kernel's hand,
//! when the parent is killed. It leaves signals that ask a program to end to the parent, which may have streams to
//! finish.

use super::super::setup::{StageMaker, edge_capacity};
use super::super::{Kept, StartError};
use super::seat::Seat;
use futures::future::BoxFuture;
use omni_core::ids::{Replica, StageName};
use omni_model::checkpoint::Checkpoint;
use omni_model::weights::EmbeddedFiles;
use omni_stage::process::message::{FromStage, Setup};
use omni_stage::{StageState, StageStatus};
use omni_telemetry::{self as telemetry, LogError};
use omni_transfer::link::{self, FrameReader, FrameWriter, LinkError, Malformed, Outbox, outbox};
use omni_transfer::shm::{Notes, RingError, RingHandle};
use std::io;
use std::time::Duration;
use tokio::signal::unix::{SignalKind, signal};

/// How long the first frame of a parent may take.
const HELLO: Duration = Duration::from_secs(10);
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
    let place = Replica { stage: name, number: setup.replica };
    let recorder = maker.recorder.clone();
    let seat = Seat { place, several: false, last: setup.generation, notes: Some(notes), obeys: true, recorder };
    seat.serve(&maker, from, out.clone()).await
}

/// Has the kernel end this process when the parent's thread that started it ends.
///
/// # Errors
/// The kernel does not, or this process was started by another one.
pub fn die_with(parent: u32) -> Result<(), ChildError> {
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
