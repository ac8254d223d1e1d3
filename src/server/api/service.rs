//! What is served and how it is: models, health, readiness, faults.

use omni_core::admission::AdmissionStatus;
use omni_core::nodes::NodeStatus;
use omni_engine::{AlignerHealth, ModelState, Service, StageHealth, StageState};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

/// `GET /v1/models`: OpenAI's list. The model that is served, then its other names.
#[derive(Serialize, JsonSchema)]
pub(crate) struct ModelList<'a> {
    /// `list`.
    pub object: &'static str,
    pub data: Vec<ModelObject<'a>>,
}

/// `GET /v1/models/{id}`: the model that is served.
#[derive(Serialize, JsonSchema)]
pub(crate) struct ModelObject<'a> {
    pub id: &'a str,
    /// `model`.
    pub object: &'static str,
    /// Unix seconds: when the server started.
    pub created: u64,
    /// `omni-actors`.
    pub owned_by: &'static str,
    /// The model that is served, where `id` is another name of it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub root: Option<&'a str>,
    /// What its chat turns may carry: `text`, and `audio`, `image` and `video` where it hears and sees.
    pub input_modalities: Vec<&'static str>,
    /// With `[[models]]`: where it is.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub state: Option<Residence>,
}

/// Where one of several models is.
#[derive(Clone, Copy, Serialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Residence {
    /// Its first request loads it.
    Unloaded,
    /// It is being loaded, or waits for memory.
    Loading,
    /// It serves.
    Loaded,
    /// It is being unloaded.
    Unloading,
    /// It did not load, or gave up; it is tried again after a pause.
    Failed,
}

/// One of several models.
#[derive(Serialize, JsonSchema)]
pub(crate) struct ModelStatus<'a> {
    pub name: &'a str,
    pub state: Residence,
    /// Why it failed.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
    /// Requests in flight.
    pub requests: usize,
}

impl<'a> ModelStatus<'a> {
    /// `None` for a model that is always there.
    pub fn of(service: &'a dyn Service) -> Option<ModelStatus<'a>> {
        let (state, reason) = match service.state()? {
            ModelState::Unloaded => (Residence::Unloaded, None),
            ModelState::Loading => (Residence::Loading, None),
            ModelState::Loaded => (Residence::Loaded, None),
            ModelState::Unloading => (Residence::Unloading, None),
            ModelState::Failed(reason) => (Residence::Failed, Some(reason)),
        };
        Some(ModelStatus { name: &service.info().id, state, reason, requests: service.health().requests })
    }
}

/// `GET /v1/audio/models`: the same as Open WebUI reads it.
#[derive(Serialize, JsonSchema)]
pub(crate) struct AudioModelList<'a> {
    pub models: Vec<Named<'a>>,
}

/// Something to choose.
#[derive(Serialize, JsonSchema)]
pub(crate) struct Named<'a> {
    /// What a request says.
    pub id: &'a str,
    /// What people see.
    pub name: std::borrow::Cow<'a, str>,
}

impl<'a> Named<'a> {
    /// Something that has one name.
    pub fn plain(id: &'a str) -> Named<'a> {
        Named { id, name: id.into() }
    }

    /// Another name, which tells people what it stands for.
    pub fn alias(id: &'a str, of: &str) -> Named<'a> {
        Named { id, name: format!("{id} ({of})").into() }
    }
}

/// What an address asks of a list, behind its `?`. Each is off unless it is `true`, `1`, `yes` or `on`.
#[derive(Debug, Default, Deserialize)]
pub(crate) struct ListQuery {
    legacy: Option<String>,
    aliases: Option<String>,
}

impl ListQuery {
    /// Names instead of objects.
    pub fn legacy(&self) -> bool {
        is_on(self.legacy.as_deref())
    }

    /// OpenAI's names too.
    pub fn aliases(&self) -> bool {
        is_on(self.aliases.as_deref())
    }
}

fn is_on(text: Option<&str>) -> bool {
    text.is_some_and(|text| ["true", "1", "yes", "on"].contains(&text.to_ascii_lowercase().as_str()))
}

/// `GET /live`.
#[derive(Serialize, JsonSchema)]
pub(crate) struct Live {
    pub live: bool,
}

/// `GET /ready`.
#[derive(Serialize, JsonSchema)]
pub(crate) struct Ready<'a> {
    /// A request would be taken now.
    pub ready: bool,
    /// A shutdown has begun.
    pub draining: bool,
    /// After an upgrade: when this process, which finishes its streams, is gone at the latest, in Unix seconds.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub gone_by: Option<u64>,
    /// Upstream first. Only for callers with a key, where the server has keys.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub stages: Option<Vec<Stage<'a>>>,
    /// With `[[models]]`: each of them. Only for callers with a key, where the server has keys.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub models: Option<Vec<ModelStatus<'a>>>,
}

/// `GET /health`.
#[derive(Serialize, JsonSchema)]
pub(crate) struct Health<'a> {
    /// `alive`.
    pub status: &'static str,
    /// Every stage can serve.
    pub ready: bool,
    /// A shutdown has begun.
    pub draining: bool,
    /// Only for callers with a key, where the server has keys.
    #[serde(flatten)]
    pub details: Option<HealthDetails<'a>>,
}

