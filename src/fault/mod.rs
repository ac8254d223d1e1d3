//! Faults on purpose: which actor breaks, when, and how. Free when no rule is set.
//!
//! A [`FaultPlan`] is made once per engine from the config. An actor asks it once, when it is built, for the [`FaultSite`]
//! of its place, and strikes that site at each occurrence. Counts go on over restarts, so that a plan means the same
//! whatever it breaks.

mod plan;

pub use plan::{FaultPlan, FaultSite, Injected};

use crate::ids::StageName;
use std::time::Duration;

/// One thing that goes wrong.
#[derive(Clone, Debug, PartialEq, bincode::Encode, bincode::Decode)]
pub struct FaultRule {
    /// In which stage.
    pub stage: StageName,
    /// In which actor.
    pub point: FaultPoint,
    /// What happens.
    pub kind: FaultKind,
    /// The first occurrence that is hit, counted from 1.
    pub nth: u64,
    /// How many occurrences are hit from there on; `u64::MAX` for all.
    pub times: u64,
}

/// Where faults can be injected.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, bincode::Encode, bincode::Decode)]
pub enum FaultPoint {
    /// The scheduler, handling a message.
    Scheduler,
    /// The runner thread, before a step.
    Runner,
    /// The sampler, before it looks at a step.
    Sampler,
    /// The packager, before it packs a payload.
    Packager,
    /// The connector, before it hands a chunk to its stage.
    Connector,
    /// The edge behind the stage, for each frame that goes out on it, repetitions included. An edge that passes handles has
    /// no frames.
    Edge,
}

/// What can go wrong.
#[derive(Clone, Copy, Debug, PartialEq, Eq, bincode::Encode, bincode::Decode)]
pub enum FaultKind {
    /// A panic.
    Panic,
    /// An error returned by the actor.
    Error,
    /// A pause.
    Delay(Duration),
    /// On an edge: the frame is lost.
    Drop,
    /// On an edge: the frame comes twice.
    Duplicate,
    /// On an edge: the next frame overtakes this one.
    Reorder,
    /// On an edge: bits of the frame change.
    Corrupt,
}

impl FaultKind {
    /// Whether this can happen at that place.
    pub fn suits(self, point: FaultPoint) -> bool {
        match self {
            FaultKind::Delay(_) => true,
            FaultKind::Panic | FaultKind::Error => point != FaultPoint::Edge,
            FaultKind::Drop | FaultKind::Duplicate | FaultKind::Reorder | FaultKind::Corrupt => {
                point == FaultPoint::Edge
            }
        }
    }
}
