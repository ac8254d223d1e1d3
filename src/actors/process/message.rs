//! What parent and child say to each other beside payloads. Both are the same binary, so there is no version to agree on.

use crate::{Admission, StageLoad, StageStatus};
use bincode::{Decode, Encode};
use omni_config::Config;
use omni_core::ids::{Generation, RequestId, StageName};
use omni_fault::{PlanState, RuleCount};
use omni_model::checkpoint::Origin;
use omni_telemetry::trace::Record;

/// Longest message: an admission with a text of the longest kind that a config allows is far below it.
const MAX_MESSAGE: usize = 64 << 20;

/// Bytes that are not what they should be.
#[derive(Debug, thiserror::Error)]
#[error("malformed message: {0}")]
pub struct Malformed(String);

/// The first thing that a child hears: which stage it is, and everything that makes one.
#[derive(Clone, Debug, Encode, Decode)]
pub struct Setup {
    /// Which stage.
    pub stage: StageName,
    /// As the parent resolved it, overrides included.
    pub config: Config,
    /// What it serves.
    pub checkpoint: Origin,
    /// Of the last generation before this process.
    pub generation: Generation,
    /// What breaks on purpose, as far as it was counted.
    pub faults: PlanState,
    /// The process that must live for this one to live.
    pub parent: u32,
}

/// What the parent tells its child.
#[derive(Clone, Debug, Encode, Decode)]
pub enum ToStage {
    /// A sequence.
    Admit(Box<Admission>),
    /// Frees a request's sequence.
    Abort(RequestId),
    /// The next stage, or the client, took output over.
    Acked(RequestId, u32),
    /// Somebody begins to take a trace, or nobody does any more.
    Trace(bool),
    /// What breaks on purpose has changed.
    Faults(PlanState),
    /// Asks for the child's metrics.
    Metrics,
    /// Ends the stage and the process.
    Stop,
}

/// What a child tells its parent.
#[derive(Clone, Debug, Encode, Decode)]
pub enum FromStage {
    /// The stage's state changed.
    Status(StageStatus),
    /// All sequences of a generation are lost, and why; what the fault plan had counted by then, for the process may end with it.
    StageDown(Generation, String, Vec<RuleCount>),
    /// Input was taken over.
    Acked(RequestId, u32),
    /// One sequence cannot go on.
    SequenceFailed(RequestId, String),
    /// What the stage holds, and what the fault plan has counted. Also a sign of life.
    Pulse(Pulse),
    /// What was recorded while somebody takes a trace.
    Trace(Vec<Record>),
    /// The answer to [`ToStage::Metrics`].
    Metrics(String),
    /// A fault plan wants this process killed; what it has counted.
    Doomed(Vec<RuleCount>),
}

/// See [`FromStage::Pulse`].
#[derive(Clone, Debug, Default, PartialEq, Encode, Decode)]
pub struct Pulse {
    /// What the stage holds.
    pub load: StageLoad,
    /// Admissions heard.
    pub admitted: u64,
    /// See [`FaultPlan::counts`](omni_fault::FaultPlan::counts).
    pub faults: Vec<RuleCount>,
}

/// A control message of one direction.
pub trait Control: Encode + Decode<()> + Send + 'static {
    /// The request that cannot go on without it.
    fn request(&self) -> Option<RequestId>;
}

impl Control for ToStage {
    fn request(&self) -> Option<RequestId> {
        match self {
            ToStage::Admit(admission) => Some(admission.request),
            ToStage::Abort(request) | ToStage::Acked(request, _) => Some(*request),
            ToStage::Trace(_) | ToStage::Faults(_) | ToStage::Metrics | ToStage::Stop => None,
        }
    }
}

impl Control for FromStage {
    fn request(&self) -> Option<RequestId> {
        match self {
            FromStage::Acked(request, _) | FromStage::SequenceFailed(request, _) => Some(*request),
            FromStage::Status(_)
            | FromStage::StageDown(..)
            | FromStage::Pulse(_)
            | FromStage::Trace(_)
            | FromStage::Metrics(_)
            | FromStage::Doomed(_) => None,
        }
    }
}

/// Appends a message to bytes that may hold others already.
///
/// # Errors
/// [`Malformed`] for what has no encoding, such as a path that is not UTF-8.
pub fn append(message: &impl Encode, to: &mut Vec<u8>) -> Result<(), Malformed> {
    bincode::encode_into_std_write(message, to, bincode::config::standard())
        .map(drop)
        .map_err(|error| Malformed(error.to_string()))
}

/// Takes one message off the front.
///
/// # Errors
/// [`Malformed`]; never panics, whatever the bytes.
pub fn take<M: Decode<()>>(from: &mut &[u8]) -> Result<M, Malformed> {
    let config = bincode::config::standard().with_limit::<MAX_MESSAGE>();
    let (message, used) = bincode::decode_from_slice(from, config).map_err(|error| Malformed(error.to_string()))?;
    *from = &from[used..];
    Ok(message)
}
