//! `omni-actors top`: gateways, their nodes and replicas, again each second.

use super::super::exit::Usage;
use super::super::signals::Signals;
use super::gateway::Gateway;
use super::histogram::Histogram;
use super::page::{Line, Seen, Status, Waits, page};
use super::terminal::Terminal;
use anyhow::bail;
use clap::Args;
use futures::future::LocalBoxFuture;
use reqwest::{Response, StatusCode};
use std::collections::VecDeque;
use std::time::{Duration, SystemTime, UNIX_EPOCH};
use tokio::time::MissedTickBehavior;

/// How often everything is asked again.
const PERIOD: Duration = Duration::from_secs(1);
/// A gateway that takes longer counts as down.
const PATIENCE: Duration = Duration::from_secs(2);
/// Of how many pages the latencies are.
const WINDOW: usize = 30;
/// Bytes of the longest answer: far more than the metrics of a gateway.
const LONGEST: usize = 8 << 20;

/// Show gateways, nodes and replicas, again each second
///
/// Of each server: whether it is ready, how many requests it has, how long listeners waited lately, the nodes that have
/// joined it, and each replica of its stages. It works on servers without a cluster, too. `q` or Ctrl-C ends it.
#[derive(Args, Debug)]
#[command(after_help = "Examples:
  omni-actors top --url http://127.0.0.1:8080
  omni-actors top --url http://a:8080 --url http://b:8080 --once    one page, for scripts")]
pub struct TopArgs {
    /// A gateway, or any other server; may be given several times
    #[arg(long, value_name = "URL", required = true)]
    url: Vec<String>,
    /// Key; latencies need the scope "metrics". On the command line other users of the machine can read it
    #[arg(long, env = "OMNI_KEY", hide_env_values = true)]
    key: Option<String>,
    /// Print one page and end: with 1 if no server answers
    #[arg(long)]
    once: bool,
}

/// Runs the command.
pub fn execute(args: TopArgs) -> LocalBoxFuture<'static, anyhow::Result<()>> {
    Box::pin(run(args))
}

async fn run(args: TopArgs) -> anyhow::Result<()> {
    let watched = |gateway| Watched { gateway, counted: VecDeque::new(), lately: !args.once };
    let at = |url: &String| Gateway::at(url, args.key.as_deref(), PATIENCE).map(watched);
    let mut gateways = args.url.iter().map(at).collect::<anyhow::Result<Vec<_>>>()?;
    if args.once {
        return once(&mut gateways).await;
    }
    let mut signals = Signals::catch()?;
    let Some(mut terminal) = Terminal::take()? else {
        return Err(Usage("top shows pages on a terminal: --once prints one elsewhere".to_owned()).into());
    };
    let mut period = tokio::time::interval(PERIOD);
    period.set_missed_tick_behavior(MissedTickBehavior::Delay);
    loop {
        tokio::select! {
            _ = period.tick() => {}
            () = terminal.ends() => return Ok(()),
            () = signals.next() => return Ok(()),
        }
        let waits = format!("last {WINDOW} s");
        let (lines, _) = tokio::select! {
            seen = look(&mut gateways, &waits) => seen,
            () = terminal.ends() => return Ok(()),
            () = signals.next() => return Ok(()),
        };
        terminal.show(&lines)?;
    }
}

async fn once(gateways: &mut [Watched]) -> anyhow::Result<()> {
    let (lines, answered) = look(gateways, "since the start").await;
    lines.iter().for_each(|line| crate::outln!("{}", line.text));
    if answered == 0 {
        bail!("no server answers");
    }
    Ok(())
}

/// The page as it is now, and how many servers answered.
async fn look(gateways: &mut [Watched], waits: &str) -> (Vec<Line>, usize) {
    let seen = futures::future::join_all(gateways.iter_mut().map(Watched::look)).await;
    let answered = seen.iter().filter(|seen| seen.told.is_ok()).count();
    let now = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs());
    (page(&seen, now, waits), answered)
}

/// A gateway, and what it counted on the last pages.
struct Watched {
    gateway: Gateway,
    counted: VecDeque<Waits>,
    /// Whether only what comes after its first page counts.
    lately: bool,
}

impl Watched {
    async fn look(&mut self) -> Seen {
        let told = match self.status().await {
            Ok(status) => {
                let waits = self.waits().await;
                Ok((status, waits))
            }
            Err(error) => Err(error.root_cause().to_string()),
        };
        Seen { gateway: self.gateway.name.clone(), told }
    }

    async fn status(&self) -> anyhow::Result<Status> {
        let mut answer = self.gateway.get("/cluster").await?;
        if answer.status() == StatusCode::NOT_FOUND {
            answer = self.gateway.get("/health").await?;
        }
        Ok(serde_json::from_slice(&read(self.gateway.good(answer).await?).await?)?)
    }

    /// How long listeners waited since the oldest page.
    async fn waits(&mut self) -> Option<Waits> {
        let answer = self.gateway.good(self.gateway.get("/metrics").await.ok()?).await.ok()?;
        let text = String::from_utf8(read(answer).await.ok()?).ok()?;
        let first_sound = Histogram::read(&text, "omni_ttfa_seconds");
        let now = Waits { first_sound, gap: Histogram::read(&text, "omni_chunk_gap_seconds") };
        let first = || if self.lately { now.clone() } else { Waits::default() };
        let oldest = self.counted.front().cloned().unwrap_or_else(first);
        self.counted.push_back(now.clone());
        if self.counted.len() > WINDOW {
            self.counted.pop_front();
        }
        Some(Waits { first_sound: now.first_sound.since(&oldest.first_sound), gap: now.gap.since(&oldest.gap) })
    }
}

async fn read(mut answer: Response) -> anyhow::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    while let Some(more) = answer.chunk().await? {
        if bytes.len() + more.len() > LONGEST {
            bail!("its answer is longer than {LONGEST} bytes");
        }
        bytes.extend_from_slice(&more);
    }
    Ok(bytes)
}
