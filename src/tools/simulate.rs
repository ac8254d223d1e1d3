//! `omni-actors simulate`: plays simulations of the whole engine, seed after seed.

mod nodes;

use anyhow::bail;
use clap::Args;
use omni_engine::simulation::{Report, Scenario, Settings, Violation, play, shrink};
use std::io::IsTerminal;
use std::sync::Mutex;
use std::sync::PoisonError;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

/// Runs that are spent on finding out what a failing scenario needs.
const SHRINK_RUNS: usize = 2000;
/// How often a person who watches hears how far it is.
const EVERY: Duration = Duration::from_secs(1);

/// Play the whole engine with a simulated clock, models that compute nothing, and everything that can break
///
/// Each seed is a scenario: requests, clients that stall and leave, actors that die and hang, edges that lose and
/// damage. Every client compares each sample, and after each event nothing may be counted wrong. The first seed that
/// fails is shrunk to the few requests and faults that it takes, and printed.
#[derive(Args, Debug)]
#[command(after_help = "Examples:
  omni-actors simulate                              a thousand seeds
  omni-actors simulate --minutes 60 --seed 1000000  an hour of seeds from this one on
  omni-actors simulate --seed 4711 --seeds 1        the scenario that failed, again
  omni-actors simulate --nodes 1000                 a thousand nodes and their gateways, without what is inside of them
docs/simulation.md says what is simulated.")]
pub struct SimulateArgs {
    /// The first seed
    #[arg(long, value_name = "N", default_value_t = 0)]
    seed: u64,
    /// How many seeds [default: 1000; with --nodes 1]
    #[arg(long, value_name = "N")]
    seeds: Option<u64>,
    /// Play seeds until so many minutes are over
    #[arg(long, value_name = "N", conflicts_with = "seeds")]
    minutes: Option<f64>,
    /// Most requests of a scenario
    #[arg(long, value_name = "N", default_value_t = Settings::default().requests)]
    requests: usize,
    /// Most faults of a scenario
    #[arg(long, value_name = "N", default_value_t = Settings::default().faults)]
    faults: usize,
    /// Prompts may bring their stage down each time they come
    #[arg(long)]
    poison: bool,
    /// Requests have sound and pictures, and an encoder is in front of the thinker
    #[arg(long)]
    media: bool,
    /// Scenarios at once; as many as there are cores by default
    #[arg(long, value_name = "N")]
    jobs: Option<usize>,
    /// Play so many nodes and their gateways instead: who uses which, and where sequences go
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=100_000))]
    nodes: Option<u32>,
    /// Gateways in front of the nodes; one for 16 nodes by default
    #[arg(long, value_name = "N", requires = "nodes", value_parser = clap::value_parser!(u32).range(1..=10_000))]
    gateways: Option<u32>,
    /// `cluster.gateways` of the nodes
    #[arg(long, value_name = "N", requires = "nodes", default_value_t = 1)]
    shares: usize,
    /// `cluster.max_nodes` of the gateways
    #[arg(long, value_name = "N", requires = "nodes", default_value_t = 16)]
    max_nodes: usize,
    /// What is in front of the gateways
    #[arg(long, requires = "nodes", default_value = "turns")]
    balancer: nodes::Front,
}

