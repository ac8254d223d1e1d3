//! One run: listeners in a closed loop against an engine of this process, whose health the run watches.

use super::inject::{Fault, Injector};
use super::listen::{Timing, given_up, listen};
use super::load::Load;
use super::outages::{Outage, Outages};
use super::resources::{self, Resources};
use super::talk::talk;
use super::verdict::{End, Heard, Verdict};
use crate::local::LocalServer;
use omni_core::ids::RequestId;
use omni_engine::{Engine, EngineHealth, Service, StageState};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};
use tokio::task::JoinSet;
use tokio::time::MissedTickBehavior;
use tokio_util::sync::CancellationToken;

/// How often health is looked at: what recovery times are exact to.
const LOOK: Duration = Duration::from_millis(5);
/// How often memory and file descriptors are.
const COUNT: Duration = Duration::from_secs(1);
/// How often a line says how it goes.
const TELL: Duration = Duration::from_secs(5);

/// When listeners stop asking.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Until {
    /// After this long.
    Time(Duration),
    /// After so many requests in all.
    Requests(usize),
}

impl Until {
    /// By when a fault must be planned to be given to the engine at `now`: every fault of the run's time is, however late
    /// it is looked for, and none behind it.
    fn planned_by(self, now: Duration) -> Duration {
        match self {
            Until::Time(limit) => now.min(limit.saturating_sub(Duration::from_nanos(1))),
            Until::Requests(_) => now,
        }
    }
}

impl std::fmt::Display for Until {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Until::Time(limit) => write!(f, "{:.0} s", limit.as_secs_f64()),
            Until::Requests(limit) => write!(f, "{limit} requests"),
        }
    }
}

/// How a run goes.
#[derive(Clone, Debug)]
pub struct Drill {
    /// Listeners at once.
    pub listeners: usize,
    /// When they stop.
    pub until: Until,
    /// For how long nothing may come.
    pub patience: Duration,
    /// Whether the first stream that is not good ends the run.
    pub first_ends: bool,
    /// What progress lines begin with; none are printed without.
    pub name: Option<&'static str>,
}

/// One stream of a run.
#[derive(Clone, Debug)]
pub struct Stream {
    /// Which request of the run, from 0.
    pub number: usize,
    /// Which request of the set.
    pub case: usize,
    /// Its name in logs.
    pub request: Option<RequestId>,
    /// How it compares with the truth.
    pub verdict: Verdict,
    /// Its times.
    pub timing: Timing,
}

/// The result of a run.
#[derive(Debug, Default)]
pub struct Run {
    /// In the order of their numbers, without the streams that the end of the run cut off.
    pub streams: Vec<Stream>,
    /// How many were begun.
    pub begun: usize,
    /// One more than the highest number of a request.
    pub numbers: usize,
    /// Of all stages.
    pub outages: Vec<Outage>,
    /// In the order of time.
    pub resources: Vec<Resources>,
    /// All planned faults, those that were never given to the engine included.
    pub faults: Vec<Fault>,
    /// From its beginning to its end.
    pub took: Duration,
    /// A stage that stayed down, and why.
    pub given_up: Option<String>,
    /// The user ended it.
    pub interrupted: bool,
}

impl Run {
    /// When the first stream ended that is not good.
    pub fn first_bad(&self) -> Option<Duration> {
        let bad = self.streams.iter().filter(|stream| !stream.verdict.is_good());
        bad.map(|bad| bad.timing.ended).min()
    }

    /// How many requests a replay needs until the first bad stream can happen again.
    pub fn needed(&self) -> usize {
        let Some(first) = self.first_bad() else { return self.numbers };
        let before = self.streams.iter().filter(|stream| stream.timing.began <= first);
        before.map(|stream| stream.number + 1).max().unwrap_or(self.numbers)
    }

    /// Whether a stream was bad or a stage stayed down.
    pub fn failed(&self) -> bool {
        self.given_up.is_some() || self.streams.iter().any(|stream| !stream.verdict.is_good())
    }
}

