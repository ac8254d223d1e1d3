//! Which nodes a gateway may use for its stages: those that speak its protocol, have its checkpoint, and compute as the
//! others of the stage do.
//!
//! A sequence goes on in another replica from its journal, so all replicas of a stage have to make the same numbers of
//! the same input. The checkpoint and the protocol are the gateway's. How a stage computes is settled by the first node
//! that it gets, for as long as the gateway runs: a CPU and a GPU add in different orders.

use crate::ids::{Generation, StageName};
use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

/// What gateways and nodes say to each other changes with this number and with the version of the program.
pub const PROTOCOL: u32 = 1;

/// A node that has joined, as this session of it is known.
pub type NodeId = String;

/// What two programs have to have in common.
#[derive(Clone, Debug, PartialEq, Eq, bincode::Encode, bincode::Decode)]
pub struct Terms {
    /// [`PROTOCOL`].
    pub protocol: u32,
    /// Of the program, whose messages have no version of their own.
    pub program: String,
    /// The fingerprint of the checkpoint.
    pub checkpoint: [u8; 32],
}

impl Terms {
    /// Why a node with these terms cannot work for a gateway with `self`, if it cannot.
    pub fn differ(&self, node: &Terms) -> Option<String> {
        let short = |print: &[u8; 32]| print[..6].iter().map(|byte| format!("{byte:02x}")).collect::<String>();
        if (self.protocol, &self.program) != (node.protocol, &node.program) {
            let said = |terms: &Terms| format!("{} (protocol {})", terms.program, terms.protocol);
            return Some(format!("it runs version {}, the gateway {}", said(node), said(self)));
        }
        (self.checkpoint != node.checkpoint).then(|| {
            let (its, own) = (short(&node.checkpoint), short(&self.checkpoint));
            format!("its checkpoint has fingerprint {its}, the gateway's {own}")
        })
    }
}

/// What a node offers.
#[derive(Clone, Debug, PartialEq, Eq, bincode::Encode, bincode::Decode)]
pub struct Offer {
    /// For people.
    pub name: String,
    /// See there.
    pub terms: Terms,
    /// What decides the order of its additions, such as `cpu f32`.
    pub arithmetic: String,
    /// The stages that it runs.
    pub stages: Vec<StageName>,
}

/// What a gateway asks a node for.
#[derive(Clone, Debug, PartialEq, Eq, bincode::Encode, bincode::Decode)]
pub struct Ask {
    /// The gateway's.
    pub terms: Terms,
    /// Which stage.
    pub stage: StageName,
    /// The number that the gateway gives this replica of it.
    pub replica: u8,
    /// The last generation of that replica.
    pub last: Generation,
}

/// Why a node is not used for a stage.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Bar {
    reason: String,
    /// When it is asked again; `None`: not before it joins anew.
    until: Option<Duration>,
}

#[derive(Clone, Debug)]
struct Member {
    offer: Offer,
    /// By which replica's ticket.
    used: [Option<u64>; StageName::ALL.len()],
    bars: [Option<Bar>; StageName::ALL.len()],
}

/// A node, as its gateway lists it.
#[derive(Clone, Debug, PartialEq, Eq, serde::Serialize)]
pub struct NodeStatus {
    /// This session of it.
    pub id: NodeId,
    /// For people.
    pub name: String,
    /// The stages that it offers.
    pub stages: Vec<OfferedStage>,
}

/// A stage that a node offers.
#[derive(Clone, Debug, PartialEq, Eq, serde::Serialize)]
pub struct OfferedStage {
    /// Which.
    pub name: StageName,
    /// Whether a replica of the gateway is there.
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
    number: u64,
}

/// The nodes of one gateway. Times are since any fixed moment.
#[derive(Clone, Debug)]
pub struct Nodes {
    terms: Terms,
    members: BTreeMap<NodeId, Member>,
    arithmetic: [Option<String>; StageName::ALL.len()],
    tickets: u64,
}

