//! The gateway's side: which nodes have joined, and a link to one for each replica that looks for one.

use super::terms::{MOST_ASKING, MOST_LEAVE, decoded, encoded, leaves, name, settings, terms, unusable};
use crate::StartError;
use futures::StreamExt;
use futures::future::BoxFuture;
use futures::stream::FuturesUnordered;
use omni_cluster::{Change, Gateway, Line};
use omni_config::Config;
use omni_core::ids::{Generation, Replica, StageName};
use omni_core::nodes::{self, Ask, DrainError, DrainOrder, Leave, NodeId, NodeStatus, Offer, Ticket};
use omni_model::checkpoint::Checkpoint;
use omni_stage::process::{NodeLink, NodeSeat, Nodes};
use omni_transfer::link::{Sink, Source};
use std::collections::BTreeSet;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant, SystemTime};
use tokio::sync::watch;

/// How often the way to each node is measured.
const MEASURE: Duration = Duration::from_secs(2);
/// How long this side may take to see that a node has ended its links.
const GONE: Duration = Duration::from_secs(5);

/// How long nodes may take to say whether they keep a share: each, and all of them, which is less than the node waits
/// that wants to leave.
const KEEPS: Duration = Duration::from_secs(1);
const ALL_KEEP: Duration = Duration::from_secs(3);

/// See the module. The session ends with it.
pub(super) struct Members {
    state: Arc<State>,
    tasks: [tokio::task::JoinHandle<()>; 3],
}

struct State {
    gateway: Gateway,
    /// Its name for people.
    host: String,
    terms: nodes::Terms,
    nodes: Known,
    /// Counts what may free a replica from its waiting.
    changes: watch::Sender<u64>,
}

/// The nodes, and the clock by which they are known: the Unix time at the start, and what has passed since.
struct Known {
    nodes: Mutex<nodes::Nodes>,
    at_start: Duration,
    began: Instant,
}

impl Known {
    fn now(&self) -> Duration {
        self.at_start + self.began.elapsed()
    }

    fn lock(&self) -> MutexGuard<'_, nodes::Nodes> {
        // The lock only guards a pure state.
        self.nodes.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Members {
    /// Opens the session of a config. Nodes may join from now on.
    pub async fn join(checkpoint: &Checkpoint, config: &Config) -> Result<Arc<dyn Nodes>, StartError> {
        let terms = terms(checkpoint).await?;
        let at_start = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
        let how = settings(&config.cluster);
        let gateway = Gateway::start(&how).await.map_err(unusable)?;
        tracing::info!(gateway = gateway.name(), "nodes can join");
        let nodes = nodes::Nodes::new(terms.clone(), config.cluster.max_nodes).in_order_of(gateway.name());
        let nodes = Known { nodes: Mutex::new(nodes), at_start, began: Instant::now() };
        let changes = watch::Sender::new(0);
        let state = Arc::new(State { gateway, host: name(config), terms, nodes, changes });
        let [followed, measured, answered] = [(); 3].map(|()| Arc::clone(&state));
        let following = tokio::spawn(async move { followed.follow().await });
        let measuring = tokio::spawn(async move { measured.measure().await });
        let answering = tokio::spawn(async move { answered.answer().await });
        Ok(Arc::new(Members { state, tasks: [following, measuring, answering] }))
    }
}

impl Drop for Members {
    fn drop(&mut self) {
        self.tasks.iter().for_each(|task| task.abort());
    }
}

impl Nodes for Members {
    fn open(&self, place: Replica, last: Generation) -> BoxFuture<'static, NodeLink> {
        let state = Arc::clone(&self.state);
        Box::pin(async move { state.open(place, last).await })
    }

    fn list(&self) -> Vec<NodeStatus> {
        self.state.nodes().list()
    }

    fn gateway(&self) -> String {
        self.state.gateway.name().to_owned()
    }

    fn drain(&self, node: String, force: bool, undo: bool) -> BoxFuture<'static, Result<Vec<NodeStatus>, DrainError>> {
        let state = Arc::clone(&self.state);
        Box::pin(async move { state.drain(&node, force, undo).await })
    }
}

