//! The state of the engine, its stages and its aligner, as `/health` and `/ready` tell it.

use super::status_history::StatusHistory;
use omni_core::admission::AdmissionStatus;
use omni_core::ids::StageName;
use omni_core::nodes::NodeStatus;
use omni_stage::{StageHandle, StageState};
use serde::Serialize;

/// State of the whole engine for `/health` and `/ready`.
#[derive(Clone, Debug, Serialize)]
pub struct EngineHealth {
    /// Every stage can serve and no shutdown has begun.
    pub ready: bool,
    /// A shutdown has begun.
    pub draining: bool,
    /// Requests in flight.
    pub requests: usize,
    /// How many streams are carried, and how many could be.
    pub admission: AdmissionStatus,
    /// Upstream first.
    pub stages: Vec<StageHealth>,
    /// What nodes know this gateway by, where stages are on nodes.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub gateway: Option<String>,
    /// The nodes that have joined.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub nodes: Vec<NodeStatus>,
    /// The aligner of the config, where there is one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub aligner: Option<AlignerHealth>,
}

impl std::ops::Index<StageName> for EngineHealth {
    type Output = StageHealth;

    /// The state of a stage.
    ///
    /// # Panics
    /// When the pipeline does not have it.
    fn index(&self, name: StageName) -> &StageHealth {
        let stage = self.stages.iter().find(|stage| stage.name == name);
        stage.unwrap_or_else(|| panic!("this pipeline has no {name}"))
    }
}

/// State of the aligner of the config.
#[derive(Clone, Debug, Serialize)]
pub struct AlignerHealth {
    /// What it does.
    pub state: StageState,
    /// Restarts since the process began.
    pub restarts: u32,
    /// Why it failed last.
    pub last_reason: Option<String>,
}

/// State of one stage.
#[derive(Clone, Debug, Serialize)]
pub struct StageHealth {
    /// Which.
    pub name: StageName,
    /// Which replica of it, counted from 0, where it has several.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub replica: Option<usize>,
    /// What it does.
    pub state: StageState,
    /// Since when, in Unix seconds.
    pub since: u64,
    /// How often it was started.
    pub generation: u32,
    /// Restarts since the process began.
    pub restarts: u32,
    /// Why it was restarted last.
    pub last_reason: Option<String>,
    /// How long the last restart took, from the failure seen to serving again, in seconds.
    pub last_recovery_s: Option<f64>,
    /// Sequences that hold a slot.
    pub sequences: usize,
    /// Its process, where it has one of its own and that runs.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub pid: Option<u32>,
    /// The node that runs it, where one does.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub node: Option<String>,
}

/// Whether each stage has a replica that serves.
pub(crate) fn is_running(stages: &[StageHealth]) -> bool {
    let mut each = stages.chunk_by(|one, next| one.name == next.name);
    each.all(|replicas| replicas.iter().any(|replica| replica.state == StageState::Running))
}

pub(crate) fn stage_health(stage: &StageHandle, since: StatusHistory) -> StageHealth {
    let status = stage.status().borrow().clone();
    StageHealth {
        name: stage.name(),
        replica: stage.replica(),
        state: status.state,
        since: since.began,
        generation: status.generation.0,
        restarts: status.restarts,
        last_reason: status.last_reason,
        last_recovery_s: since.recovery.map(|recovery| (recovery.as_secs_f64() * 1000.0).round() / 1000.0),
        sequences: stage.load().sequences,
        pid: stage.pid(),
        node: stage.node(),
    }
}
