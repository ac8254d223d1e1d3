//! Whether decode steps of running answers are delayed while sound and pictures are encoded.
//!
//! `cargo bench --bench cadence` runs the whole engine with the small Qwen3-Omni checkpoint. Some answers run all the time;
//! three spans of time of equal length follow each other, several rounds: quiet, while a clip of 60 s and a picture of 4
//! megapixels are encoded, quiet again. For each it prints the time from one decode step to the next, and from one piece
//! to the next as the clients of the running answers get them; and, round by round, its ratio to the two quiet spans
//! around, which the goal of 1.02 is compared with. The second quiet span over the first is the noise of the machine.
//! Steps that prefill are left out, the pieces behind them are not; how long those with a piece of the prompt take, from the
//! request to its answer, is printed apart. `-- --help` tells the rest.
#![allow(clippy::unwrap_used)]

#[path = "../../tests/support/pictures.rs"]
mod pictures;
#[path = "../../tests/support/recording.rs"]
mod recording;

mod answers;
mod report;

use answers::{Answers, Kind};
use anyhow::{Context, ensure};
use clap::Parser;
use omni_actors::config::{CheckpointSource, Config, Override};
use omni_actors::core::ids::StageName;
use omni_actors::engine::{Engine, Service};
use omni_actors::model::Checkpoint;
use omni_actors::telemetry::clock;
use omni_actors::telemetry::trace::{Session, Trace};
use report::{Round, report};
use std::path::{Path, PathBuf};
use std::time::Duration;

/// The cadence of running answers while media are encoded
#[derive(Parser)]
struct Args {
    /// Config file; without one the small checkpoint of the tests
    #[arg(long)]
    config: Option<PathBuf>,
    /// cpu or cuda
    #[arg(long, default_value = "cpu")]
    device: String,
    /// A key of the config and its value
    #[arg(long, value_name = "KEY=VALUE")]
    set: Vec<Override>,
    /// Answers that run at once, one measurement for each number
    #[arg(long, value_delimiter = ',', default_value = "1,2")]
    answers: Vec<u32>,
    /// What the running answers are
    #[arg(long, value_delimiter = ',', default_value = "text,speech")]
    kinds: Vec<Kind>,
    /// Rounds of three spans
    #[arg(long, default_value_t = 5)]
    rounds: usize,
    /// Seconds of the clip; 0: none
    #[arg(long, default_value_t = 60)]
    seconds: u32,
    /// Side of the picture in pixels, a multiple of 32; 0: none
    #[arg(long, default_value_t = 2048)]
    side: u32,
    /// The program that media are decoded in
    #[arg(long, default_value = env!("CARGO_BIN_EXE_omni-actors"))]
    binary: PathBuf,
    /// What `cargo bench` adds
    #[arg(long, hide = true)]
    bench: bool,
}

/// A quiet span is at least so long.
const LEAST: Duration = Duration::from_secs(2);
/// Before anything is measured.
const WARM_UP: Duration = Duration::from_secs(1);

impl Args {
    fn resolve(&self) -> anyhow::Result<Config> {
        let mut overrides = vec![Override::text("device.kind", self.device.as_str())];
        if self.config.is_none() {
            let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures/qwen3_omni");
            overrides.push(Override::text("model.checkpoint", folder.display().to_string()));
        }
        // No running answer is parked because it is ahead of its listener, and none is refused.
        for set in ["speech.lead_cap=1h", "limits.admission=places", "media.max_cached_embeddings=0"] {
            overrides.push(set.parse().map_err(anyhow::Error::msg)?);
        }
        overrides.extend(self.set.iter().cloned());
        Ok(match &self.config {
            Some(file) => omni_actors::config::load(file, &overrides)?,
            None => omni_actors::config::parse("", Path::new(""), &overrides)?,
        })
    }

