//! `omni-actors bench`: measures how fast a server speaks, as its listeners hear it, and answers.
//!
//! | file | what |
//! | --- | --- |
//! | `plan` | which request starts when: pure |
//! | `client` | one request over HTTP, timed chunk by chunk |
//! | `chat` | one answer of the chat route, event by event |
//! | `stats` | from single requests to the figures of a level: pure |
//! | `server` | the metrics of the server under test, before and after a level |
//! | `overload` | more requests than a server carries |
//! | `floor` | the least time per frame that a memory bandwidth allows: pure |
//! | `texts` | what is spoken when the user gives no texts |
//! | `report` | tables and JSON |

mod chat;
mod client;
mod floor;
mod overload;
pub(super) mod plan;
pub(super) mod report;
mod server;
pub(super) mod stats;
pub(super) mod texts;

use super::EmbeddedFiles;
use super::exit::Usage;
use super::local::LocalServer;
use super::model::{self, ModelArgs};
use anyhow::Context;
use chat::Length;
use clap::{Args, ValueEnum};
use client::{LoadClient, Route};
use floor::Floor;
use futures::future::LocalBoxFuture;
use indicatif::{ProgressBar, ProgressStyle};
use omni_config::Precision;
use overload::{Carried, Overload};
use plan::{Load, Planned};
use report::{Level, Report};
use serde_json::{Map, Value};
use stats::{Figures, Record};
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;
use tokio::task::JoinSet;
use tokio::time::Instant;

/// Measure a server as its listeners hear it
///
/// Streams raw PCM from the speech route of any server that has OpenAI's API and reports, per load level: time to first
/// audio (TTFA), whole request, time per frame, requests per second, seconds of audio per second, real-time factor, and
/// underruns of a player that starts with the first chunk. A server of this program also gives its metrics: steps,
/// launch bubbles, device memory. --chat measures answers instead: time to first token, tokens per second of a stream
/// and of all, and time to first audio where they are spoken. Without --url, a server starts inside this process and shares its cores with the
/// load.
#[derive(Args, Debug)]
#[command(after_help = "Examples:
  omni-actors bench                                           the embedded voice, one request at a time
  omni-actors bench --concurrency 1,4,8 --requests 32         closed loop, three levels
  omni-actors bench --rate 1,2,4 --duration 30                open loop, Poisson arrivals
  omni-actors bench --overload 4                              more than the server carries: what it accepts and refuses, and how soon
  omni-actors bench --url http://127.0.0.1:8080 --sweep --rates --frames 100 --rate-frames 57
                                                              1 to 128 clients, then 4 to 40 requests per second
  omni-actors bench --chat --tokens 100 --concurrency 1,8     answers in text, of exactly 100 tokens
  omni-actors bench --chat audio --tokens 40 --frames 60      answers in text and speech
  omni-actors bench --url http://127.0.0.1:8091 --extra '{\"max_new_tokens\":100,\"ignore_eos\":true}' --json out.json")]
