//! `omni-actors node`: stages of this host for gateways elsewhere.

use super::limits;
use clap::Args;
use omni_config::Override;
use omni_engine::cluster::{self, NodeError};
use omni_model::weights::EmbeddedFiles;
use omni_ops::give_large_blocks_back;
use omni_telemetry as telemetry;
use omni_tools::exit::GivenUp;
use omni_tools::model;
use omni_tools::signals::Signals;
use std::path::PathBuf;

/// Run stages of a model for servers on other hosts
///
/// The servers are gateways: `omni-actors run` with stages whose placement is "nodes". This runs the stages that
/// cluster.stages of its config names, for every gateway that it is joined to, until Ctrl-C or SIGTERM; then what it had
/// goes on in other nodes, as with `omni-actors drain`. It needs the same checkpoint, and certificates of the same authority (docs/cluster.md).
#[derive(Args, Clone, Debug)]
#[command(after_help = "Examples:
  omni-actors node --join gateway.example.org:7447 node.toml
  omni-actors node --join a:7447 --join b:7447 node.toml    for two gateways: cluster.gateways = 2")]
pub struct NodeArgs {
    /// Config file
    config: Option<PathBuf>,
    /// Where a gateway listens, instead of cluster.join of the config
    #[arg(long, value_name = "HOST:PORT")]
    join: Vec<String>,
    /// File with `[[faults]]` rules, in addition to the config's
    #[arg(long, value_name = "FILE")]
    faults: Option<PathBuf>,
    /// Override one key of the config, such as cluster.gateways=2
    #[arg(long, value_name = "KEY=VALUE")]
    set: Vec<Override>,
}

/// Runs the command until a signal, or until a stage is given up.
pub async fn execute(args: NodeArgs, embedded: Option<EmbeddedFiles>) -> anyhow::Result<()> {
    let mut signals = Signals::catch()?;
    let quoted = |address: &String| format!("{address:?}");
    let join = format!("cluster.join=[{}]", args.join.iter().map(quoted).collect::<Vec<_>>().join(", "));
    let join = join.parse::<Override>().map_err(anyhow::Error::msg)?;
    let overrides: Vec<_> = args.set.into_iter().chain((!args.join.is_empty()).then_some(join)).collect();
    let mut config = model::read(args.config.as_deref(), &overrides)?;
    model::add_faults(&mut config, args.faults.as_deref())?;
    limits::open_files(&config)?;
    give_large_blocks_back();
    telemetry::init_logging(&config.telemetry.log, config.telemetry.log_format)?;
    telemetry::process_started();
    let checkpoint = model::open(&config, embedded)?;
    let stopped = Box::pin(async move { signals.next().await });
    cluster::serve(&checkpoint, &config, stopped).await.map_err(|error| match error {
        NodeError::Start(error) => error.into(),
        NodeError::GivenUp(stage, reason) => GivenUp { stage, reason }.into(),
    })
}