struct Shared {
    engine: Engine,
    /// Where conversations are held.
    site: Option<String>,
    load: Arc<Load>,
    drill: Drill,
    began: Instant,
    begun: AtomicUsize,
    numbers: AtomicUsize,
    streams: Mutex<Vec<Stream>>,
    bad: AtomicUsize,
    done: AtomicUsize,
    /// Listeners ask for no more.
    stopping: AtomicBool,
}

/// Runs the listeners, those of conversations against a server of the engine. `judge` gets what each of them heard, with
/// the place of the request in the set.
pub async fn run(
    (engine, server): (&Engine, Option<&LocalServer>),
    load: &Arc<Load>,
    drill: Drill,
    judge: impl Fn(usize, Heard) -> Verdict + Send + Sync + 'static,
    interrupted: &CancellationToken,
    mut injector: Injector,
) -> anyhow::Result<Run> {
    let shared = Arc::new(Shared {
        engine: engine.clone(),
        site: server.map(LocalServer::url),
        load: Arc::clone(load),
        drill,
        began: Instant::now(),
        begun: AtomicUsize::new(0),
        numbers: AtomicUsize::new(0),
        streams: Mutex::new(Vec::new()),
        bad: AtomicUsize::new(0),
        done: AtomicUsize::new(0),
        stopping: AtomicBool::new(false),
    });
    let judge = Arc::new(judge);
    let mut listeners = JoinSet::new();
    for listener in 0..shared.drill.listeners {
        let (shared, judge) = (Arc::clone(&shared), Arc::clone(&judge));
        listeners.spawn(async move { shared.listener(listener, &*judge).await });
    }
    let (mut run, mut outages) = (Run::default(), Outages::default());
    let mut looks = tokio::time::interval(LOOK);
    looks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let (mut count_at, mut tell_at) = (Duration::ZERO, TELL);
    while !listeners.is_empty() {
        tokio::select! {
            ended = listeners.join_next() => {
                // A listener that panics has lost its stream: the run reports it.
                if let Some(Err(error)) = ended
                    && error.is_panic()
                {
                    run.given_up = Some(format!("a listener failed: {error}"));
                }
                continue;
            }
            () = interrupted.cancelled(), if !run.interrupted => {
                run.interrupted = true;
                shared.stopping.store(true, Ordering::Relaxed);
            }
            _ = looks.tick() => {}
        }
        let (now, health) = (shared.began.elapsed(), engine.health());
        outages.look(now, &health.stages);
        if !shared.stopping.load(Ordering::Relaxed) {
            injector.inject(now, shared.drill.until.planned_by(now))?;
        }
        if now >= count_at {
            injector.count();
            run.resources.push(resources::look(now, health.stages.iter().filter_map(|stage| stage.pid)));
            count_at = now + COUNT;
        }
        if let Some(name) = shared.drill.name
            && now >= tell_at
        {
            eprintln!("{name}: {}", shared.progress(now, injector.faults()));
            tell_at = now + TELL;
        }
        if run.given_up.is_none() && given_up(engine) {
            run.given_up = Some(who_stays_down(health));
            shared.stopping.store(true, Ordering::Relaxed);
        }
        if shared.drill.first_ends && shared.bad.load(Ordering::Relaxed) > 0 {
            break;
        }
    }
    // The first bad stream cuts the listeners off that still listen.
    listeners.abort_all();
    while listeners.join_next().await.is_some() {}
    run.took = shared.began.elapsed();
    outages.look(run.took, &engine.health().stages);
    if run.given_up.is_none() && given_up(engine) {
        run.given_up = Some(who_stays_down(engine.health()));
    }
    run.begun = shared.begun.load(Ordering::Relaxed);
    run.numbers = shared.numbers.load(Ordering::Relaxed);
    run.streams = std::mem::take(&mut *shared.streams.lock().unwrap_or_else(PoisonError::into_inner));
    run.streams.sort_by_key(|stream| stream.number);
    run.outages = outages.seen().to_vec();
    injector.count();
    run.faults = injector.faults().to_vec();
    Ok(run)
}

