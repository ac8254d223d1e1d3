//! One run: listeners in a closed loop, and the faults that strike the hosts meanwhile.

use super::super::drill::Stream;
use super::super::listen::AGAIN;
use super::super::load::Load;
use super::super::verdict::{Heard, Verdict};
use super::hosts::{HANGING, Hosts, Site, name};
use super::listen::{Listener, Played};
use super::plan::{Kind, Side, Strike};
use crate::network::Passage;
use anyhow::Context;
use reqwest::Client;
use serde_json::{Map, Value};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;

/// What is slow: a network across a continent, and a bad one.
const SLOW: Passage = Passage::Slow { delay: Duration::from_millis(50), lost: 0.01 };
/// How long a cluster gets to be whole, at the start and behind a fault.
pub const WHOLE: Duration = Duration::from_secs(60);

/// A fault that struck. Times are since the run began.
#[derive(Clone, Debug, PartialEq)]
pub struct Struck {
    /// Which.
    pub strike: Strike,
    /// When it began.
    pub from: Duration,
    /// When it was taken back.
    pub to: Duration,
    /// When every gateway used every node again.
    pub whole: Duration,
}

/// The result of a run.
#[derive(Debug, Default)]
pub struct Run {
    /// In the order of their numbers.
    pub played: Vec<Played>,
    /// How many were begun.
    pub begun: usize,
    /// In the order of time.
    pub struck: Vec<Struck>,
    /// From its beginning to its end.
    pub took: Duration,
    /// What did not come back, or could not be struck.
    pub given_up: Option<String>,
    /// The user ended it.
    pub interrupted: bool,
}

/// How a run goes.
pub struct Drill {
    /// Listeners at once.
    pub listeners: usize,
    /// How many nodes there are.
    pub nodes: usize,
    /// Requests in all; `None`: until all faults have struck.
    pub requests: Option<usize>,
    /// The faults.
    pub strikes: Vec<Strike>,
    /// How long nothing strikes before each of them and behind the last.
    pub rest: Duration,
    /// After how long a side that says nothing counts as gone.
    pub silence: Duration,
    /// For how long nothing may come.
    pub patience: Duration,
    /// Samples a second.
    pub rate: u32,
}

/// What all listeners share.
struct Shared {
    http: Client,
    sites: Arc<[Site]>,
    load: Arc<Load>,
    /// The bodies of requests, one for each of the set.
    bodies: Vec<Map<String, Value>>,
    drill: Drill,
    began: Instant,
    begun: AtomicUsize,
    played: Mutex<Vec<Played>>,
    stopping: AtomicBool,
}

/// Runs the listeners, and strikes the hosts. `judge` gets what each of them heard, with the place of its request in the set.
///
/// # Errors
/// There is nothing to send requests with.
pub async fn run(
    hosts: &mut Hosts,
    load: &Arc<Load>,
    drill: Drill,
    judge: impl Fn(usize, Heard) -> Verdict + Send + Sync + 'static,
    interrupted: &CancellationToken,
) -> anyhow::Result<Run> {
    // A connection that was kept may be one to a gateway that is gone.
    let http = Client::builder().no_proxy().tcp_nodelay(true).pool_max_idle_per_host(0).build()?;
    let shared = Arc::new(Shared {
        http,
        sites: hosts.sites(),
        load: Arc::clone(load),
        bodies: (0..load.cases.len()).map(|case| load.body(case)).collect(),
        drill,
        began: Instant::now(),
        begun: AtomicUsize::new(0),
        played: Mutex::default(),
        stopping: AtomicBool::new(false),
    });
    let judge = Arc::new(judge);
    let mut listeners = JoinSet::new();
    for listener in 0..shared.drill.listeners {
        let (shared, judge) = (Arc::clone(&shared), Arc::clone(&judge));
        listeners.spawn(async move { shared.listener(listener, &*judge).await });
    }
    let mut run = Run::default();
    let outcome = tokio::select! {
        outcome = shared.strike_all(hosts, &mut run.struck) => outcome,
        () = interrupted.cancelled() => Ok(()),
    };
    run.given_up = outcome.and(hosts.mend()).err().map(|error| format!("{error:#}"));
    let has_end = shared.drill.requests.is_some();
    shared.stopping.store(!has_end, Ordering::Relaxed);
    loop {
        let ended = tokio::select! {
            ended = listeners.join_next() => ended,
            () = interrupted.cancelled(), if !run.interrupted => {
                run.interrupted = true;
                shared.stopping.store(true, Ordering::Relaxed);
                continue;
            }
        };
        match ended {
            None => break,
            // A listener that panics has lost its stream: the run reports it.
            Some(Err(error)) => run.given_up = Some(format!("a listener failed: {error}")),
            Some(Ok(())) => {}
        }
    }
    run.took = shared.began.elapsed();
    run.begun = shared.begun.load(Ordering::Relaxed);
    run.played = std::mem::take(&mut *shared.played.lock().unwrap_or_else(PoisonError::into_inner));
    run.played.sort_by_key(|played| played.stream.number);
    Ok(run)
}

