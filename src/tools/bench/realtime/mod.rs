//! `omni-actors bench --realtime`: scripted conversations over `WS /v1/realtime`, many at once. Users speak in the pace of
//! speech, listen to the end of an answer or speak into it.
//!
//! | file | what |
//! | --- | --- |
//! | `script` | what a conversation does when: pure |
//! | `recording` | what its user says, in the pieces of a microphone |
//! | `talk` | one conversation over its socket |
//! | `watch` | what it notes of each answer: pure |
//! | `figures` | from the answers to the figures of a level: pure |
//! | `report` | a table and JSON |

mod figures;
mod recording;
mod report;
mod script;
mod talk;
mod watch;

use super::args::{BenchArgs, positive};
use super::client::{LoadClient, Route};
use super::load::progress;
use super::texts::texts;
use crate::EmbeddedFiles;
use crate::exit::Usage;
use crate::local::LocalServer;
use anyhow::Context;
use clap::{Args, ValueEnum};
use figures::Figures;
use recording::Recording;
use report::{Level, Report};
use script::Script;
use serde::Serialize;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;
use talk::Talk;
use tokio::task::JoinSet;
use tokio::time::Instant;
use watch::Watch;

/// Frames of an answer that is not interrupted: 4 s.
const FRAMES: u32 = 50;
/// The same of the answers before anything is measured.
const WARM_UP_FRAMES: u32 = 8;

/// How turns end.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, ValueEnum)]
#[serde(rename_all = "lowercase")]
pub enum Turns {
    /// The server finds speech and silence in a microphone that is always on.
    Vad,
    /// The user holds a button while speaking.
    Push,
    /// The user writes: for models that do not hear.
    Text,
}

/// What the command line says about conversations.
#[derive(Args, Clone, Debug)]
pub struct RealtimeArgs {
    /// Hold conversations over /v1/realtime, --concurrency of them at once; turns end as the server finds it, with a
    /// button, or are written. Without a word: vad, and text for a model that does not hear
    #[arg(long, value_name = "TURNS", value_enum)]
    #[arg(conflicts_with_all = ["chat", "rate", "sweep", "rates", "overload", "requests", "bandwidth", "extra"])]
    realtime: Option<Option<Turns>>,
    /// Conversations: turns of each
    #[arg(long, value_name = "N", default_value_t = 8, requires = "realtime")]
    #[arg(value_parser = clap::value_parser!(u32).range(1..=10_000))]
    turns: u32,
    /// Conversations: the share of answers that are interrupted, 0 to 1
    #[arg(long, value_name = "SHARE", default_value_t = 0.25, requires = "realtime")]
    interrupt: f64,
    /// Conversations: what users say, files of sound; by default the first of --texts, spoken by the embedded voice
    #[arg(long, value_name = "FILE,..", value_delimiter = ',', requires = "realtime")]
    recording: Vec<PathBuf>,
    /// Conversations: how many times as fast as it lasts a microphone sends sound; answers are listened to at their own
    /// pace
    #[arg(long, value_name = "TIMES", default_value_t = 1.0, requires = "realtime")]
    pace: f64,
}

impl RealtimeArgs {
    /// Whether conversations are asked for.
    pub fn is_asked(&self) -> bool {
        self.realtime.is_some()
    }
}

/// What all conversations of a level have in common.
#[derive(Clone)]
struct Manner {
    /// Which level: 0 is before anything is measured.
    level: u64,
    turns: Turns,
    frames: u32,
    pace: f64,
    timeout: Duration,
    seed: u64,
    model: Option<String>,
    voice: Option<String>,
    recordings: Vec<Recording>,
    texts: Vec<String>,
}

impl Manner {
    /// How many different things users say.
    fn sayings(&self) -> usize {
        if self.turns == Turns::Text { self.texts.len() } else { self.recordings.len() }
    }
}