/// What only callers with a key see.
#[derive(Serialize, JsonSchema)]
pub(crate) struct HealthDetails<'a> {
    pub version: &'static str,
    /// Unix seconds.
    pub started: u64,
    pub model: &'a str,
    /// Requests in flight.
    pub requests: usize,
    /// How many there may be: `limits.max_requests`.
    pub max_requests: usize,
    pub admission: Admission,
    /// Whether `POST /v1/realtime/calls` answers offers.
    pub calls: bool,
    /// Upstream first; with `[[models]]` those of the first one.
    pub stages: Vec<Stage<'a>>,
    /// Those that have joined, where stages are on nodes.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub nodes: Vec<Node<'a>>,
    /// The aligner of the config, where there is one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub aligner: Option<Aligner<'a>>,
    /// With `[[models]]`: each of them.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub models: Option<Vec<ModelStatus<'a>>>,
}

/// How many streams are carried.
#[derive(Serialize, JsonSchema)]
pub(crate) struct Admission {
    /// Streams that the server can carry in real time.
    pub capacity: usize,
    /// Requests that have a place.
    pub held: usize,
    /// Those of them that have a deadline.
    pub realtime: usize,
}

impl From<&AdmissionStatus> for Admission {
    fn from(status: &AdmissionStatus) -> Admission {
        Admission { capacity: status.capacity, held: status.held, realtime: status.realtime }
    }
}

/// State of one stage.
#[derive(Serialize, JsonSchema)]
pub(crate) struct Stage<'a> {
    /// `encoder`, `thinker`, `talker` or `vocoder`.
    pub name: &'static str,
    /// Which replica of it, where it has several.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub replica: Option<usize>,
    pub state: State,
    /// Unix seconds: since when it has been in this state.
    pub since: u64,
    /// How often it was started.
    pub generation: u32,
    /// Restarts since the process began.
    pub restarts: u32,
    /// Why it was restarted last.
    pub last_reason: Option<&'a str>,
    /// Seconds that the last restart took, from the failure to serving again.
    pub last_recovery_s: Option<f64>,
    /// Sequences that have a slot.
    pub sequences: usize,
    /// Its process, where it has one of its own that runs.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub pid: Option<u32>,
    /// The node that runs it, where one does.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub node: Option<&'a str>,
}

/// A node that has joined.
#[derive(Serialize, JsonSchema)]
pub(crate) struct Node<'a> {
    /// `cluster.name` of its config.
    pub name: &'a str,
    /// The stages that it offers.
    pub stages: Vec<OfferedStage<'a>>,
}

/// A stage that a node offers.
#[derive(Serialize, JsonSchema)]
pub(crate) struct OfferedStage<'a> {
    pub name: &'static str,
    /// Whether this server uses it.
    pub used: bool,
    /// Why not, where something is against it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub reason: Option<&'a str>,
}

impl<'a> From<&'a NodeStatus> for Node<'a> {
    fn from(node: &'a NodeStatus) -> Node<'a> {
        let offered = node.stages.iter().map(|stage| OfferedStage {
            name: stage.name.as_str(),
            used: stage.used,
            reason: stage.reason.as_deref(),
        });
        Node { name: &node.name, stages: offered.collect() }
    }
}

/// What a stage does.
#[derive(Serialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub(crate) enum State {
    /// It loads.
    Starting,
    /// It serves.
    Running,
    /// It waits before it starts again.
    Restarting,
    /// It failed too often.
    Failed,
}

/// State of the aligner.
#[derive(Serialize, JsonSchema)]
pub(crate) struct Aligner<'a> {
    pub state: State,
    /// Restarts since the process began.
    pub restarts: u32,
    /// Why it failed last.
    pub last_reason: Option<&'a str>,
}

impl<'a> From<&'a AlignerHealth> for Aligner<'a> {
    fn from(aligner: &'a AlignerHealth) -> Aligner<'a> {
        let AlignerHealth { state, restarts, last_reason } = aligner;
        Aligner { state: (*state).into(), restarts: *restarts, last_reason: last_reason.as_deref() }
    }
}

impl From<StageState> for State {
    fn from(state: StageState) -> State {
        match state {
            StageState::Starting => State::Starting,
            StageState::Running => State::Running,
            StageState::Restarting => State::Restarting,
            StageState::Failed => State::Failed,
        }
    }
}

impl<'a> From<&'a StageHealth> for Stage<'a> {
    fn from(stage: &'a StageHealth) -> Stage<'a> {
        Stage {
            name: stage.name.as_str(),
            replica: stage.replica,
            state: stage.state.into(),
            since: stage.since,
            generation: stage.generation,
            restarts: stage.restarts,
            last_reason: stage.last_reason.as_deref(),
            last_recovery_s: stage.last_recovery_s,
            sequences: stage.sequences,
            pid: stage.pid,
            node: stage.node.as_deref(),
        }
    }
}

/// `/debug/faults`: the rules in force.
#[derive(Serialize, JsonSchema)]
pub(crate) struct Faults {
    /// `drill.seed` of the config.
    pub seed: u64,
    /// Each rule with the keys that it was written with, and `seen` and `hits`: how often its place was passed, and how
    /// often it struck. docs/faults.md has the keys.
    pub faults: Vec<Map<String, Value>>,
}

/// `POST /debug/faults`: rules to add, all or none.
#[derive(JsonSchema)]
#[expect(dead_code, reason = "the schema alone: the config's reader of rules reads it")]
pub(crate) struct NewFaults {
    /// docs/faults.md has the keys of a rule.
    faults: Vec<Map<String, Value>>,
}
