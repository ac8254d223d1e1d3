//! `omni-actors verify`: compares a checkpoint with what a reference implementation computed from it.

use super::Usage;
use crate::model::verify;
use anyhow::bail;
use clap::Args;
use std::io::Write;
use std::path::PathBuf;

/// Compare a checkpoint with golden outputs of a reference implementation
///
/// Runs every case of a folder (manifests NAME.json with tensors NAME.safetensors) in f32 on the CPU and prints one line
/// for each: PASS or FAIL with the largest error and the first differing token, OTHER for a case of another checkpoint,
/// SKIP for a kind that this program does not run yet.
#[derive(Args, Debug)]
#[command(after_help = "Examples:
  omni-actors verify --golden CHECKPOINT/golden
  omni-actors verify --golden GOLDEN --checkpoint CHECKPOINT

Exit code 0 only if no case failed.")]
pub struct VerifyArgs {
    /// Folder of the cases
    #[arg(long, value_name = "DIR")]
    golden: PathBuf,
    /// Run the cases that name this folder, or ".", on it; others are OTHER [default: the folders beside the golden
    /// folder that the cases name]
    #[arg(long, value_name = "DIR")]
    checkpoint: Option<PathBuf>,
}

/// Runs the command.
pub fn execute(args: &VerifyArgs) -> anyhow::Result<()> {
    let mut out = std::io::stdout().lock();
    let mut written = Ok(());
    let summary = verify::verify(&args.golden, args.checkpoint.as_deref(), |report| {
        if written.is_ok() {
            // A case can take a while: show each as it comes.
            written = writeln!(out, "{report}").and_then(|()| out.flush());
        }
    })
    .map_err(|error| Usage(error.to_string()))?;
    written?;
    writeln!(out, "{summary}")?;
    match summary.failed {
        0 => Ok(()),
        1 => bail!("1 case failed"),
        n => bail!("{n} cases failed"),
    }
}
