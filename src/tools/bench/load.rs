//! Sends the requests of a level, in a closed or an open loop, and shows how far it is.

use super::chat::Length;
use super::client::LoadClient;
use super::plan::{self, Load, Planned};
use super::stats::Record;
use indicatif::{ProgressBar, ProgressStyle};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;
use tokio::task::JoinSet;
use tokio::time::Instant;

/// Asks so many times before anything is measured.
pub(super) async fn warm_up(
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

/// Measures one level.
pub(super) async fn run_level(
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

/// Clients that ask again as soon as they are answered.
pub(super) async fn closed(
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

/// Requests that come at their times, whether others are answered or not.
pub(super) async fn open(
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
pub(super) fn progress(requests: usize, name: &str) -> ProgressBar {
    let bar = ProgressBar::new(requests as u64).with_prefix(name.to_owned());
    // The template is a constant that parses; the default style would do too.
    if let Ok(style) = ProgressStyle::with_template("{prefix:>8} {bar:40} {pos}/{len} {elapsed}") {
        bar.set_style(style);
    }
    bar
}