pub struct BenchArgs {
    /// Address of a running server, such as http://127.0.0.1:8080
    #[arg(long, value_name = "URL")]
    url: Option<String>,
    #[command(flatten)]
    model: ModelArgs,
    /// Closed loop: clients at once; several levels with commas
    #[arg(long, value_name = "N,..", value_delimiter = ',', default_value = "1", conflicts_with = "rate")]
    concurrency: Vec<usize>,
    /// Closed loop: requests per level, at least one per client; 16 by default
    #[arg(long, value_name = "N", conflicts_with = "rate")]
    requests: Option<usize>,
    /// Open loop: mean arrivals per second; several levels with commas
    #[arg(long, value_name = "R,..", value_delimiter = ',')]
    rate: Vec<f64>,
    /// Closed loops with so many clients, three requests each or more, then what --rates says
    #[arg(long, value_name = "N,..", value_delimiter = ',', num_args = 0..=1, conflicts_with_all = ["rate", "concurrency"])]
    #[arg(default_missing_values = ["1", "4", "8", "16", "32", "64", "128"])]
    sweep: Vec<usize>,
    /// Open loops with so many arrivals per second
    #[arg(long, value_name = "R,..", value_delimiter = ',', num_args = 0..=1, conflicts_with_all = ["rate", "concurrency"])]
    #[arg(default_missing_values = ["4", "10", "20", "40"])]
    rates: Vec<f64>,
    /// Open loop: seconds during which requests arrive
    #[arg(long, value_name = "SECONDS", default_value_t = 30.0)]
    duration: f64,
    /// Measure what the server carries, then send --requests (1000 by default) at so many times that rate, after a
    /// tenth as many from which it learns; fails if accepted requests miss the deadline, or if a request is neither
    /// accepted nor refused
    #[arg(long, value_name = "X", conflicts_with_all = ["rate", "rates", "sweep", "concurrency"])]
    overload: Option<f64>,
    /// Overload: when the first sound of an accepted request has to come, in seconds
    #[arg(long, value_name = "SECONDS", default_value_t = 2.0)]
    deadline: f64,
    /// Make every request exactly so many frames of 80 ms long, whatever the model would say
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=100_000))]
    frames: Option<u32>,
    /// Ask questions instead of having texts spoken: answers in text, or in text and audio
    #[arg(long, value_enum, num_args = 0..=1, default_missing_value = "text", conflicts_with = "overload")]
    chat: Option<Chat>,
    /// Chat: make every answer exactly so many tokens long, whatever the model would say; spoken ones need --frames too
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=100_000), requires = "chat")]
    tokens: Option<u32>,
    /// Open loop: the same as --frames, instead of it
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=100_000))]
    rate_frames: Option<u32>,
    /// Print the floor beside the figures: the time in which a device with this memory bandwidth, in bytes per second
    /// such as 4.3e12, reads what a frame needs; with --url the model is the one of --config or --checkpoint
    #[arg(long, value_name = "BYTES")]
    bandwidth: Option<f64>,
    /// One text per line, taken in turn; a list of short sentences by default
    #[arg(long, value_name = "FILE")]
    texts: Option<PathBuf>,
    /// Speaker
    #[arg(long)]
    voice: Option<String>,
    /// Seed of the arrivals; request i is sent with this seed plus i
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// Fields for every request's body, as a JSON object; they replace this program's fields, null leaves a field out
    #[arg(long, value_name = "JSON")]
    extra: Option<String>,
    /// Requests sent before the measurement
    #[arg(long, value_name = "N", default_value_t = 2)]
    warmup: usize,
    /// Seconds after which a request counts as failed
    #[arg(long, value_name = "SECONDS", default_value_t = 120.0)]
    timeout: f64,
    /// Also write the figures to a file
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
}

/// What a chat is answered with.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Chat {
    /// Text alone.
    Text,
    /// Text and speech.
    Audio,
}

/// Runs the command. It fails if no request of a level succeeds.
pub fn execute(args: BenchArgs, embedded: Option<EmbeddedFiles>) -> LocalBoxFuture<'static, anyhow::Result<()>> {
    Box::pin(run(args, embedded))
}

async fn run(args: BenchArgs, embedded: Option<EmbeddedFiles>) -> anyhow::Result<()> {
    let loads = args.loads()?;
    let floor = args.floor(embedded)?;
    let texts = Arc::new(texts::texts(args.texts.as_deref())?);
    let body = args.body()?;
    let route = args.route()?;
    let timeout = positive("--timeout", args.timeout)?;
    let local = match &args.url {
        Some(_) => None,
        None => Some(
            LocalServer::start(&args.model, embedded, loads.iter().map(|planned| most_at_once(&planned.load)).max())
                .await?,
        ),
    };
    let base = match (&local, &args.url) {
        (Some(local), _) => local.url(),
        (None, url) => url.clone().unwrap_or_default(),
    };
    let mut client = LoadClient::new(&base, route, timeout, (args.voice.as_deref(), body), Some(args.seed))?;
    client.adopt_model().await;
    let client = Arc::new(client);
    let tokens = args.tokens;
    warm_up(&client, &texts, (args.warmup, Length { tokens, frames: args.frames }), &base).await?;

    let mut levels = Vec::new();
    for planned in loads {
        let before = client.metrics().await;
        let records = run_level(&client, &texts, planned, tokens, args.seed).await;
        let server = client.metrics().await.since(&before);
        let Planned { load, frames } = planned;
        levels.push(Level { load, frames, tokens, figures: Figures::of(&records), server });
    }
    let overload = match args.overload {
        Some(factor) => Some(args.overload(factor, &base, timeout, &texts).await?),
        None => None,
    };
    let report = Report {
        target: local.as_ref().map_or(base, |local| format!("{} in this process", local.model())),
        version: env!("CARGO_PKG_VERSION"),
        seed: args.seed,
        texts: texts.len(),
        cores: std::thread::available_parallelism().map_or(1, usize::from),
        floor,
        levels,
        overload,
    };
    if let Some(local) = local {
        local.stop().await;
    }
    println!("{} on {} cores, {} texts, seed {}\n", report.target, report.cores, report.texts, report.seed);
    match &report.overload {
        Some(overload) => print!("{overload}"),
        None => print!("{}", report.table()),
    }
    if let Some(path) = &args.json {
        let json = serde_json::to_string_pretty(&report)?;
        std::fs::write(path, json + "\n").with_context(|| format!("cannot write {}", path.display()))?;
    }
    if let Some(Err(broken)) = report.overload.as_ref().map(Overload::passed) {
        anyhow::bail!("{broken}");
    }
    let silent = report.levels.iter().any(|level| level.figures.succeeded == 0);
    anyhow::ensure!(!silent, "a level ended without a single successful request");
    Ok(())
}

