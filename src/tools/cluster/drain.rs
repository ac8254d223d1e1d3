//! `omni-actors drain`: takes a node out of service, or puts it back.

use super::gateway::Gateway;
use clap::Args;
use futures::future::LocalBoxFuture;
use serde_json::{Value, json};
use std::time::Duration;

/// A node asks its gateways, and ends its stages; a gateway waits 30 s for that.
const PATIENCE: Duration = Duration::from_secs(40);

/// Take a node of a cluster out of service, or put it back
///
/// The node leaves all of its gateways, and stays out of service until its process is started again or --undo. What it
/// had goes on in other nodes at once, with the same samples, and is there when this ends. Refused where a gateway has no
/// other node for one of its stages. SIGTERM to the node does the same and cannot be refused (docs/cluster.md).
#[derive(Args, Debug)]
#[command(after_help = "Examples:
  omni-actors drain rack-1 --url http://127.0.0.1:8080          before work on the machine rack-1
  omni-actors drain rack-1 --undo --url http://127.0.0.1:8080   afterwards, if it still runs")]
pub struct DrainArgs {
    /// Name of the node, which means all nodes of that name, or the id of one
    node: String,
    /// A gateway that it is joined to, such as http://127.0.0.1:8080
    #[arg(long, value_name = "URL")]
    url: String,
    /// Key with the scope "cluster"; on the command line other users of the machine can read it
    #[arg(long, env = "OMNI_KEY", hide_env_values = true)]
    key: Option<String>,
    /// Even if no other node has one of its stages: streams wait until one joins
    #[arg(long, conflicts_with = "undo")]
    force: bool,
    /// Put it back into service
    #[arg(long)]
    undo: bool,
}

/// Runs the command.
pub fn execute(args: DrainArgs) -> LocalBoxFuture<'static, anyhow::Result<()>> {
    Box::pin(async move {
        let DrainArgs { node, url, key, force, undo } = args;
        let gateway = Gateway::at(&url, key.as_deref(), PATIENCE)?;
        let order = json!({ "node": node, "force": force, "undo": undo });
        let answer = gateway.post("/cluster/drain", &order).await?;
        crate::out!("{}", told(&answer, undo));
        Ok(())
    })
}

/// A line for each node.
fn told(answer: &Value, undo: bool) -> String {
    let done = if undo { "in service" } else { "drained" };
    let nodes = answer["nodes"].as_array().into_iter().flatten();
    let line = |node: &Value| {
        let text = |field: &str| node[field].as_str().unwrap_or_default().to_owned();
        format!("{} {}: {done} (on {}, process {})\n", text("name"), text("id"), text("host"), node["pid"])
    };
    nodes.map(line).collect()
}