impl Nodes {
    /// Of a gateway with these terms, before any has joined.
    pub fn new(terms: Terms) -> Nodes {
        Nodes { terms, members: BTreeMap::new(), arithmetic: Default::default(), tickets: 0 }
    }

    /// A node has joined. The reason if it is of no use.
    pub fn joined(&mut self, id: NodeId, offer: Offer) -> Option<String> {
        let reason = self.terms.differ(&offer.terms);
        let bar = reason.clone().map(|reason| Bar { reason, until: None });
        self.members.insert(id, Member { offer, used: Default::default(), bars: std::array::from_fn(|_| bar.clone()) });
        reason
    }

    /// A node is gone. What it was called.
    pub fn left(&mut self, id: &str) -> Option<String> {
        self.members.remove(id).map(|member| member.offer.name)
    }

    /// A node for one more replica of a stage: of those that may be used and are not used for it yet, one that is used
    /// for the fewest stages.
    pub fn take(&mut self, stage: StageName, now: Duration) -> Option<Ticket> {
        let at = stage as usize;
        for member in self.members.values_mut() {
            member.bars[at].take_if(|bar| bar.until.is_some_and(|until| until <= now));
            let others = self.arithmetic[at].as_ref().filter(|others| **others != member.offer.arithmetic);
            if let (None, Some(others)) = (&member.bars[at], others) {
                let reason = format!("it computes in {}, the {stage}s here in {others}", member.offer.arithmetic);
                member.bars[at] = Some(Bar { reason, until: None });
            }
        }
        let is_free = |member: &Member| {
            member.offer.stages.contains(&stage) && member.used[at].is_none() && member.bars[at].is_none()
        };
        let free = self.members.iter_mut().filter(|(_, member)| is_free(member));
        let (id, member) = free.min_by_key(|(_, member)| member.used.iter().flatten().count())?;
        self.tickets += 1;
        member.used[at] = Some(self.tickets);
        Some(Ticket { id: id.clone(), node: member.offer.name.clone(), stage, number: self.tickets })
    }