impl BenchArgs {
    fn loads(&self) -> anyhow::Result<Vec<Planned>> {
        if self.overload.is_some() {
            return Ok(Vec::new());
        }
        let sweeping = !self.sweep.is_empty() || !self.rates.is_empty();
        let (levels, rates): (&[usize], _) = match () {
            () if sweeping => (&self.sweep, &self.rates),
            () if self.rate.is_empty() => (&self.concurrency, &self.rate),
            () => (&[], &self.rate),
        };
        let duration = positive("--duration", self.duration)?;
        let least = if sweeping { 3 } else { 1 };
        let closed = |&concurrency: &usize| {
            // The upper end is more than there are ports.
            let fits = (1..=60_000).contains(&concurrency);
            let load = Load::Closed { concurrency, requests: self.requests.unwrap_or(16).max(least * concurrency) };
            fits.then_some(Planned { load, frames: self.frames })
                .ok_or_else(|| Usage("--concurrency: must be at least 1 and at most 60000".to_owned()).into())
        };
        let open = |&rate: &f64| {
            // The upper end keeps the list of arrivals small; no server speaks that fast.
            let fits = rate > 0.0 && rate <= 10_000.0;
            let load = Load::Open { rate, duration };
            fits.then_some(Planned { load, frames: self.rate_frames.or(self.frames) })
                .ok_or_else(|| Usage("--rate: must be above 0 and at most 10000".to_owned()).into())
        };
        levels.iter().map(closed).chain(rates.iter().map(open)).collect()
    }

    /// The floor, if the user gives a bandwidth and the model is known.
    fn floor(&self, embedded: Option<EmbeddedFiles>) -> anyhow::Result<Option<Floor>> {
        let Some(bandwidth) = self.bandwidth else { return Ok(None) };
        let fits = bandwidth.is_finite() && bandwidth >= 1e6;
        if !fits {
            return Err(Usage("--bandwidth: write bytes per second, such as 4.3e12".to_owned()).into());
        }
        if self.url.is_some() && self.model.config.is_none() && self.model.checkpoint.is_none() {
            return Err(
                Usage("--bandwidth: give --config or --checkpoint too, for the model's sizes".to_owned()).into()
            );
        }
        let config = self.model.resolve()?;
        let checkpoint = model::open(&config, embedded)?;
        // The element type of a server elsewhere is not known here: the config's, or the one of a GPU.
        let dtype = config.device.dtype.unwrap_or(Precision::Bf16);
        Ok(Some(Floor::new(checkpoint.family(), dtype, bandwidth)))
    }