impl State {
    /// Writes down who comes and goes.
    async fn follow(&self) {
        loop {
            match self.gateway.changed().await {
                Change::Joined(id, offer) => match decoded::<Offer>(&offer).filter(Offer::is_sane) {
                    Some(offer) => {
                        let name = offer.name.clone();
                        match self.nodes().joined(id, offer, self.nodes.now()) {
                            None => tracing::info!(node = name, "a node has joined"),
                            Some(reason) => tracing::warn!(node = name, reason, "a node has joined and is not used"),
                        }
                    }
                    None => {
                        tracing::warn!(node = id, "a node has joined that speaks another protocol, and is not used");
                    }
                },
                Change::Left(id) => {
                    if let Some(name) = self.nodes().left(&id) {
                        tracing::info!(node = name, "a node is gone");
                    }
                }
            }
            self.changed();
        }
    }

    async fn open(self: Arc<State>, place: Replica, last: Generation) -> NodeLink {
        let stage = place.stage;
        loop {
            // First the changes are watched, then the nodes are looked at: none is missed.
            let mut changes = self.changes.subscribe();
            let now = self.nodes.now();
            let found = self.nodes().take(stage, place.number, now);
            let Some(ticket) = found else {
                // From the same moment on: a bar that ends between the two would be missed.
                let look = self.nodes().next_look(stage, now);
                let pause = async {
                    match look {
                        Some(at) => tokio::time::sleep(at.saturating_sub(self.nodes.now())).await,
                        None => std::future::pending().await,
                    }
                };
                tokio::select! {
                    _ = changes.changed() => {}
                    () = pause => {}
                }
                continue;
            };
            // From here on the place is given back, wherever this ends.
            let mut seat = Seat { state: Arc::clone(&self), ticket, line: None };
            match self.ask(&seat.ticket, place, last).await {
                Ok(duplex) => {
                    if !self.nodes().linked(&seat.ticket) {
                        let node = &seat.ticket.node;
                        tracing::debug!(node, %stage, "a node has opened a link, and was gone in between");
                        continue;
                    }
                    // The node is there for the other stages too.
                    self.changed();
                    seat.line = Some(duplex.line);
                    let (down, up) = (Sink::Queue(duplex.send), Source::Queue(duplex.receive));
                    let (node, slots) = (seat.ticket.node.clone(), seat.ticket.slots);
                    return NodeLink { node, slots, down, up, seat: Box::new(seat) };
                }
                Err(reason) => {
                    tracing::debug!(node = seat.ticket.node, %stage, reason, "a node opens no link");
                    self.nodes().refused(&seat.ticket, reason, self.nodes.now());
                }
            }
        }
    }

    async fn ask(&self, ticket: &Ticket, place: Replica, last: Generation) -> Result<omni_cluster::Duplex, String> {
        let Replica { stage, number: replica } = place;
        let ask = Ask { terms: self.terms.clone(), stage, replica, last, beside: ticket.beside };
        let ask = encoded(&ask).map_err(|error| error.to_string())?;
        self.gateway.open(&ticket.id, ask).await.map_err(|error| error.to_string())
    }

    fn changed(&self) {
        self.changes.send_modify(|changes| *changes += 1);
    }

