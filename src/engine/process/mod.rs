//! Stages in processes of their own: what a parent sends its child first, and the child itself (`child`).

mod child;
pub(super) mod seat;

pub use child::{ChildError, die_with, serve};
pub use omni_transfer::shm::inherited;

use super::StartError;
use super::setup::{StageMaker, edge_capacity, restart_limits};
use omni_config::Config;
use omni_core::ids::{Generation, Replica, StageName};
use omni_fault::PlanState;
use omni_model::checkpoint::Checkpoint;
use omni_stage::process::message::Setup;
use omni_stage::process::{Ends, ProcessSetup};
use omni_stage::{AckSink, StageHandle, StageReports};
use omni_telemetry::SupervisionMetrics;
use omni_transfer::payload::Kind;
use omni_transfer::transport::PayloadSender;
use std::path::PathBuf;
use std::sync::{Arc, OnceLock};

static BINARY: OnceLock<PathBuf> = OnceLock::new();

/// Sets the program that stage processes run: the `omni-actors` binary of this very build. The command line sets
/// itself; a program that links the library and uses `placement = "process"` calls this once. Later calls change
/// nothing.
pub fn set_binary(path: impl Into<PathBuf>) {
    let _ = BINARY.set(path.into());
}

/// See [`set_binary`].
pub(crate) fn binary() -> Option<PathBuf> {
    BINARY.get().cloned()
}

/// Everything about a stage process that outlives its children.
pub(super) fn setup(
    handle: &StageHandle,
    checkpoint: &Checkpoint,
    config: &Config,
    ends: Arc<Ends>,
) -> Result<ProcessSetup, StartError> {
    let Some(binary) = BINARY.get() else {
        let reason = "\"process\" needs the omni-actors program; a program that links the library tells where it is with \
                      engine::process::set_binary";
        return Err(StartError::Config(format!("stages.{}.placement: {reason}", handle.name())));
    };
    Ok(ProcessSetup {
        binary: binary.clone(),
        setup: Setup {
            stage: handle.name(),
            replica: handle.place().number,
            config: config.clone(),
            checkpoint: checkpoint.origin().clone(),
            generation: Generation(0),
            faults: PlanState::default(),
            parent: 0,
        },
        restart: restart_limits(config),
        watchdog: config.supervision.watchdog,
        metrics: SupervisionMetrics::new(handle.name(), handle.replica()),
        ends,
    })
}

/// What the links to a stage elsewhere lead to.
pub(super) fn ends(
    place: Replica,
    config: &Config,
    maker: &StageMaker,
    outbound: Vec<(Kind, Arc<dyn PayloadSender>)>,
    acks: Arc<dyn AckSink>,
    reports: Arc<dyn StageReports>,
) -> Arc<Ends> {
    // The text of a client, the window of the stage before: whichever is more.
    let capacity = StageName::ALL.map(|from| edge_capacity(config, from)).into_iter().max().unwrap_or_default();
    let (faults, recorder) = (maker.faults.clone(), maker.recorder.clone());
    Arc::new(Ends { place, capacity, outbound, acks, reports, faults, recorder })
}
