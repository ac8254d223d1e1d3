//! The ProcessSupervisor actor: starts the child of a stage, notices when it dies, hangs or cannot recover, and starts
//! the next one once the old one is gone, device memory and all.
//!
//! Two rungs: an actor that fails is replaced inside the child, by the [supervisor](crate::supervisor) there; a
//! child that this does not mend, or that dies, is replaced here. One policy counts both.

use super::conversation::{Conversation, Ends, Link, Said, tell_what_breaks, tell_who_listens};
use super::message::{FromStage, Setup};
use super::remote::RemoteStage;
use super::scarcity;
use super::spawn::Process;
use crate::in_hand::InHand;
use crate::waits::Waits;
use crate::watchdog::{Limit, Watchdog};
use crate::{InHands, StageFailure, StageHandle, StageState};
use futures::future::BoxFuture;
use omni_core::ids::Generation;
use omni_core::restart::{RestartLimits, RestartPolicy, Verdict};
use omni_telemetry::{LinkMetrics, SupervisionMetrics};
use omni_transfer::link::{FrameReader, FrameWriter, outbox};
use omni_transfer::shm::ring;
use ractor::{Actor, ActorProcessingErr, ActorRef, SpawnErr};
use std::io;
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::time::{Duration, Instant};
use tokio::task::JoinHandle;

/// A child that was asked to stop and lives for longer than this is ended: its runner hangs.
const STOP_GRACE: Duration = Duration::from_secs(4);
/// How long the report of a lost child waits for the exact reason.
const REASON_PATIENCE: Duration = Duration::from_millis(50);
/// Variables by which a service manager speaks to the program that it started, and to no other process.
const MANAGERS_WORDS: [&str; 6] =
    ["NOTIFY_SOCKET", "WATCHDOG_USEC", "WATCHDOG_PID", "LISTEN_FDS", "LISTEN_PID", "LISTEN_FDNAMES"];
/// A child tells that it lives several times in this time, however short its watchdog.
const LEAST_SILENCE: Duration = Duration::from_secs(2);

/// Everything about a stage process that outlives its children.
pub struct ProcessSetup {
    /// The program, which understands `stage`.
    pub binary: PathBuf,
    /// What each child hears first.
    pub setup: Setup,
    /// When to start again, and when to give up.
    pub restart: RestartLimits,
    /// A child that says nothing for longer than this, and could have run, counts as hung.
    pub watchdog: Duration,
    /// Where starts are counted.
    pub metrics: SupervisionMetrics,
    /// What the link leads to.
    pub ends: Arc<Ends>,
}

/// Starts a stage in a process. Its state shows in `handle`.
///
/// # Errors
/// When the actor system refuses.
pub fn start(setup: ProcessSetup, handle: Arc<StageHandle>) -> BoxFuture<'static, Result<(), SpawnErr>> {
    Box::pin(async move {
        let (supervisor, _) = Actor::spawn(None, ProcessSupervisor, (Arc::new(setup), Arc::clone(&handle))).await?;
        handle.supervised_by(supervisor.get_cell());
        Ok(())
    })
}

/// What the supervisor is told. Messages of a child that is gone have another number than the current one.
enum Message {
    Start,
    Said(u64, Said),
    Watch,
}

struct ProcessSupervisor;

struct Running {
    number: u64,
    begun: Instant,
    /// What the child's actors write down that they have in hand.
    in_hand: Arc<InHand>,
    remote: Arc<RemoteStage>,
    process: Process,
    /// Of the child.
    waits: Waits,
    conversation: Conversation,
    tracing: JoinHandle<()>,
    drilling: JoinHandle<()>,
}

struct SupervisorState {
    setup: Arc<ProcessSetup>,
    handle: Arc<StageHandle>,
    policy: RestartPolicy,
    /// Of the child's signs of life.
    watchdog: Watchdog,
    /// What the actors in the child have.
    inside: Limit,
    born: Instant,
    failed_at: Option<Instant>,
    /// The generation that went down last, and what the policy said of it, as long as no other runs.
    down: (Generation, Option<Verdict>),
    /// The generation that was reported to be up last.
    up: Generation,
    children: u64,
    /// Starts in a row for which the machine had no room.
    waits: u32,
    current: Option<Running>,
}

