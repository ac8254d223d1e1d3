//! The stages of one pipeline, and the replicas of each.

use omni_config::DeviceKind;
use omni_core::ids::StageName;
use omni_model::checkpoint::Checkpoint;
use omni_stage::StageHandle;
use std::sync::Arc;

/// The stages of a checkpoint on a device, upstream first. The encoder computes on a CPU only.
pub fn of(checkpoint: &Checkpoint, device: DeviceKind) -> &'static [StageName] {
    match device {
        DeviceKind::Cpu => checkpoint.stages(),
        DeviceKind::Cuda => checkpoint.family().stages(),
    }
}

/// Handles of the stages that a checkpoint has, upstream first, the replicas of a stage side by side.
#[derive(Clone)]
pub(super) struct Stages(Arc<[Arc<StageHandle>]>);

impl Stages {
    /// So many replicas of each.
    pub fn new(names: &[StageName], replicas: impl Fn(StageName) -> usize) -> Stages {
        let handles = names.iter().flat_map(|name| {
            let several = replicas(*name).max(1);
            (0..several).map(move |number| match several {
                1 => StageHandle::new(*name),
                _ => StageHandle::replica_of(*name, number),
            })
        });
        Stages(handles.collect())
    }

    /// Upstream first, replica by replica.
    pub fn iter(&self) -> impl DoubleEndedIterator<Item = &Arc<StageHandle>> {
        self.0.iter()
    }

    /// Each stage with all of its replicas, upstream first.
    pub fn each(&self) -> impl Iterator<Item = &[Arc<StageHandle>]> {
        self.0.chunk_by(|one, next| one.name() == next.name())
    }

    /// The replicas of a stage; none if this pipeline does not have it.
    pub fn replicas(&self, name: StageName) -> &[Arc<StageHandle>] {
        self.each().find(|replicas| replicas[0].name() == name).unwrap_or_default()
    }

    /// The stage that hands to `name`.
    pub fn before(&self, name: StageName) -> Option<StageName> {
        self.iter().map(|stage| stage.name()).rfind(|stage| *stage < name)
    }

    /// Whether no replica of a stage will come up again, or there is none.
    pub fn is_given_up(&self, name: StageName) -> bool {
        self.replicas(name).iter().all(|replica| replica.is_given_up())
    }
}
