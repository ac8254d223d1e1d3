//! `omni-actors bench`: how fast a server speaks, as its listeners hear it.

mod client;
mod plan;
mod report;
mod stats;
mod texts;

use super::EmbeddedFiles;
use super::exit::Usage;
use super::local::LocalServer;
use super::model::ModelArgs;
use anyhow::Context;
use clap::Args;
use client::SpeechClient;
use indicatif::{ProgressBar, ProgressStyle};
use plan::Load;
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
/// audio (TTFA), whole request, requests per second, seconds of audio per second, real-time factor, and underruns of
/// a player that starts with the first chunk. Without --url, a server is started inside this process.
#[derive(Args, Debug)]
#[command(after_help = "Examples:
  omni-actors bench                                           the embedded voice, one request at a time
  omni-actors bench --concurrency 1,4,8 --requests 32         closed loop, three levels
  omni-actors bench --rate 1,2,4 --duration 30                open loop, Poisson arrivals
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
    /// Closed loop: requests per level, at least one per client
    #[arg(long, value_name = "N", default_value_t = 16, conflicts_with = "rate")]
    requests: usize,
    /// Open loop: mean arrivals per second; several levels with commas
    #[arg(long, value_name = "R,..", value_delimiter = ',')]
    rate: Vec<f64>,
    /// Open loop: seconds during which requests arrive
    #[arg(long, value_name = "SECONDS", default_value_t = 30.0, requires = "rate")]
    duration: f64,
    /// One text per line, taken in turn; a list of short sentences by default
    #[arg(long, value_name = "FILE")]
    texts: Option<PathBuf>,
    /// Speaker
    #[arg(long)]
    voice: Option<String>,
    /// Seed of the arrivals; request i is sent with this seed plus i
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// Fields for every request's body, as a JSON object; they win over ours, null leaves a field out
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

/// Runs the command. It fails if not a single request of a level succeeds.
pub async fn execute(args: BenchArgs, embedded: Option<EmbeddedFiles>) -> anyhow::Result<()> {
    let loads = args.loads()?;
    let texts = Arc::new(texts::texts(args.texts.as_deref())?);
    let body = args.body()?;
    let timeout = positive("--timeout", args.timeout)?;
    let local = match &args.url {
        Some(_) => None,
        None => Some(LocalServer::start(&args.model, embedded, loads.iter().map(most_at_once).max()).await?),
    };
    let base = match (&local, &args.url) {
        (Some(local), _) => local.url(),
        (None, url) => url.clone().unwrap_or_default(),
    };
    let mut client = SpeechClient::new(&base, timeout, body, Some(args.seed))?;
    client.adopt_model().await;
    let client = Arc::new(client);
    warm_up(&client, &texts, args.warmup, &base).await?;

    let mut levels = Vec::new();
    for load in loads {
        let records = run_level(&client, &texts, load, args.seed).await;
        levels.push(Level { load, figures: Figures::of(&records) });
    }
    let report = Report {
        target: local.as_ref().map_or(base, |local| format!("{} in this process", local.model())),
        version: env!("CARGO_PKG_VERSION"),
        seed: args.seed,
        texts: texts.len(),
        cores: std::thread::available_parallelism().map_or(1, usize::from),
        levels,
    };
    if let Some(local) = local {
        local.stop().await;
    }
    println!("{} on {} cores, {} texts, seed {}\n", report.target, report.cores, report.texts, report.seed);
    print!("{}", report.table());
    if let Some(path) = &args.json {
        let json = serde_json::to_string_pretty(&report)?;
        std::fs::write(path, json + "\n").with_context(|| format!("cannot write {}", path.display()))?;
    }
    let silent = report.levels.iter().any(|level| level.figures.succeeded == 0);
    anyhow::ensure!(!silent, "a level ended without a single successful request");
    Ok(())
}

impl BenchArgs {
    fn loads(&self) -> anyhow::Result<Vec<Load>> {
        if self.rate.is_empty() {
            let closed = |&concurrency: &usize| match concurrency {
                0 => Err(Usage("--concurrency: must be at least 1".to_owned()).into()),
                _ => Ok(Load::Closed { concurrency, requests: self.requests.max(concurrency) }),
            };
            return self.concurrency.iter().map(closed).collect();
        }
        let duration = positive("--duration", self.duration)?;
        let open = |&rate: &f64| {
            // The upper end keeps the list of arrivals small; nobody's server speaks that fast.
            let fits = rate > 0.0 && rate <= 10_000.0;
            fits.then_some(Load::Open { rate, duration })
                .ok_or_else(|| Usage("--rate: must be above 0 and at most 10000".to_owned()).into())
        };
        self.rate.iter().map(open).collect()
    }

    fn body(&self) -> anyhow::Result<Map<String, Value>> {
        let mut body = Map::new();
        if let Some(voice) = &self.voice {
            body.insert("voice".to_owned(), voice.as_str().into());
        }
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

/// How many requests a level may have in flight; for an open loop nobody knows, so as many as arrive in 10 s.
fn most_at_once(load: &Load) -> usize {
    match load {
        Load::Closed { concurrency, .. } => *concurrency,
        Load::Open { rate, .. } => (rate * 10.0).ceil() as usize,
    }
}

async fn warm_up(client: &SpeechClient, texts: &[String], requests: usize, base: &str) -> anyhow::Result<()> {
    for i in 0..requests {
        let now = Instant::now();
        if let Err(error) = client.speak(i, &texts[i % texts.len()], now, now).await.result {
            anyhow::bail!("{base} does not speak: {error}");
        }
    }
    Ok(())
}

async fn run_level(client: &Arc<SpeechClient>, texts: &Arc<Vec<String>>, load: Load, seed: u64) -> Vec<Record> {
    match load {
        Load::Closed { concurrency, requests } => closed(client, texts, concurrency, requests).await,
        Load::Open { rate, duration } => open(client, texts, plan::poisson(rate, duration, seed), rate).await,
    }
}

async fn closed(
    client: &Arc<SpeechClient>,
    texts: &Arc<Vec<String>>,
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
                records.push(client.speak(i, &texts[i % texts.len()], began, Instant::now()).await);
                progress.inc(1);
            }
        });
    }
    let records = clients.join_all().await.concat();
    progress.finish_and_clear();
    records
}

async fn open(client: &Arc<SpeechClient>, texts: &Arc<Vec<String>>, arrivals: Vec<Duration>, rate: f64) -> Vec<Record> {
    let progress = progress(arrivals.len(), &format!("{rate}/s"));
    let began = Instant::now();
    let mut requests = JoinSet::new();
    for (i, at) in arrivals.into_iter().enumerate() {
        let due = began + at;
        tokio::time::sleep_until(due).await;
        let (client, texts, progress) = (client.clone(), texts.clone(), progress.clone());
        requests.spawn(async move {
            let record = client.speak(i, &texts[i % texts.len()], began, due).await;
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
