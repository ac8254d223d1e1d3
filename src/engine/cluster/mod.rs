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
    /// It cannot begin.
    #[error(transparent)]
    Start(#[from] StartError),
    /// A stage cannot go on: a new process may.
    #[error("the {0} stage was given up: {1}")]
    GivenUp(StageName, String),
}

/// The nodes of a config, if any of these stages is on nodes.
pub(super) async fn nodes(
    checkpoint: &Checkpoint,
    config: &Config,
    names: &[StageName],
) -> Result<Option<Arc<dyn Nodes>>, StartError> {
    if names.iter().all(|stage| config.stage(*stage).placement != Placement::Nodes) {
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

#[cfg(not(feature = "cluster"))]
fn without() -> StartError {
    StartError::Config("cluster: this program was built without the feature `cluster` (docs/cluster.md)".to_owned())
}