/// Runs the command. It fails if a scenario does.
pub fn execute(args: &SimulateArgs) -> anyhow::Result<()> {
    if let Some(nodes) = args.nodes {
        return nodes::execute(args, nodes as usize);
    }
    let seeds = args.seeds.unwrap_or(1000);
    let settings = Settings { requests: args.requests, faults: args.faults, poison: args.poison, media: args.media };
    let jobs = args.jobs.or_else(|| std::thread::available_parallelism().ok().map(Into::into)).unwrap_or(1).max(1);
    // A panic is a violation, which is printed with its seed.
    std::panic::set_hook(Box::new(|_| {}));
    let begun = Instant::now();
    let until = args.minutes.map(|minutes| Duration::from_secs_f64(minutes.max(0.0) * 60.0));
    let (next, failed) = (AtomicU64::new(args.seed), AtomicBool::new(false));
    let (all, violation) = (Mutex::new((Report::default(), 0u64)), Mutex::new(None::<Violation>));
    let more = |seed: u64| match until {
        Some(until) => begun.elapsed() < until,
        None => seed < args.seed.saturating_add(seeds),
    };
    let work = || {
        while !failed.load(Ordering::Relaxed) {
            let seed = next.fetch_add(1, Ordering::Relaxed);
            if !more(seed) {
                return;
            }
            match play(&Scenario::new(seed, &settings)) {
                Ok(report) => {
                    let mut all = all.lock().unwrap_or_else(PoisonError::into_inner);
                    all.0.add(&report);
                    all.1 += 1;
                }
                Err(found) => {
                    failed.store(true, Ordering::Relaxed);
                    let mut first = violation.lock().unwrap_or_else(PoisonError::into_inner);
                    if first.as_ref().is_none_or(|first| found.seed < first.seed) {
                        *first = Some(found);
                    }
                }
            }
        }
    };
    let done = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let workers: Vec<_> = (0..jobs).map(|_| scope.spawn(work)).collect();
        let watcher = std::io::stderr().is_terminal().then(|| {
            scope.spawn(|| {
                while !done.load(Ordering::Relaxed) {
                    std::thread::park_timeout(EVERY);
                    let (report, seeds) = &*all.lock().unwrap_or_else(PoisonError::into_inner);
                    eprint!("\r{seeds} seeds, {} requests, {} events", report.accepted, report.events);
                }
                eprintln!();
            })
        });
        for worker in workers {
            let _ = worker.join();
        }
        done.store(true, Ordering::Relaxed);
        if let Some(watcher) = watcher {
            watcher.thread().unpark();
        }
    });
    let (report, seeds) = all.into_inner().unwrap_or_else(PoisonError::into_inner);
    print(&report, seeds, begun.elapsed());
    let Some(violation) = violation.into_inner().unwrap_or_else(PoisonError::into_inner) else { return Ok(()) };
    let scenario = Scenario::new(violation.seed, &settings);
    crate::outln!("\n{violation}\nshrinking {} requests and faults ...", scenario.members());
    let (small, last) = shrink(&scenario, violation.clone(), SHRINK_RUNS);
    crate::outln!("{} suffice: {last}", small.members());
    small.lines().iter().chain(&last.stages).for_each(|line| crate::outln!("  {line}"));
    let poison = if args.poison { " --poison" } else { "" };
    let media = if args.media { " --media" } else { "" };
    let again = format!("--seed {} --seeds 1 --requests {} --faults {}", violation.seed, args.requests, args.faults);
    crate::outln!("again: omni-actors simulate {again}{poison}{media}");
    bail!("{violation}")
}

fn print(report: &Report, seeds: u64, took: Duration) {
    let seconds = took.as_secs_f64().max(1e-9);
    crate::outln!("{seeds} seeds in {seconds:.1} s, {:.0} h simulated", report.lasted.as_secs_f64() / 3600.0);
    crate::outln!("{} requests asked, {} refused, {} accepted", report.asked, report.refused, report.accepted);
    crate::outln!(
        "  {} finished, {} failed with a cause, {} were left by their clients",
        report.finished,
        report.failed,
        report.left
    );
    crate::outln!("  {} with media, {} of them known before", report.media, report.known);
    crate::outln!("  {} frames and characters compared", report.units);
    crate::outln!("{} events, {:.0} requests/s", report.events, report.accepted as f64 / seconds);
    let restarts = (report.restarts, report.given_up, report.poisoned);
    crate::outln!("{} failures of stages, {} given up, {} by poison", restarts.0, restarts.1, restarts.2);
    let faults: Vec<_> = report.faults.iter().map(|(kind, count)| format!("{kind} {count}")).collect();
    crate::outln!("faults: {}", faults.join(", "));
}
