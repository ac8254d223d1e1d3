//! Stages on other hosts. The gateway's side gives replicas of stages to nodes that have joined; the node's side runs the
//! stages that its config names for the gateways that ask. Between them are the messages of a stage process, over links of
//! [`omni_cluster`].
//!
//! A program that was built without the feature `cluster` refuses both, and knows no network here.

#[cfg(feature = "cluster")]
mod gateway;
#[cfg(feature = "cluster")]
mod node;
#[cfg(feature = "cluster")]
mod terms;

use super::StartError;
use futures::future::BoxFuture;
use omni_config::{Config, Placement};
use omni_core::ids::StageName;
use omni_model::checkpoint::Checkpoint;
use omni_stage::process::Nodes;
use std::sync::Arc;

/// Why a node ended.
#[derive(Debug, thiserror::Error)]
pub enum NodeError {
    /// It cannot begin, or a link of it panicked.
    #[error(transparent)]
    Start(#[from] StartError),
    /// A stage cannot go on: a new process may.
    #[error("the {0} stage was given up: {1}")]
    GivenUp(StageName, String),
}

/// Whether this program can have stages on nodes, if the config puts one of these there.
///
/// # Errors
/// [`StartError::Config`] where it was built without the feature `cluster`.
pub fn check(config: &Config, names: &[StageName]) -> Result<(), StartError> {
    if cfg!(not(feature = "cluster")) && any_on_nodes(config, names) {
        return Err(without());
    }
    Ok(())
}

fn any_on_nodes(config: &Config, names: &[StageName]) -> bool {
    names.iter().any(|stage| config.stage(*stage).placement == Placement::Nodes)
}

/// The nodes of a config, if any of these stages is on nodes.
pub(super) async fn nodes(
    checkpoint: &Checkpoint,
    config: &Config,
    names: &[StageName],
) -> Result<Option<Arc<dyn Nodes>>, StartError> {
    if !any_on_nodes(config, names) {
        return Ok(None);
    }
    #[cfg(feature = "cluster")]
    return gateway::Members::join(checkpoint, config).await.map(Some);
    #[cfg(not(feature = "cluster"))]
    {
        let _ = checkpoint;
        Err(without())
    }
}

/// Runs the stages of `[cluster]` for gateways, until `stopped`.
///
/// # Errors
/// [`NodeError`].
pub fn serve<'a>(
    checkpoint: &'a Checkpoint,
    config: &'a Config,
    stopped: BoxFuture<'a, ()>,
) -> BoxFuture<'a, Result<(), NodeError>> {
    #[cfg(feature = "cluster")]
    return Box::pin(node::serve(checkpoint, config, stopped));
    #[cfg(not(feature = "cluster"))]
    {
        let _ = (checkpoint, config, stopped);
        Box::pin(async { Err(without().into()) })
    }
}

fn without() -> StartError {
    StartError::Config("cluster: this program was built without the feature `cluster` (docs/cluster.md)".to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn stages_on_nodes_are_refused_by_a_program_that_knows_no_network() {
        let names = [StageName::Talker, StageName::Vocoder];
        let mut config = Config::default();
        check(&config, &names).unwrap();
        config.stages[StageName::Vocoder as usize].placement = Placement::Nodes;
        assert_eq!(check(&config, &names).is_ok(), cfg!(feature = "cluster"));
    }
}