/// Runs the command.
pub(super) async fn run(args: BenchArgs, embedded: Option<EmbeddedFiles>) -> anyhow::Result<()> {
    let conversations = args.conversations()?;
    let realtime = args.realtime.clone();
    let share = realtime.interrupt;
    if !(0.0..=1.0).contains(&share) {
        return Err(Usage("--interrupt: must be a share from 0 to 1".to_owned()).into());
    }
    if !(0.1..=100.0).contains(&realtime.pace) {
        return Err(Usage("--pace: must be 0.1 to 100".to_owned()).into());
    }
    let timeout = positive("--timeout", args.timeout)?;
    let local = match &args.url {
        Some(_) => None,
        None => Some(LocalServer::start(&args.model, embedded, conversations.iter().copied().max()).await?),
    };
    let base = match (&local, &args.url) {
        (Some(local), _) => local.url(),
        (None, url) => url.clone().unwrap_or_default(),
    };
    // Its routes for models and metrics.
    let client = LoadClient::new(&base, Route::Speech, timeout, (None, serde_json::Map::new()), None)?;
    let known = client.first_model().await.with_context(|| format!("{base} does not tell its models"))?;
    let turns = match realtime.realtime.flatten() {
        Some(turns) => turns,
        None if known.hears => Turns::Vad,
        None => Turns::Text,
    };
    let texts = texts(args.texts.as_deref())?;
    let recordings = match turns {
        Turns::Text => Vec::new(),
        _ if realtime.recording.is_empty() => recording::from_texts(&texts, embedded).await?,
        _ => recording::from_files(&realtime.recording)?,
    };
    let said = recordings.iter().map(Recording::length).collect();
    let manner = Manner {
        level: 0,
        turns,
        frames: args.frames.unwrap_or(FRAMES),
        pace: realtime.pace,
        timeout,
        seed: args.seed,
        model: known.id,
        voice: args.voice.clone(),
        recordings,
        texts,
    };
    let frames = manner.frames;
    if args.warmup > 0 {
        warm_up(&base, &manner, args.warmup).await?;
    }
    let mut levels = Vec::new();
    for (level, number) in (1..).zip(conversations) {
        let before = client.metrics().await;
        let scripts = scripts(&args, number, manner.sayings());
        let figures = run_level(&base, Manner { level, ..manner.clone() }, scripts).await;
        let server = client.metrics().await.since(&before);
        levels.push(Level { conversations: number, figures, server });
    }
    let report = Report {
        target: local.as_ref().map_or(base, |local| format!("{} in this process", local.model())),
        version: env!("CARGO_PKG_VERSION"),
        seed: args.seed,
        cores: std::thread::available_parallelism().map_or(1, usize::from),
        turns,
        turns_each: realtime.turns,
        interrupt: share,
        pace: realtime.pace,
        frames,
        recordings_s: report::seconds(said),
        levels,
    };
    if let Some(local) = local {
        local.stop().await;
    }
    crate::out!("{report}");
    if let Some(path) = &args.json {
        let json = serde_json::to_string_pretty(&report)?;
        std::fs::write(path, json + "\n").with_context(|| format!("cannot write {}", path.display()))?;
    }
    let silent = report.levels.iter().any(|level| level.figures.answers == 0);
    anyhow::ensure!(!silent, "a level ended without a single answer with sound");
    Ok(())
}

fn scripts(args: &BenchArgs, conversations: usize, sayings: usize) -> Vec<Script> {
    let RealtimeArgs { turns, interrupt, .. } = args.realtime;
    (0..conversations).map(|number| Script::new(args.seed, number, turns as usize, interrupt, sayings)).collect()
}

/// One conversation without interruptions, so many turns long.
async fn warm_up(base: &str, manner: &Manner, turns: usize) -> anyhow::Result<()> {
    let script = Script::new(manner.seed, 0, turns, 0.0, manner.sayings());
    let short = Manner { frames: WARM_UP_FRAMES, ..manner.clone() };
    let (_, result) = converse(base, script, 0, &short, Instant::now()).await;
    result.map_err(|error| anyhow::anyhow!("{base} does not talk: {error}"))
}

async fn converse(
    base: &str,
    script: Script,
    number: usize,
    manner: &Manner,
    began: Instant,
) -> (Watch, Result<(), String>) {
    match Talk::open(base, script, number, manner, began).await {
        Ok(talk) => talk.run().await,
        Err(error) => (Watch::default(), Err(error)),
    }
}

/// Measures one level.
async fn run_level(base: &str, manner: Manner, scripts: Vec<Script>) -> Figures {
    let manner = Arc::new(manner);
    let turns = scripts.iter().map(|script| script.turns.len()).sum();
    let each = scripts.first().map_or(0, |script| script.turns.len());
    let bar = progress(scripts.len(), &format!("n={}", scripts.len()));
    let began = Instant::now();
    let mut conversations = JoinSet::new();
    for (number, script) in scripts.into_iter().enumerate() {
        let (base, manner, bar) = (base.to_owned(), Arc::clone(&manner), bar.clone());
        conversations.spawn(async move {
            tokio::time::sleep_until(began + script.begins).await;
            let ended = converse(&base, script, number, &manner, began).await;
            bar.inc(1);
            ended
        });
    }
    let (watches, results): (Vec<Watch>, Vec<Result<(), String>>) = conversations.join_all().await.into_iter().unzip();
    bar.finish_and_clear();
    let last_turn_ms = figures::last_turns(watches.iter().map(|watch| watch.records.as_slice()), each);
    let records: Vec<_> = watches.into_iter().flat_map(|watch| watch.records).collect();
    let figures = Figures::of(&records, turns, results.into_iter().filter_map(Result::err), began.elapsed());
    Figures { last_turn_ms, ..figures }
}
