//! The stages of one pipeline, and the replicas of each.

use omni_config::{Config, Placement};
use omni_core::ids::StageName;
use omni_stage::StageHandle;
use std::sync::Arc;

/// Handles of the stages that a checkpoint has, upstream first, the replicas of a stage side by side.
#[derive(Clone)]
pub(super) struct Stages(Arc<[Arc<StageHandle>]>);

impl Stages {
    /// One of each.
    pub fn single(names: &[StageName]) -> Stages {
        Stages(names.iter().map(|name| StageHandle::new(*name)).collect())
    }

    /// As many replicas of each as a config says.
    pub fn new(names: &[StageName], config: &Config) -> Stages {
        let handles = names.iter().flat_map(|name| {
            let several = config.replicas(*name).max(1);
            let on_nodes = config.stage(*name).placement == Placement::Nodes;
            (0..several).map(move |number| match several {
                _ if on_nodes => StageHandle::on_nodes(*name, number),
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
