//! What a gateway costs for each stream when its stages are on nodes.
//!
//! `cargo bench --features cluster --bench gateway` runs a real gateway, the engine of this process, with talker and
//! vocoder on two nodes, processes over QUIC whose stages compute nothing and make a frame of 80 ms every 80 ms. It opens
//! 100, 1,000 and more streams up to 10,000 (`OMNI_STREAMS=100,1000` says others), lets them run for some seconds, and
//! prints the gateway's memory, its processor time for a second of sound, and how much of the sound that is due arrives,
//! without HTTP. It stops where that is less than nine tenths: the machine can no more.
//!
//! `OMNI_SLOWER=10` has each frame take 800 ms, so that a machine carries ten times the streams: what a stream takes in
//! memory is the same, and so is a second of sound in processor time, but for what a stream costs while nothing comes.
#![allow(clippy::unwrap_used)]

mod node;
#[path = "../support/hosts.rs"]
mod support;

use omni_actors::core::ids::StageName;
use omni_actors::engine::{Engine, Event, Service};
use std::process::{Child, Command};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};
use support::engine::{frames, root};
use support::nodes::Cluster;

/// The gateway and its nodes know this one; no stage runs it.
pub const CHECKPOINT: &str = "tests/fixtures/qwen3_tts/custom_voice";
const PLAYED: &str = "OMNI_BENCH_PLAYED";
const NODES: usize = 2;
/// Streams are opened at this rate, so that a first sound is not that of a burst.
const A_SECOND: usize = 200;
/// At least; whole chunks of the longest kind.
const MEASURED: Duration = Duration::from_secs(10);

#[tokio::main]
async fn main() {
    if let Ok(what) = std::env::var(PLAYED) {
        return node::serve(&what).await;
    }
    let cores = std::thread::available_parallelism().map_or(1, usize::from);
    let counts = std::env::var("OMNI_STREAMS").unwrap_or("100,1000,2000,4000,7000,10000".to_owned());
    println!(
        "a gateway, {NODES} nodes that compute nothing, a frame every {:?}, {cores} cores for all of them\n",
        node::pace()
    );
    println!(
        "{:>8}{:>14}{:>14}{:>16}{:>14}{:>12}{:>12}{:>14}{:>14}",
        "streams",
        "gateway MiB",
        "KiB a stream",
        "cores gateway",
        "ms a sound s",
        "cores nodes",
        "of due",
        "ttfa p50 ms",
        "ttfa p99 ms"
    );
    for count in counts.split(',').map(|count| count.parse().unwrap()) {
        if !measure(count).await {
            println!("{count} streams are more than this machine can: no more are tried");
            break;
        }
    }
}

/// Processes that are killed when this is dropped.
struct Nodes(Vec<Child>);