    fn nodes(&self) -> MutexGuard<'_, nodes::Nodes> {
        self.nodes.lock()
    }

    /// Measures the way to each node, again and again.
    async fn measure(&self) {
        loop {
            let ids: Vec<_> = self.nodes().list().into_iter().map(|node| node.id).collect();
            let measured = futures::future::join_all(ids.iter().map(|id| self.gateway.round_trip(id))).await;
            for (id, round_trip) in ids.iter().zip(measured) {
                self.nodes().measured(id, round_trip);
            }
            tokio::time::sleep(MEASURE).await;
        }
    }

    /// Answers nodes that ask whether they may leave.
    async fn answer(&self) {
        let mut asking = FuturesUnordered::new();
        loop {
            tokio::select! {
                asked = self.gateway.asked() => match asking.len() {
                    MOST_ASKING.. => asked.refuse("it is asked for too much at once"),
                    _ => asking.push(async move {
                        match self.spares(decoded(&asked.request())).await {
                            Ok(()) => asked.confirm(),
                            Err(reason) => asked.refuse(&reason),
                        }
                    }),
                },
                Some(()) = asking.next() => {}
            }
        }
    }

    /// Whether nodes may leave, as far as this gateway is concerned.
    async fn spares(&self, asked: Option<Leave>) -> Result<(), String> {
        let leaving = match asked.ok_or_else(|| format!("the gateway on {} speaks another protocol", self.host))? {
            Leave::May(nodes) | Leave::Stay(nodes) if nodes.len() > MOST_LEAVE => {
                return Err(format!("{} nodes are too many for one question", nodes.len()));
            }
            Leave::May(leaving) => leaving,
            Leave::Stay(nodes) => {
                self.nodes().stay(&nodes);
                return Ok(());
            }
        };
        let by = tokio::time::Instant::now() + ALL_KEEP;
        loop {
            let spared = self.nodes().spare(&leaving, self.nodes.now());
            let Err(stage) = spared else { return Ok(()) };
            if !tokio::time::timeout_at(by, self.gets_a_home(stage, &leaving)).await.unwrap_or(false) {
                return Err(format!(
                    "the gateway on {} has no other node for the {stage}: start one first; with force (--force) its \
                     streams wait until one joins",
                    self.host
                ));
            }
        }
    }

    /// Has a node that this gateway does not use keep a share, for a stage whose nodes leave. Whether one does.
    async fn gets_a_home(&self, stage: StageName, leaving: &[NodeId]) -> bool {
        let homes = self.nodes().homes(stage, leaving, self.nodes.now());
        for home in homes {
            let now = self.nodes.now();
            match self.gateway.keep(&home, KEEPS).await {
                Ok(()) => {
                    self.nodes().kept(&home, now);
                    self.changed();
                    return true;
                }
                Err(reason) => tracing::debug!(node = home, %reason, "a node keeps no share"),
            }
        }
        false
    }

    /// Has all nodes of this name, or the one of this id, leave or come back. What they had is elsewhere when this returns.
    async fn drain(&self, node: &str, force: bool, undo: bool) -> Result<Vec<NodeStatus>, DrainError> {
        let ids = self.nodes().meant(node);
        if ids.is_empty() {
            let names: BTreeSet<_> = self.nodes().list().into_iter().map(|node| node.name).collect();
            return Err(DrainError::Unknown(node.to_owned(), names.into_iter().collect()));
        }
        let order = encoded(&DrainOrder { undo, force, with: ids.clone() });
        let order = order.map_err(|error| DrainError::Refused(error.to_string()))?;
        for (done, id) in ids.iter().enumerate() {
            if let Err(error) = self.gateway.drain(id, order.clone()).await {
                let others = match done {
                    0 => String::new(),
                    done => format!(" ({done} of {} nodes of this name have done it)", ids.len()),
                };
                return Err(DrainError::Refused(format!("the node {node} ({id}): {error}{others}")));
            }
        }
        // Its last words are on their way.
        let mut changes = self.changes.subscribe();
        let gone = async {
            while !undo && self.nodes().uses(&ids) {
                let _ = changes.changed().await;
            }
        };
        let _ = tokio::time::timeout(GONE, gone).await;
        Ok(self.nodes().list().into_iter().filter(|node| ids.contains(&node.id)).collect())
    }
}

/// A stage of a node that a replica uses.
struct Seat {
    state: Arc<State>,
    ticket: Ticket,
    line: Option<Line>,
}

impl NodeSeat for Seat {
    fn reason(&self) -> Option<String> {
        self.line.as_ref().and_then(Line::reason)
    }

    fn leaves(&self) -> bool {
        self.reason().is_some_and(|reason| leaves(&reason))
    }

    fn bar(&self, reason: String) {
        self.state.nodes().bar(&self.ticket, reason, None);
    }

    fn runs(&self, running: bool) {
        self.state.nodes().running(&self.ticket, running);
    }
}

impl Drop for Seat {
    fn drop(&mut self) {
        self.state.nodes().release(&self.ticket);
        self.state.changed();
    }
}