    /// The files of one request with media, other ones for each number.
    fn media(&self, number: u32) -> (Vec<u8>, Vec<u8>) {
        let clip = recording::PCM.with(&recording::hum(number, self.seconds * 16_000));
        let mut picture = if self.side > 0 { pictures::two_colours(self.side, self.side) } else { Vec::new() };
        // No two have the same hash.
        picture.iter_mut().skip(62).step_by(97).for_each(|byte| *byte ^= number as u8 | 1);
        (if self.seconds > 0 { clip } else { Vec::new() }, picture)
    }
}

fn main() -> anyhow::Result<()> {
    let args = Args::parse();
    tokio::runtime::Runtime::new()?.block_on(run(&args))
}

async fn run(args: &Args) -> anyhow::Result<()> {
    ensure!(args.rounds > 0 && args.side.is_multiple_of(32) && args.seconds + args.side > 0, "nothing is measured");
    let config = args.resolve()?;
    let CheckpointSource::Folder(folder) = &config.model.checkpoint else { anyhow::bail!("name a checkpoint") };
    let checkpoint = Checkpoint::open_as(folder, config.model.weights, config.model.tokenizer.as_deref())
        .with_context(|| format!("{}", folder.display()))?;
    omni_actors::engine::process::set_binary(&args.binary);
    let cores = std::thread::available_parallelism().map_or(1, usize::from);
    println!("{}, {} cores, a clip of {} s and a picture of {3} x {3}", args.device, cores, args.seconds, args.side);
    let mut number = 0;
    for kind in args.kinds.iter().copied() {
        let stage = if kind == Kind::Text { StageName::Thinker } else { StageName::Talker };
        for count in args.answers.iter().copied() {
            let engine = Engine::start(&checkpoint, &config).await?;
            let answers = Answers::new(&engine, kind, count);
            let measured = async {
                tokio::time::sleep(WARM_UP).await;
                let mut rounds = Vec::with_capacity(args.rounds);
                let mut quiet = LEAST;
                // The first one is not measured: it says how long an encoding takes.
                for round in 0..=args.rounds {
                    let before = span(&engine, tokio::time::sleep(quiet)).await?;
                    number += 1;
                    let Span { trace, from, to, outcome } = span(&engine, answers.ask(args.media(number))).await?;
                    outcome?;
                    let encoding = encoding(&trace).context("nothing was encoded")?;
                    let after = span(&engine, tokio::time::sleep(quiet)).await?;
                    quiet = LEAST.max(Duration::from_nanos(encoding.end - encoding.start));
                    if round > 0 {
                        let mut spans = Round::default();
                        spans.quiet.add((&before.trace, before.from..before.to), stage, &answers);
                        spans.encoding.add((&trace, encoding), stage, &answers);
                        spans.asking.add((&trace, from..to), stage, &answers);
                        spans.again.add((&after.trace, after.from..after.to), stage, &answers);
                        rounds.push(spans);
                    }
                }
                anyhow::Ok(rounds)
            };
            let rounds = tokio::select! {
                rounds = measured => rounds?,
                stopped = answers.run() => stopped.context("a running answer ended").and_then(|()| anyhow::bail!("all"))?,
            };
            engine.drain(Duration::ZERO).await;
            print!("{}", report(kind, count, stage, &rounds));
        }
    }
    Ok(())
}

/// A span of time, and what came of what was waited for.
struct Span<T> {
    trace: Trace,
    from: u64,
    to: u64,
    outcome: T,
}

async fn span<T>(engine: &Engine, until: impl Future<Output = T>) -> anyhow::Result<Span<T>> {
    let (session, from) = (Session::begin(&engine.recorder()), clock::now());
    let outcome = until.await;
    let (to, trace) = (clock::now(), session.end());
    ensure!(trace.missing == 0, "{} records of the trace were lost", trace.missing);
    Ok(Span { trace, from, to, outcome })
}

/// From the first step of the encoder to its last.
fn encoding(trace: &Trace) -> Option<std::ops::Range<u64>> {
    let steps = trace.steps();
    let ran =
        steps.iter().filter(|((place, ..), _)| place.stage == StageName::Encoder).filter_map(|(_, step)| step.ran);
    let (starts, ends): (Vec<u64>, Vec<u64>) = ran.unzip();
    Some(*starts.iter().min()?..*ends.iter().max()?)
}