impl Shared {
    async fn listener(&self, listener: usize, judge: &(impl Fn(usize, Heard) -> Verdict + Sync)) {
        // Which listener asks for what does not depend on which one is faster.
        for number in (listener..).step_by(self.drill.listeners) {
            let enough = self.drill.requests.is_some_and(|limit| number >= limit);
            if enough || self.stopping.load(Ordering::Relaxed) {
                break;
            }
            let case = self.load.case(number);
            self.begun.fetch_add(1, Ordering::Relaxed);
            let listener = Listener {
                http: &self.http,
                sites: &self.sites,
                home: listener,
                body: &self.bodies[case],
                run_began: self.began,
                patience: self.drill.patience,
                rate: self.drill.rate,
            };
            let (heard, timing, gaps, moved) = listener.listen().await;
            let verdict = judge(case, heard);
            let stream = Stream { number, case, request: None, verdict, timing };
            self.played.lock().unwrap_or_else(PoisonError::into_inner).push(Played { stream, gaps, moved });
        }
    }

    /// One fault after the other, each when the cluster is whole again.
    async fn strike_all(&self, hosts: &mut Hosts, struck: &mut Vec<Struck>) -> anyhow::Result<()> {
        for strike in self.drill.strikes.iter().copied() {
            tokio::time::sleep(self.drill.rest).await;
            let what = described(strike);
            let from = self.began.elapsed();
            self.strike(hosts, strike).await.with_context(|| what.clone())?;
            let to = self.began.elapsed();
            let whole = hosts.whole(self.began, WHOLE).await;
            let whole = whole.with_context(|| format!("the cluster is not whole {WHOLE:?} after {what}"))?;
            eprintln!(
                "{:.1} s: {what} for {:.1} s; all is used again {:.1} s later; {} streams done, {} bad",
                from.as_secs_f64(),
                (to - from).as_secs_f64(),
                whole.saturating_sub(to).as_secs_f64(),
                self.count(|_| true),
                self.count(|played| !played.stream.verdict.is_good()),
            );
            struck.push(Struck { strike, from, to, whole });
        }
        if !self.drill.strikes.is_empty() {
            tokio::time::sleep(self.drill.rest).await;
        }
        Ok(())
    }

    fn count(&self, counts: impl Fn(&Played) -> bool) -> usize {
        let played = self.played.lock().unwrap_or_else(PoisonError::into_inner);
        played.iter().filter(|played| counts(played)).count()
    }

    /// Asks all gateways for more at once than they have nodes, again and again: what joins last has sequences, too.
    async fn crowd(&self) -> std::convert::Infallible {
        let at_once = self.drill.nodes + 2;
        loop {
            let urls = self.sites.iter().filter_map(Site::url).flat_map(|url| std::iter::repeat_n(url, at_once));
            let asked = urls.zip(self.bodies.iter().cycle()).map(|(url, body)| async move {
                // Nobody listens, so it matters to nobody what becomes of it.
                let answer = self.http.post(format!("{url}/v1/audio/speech")).json(body).send().await.ok()?;
                answer.bytes().await.ok()
            });
            let _ = tokio::time::timeout(self.drill.patience, futures::future::join_all(asked)).await;
            tokio::time::sleep(AGAIN).await;
        }
    }

    /// Breaks something, and makes it good again after a while.
    async fn strike(&self, hosts: &mut Hosts, Strike { kind, target }: Strike) -> anyhow::Result<()> {
        let lasts = || tokio::time::sleep(kind.lasts(self.drill.silence));
        match kind {
            Kind::KillNode => {
                hosts.kill_node(target);
                lasts().await;
                hosts.start_node(target)
            }
            Kind::StopNode => {
                hosts.stop_node(target, true)?;
                lasts().await;
                hosts.stop_node(target, false)
            }
            Kind::HangNode => {
                hosts.hanging_node(true).await?;
                let hung = tokio::select! {
                    hung = hosts.hung(WHOLE) => hung,
                    never = self.crowd() => match never {},
                };
                lasts().await;
                hosts.hanging_node(false).await?;
                anyhow::ensure!(hung, "no gateway has seen that the node computes no more");
                Ok(())
            }
            Kind::KillGateway => {
                hosts.answers(target, 4 * self.drill.silence).await;
                hosts.kill_gateway(target);
                lasts().await;
                hosts.start_gateway(target).await
            }
            Kind::LateNode | Kind::Cut(..) => {
                let [to_gateways, to_node] = match kind {
                    Kind::Cut(Side::Both, _) => [Passage::Cut; 2],
                    Kind::Cut(Side::ToNode, _) => [Passage::Open, Passage::Cut],
                    Kind::Cut(Side::ToGateways, _) => [Passage::Cut, Passage::Open],
                    _ => [Passage::Held, Passage::Open],
                };
                hosts.set_ways(target, to_gateways, to_node)?;
                lasts().await;
                hosts.set_ways(target, Passage::Open, Passage::Open)
            }
            Kind::Slow => {
                hosts.set_all_ways(SLOW)?;
                lasts().await;
                hosts.set_all_ways(Passage::Open)
            }
        }
    }
}

/// A fault, with what it strikes.
pub fn described(Strike { kind, target }: Strike) -> String {
    let of = match kind {
        Kind::KillGateway => format!("gateway-{}", target + 1),
        Kind::Slow => "all".to_owned(),
        Kind::HangNode => HANGING.to_owned(),
        Kind::KillNode | Kind::StopNode | Kind::LateNode | Kind::Cut(..) => name(target),
    };
    format!("{} ({of})", kind.name())
}
