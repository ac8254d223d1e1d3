//! `omni-actors verify`: compares a checkpoint with what a reference implementation computed from it.

use crate::exit::Usage;
use crate::verify::{self, Report};
use anyhow::bail;
use clap::{Args, ValueEnum};
use omni_config::Precision;
use std::io::Write;
use std::path::PathBuf;

/// Compare a checkpoint with golden outputs of a reference implementation
///
/// Runs every case of a folder (manifests NAME.json with tensors NAME.safetensors) and prints one line for each: PASS or
/// FAIL with the largest error and the first differing token, OTHER for a case of another checkpoint, SKIP for a kind
/// that this program, or the device, does not run. A GPU runs talkers and vocoders as serving does.
#[derive(Args, Debug)]
#[command(after_help = "Examples:
  omni-actors verify --golden CHECKPOINT/golden
  omni-actors verify --golden GOLDEN --checkpoint CHECKPOINT
  omni-actors verify --golden GOLDEN --device cuda
  omni-actors verify --golden GOLDEN --device cuda --dtype bf16

Exit code 0 only if no case failed.")]
pub struct VerifyArgs {
    /// Folder of the cases
    #[arg(long, value_name = "DIR")]
    golden: PathBuf,
    /// Run the cases that name this folder, or ".", on it; others are OTHER [default: the folders beside the golden
    /// folder that the cases name]
    #[arg(long, value_name = "DIR")]
    checkpoint: Option<PathBuf>,
    /// What computes; of several GPUs the first one that CUDA_VISIBLE_DEVICES shows
    #[arg(long, value_enum, default_value_t = On::Cpu)]
    device: On,
    /// Element type of weights and caches: f32 must equal the reference; bf16, on a GPU, is made to say the reference's
    /// codes and passes if it would have picked at least 90 % of codes 0 itself, and waveforms in TF32 are 40 dB above
    /// what they lose
    #[arg(long, value_enum, default_value_t = Dtype::F32)]
    dtype: Dtype,
}

/// What computes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum On {
    Cpu,
    Cuda,
}

/// An element type.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Dtype {
    F32,
    Bf16,
}

/// Runs the command.
pub fn execute(args: &VerifyArgs) -> anyhow::Result<()> {
    let mut out = std::io::stdout().lock();
    let mut written = Ok(());
    let show = |report: &Report| {
        if written.is_ok() {
            // A case can take a while: show each as it comes.
            written = writeln!(out, "{report}").and_then(|()| out.flush());
        }
    };
    let (golden, checkpoint) = (&args.golden, args.checkpoint.as_deref());
    let summary = match (args.device, args.dtype) {
        (On::Cpu, Dtype::F32) => verify::verify(golden, checkpoint, show),
        (On::Cpu, Dtype::Bf16) => bail!(Usage("--dtype bf16 needs --device cuda: a CPU computes in f32".into())),
        (On::Cuda, dtype) => {
            let precision = if dtype == Dtype::F32 { Precision::F32 } else { Precision::Bf16 };
            verify::gpu(0, precision).and_then(|gpu| verify::verify_on(gpu.as_ref(), golden, checkpoint, show))
        }
    };
    let summary = summary.map_err(|error| Usage(error.to_string()))?;
    written?;
    writeln!(out, "{summary}")?;
    match summary.failed {
        0 if summary.passed_all() => Ok(()),
        0 => bail!("too few codes are picked as the reference does"),
        1 => bail!("1 case failed"),
        n => bail!("{n} cases failed"),
    }
}
