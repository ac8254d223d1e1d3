//! The cluster as one gateway sees it, and what takes a node out of service.

use super::service::{Admission, Stage, State};
use omni_core::nodes::{NodeStatus, OfferedStage};
use omni_engine::EngineHealth;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// `GET /cluster`.
#[derive(Serialize, JsonSchema)]
pub(crate) struct Cluster<'a> {
    /// This session of the gateway, as nodes know it.
    pub gateway: &'a str,
    pub version: &'static str,
    /// Unix seconds.
    pub started: u64,
    /// A request would be taken now.
    pub ready: bool,
    /// A shutdown has begun.
    pub draining: bool,
    /// Requests in flight.
    pub requests: usize,
    /// How many there may be: `limits.max_requests`.
    pub max_requests: usize,
    pub admission: Admission,
    /// Those that have joined, by id.
    pub nodes: Vec<ClusterNode<'a>>,
    /// Replicas, on nodes and in this process, upstream first.
    pub stages: Vec<Stage<'a>>,
}

/// A node that has joined.
#[derive(Serialize, JsonSchema)]
pub(crate) struct ClusterNode<'a> {
    /// `cluster.name` of its config.
    pub name: &'a str,
    /// This session of it.
    pub id: &'a str,
    /// Its machine, as that calls itself.
    pub host: &'a str,
    /// Its process there.
    pub pid: u32,
    pub version: &'a str,
    /// How it computes: all replicas of a stage compute alike.
    pub arithmetic: &'a str,
    /// Sequences of one gateway that have a slot in each stage at the same time.
    pub slots: u32,
    /// Unix seconds.
    pub joined: u64,
    /// Seconds of a question to it and its answer, measured every two seconds.
    pub round_trip_s: Option<f64>,
    /// The stages that it offers.
    pub stages: Vec<NodeStage<'a>>,
}

/// A stage that a node offers.
#[derive(Serialize, JsonSchema)]
pub(crate) struct NodeStage<'a> {
    pub name: &'static str,
    /// Whether a replica of this gateway is there.
    pub used: bool,
    /// Why not, where something is against it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub reason: Option<&'a str>,
    /// Which replica is there.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub replica: Option<u8>,
    /// Its state.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub state: Option<State>,
    /// How often that replica was started, on whichever node.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub generation: Option<u32>,
    /// How often it was started again after a failure.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub restarts: Option<u32>,
    /// Its sequences that have a slot.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub sequences: Option<usize>,
}

impl<'a> ClusterNode<'a> {
    /// A node, with the replicas that are on it.
    pub fn of(node: &'a NodeStatus, health: &'a EngineHealth) -> ClusterNode<'a> {
        let NodeStatus { id, name, host, pid, version, arithmetic, slots, joined, round_trip, stages } = node;
        ClusterNode {
            name,
            id,
            host,
            pid: *pid,
            version,
            arithmetic,
            slots: *slots,
            joined: joined.as_secs(),
            round_trip_s: round_trip.map(|taken| (taken.as_secs_f64() * 1e6).round() / 1e6),
            stages: stages.iter().map(|stage| NodeStage::of(stage, health)).collect(),
        }
    }
}

impl<'a> NodeStage<'a> {
    fn of(offered: &'a OfferedStage, health: &'a EngineHealth) -> NodeStage<'a> {
        let OfferedStage { name, replica, used, reason } = offered;
        let its = replica.and_then(|replica| {
            let is_it =
                |stage: &&omni_engine::StageHealth| stage.name == *name && stage.replica == Some(usize::from(replica));
            health.stages.iter().find(is_it)
        });
        NodeStage {
            name: name.as_str(),
            used: *used,
            reason: reason.as_deref(),
            replica: *replica,
            state: its.map(|replica| replica.state.into()),
            generation: its.map(|replica| replica.generation),
            restarts: its.map(|replica| replica.restarts),
            sequences: its.map(|replica| replica.sequences),
        }
    }
}

/// `POST /cluster/drain`.
#[derive(Debug, Deserialize, JsonSchema)]
pub(crate) struct DrainNode {
    /// Its name, which means all nodes of that name, or the id of one.
    #[schemars(required)]
    pub node: Option<String>,
    /// Whether it leaves although a gateway has no other node for one of its stages; false by default.
    pub force: Option<bool>,
    /// Whether it is put back into service; false by default.
    pub undo: Option<bool>,
}

/// The nodes that have left, or come back, as this gateway sees them now.
#[derive(Serialize, JsonSchema)]
pub(crate) struct DrainedNodes<'a> {
    pub nodes: Vec<ClusterNode<'a>>,
}
