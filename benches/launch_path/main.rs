//! What reaches the launch path: the cadence of a talker's decode steps while everything around it gets slow.
//!
//! `cargo bench --bench launch_path` runs the whole engine under one condition after the other, in turns, several rounds:
//!
//! - everything on, twice: the second is the noise of the machine;
//! - the packager slowed down; a connector that stalls; clients that stop reading beside the measured ones;
//! - the switches of `[transfer]` off one by one, other transports, a stage in a process of its own;
//! - the serialized order, in which nothing is launched before the last step has been packaged, with and without a slow
//!   packager: what all this is for.
//!
//! For each it prints the step cadence, the launch bubble and the run-ahead of the talker, and compares all that was heard
//! with what is heard when everything is on: one different sample and it exits with 1. Without options it speaks with the
//! voice in `assets/` on the CPU; `-- --config configs/random-tts-1.7b.toml --device cuda` (built with `--features cuda`)
//! measures a GPU. `-- --help` tells the rest.
//!
//! Windows are set so large that back-pressure pauses no measured sequence: a sequence may pause because its consumer is slow, that
//! is what windows are for, but not because another sequence's consumer is.
#![allow(clippy::unwrap_used)]

mod conditions;
mod faults;
mod measure;
mod plot;
mod report;

use anyhow::Context;
use clap::Parser;
use conditions::{CONDITIONS, Condition};
use faults::Faults;
use measure::{Bench, Turn};
use omni_actors::config::{CheckpointSource, Config, DeviceKind, Override};
use omni_actors::model::Checkpoint;
use report::{Report, Run};
use std::path::{Path, PathBuf};
use std::process::ExitCode;

/// The cadence of decode steps under every condition
#[derive(Parser)]
struct Args {
    /// Config file; without one the voice in `assets/`
    #[arg(long)]
    config: Option<PathBuf>,
    /// Checkpoint folder, instead of the one of the config
    #[arg(long)]
    checkpoint: Option<PathBuf>,
    /// cpu or cuda
    #[arg(long, default_value = "cpu")]
    device: String,
    /// A key of the config and its value, for every condition
    #[arg(long, value_name = "KEY=VALUE")]
    set: Vec<Override>,
    /// Requests at once, one measurement for each number
    #[arg(long, value_delimiter = ',')]
    sequences: Option<Vec<u32>>,
    /// Frames of each request
    #[arg(long)]
    frames: Option<u32>,
    /// How often every condition has its turn
    #[arg(long)]
    rounds: Option<usize>,
    /// Clients that stop reading
    #[arg(long, default_value_t = 50)]
    sleepers: u32,
    /// Only these conditions, by their keys, and the one they are compared with
    #[arg(long, value_delimiter = ',')]
    only: Vec<String>,
    /// The program that stages run in which have a process of their own
    #[arg(long, default_value = env!("CARGO_BIN_EXE_omni-actors"))]
    binary: PathBuf,
    /// A tiny checkpoint, few frames and rounds: whether it works, not how fast
    #[arg(long)]
    quick: bool,
    /// Writes the figures there
    #[arg(long)]
    json: Option<PathBuf>,
    /// Draws the ratios there
    #[arg(long)]
    plot: Option<PathBuf>,
    /// What `cargo bench` adds
    #[arg(long, hide = true)]
    bench: bool,
}

impl Args {
    fn checkpoint(&self) -> Option<PathBuf> {
        let root = Path::new(env!("CARGO_MANIFEST_DIR"));
        match (&self.checkpoint, &self.config) {
            (Some(folder), _) => Some(folder.clone()),
            (None, Some(_)) => None,
            (None, None) if self.quick => Some(root.join("tests/fixtures/qwen3_omni")),
            (None, None) => Some(root.join("assets/voice/checkpoint")),
        }
    }

