//! What gateways and nodes say to each other.

use super::NodeId;
use crate::ids::{Generation, StageName};
use std::fmt;

/// What gateways and nodes say to each other changes with this number and with the version of the program.
pub const PROTOCOL: u32 = 7;

/// Bytes of the longest text of an offer: a name of a machine has at most 64.
const LONGEST: usize = 128;

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
    /// Its machine, as that calls itself.
    pub host: String,
    /// Its process there.
    pub pid: u32,
    /// See there.
    pub terms: Terms,
    /// What decides the order of its additions, such as `cpu f32`.
    pub arithmetic: String,
    /// The stages that it runs.
    pub stages: Vec<StageName>,
    /// Sequences of one gateway that have a slot in each stage at the same time.
    pub slots: u32,
    /// Gateways that may use it at the same time.
    pub gateways: usize,
}

impl Offer {
    /// Whether its texts are as short as those of a node are.
    pub fn is_sane(&self) -> bool {
        let texts = [&self.name, &self.host, &self.arithmetic, &self.terms.program];
        let short = |text: &String| text.len() <= LONGEST && !text.contains(char::is_control);
        texts.into_iter().all(short) && self.stages.len() <= StageName::ALL.len()
    }
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
    /// With how many other gateways at most it shares the node.
    pub beside: usize,
}

/// What a gateway tells a node whose operator wants it out of service, or back in it.
#[derive(Clone, Debug, PartialEq, Eq, bincode::Encode, bincode::Decode)]
pub struct DrainOrder {
    /// Whether it is put back.
    pub undo: bool,
    /// Whether it leaves although a gateway has no other node for one of its stages.
    pub force: bool,
    /// All nodes that leave with it, itself among them.
    pub with: Vec<NodeId>,
}

/// What a node asks its gateways about nodes that are to leave.
#[derive(Clone, Debug, PartialEq, Eq, bincode::Encode, bincode::Decode)]
pub enum Leave {
    /// Whether these may leave together.
    May(Vec<NodeId>),
    /// Nothing: they stay, because another gateway said no, or have come back.
    Stay(Vec<NodeId>),
}

/// Why a node was not drained, or not put back.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum DrainError {
    /// No stage of the gateway is on nodes.
    NoCluster,
    /// No node of this name or id has joined; the names of those that have.
    Unknown(String, Vec<String>),
    /// It, or a gateway that uses it, says no.
    Refused(String),
}

impl fmt::Display for DrainError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            DrainError::NoCluster => {
                let how = "placement = \"nodes\" in its config puts one there (docs/cluster.md)";
                write!(f, "no stage of this server is on nodes: {how}")
            }
            DrainError::Unknown(node, known) if known.is_empty() => {
                write!(f, "no node {node:?} has joined this gateway, and no other")
            }
            DrainError::Unknown(node, known) => {
                write!(f, "no node {node:?} has joined this gateway, which has {}", known.join(", "))
            }
            DrainError::Refused(reason) => f.write_str(reason),
        }
    }
}

impl std::error::Error for DrainError {}
