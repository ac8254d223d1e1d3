//! The gateway's side: which nodes have joined, and a link to one for each replica that looks for one.

use super::terms::{decoded, encoded, settings, terms, unusable};
use crate::StartError;
use futures::future::BoxFuture;
use omni_cluster::{Change, Gateway, Line};
use omni_config::Config;
use omni_core::ids::{Generation, Replica};
use omni_core::nodes::{self, Ask, NodeId, NodeStatus, Offer, Ticket};
use omni_model::checkpoint::Checkpoint;
use omni_stage::process::{NodeLink, NodeSeat, Nodes};
use omni_transfer::link::{Sink, Source};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};
use tokio::sync::watch;

/// When a node that has refused is asked again.
const AGAIN: Duration = Duration::from_millis(200);

/// See the module. The session ends with it.
pub(super) struct Members {
    state: Arc<State>,
    following: tokio::task::JoinHandle<()>,
}

struct State {
    gateway: Gateway,
    terms: nodes::Terms,
    nodes: Mutex<nodes::Nodes>,
    /// Counts what may free a replica from its waiting.
    changes: watch::Sender<u64>,
    began: Instant,
}

impl Members {
    /// Opens the session of a config. Nodes may join from now on.
    pub async fn join(checkpoint: &Checkpoint, config: &Config) -> Result<Arc<dyn Nodes>, StartError> {
        let terms = terms(checkpoint).await?;
        let gateway = Gateway::start(&settings(&config.cluster)).await.map_err(unusable)?;
        tracing::info!(gateway = gateway.name(), "nodes can join");
        let nodes = Mutex::new(nodes::Nodes::new(terms.clone()));
        let state = Arc::new(State { gateway, terms, nodes, changes: watch::Sender::new(0), began: Instant::now() });
        let followed = Arc::clone(&state);
        let following = tokio::spawn(async move { followed.follow().await });
        Ok(Arc::new(Members { state, following }))
    }
}

impl Drop for Members {
    fn drop(&mut self) {
        self.following.abort();
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
}

impl State {
    /// Writes down who comes and goes.
    async fn follow(&self) {
        loop {
            match self.gateway.changed().await {
                Change::Joined(id, offer) => match decoded::<Offer>(&offer) {
                    Some(offer) => {
                        let name = offer.name.clone();
                        match self.nodes().joined(id, offer) {
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
            let found = self.nodes().take(stage, self.now());
            let Some(ticket) = found else {
                let look = self.nodes().next_look(stage);
                let pause = async {
                    match look {
                        Some(at) => tokio::time::sleep(at.saturating_sub(self.now())).await,
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
            match self.ask(&seat.ticket.id, place, last).await {
                Ok(duplex) => {
                    seat.line = Some(duplex.line);
                    self.nodes().runs(&seat.ticket);
                    let (down, up) = (Sink::Queue(duplex.send), Source::Queue(duplex.receive));
                    return NodeLink { node: seat.ticket.node.clone(), down, up, seat: Box::new(seat) };
                }
                Err(reason) => {
                    tracing::debug!(node = seat.ticket.node, %stage, reason, "a node opens no link");
                    let until = Some(self.now() + AGAIN);
                    self.nodes().bar(&seat.ticket, reason, until);
                }
            }
        }
    }

    async fn ask(&self, id: &NodeId, place: Replica, last: Generation) -> Result<omni_cluster::Duplex, String> {
        let Replica { stage, number: replica } = place;
        let ask =
            encoded(&Ask { terms: self.terms.clone(), stage, replica, last }).map_err(|error| error.to_string())?;
        self.gateway.open(id, ask).await.map_err(|error| error.to_string())
    }

    fn changed(&self) {
        self.changes.send_modify(|changes| *changes += 1);
    }

    fn now(&self) -> Duration {
        self.began.elapsed()
    }

    fn nodes(&self) -> MutexGuard<'_, nodes::Nodes> {
        // The lock only guards a pure state.
        self.nodes.lock().unwrap_or_else(PoisonError::into_inner)
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

    fn bar(&self, reason: String) {
        self.state.nodes().bar(&self.ticket, reason, None);
    }
}

impl Drop for Seat {
    fn drop(&mut self) {
        self.state.nodes().release(&self.ticket);
        self.state.changed();
    }
}