impl Drop for Nodes {
    fn drop(&mut self) {
        for child in &mut self.0 {
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}

#[derive(Default)]
struct Heard {
    first: Vec<Duration>,
    sound: Duration,
}

async fn measure(count: usize) -> bool {
    let cluster = Cluster::of(&root().join(CHECKPOINT));
    let node = |number: usize| {
        let tls = cluster.authority.certify(&format!("node{number}"));
        let what =
            format!("{} {} {} {}", cluster.address, tls.ca.display(), tls.certificate.display(), tls.key.display());
        Command::new(std::env::current_exe().unwrap()).env(PLAYED, what).spawn().unwrap()
    };
    let nodes = Nodes((0..NODES).map(node).collect());
    let engine = cluster
        .gateway(|config| {
            config.limits.max_requests = count;
            config.cluster.silence = Duration::from_secs(20);
            config.supervision.watchdog = Duration::from_secs(20);
        })
        .await;
    let both = |engine: &Engine| {
        [StageName::Talker, StageName::Vocoder].iter().all(|stage| {
            let stages = engine.health().stages;
            stages.iter().filter(|health| health.name == *stage && health.node.is_some()).count() == NODES
        })
    };
    while !both(&engine) {
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    // Once, for what is made at the first request.
    listen(&engine, 0, 10, &Mutex::default(), &AtomicUsize::new(0)).await;
    let (idle, opening) = (memory(), Duration::from_secs_f64(count as f64 / A_SECOND as f64));
    // Chunks have their whole length then, and a window of whole ones has as much of each stream.
    let (settling, chunk) = ((2 * node::chunk()).max(Duration::from_secs(3)), node::chunk());
    let measured = chunk * MEASURED.div_duration_f64(chunk).ceil() as u32;
    let length = opening + settling + measured + Duration::from_secs(10);
    let frames = (length.as_secs_f64() / node::pace().as_secs_f64()) as u32;
    let (heard, open) = (Arc::new(Mutex::new(Heard::default())), Arc::new(AtomicUsize::new(0)));
    let engine = Arc::new(engine);
    let mut streams = tokio::task::JoinSet::new();
    let begun = Instant::now();
    for seed in 0..count {
        let (engine, heard, open) = (Arc::clone(&engine), Arc::clone(&heard), Arc::clone(&open));
        streams.spawn(async move { listen(&engine, seed as u64, frames, &heard, &open).await });
        if seed % 20 == 19 {
            tokio::time::sleep_until((begun + Duration::from_secs_f64(seed as f64 / A_SECOND as f64)).into()).await;
        }
    }
    // All have begun.
    tokio::time::sleep(settling).await;
    let pids: Vec<u32> = nodes.0.iter().map(Child::id).collect();
    let of_nodes = || pids.iter().map(|pid| cpu(*pid)).sum::<Duration>();
    let (own, theirs, since) = (cpu(std::process::id()), of_nodes(), Instant::now());
    let sound = heard.lock().unwrap().sound;
    tokio::time::sleep(measured).await;
    let took = since.elapsed().as_secs_f64();
    let cores = |now: Duration, before: Duration| (now - before).as_secs_f64() / took;
    let (own, theirs) = (cores(cpu(std::process::id()), own), cores(of_nodes(), theirs));
    let (most, running) = (memory(), open.load(Ordering::Relaxed));
    let Heard { sound: all, mut first } = std::mem::take(&mut *heard.lock().unwrap());
    first.sort_unstable();
    let first = |share: f64| {
        let last = first.len().saturating_sub(1);
        first.get((last as f64 * share) as usize).map_or(f64::NAN, |time| time.as_secs_f64() * 1e3)
    };
    let sound = (all - sound).as_secs_f64() / took;
    let due = running as f64 * node::FRAME.as_secs_f64() / node::pace().as_secs_f64();
    let of_due = sound / due;
    println!(
        "{running:>8}{:>14}{:>14.1}{own:>16.2}{:>14.2}{theirs:>12.2}{of_due:>12.2}{:>14.1}{:>14.1}",
        most >> 20,
        most.saturating_sub(idle) as f64 / 1024.0 / running as f64,
        own * 1e3 / sound,
        first(0.5),
        first(0.99)
    );
    streams.shutdown().await;
    of_due > 0.9
}

/// Hears a stream to its end, as fast as it comes.
async fn listen(engine: &Engine, seed: u64, count: u32, heard: &Mutex<Heard>, open: &AtomicUsize) {
    let begun = Instant::now();
    let mut stream = engine.speak(frames(count, seed)).await.unwrap();
    open.fetch_add(1, Ordering::Relaxed);
    let mut first = true;
    while let Some(event) = stream.next().await {
        match event {
            Event::Audio(chunk) => {
                let length = Duration::from_secs_f64(chunk.samples.len() as f64 / 24_000.0);
                let mut heard = heard.lock().unwrap();
                heard.sound += length;
                if std::mem::take(&mut first) {
                    heard.first.push(begun.elapsed());
                }
            }
            Event::Failed(error) => panic!("{error}"),
            _ => {}
        }
    }
    open.fetch_sub(1, Ordering::Relaxed);
}

/// Resident bytes of this process.
fn memory() -> usize {
    let pages: usize = std::fs::read_to_string("/proc/self/statm").unwrap().split(' ').nth(1).unwrap().parse().unwrap();
    pages * rustix::param::page_size()
}

/// Processor time of a process so far.
fn cpu(pid: u32) -> Duration {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap();
    // Behind the name, which may have spaces.
    let fields: Vec<&str> = stat.rsplit_once(')').unwrap().1.split_whitespace().collect();
    let ticks: u64 = fields[11..13].iter().map(|field| field.parse::<u64>().unwrap()).sum();
    Duration::from_secs_f64(ticks as f64 / rustix::param::clock_ticks_per_second() as f64)
}