    /// Measures what the server carries with requests that have no deadline, then sends more than that with deadlines.
    async fn overload(
        &self,
        factor: f64,
        base: &str,
        timeout: Duration,
        texts: &Arc<Vec<String>>,
    ) -> anyhow::Result<Overload> {
        /// Requests that measure what is carried, per place.
        const PER_PLACE: usize = 3;
        let fits = factor > 0.0 && factor <= 1000.0;
        if !fits {
            return Err(Usage("--overload: must be above 0 and at most 1000".to_owned()).into());
        }
        let client = async |deadline: Value| {
            let mut body = self.body()?;
            body.insert("deadline_ms".to_owned(), deadline);
            let fields = (self.voice.as_deref(), body);
            let mut client = LoadClient::new(base, Route::Speech, timeout, fields, Some(self.seed))?;
            client.adopt_model().await;
            anyhow::Ok(Arc::new(client))
        };
        let deadline = positive("--deadline", self.deadline)?;
        let patient = client("none".into()).await?;
        let places = patient.places().await.context("--overload: the server's /health does not tell max_requests")?;
        let records = closed(&patient, texts, self.length(), places, places * PER_PLACE).await;
        let figures = Figures::of(&records);
        anyhow::ensure!(
            figures.succeeded == records.len(),
            "the server does not carry its own places: {:?}",
            figures.errors
        );
        // The rate at which the server made speech for all of its places.
        let length = figures.audio_s / figures.succeeded as f64;
        let carried = Carried { requests_per_s: figures.audio_s_per_s / length, audio_s_per_s: figures.audio_s_per_s };
        let rate = carried.requests_per_s * factor;
        let requests = self.requests.unwrap_or(1000);
        let learning = requests / 10;
        let all = requests + learning;
        let mut arrivals = plan::poisson(rate, Duration::from_secs_f64(all as f64 / rate * 2.0), self.seed);
        arrivals.truncate(all);
        let learned = arrivals.get(learning).copied().unwrap_or_default();
        let hurried = client((deadline.as_millis() as u64).into()).await?;
        let records = open(&hurried, texts, self.length(), arrivals, rate).await;
        Ok(Overload::of(&records, learned, factor, carried, deadline))
    }

    /// What is asked for.
    fn route(&self) -> anyhow::Result<Route> {
        let refuse = |told: &str| Err(Usage(told.to_owned()).into());
        match self.chat {
            None => Ok(Route::Speech),
            Some(Chat::Text) if self.frames.or(self.rate_frames).is_some() => {
                refuse("--frames: answers in text have none; say --chat audio")
            }
            Some(Chat::Audio) if self.tokens.is_some() != self.frames.or(self.rate_frames).is_some() => {
                refuse("--tokens: spoken answers of a fixed length need --tokens and --frames")
            }
            Some(chat) => Ok(Route::Chat { speaks: chat == Chat::Audio }),
        }
    }

    fn length(&self) -> Length {
        Length { tokens: self.tokens, frames: self.frames }
    }

    /// Fields of the user for every request.
    fn body(&self) -> anyhow::Result<Map<String, Value>> {
        let mut body = Map::new();
        if let Some(extra) = &self.extra {
            let fields: Map<String, Value> = serde_json::from_str(extra)
                .map_err(|error| Usage(format!("--extra: must be a JSON object such as {{\"a\": 1}}: {error}")))?;
            body.extend(fields);
        }
        Ok(body)
    }
}

fn positive(option: &str, seconds: f64) -> anyhow::Result<Duration> {
    let duration = Duration::try_from_secs_f64(seconds).ok().filter(|duration| !duration.is_zero());
    duration.ok_or_else(|| Usage(format!("{option}: must be above 0 seconds")).into())
}

/// How many requests a level may have in flight; for an open loop, which has no bound, as many as arrive in 10 s.
fn most_at_once(load: &Load) -> usize {
    match load {
        Load::Closed { concurrency, .. } => *concurrency,
        Load::Open { rate, .. } => (rate * 10.0).ceil() as usize,
    }
}

async fn warm_up(
    client: &LoadClient,
    texts: &[String],
    (requests, length): (usize, Length),
    base: &str,
) -> anyhow::Result<()> {
    for i in 0..requests {
        let now = Instant::now();
        if let Err(error) = client.ask(i, &texts[i % texts.len()], length, now, now).await.result {
            anyhow::bail!("{base} does not answer: {error}");
        }
    }
    Ok(())
}