impl Actor for ProcessSupervisor {
    type Msg = Message;
    type State = SupervisorState;
    type Arguments = (Arc<ProcessSetup>, Arc<StageHandle>);

    async fn pre_start(
        &self,
        myself: ActorRef<Message>,
        (setup, handle): Self::Arguments,
    ) -> Result<SupervisorState, ActorProcessingErr> {
        scarcity::keep_back();
        myself.cast(Message::Start)?;
        let watchdog = Watchdog::new(setup.watchdog.max(LEAST_SILENCE));
        myself.send_interval(watchdog.period(), || Message::Watch);
        let (policy, inside) = (RestartPolicy::new(setup.restart), Limit::new(setup.watchdog));
        let down = (Generation(0), None);
        let born = Instant::now();
        Ok(SupervisorState {
            setup,
            handle,
            policy,
            watchdog,
            inside,
            born,
            failed_at: None,
            down,
            up: Generation(0),
            children: 0,
            waits: 0,
            current: None,
        })
    }

    async fn handle(
        &self,
        myself: ActorRef<Message>,
        message: Message,
        state: &mut SupervisorState,
    ) -> Result<(), ActorProcessingErr> {
        state.handle.supervisor_turned();
        match message {
            Message::Start => match state.start_with_reserve(&myself).await {
                Ok(()) => state.waits = 0,
                Err(error) if scarcity::is_scarcity(&error) => state.wait_for_means(&myself, &error),
                Err(error) => {
                    let reason =
                        format!("its process cannot be started from {}: {error}", state.setup.binary.display());
                    state.replace(&myself, StageFailure::new(reason, InHands::nothing())).await;
                }
            },
            Message::Said(number, _) if !state.is_current(number) => {}
            Message::Said(_, Said::Heard(word)) => state.heard(&myself, word).await,
            Message::Said(_, Said::Gone(error)) => {
                let how = match &mut state.current {
                    Some(running) => tokio::time::timeout(REASON_PATIENCE, running.process.reap()).await.ok(),
                    None => None,
                };
                let in_hands = state.in_hands();
                let reason = how.unwrap_or_else(|| error.to_string());
                state.replace(&myself, StageFailure::new(reason, in_hands)).await;
            }
            Message::Said(_, Said::Deaf) => {
                let in_hands = state.current.as_ref().map(|running| running.in_hand.of_parent());
                let reason = "what its process sent could not be taken".to_owned();
                let failure = StageFailure::new(reason, in_hands.unwrap_or_else(InHands::nothing));
                state.replace(&myself, failure).await;
            }
            Message::Watch => {
                if let Some(failure) = state.silence() {
                    state.replace(&myself, failure).await;
                }
            }
        }
        Ok(())
    }

    async fn post_stop(&self, _: ActorRef<Message>, state: &mut SupervisorState) -> Result<(), ActorProcessingErr> {
        if let Some(running) = &mut state.current {
            running.remote.set_open(false);
            running.remote.stop();
            if running.conversation.ends_within(STOP_GRACE).await {
                running.process.reap().await;
            } else {
                tracing::error!(stage = %state.handle.name(), "the stage's process does not stop and is ended");
            }
        }
        state.take_down().await;
        Ok(())
    }
}

impl SupervisorState {
    /// What the child has, or had, in hand: which of its actors failed is not known.
    fn in_hands(&self) -> InHands {
        self.current.as_ref().map_or_else(InHands::nothing, |running| running.in_hand.of_role(None))
    }

    /// Looks whether the child lives. What its machine keeps from it, and from this process, is no silence of its own.
    fn silence(&mut self) -> Option<StageFailure> {
        let running = self.current.as_mut()?;
        let (heard, now) = (running.remote.last_heard(), Instant::now());
        // It has time for its first word.
        let since = (heard <= now).then(|| heard.saturating_duration_since(running.begun));
        let waited = running.waits.since_last();
        let (_, strike) = self.watchdog.look(now.saturating_duration_since(running.begun), waited, &[since])?;
        self.watchdog.limit.struck(running.remote.has_made());
        let in_hands = running.in_hand.of_role(None);
        let mut failure = StageFailure::silent("its process has said nothing", strike, in_hands);
        // No request stops a process.
        failure.slow |= running.waits.is_stopped();
        Some(failure)
    }

