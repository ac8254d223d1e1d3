//! The NodeSupervisor actor: stands in a gateway for a replica of a stage that runs on a node. It takes the next node
//! when the link to one ends, and never gives up, for another node may join at any time.
//!
//! It does for a node what the [ProcessSupervisor](super::supervisor) does for a child, over the same messages. What it
//! cannot do is end it: a link that it closes is one that no frame comes out of any more, whatever the node still sends.

use super::conversation::{Conversation, Ends, Link, Said, tell_who_listens};
use super::message::FromStage;
use super::remote::{OnNode, RemoteStage};
use crate::in_hand::InHand;
use crate::watchdog::Watchdog;
use crate::{InHands, StageFailure, StageHandle, StageState};
use futures::future::BoxFuture;
use omni_core::ids::{Generation, Replica};
use omni_core::nodes::{DrainError, NodeStatus};
use omni_core::restart::{RestartLimits, RestartPolicy, Verdict};
use omni_telemetry::{LinkMetrics, LinkTraffic, SupervisionMetrics};
use omni_transfer::link::{FrameReader, FrameWriter, Sink, Source, outbox};
use ractor::{Actor, ActorProcessingErr, ActorRef, SpawnErr};
use std::sync::Arc;
use std::time::{Duration, Instant};
use tokio::task::JoinHandle;

/// A node tells that it lives several times in this time, however short its watchdog.
const LEAST_SILENCE: Duration = Duration::from_secs(2);
/// How long a node may take to send what it has when it is asked to stop.
const STOP_GRACE: Duration = Duration::from_secs(1);

/// Where replicas on other hosts come from.
pub trait Nodes: Send + Sync {
    /// Waits for a node that runs the stage for this replica, whose last generation is given, and opens a link to it.
    fn open(&self, place: Replica, last: Generation) -> BoxFuture<'static, NodeLink>;
    /// All nodes that have joined.
    fn list(&self) -> Vec<NodeStatus>;
    /// What nodes know this gateway by.
    fn gateway(&self) -> String;
    /// Has all nodes of this name, or the one of this id, leave all gateways, or come back (`undo`). What they had goes on
    /// elsewhere when this resolves. With `force` they leave although a gateway has no other for one of their stages.
    fn drain(&self, node: String, force: bool, undo: bool) -> BoxFuture<'static, Result<Vec<NodeStatus>, DrainError>>;
}

/// An open link to a node.
pub struct NodeLink {
    /// What people call it.
    pub node: String,
    /// Sequences that have a slot there at the same time.
    pub slots: u32,
    /// To the node.
    pub down: Sink,
    /// From the node.
    pub up: Source,
    /// Dropped when the link is not needed any more.
    pub seat: Box<dyn NodeSeat>,
}

/// The place of a replica on its node. Dropped, another replica may have it.
pub trait NodeSeat: Send {
    /// Why the link ended, if it did by itself.
    fn reason(&self) -> Option<String>;
    /// Whether it ended because the node leaves on purpose: that is no failure.
    fn leaves(&self) -> bool;
    /// The node is not to be used for this stage again before it has joined anew.
    fn bar(&self, reason: String);
    /// Whether the stage takes sequences there.
    fn runs(&self, running: bool);
}

/// Everything about a replica on nodes that outlives its links.
pub struct NodeSetup {
    /// Which replica.
    pub place: Replica,
    /// Where it comes from.
    pub nodes: Arc<dyn Nodes>,
    /// When a node whose stage fails again and again is not used any more.
    pub restart: RestartLimits,
    /// A node that says nothing for longer than this counts as gone.
    pub watchdog: Duration,
    /// Where starts are counted.
    pub metrics: SupervisionMetrics,
    /// Whether what is decoded stays in its frame.
    pub zero_copy: bool,
    /// What the link leads to.
    pub ends: Arc<Ends>,
}

/// Starts the supervisor. The replica's state shows in `handle`.
///
/// # Errors
/// When the actor system refuses.
pub fn start_on_nodes(setup: NodeSetup, handle: Arc<StageHandle>) -> BoxFuture<'static, Result<(), SpawnErr>> {
    Box::pin(async move {
        let (supervisor, _) = Actor::spawn(None, NodeSupervisor, (Arc::new(setup), Arc::clone(&handle))).await?;
        handle.supervised_by(supervisor.get_cell());
        Ok(())
    })
}

/// What the supervisor is told. Messages of a link that is closed have another number than the current one.
enum Message {
    Search,
    Joined(NodeLink),
    Said(u64, Said),
    Watch,
}

struct NodeSupervisor;

struct Running {
    number: u64,
    begun: Instant,
    node: String,
    in_hand: Arc<InHand>,
    remote: Arc<RemoteStage>,
    seat: Box<dyn NodeSeat>,
    policy: RestartPolicy,
    conversation: Conversation,
    tracing: JoinHandle<()>,
}