async fn run_level(
    client: &Arc<LoadClient>,
    texts: &Arc<Vec<String>>,
    Planned { load, frames }: Planned,
    tokens: Option<u32>,
    seed: u64,
) -> Vec<Record> {
    let length = Length { tokens, frames };
    match load {
        Load::Closed { concurrency, requests } => closed(client, texts, length, concurrency, requests).await,
        Load::Open { rate, duration } => open(client, texts, length, plan::poisson(rate, duration, seed), rate).await,
    }
}

async fn closed(
    client: &Arc<LoadClient>,
    texts: &Arc<Vec<String>>,
    length: Length,
    concurrency: usize,
    requests: usize,
) -> Vec<Record> {
    let progress = progress(requests, &format!("c={concurrency}"));
    let next = Arc::new(AtomicUsize::new(0));
    let began = Instant::now();
    let mut clients = JoinSet::new();
    for _ in 0..concurrency {
        let (client, texts, next, progress) = (client.clone(), texts.clone(), next.clone(), progress.clone());
        clients.spawn(async move {
            let mut records = Vec::new();
            loop {
                let i = next.fetch_add(1, Ordering::Relaxed);
                if i >= requests {
                    return records;
                }
                records.push(client.ask(i, &texts[i % texts.len()], length, began, Instant::now()).await);
                progress.inc(1);
            }
        });
    }
    let records = clients.join_all().await.concat();
    progress.finish_and_clear();
    records
}

async fn open(
    client: &Arc<LoadClient>,
    texts: &Arc<Vec<String>>,
    length: Length,
    arrivals: Vec<Duration>,
    rate: f64,
) -> Vec<Record> {
    let progress = progress(arrivals.len(), &format!("{rate}/s"));
    let began = Instant::now();
    let mut requests = JoinSet::new();
    for (i, at) in arrivals.into_iter().enumerate() {
        let due = began + at;
        tokio::time::sleep_until(due).await;
        let (client, texts, progress) = (client.clone(), texts.clone(), progress.clone());
        requests.spawn(async move {
            let record = client.ask(i, &texts[i % texts.len()], length, began, due).await;
            progress.inc(1);
            record
        });
    }
    let records = requests.join_all().await;
    progress.finish_and_clear();
    records
}

/// A bar on stderr; nothing when stderr is no terminal.
fn progress(requests: usize, name: &str) -> ProgressBar {
    let bar = ProgressBar::new(requests as u64).with_prefix(name.to_owned());
    // The template is a constant that parses; the default style would do too.
    if let Ok(style) = ProgressStyle::with_template("{prefix:>8} {bar:40} {pos}/{len} {elapsed}") {
        bar.set_style(style);
    }
    bar
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::Parser;

    #[derive(Parser)]
    struct Line {
        #[command(flatten)]
        bench: BenchArgs,
    }

    fn planned(words: &str) -> anyhow::Result<Vec<(Load, Option<u32>)>> {
        let line = Line::try_parse_from(std::iter::once("bench").chain(words.split_whitespace()))?;
        Ok(line.bench.loads()?.into_iter().map(|planned| (planned.load, planned.frames)).collect())
    }

    #[test]
    fn a_sweep_is_closed_loops_then_open_ones() {
        let all = planned("--sweep --rates --frames 100 --rate-frames 57").unwrap();
        assert_eq!(all.len(), 11);
        assert_eq!(all[0], (Load::Closed { concurrency: 1, requests: 16 }, Some(100)));
        assert_eq!(all[6], (Load::Closed { concurrency: 128, requests: 384 }, Some(100)));
        assert_eq!(all[10], (Load::Open { rate: 40.0, duration: Duration::from_secs(30) }, Some(57)));
        let chosen = planned("--sweep 2,3 --rates 5 --frames 9 --duration 2").unwrap();
        assert_eq!(chosen.len(), 3);
        assert_eq!(chosen[2], (Load::Open { rate: 5.0, duration: Duration::from_secs(2) }, Some(9)));
        assert_eq!(planned("").unwrap(), [(Load::Closed { concurrency: 1, requests: 16 }, None)]);
    }

    #[test]
    fn levels_that_make_no_sense_are_refused() {
        for words in ["--sweep 0", "--rates 0", "--sweep --concurrency 2", "--frames 0", "--sweep x"] {
            assert!(planned(words).is_err(), "{words}");
        }
    }
}