    /// The config with more keys set.
    fn resolve(&self, more: &[(&str, &str)]) -> anyhow::Result<Config> {
        let mut overrides = vec![Override::text("device.kind", self.device.as_str())];
        if let Some(folder) = self.checkpoint() {
            overrides.push(Override::text("model.checkpoint", std::path::absolute(folder)?.display().to_string()));
        }
        overrides.extend(self.set.iter().cloned());
        for (key, value) in more {
            overrides.push(format!("{key}={value}").parse().map_err(anyhow::Error::msg)?);
        }
        Ok(match &self.config {
            Some(file) => omni_actors::config::load(file, &overrides)?,
            None => omni_actors::config::parse("", Path::new(""), &overrides)?,
        })
    }

    fn chosen(&self) -> anyhow::Result<Vec<&'static Condition>> {
        for key in &self.only {
            let keys: Vec<_> = CONDITIONS.iter().map(|condition| condition.key).collect();
            anyhow::ensure!(keys.contains(&key.as_str()), "no condition {key:?}; there are {}", keys.join(", "));
        }
        let wanted = |condition: &&Condition| {
            self.only.is_empty() || condition.key == conditions::BASE || self.only.iter().any(|k| k == condition.key)
        };
        Ok(CONDITIONS.iter().filter(wanted).collect())
    }
}

fn main() -> anyhow::Result<ExitCode> {
    let args = Args::parse();
    let faults = Faults::listen()?;
    tokio::runtime::Runtime::new()?.block_on(run(&args, &faults))
}

async fn run(args: &Args, faults: &Faults) -> anyhow::Result<ExitCode> {
    let on_device = args.device == DeviceKind::Cuda.as_str();
    let sequences = args.sequences.clone().unwrap_or(match (args.quick, on_device) {
        (true, _) => vec![2],
        (false, false) => vec![1, 4],
        (false, true) => vec![1, 8, 64],
    });
    let (frames, rounds) = match (args.quick, on_device) {
        (true, _) => (60, 1),
        (false, false) => (150, 5),
        (false, true) => (200, 5),
    };
    let (frames, rounds) = (args.frames.unwrap_or(frames), args.rounds.unwrap_or(rounds));
    anyhow::ensure!(frames >= 30 && rounds > 0, "at least 30 frames and one round");
    let config = args.resolve(&[])?;
    let CheckpointSource::Folder(folder) = &config.model.checkpoint else {
        anyhow::bail!("this program carries no voice: give --checkpoint FOLDER");
    };
    let checkpoint = Checkpoint::open_as(folder, config.model.weights, config.model.tokenizer.as_deref())
        .with_context(|| format!("{}", folder.display()))?;
    omni_actors::engine::process::set_binary(&args.binary);
    let conditions = args.chosen()?;
    let mut runs = Vec::new();
    for sequences in sequences {
        let bench = Bench { checkpoint: &checkpoint, faults, sequences, frames, sleepers: args.sleepers };
        let mut turns: Vec<Vec<Turn>> = conditions.iter().map(|_| Vec::new()).collect();
        for round in 0..rounds {
            // Each round begins with another one, so that no condition always follows the same one.
            for place in 0..conditions.len() {
                let at = (place + round * 5) % conditions.len();
                let condition = conditions[at];
                eprint!("\r{sequences} sequences, round {} of {rounds}: {:<40}", round + 1, condition.what);
                let config = bench.config(args.resolve(condition.set)?, condition);
                let turn = bench.measure(&config, condition).await;
                turns[at].push(turn.with_context(|| format!("{sequences} sequences, {}", condition.what))?);
            }
        }
        eprintln!("\r{:<72}", "");
        runs.push(Run::new(sequences, conditions.iter().copied().zip(turns)));
    }
    let model = if args.config.is_some() { config.model.name.clone() } else { "the default voice".to_owned() };
    let report = Report { device: args.device.clone(), model, frames, rounds, runs };
    print!("{report}");
    if let Some(file) = &args.json {
        std::fs::write(file, serde_json::to_string_pretty(&report.json())? + "\n")?;
    }
    if let Some(file) = &args.plot {
        std::fs::write(file, plot::draw(&report))?;
    }
    Ok(if report.all_the_same() { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}