    fn is_current(&self, number: u64) -> bool {
        self.current.as_ref().is_some_and(|running| running.number == number)
    }

    /// Starts a child, with the descriptors that are kept back for this if there are no others.
    async fn start_with_reserve(&mut self, myself: &ActorRef<Message>) -> io::Result<()> {
        let mut started = self.start(myself).await;
        if started.as_ref().is_err_and(scarcity::is_scarcity) {
            scarcity::release();
            started = self.start(myself).await;
        }
        scarcity::keep_back();
        started
    }

    /// The machine has no room for a process at this moment: that is no failure of the stage.
    fn wait_for_means(&mut self, myself: &ActorRef<Message>, error: &io::Error) {
        let pause = scarcity::pause(self.waits);
        self.waits = self.waits.saturating_add(1);
        myself.send_after(pause, || Message::Start);
        let reason = format!("there is no room for its process now: {error}; it is tried again");
        if self.waits.is_power_of_two() {
            tracing::error!(stage = %self.handle.name(), replica = self.handle.replica(), tries = self.waits, reason, "stage process not started");
        }
        self.handle.update(|status| status.last_reason = Some(reason));
    }

    async fn start(&mut self, myself: &ActorRef<Message>) -> io::Result<()> {
        let before = self.handle.status().borrow().generation;
        self.children += 1;
        let number = self.children;
        let transfer = &self.setup.setup.config.transfer;
        let (down, their_down) = ring(transfer.shm_bytes)?;
        let (their_up, up) = ring(transfer.shm_bytes)?;
        let in_hand = Arc::new(InHand::of(&up.notes()));
        let mut command = Command::new(&self.setup.binary);
        let ends = [their_down.into_handle()?, their_up.into_handle()?].map(|end| end.inherit(&mut command));
        command.args(["stage", self.handle.name().as_str()]).args(ends);
        // The parent's standard output belongs to its caller; the logs of both go to the same place.
        command.stdin(Stdio::null()).stdout(Stdio::null());
        // What the service manager said was for the parent.
        for name in MANAGERS_WORDS {
            command.env_remove(name);
        }
        let process = Process::spawn(command, self.handle.name()).await?;
        let (sent, received) = LinkMetrics::pair(self.handle.name());
        let to = FrameWriter::new(down, Some(sent)).announcing();
        let from = FrameReader::new(up, Some(received), transfer.zero_copy);
        let (out, queue) = outbox(self.setup.ends.capacity);
        let remote = RemoteStage::new(process.pid, out);
        // First the changes are watched, then the plan is looked at: none is missed.
        let changes = self.setup.ends.faults.changes();
        let faults = self.setup.ends.faults.state();
        let mut setup = Setup { generation: before, faults, parent: std::process::id(), ..self.setup.setup.clone() };
        setup.config.supervision.watchdog = self.inside.now();
        let supervisor = myself.clone();
        let tell = move |said| _ = supervisor.cast(Message::Said(number, said));
        let link = Link { setup: Some(setup), queue, to, from };
        let conversation = Conversation::begin(link, &self.setup.ends, &remote, &in_hand, tell);
        let tracing = tokio::spawn(tell_who_listens(self.setup.ends.recorder.clone(), Arc::clone(&remote)));
        let drilling = tokio::spawn(tell_what_breaks(self.setup.ends.faults.clone(), changes, Arc::clone(&remote)));
        self.handle.update(|status| status.generation = Generation(before.0 + 1));
        self.setup.metrics.generation.set(f64::from(before.0 + 1));
        self.handle.set_remote(Some(Arc::clone(&remote)));
        tracing::info!(stage = %self.handle.name(), replica = self.handle.replica(), pid = process.pid, "stage process started");
        self.watchdog.begin();
        let (begun, waits) = (Instant::now(), Waits::of(process.pid));
        self.current =
            Some(Running { number, begun, in_hand, remote, process, waits, conversation, tracing, drilling });
        Ok(())
    }