struct SupervisorState {
    setup: Arc<NodeSetup>,
    handle: Arc<StageHandle>,
    watchdog: Watchdog,
    failed_at: Option<Instant>,
    /// The last generation that went down.
    down: Generation,
    /// The last generation that was reported to be up.
    up: Generation,
    links: u64,
    searching: Option<JoinHandle<()>>,
    current: Option<Running>,
}

impl Actor for NodeSupervisor {
    type Msg = Message;
    type State = SupervisorState;
    type Arguments = (Arc<NodeSetup>, Arc<StageHandle>);

    async fn pre_start(
        &self,
        myself: ActorRef<Message>,
        (setup, handle): Self::Arguments,
    ) -> Result<SupervisorState, ActorProcessingErr> {
        myself.cast(Message::Search)?;
        let watchdog = Watchdog::new(setup.watchdog.max(LEAST_SILENCE));
        myself.send_interval(watchdog.period(), || Message::Watch);
        let (down, up) = (Generation(0), Generation(0));
        Ok(SupervisorState {
            setup,
            handle,
            watchdog,
            failed_at: None,
            down,
            up,
            links: 0,
            searching: None,
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
            Message::Search => state.search(&myself),
            Message::Joined(link) => state.begin(&myself, link),
            Message::Said(number, _) if !state.is_current(number) => {}
            Message::Said(_, Said::Heard(word)) => state.heard(&myself, word).await,
            Message::Said(_, Said::Gone(error)) => {
                let seat = state.current.as_ref().map(|running| &running.seat);
                let leaves = seat.is_some_and(|seat| seat.leaves());
                let reason = seat.and_then(|seat| seat.reason()).unwrap_or_else(|| error.to_string());
                let failure = StageFailure::new(reason, InHands::nothing());
                if leaves { state.let_go(&myself, failure).await } else { state.replace(&myself, failure).await }
            }
            Message::Said(_, Said::Deaf) => {
                let in_hands = state.current.as_ref().map(|running| running.in_hand.of_parent());
                let reason = "what it sent could not be taken".to_owned();
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
            running.conversation.ends_within(STOP_GRACE).await;
        }
        state.take_down().await;
        Ok(())
    }
}

impl SupervisorState {
    fn is_current(&self, number: u64) -> bool {
        self.current.as_ref().is_some_and(|running| running.number == number)
    }

    /// Looks for a node, beside what else this actor does.
    fn search(&mut self, myself: &ActorRef<Message>) {
        let found = self.setup.nodes.open(self.setup.place, self.handle.status().borrow().generation);
        let myself = myself.clone();
        self.searching = Some(tokio::spawn(async move {
            let link = found.await;
            let _ = myself.cast(Message::Joined(link));
        }));
    }

    fn begin(&mut self, myself: &ActorRef<Message>, found: NodeLink) {
        let NodeLink { node, slots, down, up, seat } = found;
        self.links += 1;
        let number = self.links;
        let (sent, received) = LinkMetrics::pair(self.handle.name());
        let traffic = [LinkTraffic::new(), LinkTraffic::new()];
        let (sent, received) = (sent.and(&traffic[0]), received.and(&traffic[1]));
        let to = FrameWriter::new(down, Some(sent)).announcing();
        let from = FrameReader::new(up, Some(received), self.setup.zero_copy);
        let (out, queue) = outbox(self.setup.ends.capacity);
        let remote = RemoteStage::on_node(OnNode::new(node.clone(), slots, traffic), out);
        let in_hand = Arc::new(InHand::new(1, None));
        let supervisor = myself.clone();
        let tell = move |said| _ = supervisor.cast(Message::Said(number, said));
        let link = Link { setup: None, queue, to, from };
        let conversation = Conversation::begin(link, &self.setup.ends, &remote, &in_hand, tell);
        let tracing = tokio::spawn(tell_who_listens(self.setup.ends.recorder.clone(), Arc::clone(&remote)));
        let before = self.handle.status().borrow().generation;
        self.handle.update(|status| status.generation = Generation(before.0 + 1));
        self.handle.set_remote(Some(Arc::clone(&remote)));
        tracing::info!(stage = %self.handle.name(), replica = self.handle.replica(), node, "a node runs the stage");
        self.watchdog.begin();
        let policy = RestartPolicy::new(self.setup.restart);
        let begun = Instant::now();
        self.current = Some(Running { number, begun, node, in_hand, remote, seat, policy, conversation, tracing });
    }

    async fn heard(&mut self, myself: &ActorRef<Message>, word: FromStage) {
        match word {
            FromStage::StageDown(generation, failure, _) => {
                let attribution = self.failed(generation, &failure);
                let Some(running) = &mut self.current else { return };
                if running.policy.failed(running.begun.elapsed(), &attribution) == Verdict::GiveUp {
                    running.seat.bar(format!("its {} fails again and again: {}", self.handle.name(), failure.reason));
                    self.search_again(myself).await;
                }
            }
            // The status of a generation may arrive after the report of its end.
            FromStage::Status(status) if status.state == StageState::Running && status.generation > self.down => {
                self.running(status.generation);
            }
            FromStage::Status(status) if status.state == StageState::Failed => {
                let reason = status.last_reason.unwrap_or_else(|| "it gave the stage up".into());
                if let Some(running) = &self.current {
                    running.seat.bar(reason.clone());
                }
                self.replace(myself, StageFailure::new(reason, InHands::nothing())).await;
            }
            _ => {}
        }
    }

    fn running(&mut self, generation: Generation) {
        let Some(running) = &self.current else { return };
        // The child may report a state more than once.
        if self.up >= generation {
            return;
        }
        self.up = generation;
        let recovered = self.failed_at.take();
        if let Some(failed) = recovered {
            self.setup.metrics.restarts.increment(1);
            self.setup.metrics.recovery_seconds.record(failed.elapsed());
        }
        self.setup.metrics.generation.set(f64::from(generation.0));
        running.remote.made_nothing_yet();
        running.remote.set_open(true);
        running.seat.runs(true);
        self.setup.ends.reports.stage_up(self.handle.name(), &mut || {
            self.handle.update(|status| {
                status.generation = generation;
                status.restarts += u32::from(recovered.is_some());
                status.state = StageState::Running;
            });
        });
    }

    /// The stage failed, with what it had.
    fn failed(&mut self, generation: Generation, failure: &StageFailure) -> omni_core::suspects::Attribution {
        self.failed_at.get_or_insert_with(Instant::now);
        let attribution = self.lost(generation, failure);
        let (node, reason) = (self.current.as_ref().map(|running| &running.node), &failure.reason);
        tracing::error!(stage = %self.handle.name(), replica = self.handle.replica(), node, reason, "stage failed on a node");
        attribution
    }

    /// Closes the replica to new sequences first and reports the loss of those that it had second.
    fn lost(&mut self, generation: Generation, failure: &StageFailure) -> omni_core::suspects::Attribution {
        if let Some(running) = &self.current {
            running.remote.set_open(false);
            running.seat.runs(false);
        }
        let attribution = self.setup.ends.reports.stage_down(self.handle.name(), failure);
        self.down = self.down.max(generation);
        let reason = &failure.reason;
        self.handle.update(|status| {
            status.generation = status.generation.max(generation);
            status.state = StageState::Restarting;
            status.last_reason = Some(reason.clone());
        });
        attribution
    }

    /// Looks whether the node lives.
    fn silence(&mut self) -> Option<StageFailure> {
        let running = self.current.as_ref()?;
        let (heard, now) = (running.remote.last_heard(), Instant::now());
        let since = (heard <= now).then(|| heard.saturating_duration_since(running.begun));
        let (_, strike) = self.watchdog.look(now.saturating_duration_since(running.begun), Duration::ZERO, &[since])?;
        Some(StageFailure::silent("its node has said nothing", strike, InHands::nothing()))
    }

    /// The link to the node is of no use any more. What was lost with it is admitted elsewhere at once.
    async fn replace(&mut self, myself: &ActorRef<Message>, failure: StageFailure) {
        let generation = self.handle.status().borrow().generation;
        // A stage that was down already, or never up, has no sequences, and its end was reported.
        if self.handle.status().borrow().state == StageState::Running {
            let _ = self.failed(generation, &failure);
        } else {
            self.handle.update(|status| status.last_reason = Some(failure.reason));
        }
        self.down = self.down.max(generation);
        self.search_again(myself).await;
    }

    /// The node leaves. What it had is admitted elsewhere at once, and nothing has failed.
    async fn let_go(&mut self, myself: &ActorRef<Message>, leaving: StageFailure) {
        let generation = self.handle.status().borrow().generation;
        if self.handle.status().borrow().state == StageState::Running {
            let _ = self.lost(generation, &leaving);
        } else {
            self.handle.update(|status| status.last_reason = Some(leaving.reason.clone()));
        }
        self.down = self.down.max(generation);
        let node = self.current.as_ref().map(|running| &running.node);
        tracing::info!(stage = %self.handle.name(), replica = self.handle.replica(), node, reason = leaving.reason, "a node leaves");
        self.search_again(myself).await;
    }

    async fn search_again(&mut self, myself: &ActorRef<Message>) {
        self.take_down().await;
        self.search(myself);
    }

    /// Closes the link.
    async fn take_down(&mut self) {
        if let Some(searching) = self.searching.take() {
            searching.abort();
        }
        let Some(running) = self.current.take() else { return };
        running.remote.set_open(false);
        self.handle.set_remote(None);
        running.conversation.end().await;
        running.tracing.abort();
        tracing::info!(stage = %self.handle.name(), replica = self.handle.replica(), node = running.node, "the link to a node is closed");
    }
}
