//! Which nodes a gateway may use for its stages: those that speak its protocol, have its checkpoint, and compute as the
//! others of the stage do.
//!
//! A sequence goes on in another replica from its journal, so all replicas of a stage have to make the same numbers of
//! the same input. The checkpoint and the protocol are the gateway's. How a stage computes is settled by the first node
//! that it gets, for as long as the gateway runs: a CPU and a GPU add in different orders.
//!
//! Gateways do not know of each other, and a node that several use has a batch for each of them. So each gateway asks
//! nodes in an order of its own, and first for one that no other uses. A node that it has for one stage is its own for the
//! others too, so it takes no further node for a stage while those that it has could run it and are as many as it may have:
//! each of its stages on nodes of their own would leave other gateways without.

mod leave;
mod protocol;
mod shares;
pub mod simulation;

pub use protocol::{Ask, DrainError, DrainOrder, Leave, Offer, PROTOCOL, Terms};
pub use shares::{KEPT, Shares};

use crate::ids::StageName;
use crate::random::mix;
use std::collections::BTreeMap;
use std::time::Duration;

/// When a node that is full is asked again; twice as long after each further time.
const AGAIN: Duration = Duration::from_millis(200);
/// And at most so long: a gateway that looks for a node then asks 160 of a thousand full ones a second.
const AGAIN_AT_MOST: Duration = Duration::from_millis(6400);

/// A node that has joined, as this session of it is known.
pub type NodeId = String;

/// Why a node is not used for a stage.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Bar {
    reason: String,
    /// When it is asked again; `None`: not before it joins anew.
    until: Option<Duration>,
}

impl Bar {
    fn holds(&self, now: Duration) -> bool {
        self.until.is_none_or(|until| until > now)
    }
}

/// A replica that has a node, or asks it.
#[derive(Clone, Debug)]
struct Use {
    /// Of the ticket.
    number: u64,
    replica: u8,
    /// Whether the node has opened a link.
    linked: bool,
    /// Whether the stage takes sequences.
    running: bool,
}

#[derive(Clone, Debug)]
struct Member {
    offer: Offer,
    joined: Duration,
    used: [Option<Use>; StageName::ALL.len()],
    /// Why it is not used; a bar whose time is over stays until the node has opened a link.
    bars: [Option<Bar>; StageName::ALL.len()],
    /// Until when it counts as one that is about to leave.
    leaving: Option<Duration>,
    /// Until when it keeps a share for this gateway.
    kept: Option<Duration>,
    round_trip: Option<Duration>,
    /// How often in a row it has refused each stage.
    refusals: [u32; StageName::ALL.len()],
    /// Its place in the order of this gateway.
    rank: u64,
}

impl Member {
    fn new(offer: Offer, rank: u64, joined: Duration, bar: Option<Bar>) -> Member {
        let (bars, refusals) = (std::array::from_fn(|_| bar.clone()), Default::default());
        let (used, leaving, kept, round_trip) = Default::default();
        Member { offer, joined, used, bars, leaving, kept, round_trip, refusals, rank }
    }

    /// With how many others this gateway shares it at most: none at first, then twice as many and one.
    fn beside(&self, stage: StageName) -> usize {
        let doubled = 1usize.checked_shl(self.refusals[stage as usize]).unwrap_or(usize::MAX) - 1;
        doubled.min(self.offer.gateways.saturating_sub(1))
    }

    fn is_linked(&self, at: usize) -> bool {
        self.used[at].as_ref().is_some_and(|its| its.linked)
    }

    /// Whether a replica has it, or asks it.
    fn is_taken(&self) -> bool {
        self.used.iter().any(Option::is_some)
    }

    fn keeps_a_share(&self, now: Duration) -> bool {
        self.kept.is_some_and(|until| until > now)
    }

    /// Whether a replica is on it.
    fn is_used(&self) -> bool {
        self.used.iter().flatten().any(|its| its.linked)
    }

    /// Whether this gateway has a share of it, which is good for all of its stages.
    fn has_a_share(&self, now: Duration) -> bool {
        self.is_used() || self.keeps_a_share(now)
    }

    /// Whether it runs a stage, and nothing is against it that lasts.
    fn could_run(&self, stage: StageName) -> bool {
        let at_times = self.bars[stage as usize].as_ref().is_none_or(|bar| bar.until.is_some());
        self.offer.stages.contains(&stage) && at_times
    }
}