    async fn heard(&mut self, myself: &ActorRef<Message>, word: FromStage) {
        match word {
            FromStage::StageDown(generation, failure, _) => {
                // Its own watchdog grows with it, but ends with it too.
                if let Some(running) = self.current.as_ref().filter(|_| failure.hung) {
                    self.inside.struck(running.remote.has_made());
                }
                let verdict = self.failed(generation, failure);
                if verdict == Verdict::GiveUp {
                    self.take_down().await;
                }
            }
            // The status of a generation may arrive after the report of its end.
            FromStage::Status(status) if status.state == StageState::Running && status.generation > self.down.0 => {
                self.running(status.generation);
            }
            FromStage::Status(status) if status.state == StageState::Failed => {
                let reason = status.last_reason.unwrap_or_else(|| "its process gave up".into());
                self.replace(myself, StageFailure::new(reason, InHands::nothing())).await;
            }
            // Its end is handled like that of any child that dies.
            FromStage::Doomed(_) => {
                if let Some(running) = &mut self.current {
                    running.process.kill().await;
                }
            }
            _ => {}
        }
    }

    fn running(&mut self, generation: Generation) {
        let Some(running) = &self.current else { return };
        let recovered = self.failed_at.take();
        if let Some(failed) = recovered {
            self.setup.metrics.restarts.increment(1);
            self.setup.metrics.recovery_seconds.record(failed.elapsed());
        }
        self.setup.metrics.generation.set(f64::from(generation.0));
        self.down.1 = None;
        running.remote.set_open(true);
        let mut show = || {
            self.handle.update(|status| {
                status.generation = generation;
                status.restarts += u32::from(recovered.is_some());
                status.state = StageState::Running;
            });
        };
        // The child may report a state more than once.
        if self.up < generation {
            self.up = generation;
            running.remote.made_nothing_yet();
            self.setup.ends.reports.stage_up(self.handle.name(), &mut show);
        } else {
            show();
        }
    }

    /// Closes the stage to new sequences first and reports the loss of those that it had second.
    fn failed(&mut self, generation: Generation, failure: StageFailure) -> Verdict {
        self.failed_at.get_or_insert_with(Instant::now);
        if let Some(running) = &self.current {
            running.remote.set_open(false);
        }
        let attribution = self.setup.ends.reports.stage_down(self.handle.name(), &failure);
        let reason = failure.reason;
        let verdict = self.policy.failed(self.born.elapsed(), &attribution);
        self.down = (generation, Some(verdict));
        self.handle.update(|status| {
            status.generation = status.generation.max(generation);
            status.state = if verdict == Verdict::GiveUp { StageState::Failed } else { StageState::Restarting };
            status.last_reason = Some(reason.clone());
        });
        if verdict == Verdict::GiveUp {
            self.setup.ends.reports.stage_given_up(self.handle.name(), &reason);
        }
        // What is lost is told to those who act on it before it is told to people.
        tracing::error!(stage = %self.handle.name(), replica = self.handle.replica(), reason, ?verdict, "stage failed");
        verdict
    }

    /// Ends the child and starts the next one after the policy's pause. A failure that the child reported before is not
    /// counted again.
    async fn replace(&mut self, myself: &ActorRef<Message>, failure: StageFailure) {
        let generation = self.handle.status().borrow().generation;
        let verdict = match self.down.1.take() {
            Some(verdict) => verdict,
            None => self.failed(generation, failure),
        };
        self.down.1 = None;
        self.take_down().await;
        if let Verdict::Restart(pause) = verdict {
            myself.send_after(pause, || Message::Start);
        }
    }

    /// Ends the child and waits until it is gone.
    async fn take_down(&mut self) {
        let Some(mut running) = self.current.take() else { return };
        running.remote.set_open(false);
        self.handle.set_remote(None);
        running.conversation.end().await;
        running.tracing.abort();
        running.drilling.abort();
        let how = running.process.kill().await;
        tracing::info!(stage = %self.handle.name(), replica = self.handle.replica(), pid = running.process.pid, how, "stage process gone");
    }
}
