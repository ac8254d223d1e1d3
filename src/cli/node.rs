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
use std::os::unix::fs::MetadataExt;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::Command;

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

/// Where Zenoh reads how many threads take what its connections bring. It reads that nowhere else.
const THREADS: &str = "ZENOH_RUNTIME";
/// Two of them, as Zenoh has, may both wait for a gateway that is dead, and then the others hear nothing of this node: it
/// would be gone for them, too.
const ENOUGH: &str = "(rx: (worker_threads: 8))";
/// This program, also when its file is another one by now.
const OWN: &str = "/proc/self/exe";

/// Becomes this program again with enough threads for Zenoh, if the user has not set them. To be called before anything
/// runs.
///
/// # Errors
/// The system does not start it again.
pub fn with_threads() -> anyhow::Result<()> {
    if cfg!(not(feature = "cluster")) || std::env::var_os(THREADS).is_some() {
        return Ok(());
    }
    let file = |path: &Path| std::fs::metadata(path).map(|file| (file.dev(), file.ino())).ok();
    // By its name, where that is its own: it is what lists of processes show.
    let own = std::env::current_exe().ok().filter(|path| file(path) == file(Path::new(OWN)));
    let mut words = std::env::args_os();
    let mut again = Command::new(own.unwrap_or_else(|| OWN.into()));
    if let Some(name) = words.next() {
        again.arg0(name);
    }
    let failed = again.args(words).env(THREADS, ENOUGH).exec();
    Err(anyhow::Error::new(failed).context("the program cannot be started again with more threads for its network"))
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
