//! `omni-actors bench`: measures how fast a server speaks, as its listeners hear it, and answers.
//!
//! | file | what |
//! | --- | --- |
//! | `args` | what the command line asks for |
//! | `plan` | which request starts when: pure |
//! | `load` | sends the requests of a level |
//! | `client` | one request over HTTP, timed chunk by chunk |
//! | `chat` | one answer of the chat route, event by event |
//! | `stats` | from single requests to the figures of a level: pure |
//! | `server` | the metrics of the server under test, before and after a level |
//! | `overload` | more requests than a server carries |
//! | `realtime` | conversations over a WebSocket |
//! | `floor` | the least time per frame that a memory bandwidth allows: pure |
//! | `texts` | what is spoken when the user gives no texts |
//! | `report` | tables and JSON |

mod args;
mod chat;
mod client;
mod floor;
mod load;
mod overload;
pub(super) mod plan;
mod realtime;
pub(super) mod report;
mod server;
pub(super) mod stats;
pub(super) mod texts;

use super::EmbeddedFiles;
use super::exit::Usage;
use super::local::LocalServer;
use super::model;
use anyhow::Context;
pub use args::BenchArgs;
use args::positive;
use chat::Length;
use client::{LoadClient, Route};
use floor::Floor;
use futures::future::LocalBoxFuture;
use load::{closed, open, run_level, warm_up};
use omni_config::Precision;
use overload::{Carried, Overload};
use plan::{Load, Planned};
use report::{Level, Report};
use serde_json::Value;
use stats::Figures;
use std::sync::Arc;
use std::time::Duration;

/// Runs the command. It fails if no request of a level succeeds.
pub fn execute(args: BenchArgs, embedded: Option<EmbeddedFiles>) -> LocalBoxFuture<'static, anyhow::Result<()>> {
    Box::pin(run(args, embedded))
}

async fn run(args: BenchArgs, embedded: Option<EmbeddedFiles>) -> anyhow::Result<()> {
    if args.realtime.is_asked() {
        return realtime::run(args, embedded).await;
    }
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
    crate::outln!("{} on {} cores, {} texts, seed {}\n", report.target, report.cores, report.texts, report.seed);
    match &report.overload {
        Some(overload) => crate::out!("{overload}"),
        None => crate::out!("{}", report.table()),
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
}

/// How many requests a level may have in flight; for an open loop, which has no bound, as many as arrive in 10 s.
fn most_at_once(load: &Load) -> usize {
    match load {
        Load::Closed { concurrency, .. } => *concurrency,
        Load::Open { rate, .. } => (rate * 10.0).ceil() as usize,
    }
}