/// A node, as its gateway lists it.
#[derive(Clone, Debug, PartialEq, Eq, serde::Serialize)]
pub struct NodeStatus {
    /// This session of it.
    pub id: NodeId,
    /// For people.
    pub name: String,
    /// Its machine, as that calls itself.
    pub host: String,
    /// Its process there.
    pub pid: u32,
    /// The version of its program.
    pub version: String,
    /// See [`Offer::arithmetic`].
    pub arithmetic: String,
    /// See [`Offer::slots`].
    pub slots: u32,
    /// When it joined, since the moment that all times of [`Nodes`] count from.
    pub joined: Duration,
    /// How long a question to it and its answer took last, where that is known.
    pub round_trip: Option<Duration>,
    /// The stages that it offers.
    pub stages: Vec<OfferedStage>,
}

/// A stage that a node offers.
#[derive(Clone, Debug, PartialEq, Eq, serde::Serialize)]
pub struct OfferedStage {
    /// Which.
    pub name: StageName,
    /// Which replica of the gateway is there.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub replica: Option<u8>,
    /// Whether one is.
    pub used: bool,
    /// Why it is not used, where something is against it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
}

/// The right to use a stage of a node. One of a node that has left since, and may have joined anew, is worth nothing.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Ticket {
    /// Of which session.
    pub id: NodeId,
    /// Its name for people.
    pub node: String,
    /// Which stage.
    pub stage: StageName,
    /// See [`Ask::beside`].
    pub beside: usize,
    /// See [`Offer::slots`].
    pub slots: u32,
    number: u64,
}

/// The nodes of one gateway. Times are since any fixed moment.
#[derive(Clone, Debug)]
pub struct Nodes {
    /// A number that its name makes.
    gateway: u64,
    terms: Terms,
    /// Of the nodes that could run a stage, how many it has at the same time at most.
    most: usize,
    members: BTreeMap<NodeId, Member>,
    arithmetic: [Option<String>; StageName::ALL.len()],
    tickets: u64,
}

impl Nodes {
    /// Of a gateway with these terms that has at most so many, before any has joined.
    pub fn new(terms: Terms, most: usize) -> Nodes {
        Nodes { gateway: 0, terms, most, members: BTreeMap::new(), arithmetic: Default::default(), tickets: 0 }
    }

    /// The same, with the order in which the gateway of this name asks. Before any node has joined.
    #[must_use]
    pub fn in_order_of(self, gateway: &str) -> Nodes {
        Nodes { gateway: hash(0, gateway), ..self }
    }

    /// A node has joined. The reason if it is of no use.
    pub fn joined(&mut self, id: NodeId, offer: Offer, now: Duration) -> Option<String> {
        let reason = self.terms.differ(&offer.terms);
        let bar = reason.clone().map(|reason| Bar { reason, until: None });
        let rank = hash(self.gateway, &id);
        self.members.insert(id, Member::new(offer, rank, now, bar));
        reason
    }

    /// A node is gone. What it was called.
    pub fn left(&mut self, id: &str) -> Option<String> {
        self.members.remove(id).map(|member| member.offer.name)
    }

    /// A node for one more replica of a stage: of those that may be used and are not used for it yet, one that has
    /// refused least often, then one that keeps a share, then one that is used for the fewest stages, then the first in
    /// this gateway's order. A gateway that has or asks as many as it may have, of those that could run the stage, gets
    /// one that it has.
    pub fn take(&mut self, stage: StageName, replica: u8, now: Duration) -> Option<Ticket> {
        let at = stage as usize;
        for member in self.members.values_mut() {
            let others = self.arithmetic[at].as_ref().filter(|others| **others != member.offer.arithmetic);
            let open = member.bars[at].as_ref().is_none_or(|bar| !bar.holds(now));
            if let (true, Some(others)) = (open, others) {
                let reason = format!("it computes in {}, the {stage}s here in {others}", member.offer.arithmetic);
                member.bars[at] = Some(Bar { reason, until: None });
            }
        }
        let is_free = |member: &Member| {
            let open = member.bars[at].as_ref().is_none_or(|bar| !bar.holds(now));
            member.offer.stages.contains(&stage) && member.used[at].is_none() && open
        };
        let taken = self.members.values().filter(|member| member.is_taken() && member.could_run(stage)).count();
        let may_be_new = taken < self.most;
        let free = self.members.iter_mut().filter(|(_, its)| is_free(its) && (may_be_new || its.has_a_share(now)));
        let (id, member) = free.min_by_key(|(_, its)| {
            (its.refusals[at], !its.keeps_a_share(now), its.used.iter().flatten().count(), its.rank)
        })?;
        self.tickets += 1;
        member.used[at] = Some(Use { number: self.tickets, replica, linked: false, running: false });
        let (node, beside, slots) = (member.offer.name.clone(), member.beside(stage), member.offer.slots);
        Some(Ticket { id: id.clone(), node, stage, beside, slots, number: self.tickets })
    }

