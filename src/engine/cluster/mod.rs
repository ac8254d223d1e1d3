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

/// What a config makes of a process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Role {
    /// A server with all of its stages.
    Alone,
    /// A server with stages on nodes.
    Gateway,
    /// It runs stages for gateways.
    Node,
}

/// What a config makes of a process, and whether this one can be that: the files of `[cluster]` are read.
///
/// # Errors
/// [`StartError`] with what is wrong, also where the program was built without the feature `cluster`.
pub fn check(config: &Config, names: &[StageName]) -> Result<Role, StartError> {
    let role = role(config, names)?;
    #[cfg(feature = "cluster")]
    {
        if role == Role::Node {
            node::offered(names, config)?;
        }
        if role != Role::Alone {
            terms::check_files(&config.cluster)?;
        }
    }
    Ok(role)
}

fn role(config: &Config, names: &[StageName]) -> Result<Role, StartError> {
    let on_nodes = names.iter().any(|stage| config.stage(*stage).placement == Placement::Nodes);
    // A node may be told where to join by its command.
    let cluster = &config.cluster;
    let is_set = cluster.is_set() || !cluster.stages.is_empty() || cluster.tls.is_some();
    let role = match (on_nodes, is_set) {
        (true, _) => Role::Gateway,
        (false, false) => return Ok(Role::Alone),
        (false, true) if cluster.stages.is_empty() => {
            let how = "stages.talker.placement = \"nodes\" puts one there; a node names its stages in cluster.stages";
            return Err(StartError::Config(format!("cluster: no stage of this server is on nodes: {how}")));
        }
        (false, true) => Role::Node,
    };
    if cfg!(not(feature = "cluster")) {
        return Err(without());
    }
    Ok(role)
}

/// The nodes of a server's config, if any of these stages is on nodes.
pub(super) async fn nodes(
    checkpoint: &Checkpoint,
    config: &Config,
    names: &[StageName],
) -> Result<Option<Arc<dyn Nodes>>, StartError> {
    match role(config, names)? {
        Role::Alone => Ok(None),
        Role::Node => {
            let told = "cluster.stages: with these the config is a node's: `omni-actors node` starts one";
            Err(StartError::Config(told.to_owned()))
        }
        #[cfg(feature = "cluster")]
        Role::Gateway => gateway::Members::join(checkpoint, config).await.map(Some),
        #[cfg(not(feature = "cluster"))]
        Role::Gateway => {
            let _ = checkpoint;
            Err(without())
        }
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

    fn config(lines: &str) -> Config {
        let text = format!("[cluster]\ninsecure = true\n{lines}");
        omni_config::parse(&text, std::path::Path::new(""), &[]).unwrap()
    }

    fn told(lines: &str) -> Result<Role, String> {
        check(&config(lines), &[StageName::Talker, StageName::Vocoder]).map_err(|error| error.to_string())
    }

    #[test]
    fn a_config_says_what_its_process_is_in_a_cluster() {
        assert_eq!(told(""), Ok(Role::Alone));
        let (node, on_nodes) = ("join = [\"localhost:1\"]\n", "[stages.vocoder]\nplacement = \"nodes\"");
        let gateway = told(&format!("listen = \"127.0.0.1:0\"\n{on_nodes}"));
        let nothing = told(&format!("{node}[stages.thinker]\nplacement = \"nodes\"")).unwrap_err();
        assert!(nothing.contains("no stage of this server is on nodes"), "the checkpoint has no thinker: {nothing}");
        let keys = "ca = \"ca.pem\"\ncertificate = \"own.pem\"\nkey = \"own.key\"";
        assert_eq!(role(&config("stages = [\"talker\"]"), &[StageName::Talker]).is_ok(), cfg!(feature = "cluster"));
        let secret = config(keys).cluster.tls.is_some() && role(&config(keys), &[StageName::Talker]).is_err();
        assert!(secret, "certificates for nothing");
        let node = |stages: &str| told(&format!("{node}stages = {stages}"));
        if cfg!(feature = "cluster") {
            assert_eq!((gateway, node("[\"talker\"]")), (Ok(Role::Gateway), Ok(Role::Node)));
            assert!(node("[\"thinker\"]").unwrap_err().contains("the checkpoint has no thinker"));
        } else {
            let without = Err(without().to_string());
            assert_eq!((&gateway, &node("[\"talker\"]")), (&without, &without));
        }
    }
}