/// The stages that stay down, and why.
fn who_stays_down(health: EngineHealth) -> String {
    let down = health.stages.into_iter().filter(|stage| stage.state == StageState::Failed);
    let reasons = down.map(|stage| format!("{}: {}", stage.name, stage.last_reason.unwrap_or_default()));
    reasons.collect::<Vec<_>>().join("; ")
}

impl Shared {
    async fn listener(&self, listener: usize, judge: &(impl Fn(usize, Heard) -> Verdict + Sync)) {
        // Which listener asks for what does not depend on which one is faster.
        for number in (listener..).step_by(self.drill.listeners) {
            let enough = matches!(self.drill.until, Until::Requests(limit) if number >= limit);
            if enough || !self.wants_more(self.began.elapsed()) {
                break;
            }
            let case = self.load.case(number);
            self.begun.fetch_add(1, Ordering::Relaxed);
            self.numbers.fetch_max(number + 1, Ordering::Relaxed);
            let info = self.engine.info();
            let frame = info.samples_per_frame * 24_000 / info.sample_rate.max(1);
            let (request, heard, timing) = match (&self.site, self.load.conversation(case, frame)) {
                (Some(site), Some(conversation)) => {
                    let (heard, timing) = talk(site, &conversation, self.began, self.drill.patience).await;
                    (None, heard, timing)
                }
                _ => listen(&self.engine, || self.load.asked(case), self.began, self.drill.patience).await,
            };
            let refused = matches!(heard.end, End::Refused(_));
            let verdict = judge(case, heard);
            if !verdict.is_good() {
                self.bad.fetch_add(1, Ordering::Relaxed);
            }
            self.done.fetch_add(1, Ordering::Relaxed);
            let stream = Stream { number, case, request, verdict, timing };
            self.streams.lock().unwrap_or_else(PoisonError::into_inner).push(stream);
            // It has asked for as long as it had patience; the engine would refuse the next request as well.
            if refused {
                break;
            }
        }
    }

    /// Whether listeners may still ask.
    fn wants_more(&self, now: Duration) -> bool {
        let time_is_up = matches!(self.drill.until, Until::Time(limit) if now >= limit);
        !time_is_up && !self.stopping.load(Ordering::Relaxed)
    }

    fn progress(&self, now: Duration, faults: &[Fault]) -> String {
        let (begun, done) = (self.begun.load(Ordering::Relaxed), self.done.load(Ordering::Relaxed));
        let of = match self.drill.until {
            Until::Time(limit) => {
                format!("{:.0} of {:.0} s, {done} of {begun}", now.as_secs_f64(), limit.as_secs_f64())
            }
            Until::Requests(limit) => format!("{:.0} s, {done} of {limit}", now.as_secs_f64()),
        };
        let (bad, health) = (self.bad.load(Ordering::Relaxed), self.engine.health());
        let down = health.stages.iter().filter(|stage| stage.state != StageState::Running);
        let down: Vec<&str> = down.map(|stage| stage.name.as_str()).collect();
        let down = if down.is_empty() { String::new() } else { format!(", down: {}", down.join(" ")) };
        let injected = faults.iter().filter(|fault| fault.injected.is_some()).count();
        let hit = faults.iter().filter(|fault| fault.hits > 0).count();
        let faults = if faults.is_empty() { String::new() } else { format!(", {injected} faults ({hit} hit)") };
        format!("{of} streams done, {bad} bad{faults}{down}")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_look_that_is_late_still_finds_the_faults_of_the_runs_time() {
        let (limit, ms) = (Until::Time(Duration::from_secs(4)), Duration::from_millis);
        assert_eq!(limit.planned_by(ms(3800)), ms(3800));
        assert!(ms(3999) < limit.planned_by(ms(4300)) && limit.planned_by(ms(4300)) < ms(4000));
        assert_eq!(Until::Requests(3).planned_by(ms(4300)), ms(4300));
    }
}