    /// The node runs the stage: those that follow have to compute as it does.
    pub fn runs(&mut self, ticket: &Ticket) {
        if let Some(member) = self.members.get(&ticket.id) {
            self.arithmetic[ticket.stage as usize].get_or_insert_with(|| member.offer.arithmetic.clone());
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

    /// The node of a ticket that is worth something.
    fn of(&mut self, ticket: &Ticket) -> Option<&mut Member> {
        self.members.get_mut(&ticket.id).filter(|member| member.used[ticket.stage as usize] == Some(ticket.number))
    }

    /// When a bar against a node for this stage ends next.
    pub fn next_look(&self, stage: StageName) -> Option<Duration> {
        self.members.values().filter_map(|member| member.bars[stage as usize].as_ref()?.until).min()
    }

    /// All that have joined.
    pub fn list(&self) -> Vec<NodeStatus> {
        let status = |(id, member): (&NodeId, &Member)| {
            let stage = |stage: &StageName| {
                let (used, bar) = (member.used[*stage as usize].is_some(), &member.bars[*stage as usize]);
                OfferedStage { name: *stage, used, reason: bar.as_ref().map(|bar| bar.reason.clone()) }
            };
            let stages = member.offer.stages.iter().map(stage).collect();
            NodeStatus { id: id.clone(), name: member.offer.name.clone(), stages }
        };
        self.members.iter().map(status).collect()
    }
}

/// The shares of one node: which gateways use which of its stages. A gateway has one share, whatever it uses.
#[derive(Clone, Debug)]
pub struct Shares {
    most: usize,
    used: BTreeMap<String, BTreeSet<StageName>>,
}

impl Shares {
    /// For so many gateways at the same time.
    pub fn new(most: usize) -> Shares {
        Shares { most, used: BTreeMap::new() }
    }

    /// Gives a gateway a stage.
    ///
    /// # Errors
    /// Why not, for the gateway's list of nodes.
    pub fn grant(&mut self, gateway: &str, stage: StageName) -> Result<(), String> {
        if !self.used.contains_key(gateway) && self.used.len() >= self.most {
            return Err(format!("no share is left: cluster.gateways is {} there, and so many use it", self.most));
        }
        let new = self.used.entry(gateway.to_owned()).or_default().insert(stage);
        // The gateway has seen a link end, and this side has not yet.
        new.then_some(()).ok_or_else(|| format!("it still has an earlier link for the {stage}"))
    }

    /// A gateway uses a stage no more.
    pub fn give_back(&mut self, gateway: &str, stage: StageName) {
        if let Some(used) = self.used.get_mut(gateway) {
            used.remove(&stage);
            if used.is_empty() {
                self.used.remove(gateway);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const NOW: Duration = Duration::from_secs(1);
    const LATER: Duration = Duration::from_secs(2);

    fn terms(checkpoint: u8) -> Terms {
        Terms { protocol: PROTOCOL, program: "1.2.3".into(), checkpoint: [checkpoint; 32] }
    }

    fn offer(arithmetic: &str) -> Offer {
        let stages = vec![StageName::Talker, StageName::Vocoder];
        Offer { name: "one".into(), terms: terms(7), arithmetic: arithmetic.into(), stages }
    }

    fn taken(nodes: &mut Nodes, stage: StageName) -> Option<String> {
        nodes.take(stage, NOW).map(|ticket| ticket.id)
    }

    #[test]
    fn a_node_that_differs_is_listed_with_the_reason_and_never_used() {
        let mut nodes = Nodes::new(terms(7));
        let other = Offer { terms: terms(8), ..offer("cpu") };
        let reason = nodes.joined("a".into(), other).unwrap();
        assert_eq!(reason, "its checkpoint has fingerprint 080808080808, the gateway's 070707070707");
        let newer = Offer { terms: Terms { protocol: 2, ..terms(7) }, ..offer("cpu") };
        let told = nodes.joined("b".into(), newer).unwrap();
        assert_eq!(told, "it runs version 1.2.3 (protocol 2), the gateway 1.2.3 (protocol 1)");
        assert_eq!(taken(&mut nodes, StageName::Talker), None);
        let listed = OfferedStage { name: StageName::Talker, used: false, reason: Some(reason) };
        assert_eq!(nodes.list()[0].stages[0], listed);
    }

    #[test]
    fn replicas_of_a_stage_compute_as_its_first_one_did() {
        let mut nodes = Nodes::new(terms(7));
        assert_eq!(nodes.joined("a".into(), offer("cpu")), None);
        assert_eq!(nodes.joined("b".into(), offer("gpu")), None);
        let ticket = nodes.take(StageName::Talker, NOW).unwrap();
        assert_eq!(ticket.id, "a");
        nodes.runs(&ticket);
        nodes.left("a");
        assert_eq!(taken(&mut nodes, StageName::Talker), None, "what its sequences are is settled");
        let told = nodes.list()[0].stages[0].reason.clone().unwrap();
        assert_eq!(told, "it computes in gpu, the talkers here in cpu");
        assert_eq!(taken(&mut nodes, StageName::Vocoder).as_deref(), Some("b"), "the other stage has had none");
    }

    #[test]
    fn a_node_that_has_no_share_left_is_asked_again_later() {
        let mut nodes = Nodes::new(terms(7));
        nodes.joined("a".into(), offer("cpu"));
        let ticket = nodes.take(StageName::Talker, NOW).unwrap();
        nodes.bar(&ticket, "no share is left".into(), Some(LATER));
        nodes.release(&ticket);
        assert_eq!((taken(&mut nodes, StageName::Talker), nodes.next_look(StageName::Talker)), (None, Some(LATER)));
        assert!(nodes.take(StageName::Talker, LATER).is_some());
    }

    #[test]
    fn what_is_said_of_a_session_that_has_left_says_nothing_of_the_next() {
        let mut nodes = Nodes::new(terms(7));
        nodes.joined("a".into(), offer("cpu"));
        let old = nodes.take(StageName::Talker, NOW).unwrap();
        nodes.joined("a".into(), offer("cpu"));
        let new = nodes.take(StageName::Talker, NOW).unwrap();
        nodes.bar(&old, "it failed".into(), None);
        nodes.release(&old);
        assert_eq!(taken(&mut nodes, StageName::Talker), None, "it is used");
        nodes.release(&new);
        assert!(taken(&mut nodes, StageName::Talker).is_some(), "nothing is against it");
    }

    #[test]
    fn stages_spread_over_the_nodes() {
        let mut nodes = Nodes::new(terms(7));
        for id in ["a", "b"] {
            nodes.joined(id.into(), offer("cpu"));
        }
        let talker = taken(&mut nodes, StageName::Talker).unwrap();
        assert_ne!(taken(&mut nodes, StageName::Vocoder).unwrap(), talker);
    }

    #[test]
    fn a_share_is_one_gateways_whatever_it_uses() {
        let mut shares = Shares::new(1);
        assert_eq!(shares.grant("a", StageName::Talker), Ok(()));
        assert_eq!(shares.grant("a", StageName::Vocoder), Ok(()));
        let told = shares.grant("b", StageName::Talker).unwrap_err();
        assert_eq!(told, "no share is left: cluster.gateways is 1 there, and so many use it");
        assert_eq!(shares.grant("a", StageName::Talker).unwrap_err(), "it still has an earlier link for the talker");
        shares.give_back("a", StageName::Talker);
        assert!(shares.grant("b", StageName::Talker).is_err(), "it still has a vocoder");
        shares.give_back("a", StageName::Vocoder);
        assert_eq!(shares.grant("b", StageName::Talker), Ok(()));
    }

    proptest! {
        #[test]
        fn a_node_is_used_for_a_stage_once_and_only_if_it_may_be(
            moves in proptest::collection::vec((0..6u8, 0..4usize, 2..4usize, any::<bool>(), any::<bool>()), 1..200),
        ) {
            let mut nodes = Nodes::new(terms(7));
            let mut held: Vec<Ticket> = Vec::new();
            let mut settled: [Option<String>; 4] = Default::default();
            for (kind, node, stage, alike, gpu) in moves {
                let (id, stage) = (node.to_string(), StageName::ALL[stage]);
                let its = held.iter().position(|ticket| (&ticket.id, ticket.stage) == (&id, stage));
                match (kind, its) {
                    (0, _) => {
                        let offer = offer(if gpu { "gpu" } else { "cpu" });
                        let offer = Offer { terms: terms(if alike { 7 } else { 8 }), ..offer };
                        prop_assert_eq!(nodes.joined(id.clone(), offer).is_none(), alike);
                        held.retain(|ticket| ticket.id != id);
                    }
                    (1, _) => {
                        nodes.left(&id);
                        held.retain(|ticket| ticket.id != id);
                    }
                    (2 | 3, Some(its)) => {
                        let ticket = held.remove(its);
                        if kind == 3 {
                            nodes.bar(&ticket, "barred".into(), alike.then_some(LATER));
                        }
                        nodes.release(&ticket);
                    }
                    _ => if let Some(ticket) = nodes.take(stage, NOW) {
                        let member = &nodes.members[&ticket.id];
                        prop_assert!(member.bars[stage as usize].is_none() && member.offer.terms == terms(7));
                        let settled = settled[stage as usize].get_or_insert(member.offer.arithmetic.clone());
                        prop_assert_eq!(&*settled, &member.offer.arithmetic);
                        nodes.runs(&ticket);
                        let twice = held.iter().any(|other| (&other.id, other.stage) == (&ticket.id, stage));
                        prop_assert!(!twice, "it was used already");
                        held.push(ticket);
                    }
                }
            }
        }
    }
}
