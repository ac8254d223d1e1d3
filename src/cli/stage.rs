//! `omni-actors stage`: one stage of a server, in a process of its own. Only that server starts it.

use super::EmbeddedFiles;
use clap::Args;
use omni_engine::process;
use omni_ops::give_large_blocks_back;

/// Serve one stage for the server that started this process
#[derive(Args, Debug)]
pub struct StageArgs {
    /// Which stage, for readers of a list of processes; the server says over the link which it is
    #[arg(value_name = "STAGE")]
    _stage: Option<String>,
    /// The two directions of the link to the server
    link: Vec<String>,
}

/// Runs the command until the server ends it.
pub async fn execute(args: StageArgs, embedded: Option<EmbeddedFiles>) -> anyhow::Result<()> {
    give_large_blocks_back();
    Ok(process::serve(&args.link, embedded).await?)
}