    /// The node has opened a link: those that follow have to compute as it does. Whether the link may be used; if not, the
    /// node was gone in between, and what it is used for was counted anew.
    #[must_use]
    pub fn linked(&mut self, ticket: &Ticket) -> bool {
        let at = ticket.stage as usize;
        let Some(member) = self.of(ticket) else { return false };
        (member.bars[at], member.refusals[at], member.kept) = (None, 0, None);
        if let Some(its) = &mut member.used[at] {
            its.linked = true;
        }
        let arithmetic = member.offer.arithmetic.clone();
        self.arithmetic[at].get_or_insert(arithmetic);
        true
    }

    /// Whether the stage takes sequences there.
    pub fn running(&mut self, ticket: &Ticket, running: bool) {
        if let Some(its) = self.of(ticket).and_then(|member| member.used[ticket.stage as usize].as_mut()) {
            its.running = running;
        }
    }

    /// The node is free again.
    pub fn release(&mut self, ticket: &Ticket) {
        if let Some(member) = self.of(ticket) {
            member.used[ticket.stage as usize] = None;
        }
    }

    /// The node is not to be used for the stage, for a while or until it joins anew.
    pub fn bar(&mut self, ticket: &Ticket, reason: String, until: Option<Duration>) {
        if let Some(member) = self.of(ticket) {
            member.bars[ticket.stage as usize] = Some(Bar { reason, until });
        }
    }

    /// The node has refused, or said nothing. It comes behind those that have refused less often, and one that is full
    /// is left alone for a while.
    pub fn refused(&mut self, ticket: &Ticket, reason: String, now: Duration) {
        let Some(member) = self.of(ticket) else { return };
        let (at, others) = (ticket.stage as usize, member.offer.gateways.saturating_sub(1));
        if ticket.beside >= others {
            // The first questions were not whether it has any share left.
            let times = member.refusals[at].saturating_sub(usize::BITS - others.leading_zeros()).min(8);
            let until = Some(now + (AGAIN * 2u32.pow(times)).min(AGAIN_AT_MOST));
            member.bars[at] = Some(Bar { reason, until });
        }
        member.refusals[at] = member.refusals[at].saturating_add(1);
    }

    /// The node of a ticket that is worth something.
    fn of(&mut self, ticket: &Ticket) -> Option<&mut Member> {
        let member = self.members.get_mut(&ticket.id)?;
        let its = member.used[ticket.stage as usize].as_ref()?;
        (its.number == ticket.number).then_some(member)
    }

    /// When a bar against a node for this stage ends next, where [`Self::take`] had none at this time. One whose time is
    /// over is against a node that may not be taken because there are enough: that changes when one of these is free.
    pub fn next_look(&self, stage: StageName, now: Duration) -> Option<Duration> {
        let at = stage as usize;
        let unused = self.members.values().filter(|member| member.used[at].is_none());
        unused.filter_map(|member| member.bars[at].as_ref()?.until).filter(|until| *until > now).min()
    }

    /// A question to a node and its answer took so long; `None`: it did not answer.
    pub fn measured(&mut self, id: &str, round_trip: Option<Duration>) {
        if let Some(member) = self.members.get_mut(id) {
            member.round_trip = round_trip;
        }
    }

    /// All that have joined.
    pub fn list(&self) -> Vec<NodeStatus> {
        let status = |(id, member): (&NodeId, &Member)| {
            let stage = |stage: &StageName| {
                let at = *stage as usize;
                let used = member.used[at].as_ref().filter(|its| its.linked);
                let reason = member.bars[at].as_ref().map(|bar| bar.reason.clone());
                OfferedStage { name: *stage, replica: used.map(|its| its.replica), used: used.is_some(), reason }
            };
            let Offer { name, host, pid, terms, arithmetic, stages, slots, .. } = member.offer.clone();
            NodeStatus {
                id: id.clone(),
                name,
                host,
                pid,
                version: terms.program,
                arithmetic,
                slots,
                joined: member.joined,
                round_trip: member.round_trip,
                stages: stages.iter().map(stage).collect(),
            }
        };
        self.members.iter().map(status).collect()
    }
}

/// A hash that is the same in every process.
fn hash(state: u64, text: &str) -> u64 {
    text.bytes().fold(state, |state, byte| mix(state, byte.into()))
}

#[cfg(test)]
#[path = "nodes_tests.rs"]
mod tests;

#[cfg(test)]
#[path = "nodes_order_tests.rs"]
mod order_tests;
