//! The stages of one pipeline.

use omni_config::DeviceKind;
use omni_core::ids::StageName;
use omni_model::checkpoint::Checkpoint;
use omni_stage::StageHandle;
use std::sync::Arc;

/// The stages of a checkpoint on a device, upstream first. The encoder computes on a CPU only.
pub(super) fn of(checkpoint: &Checkpoint, device: DeviceKind) -> &'static [StageName] {
    match device {
        DeviceKind::Cpu => checkpoint.stages(),
        DeviceKind::Cuda => checkpoint.family().stages(),
    }
}

/// Handles of the stages that a checkpoint has, upstream first.
#[derive(Clone)]
pub(super) struct Stages(Arc<[Arc<StageHandle>]>);

impl Stages {
    pub fn new(names: &[StageName]) -> Stages {
        Stages(names.iter().map(|name| StageHandle::new(*name)).collect())
    }

    /// The stage of a name, if this pipeline has it.
    pub fn get(&self, name: StageName) -> Option<&Arc<StageHandle>> {
        self.iter().find(|stage| stage.name() == name)
    }

    /// Upstream first.
    pub fn iter(&self) -> impl DoubleEndedIterator<Item = &Arc<StageHandle>> {
        self.0.iter()
    }

    /// The one that hands to `name`.
    pub fn before(&self, name: StageName) -> Option<&Arc<StageHandle>> {
        self.iter().rfind(|stage| stage.name() < name)
    }
}
