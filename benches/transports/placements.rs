//! What a stream pays for where its stages are.

use crate::support::engine::{engine, frames, root};
use crate::support::nodes::Cluster;
use omni_actors::config::{Config, Placement};
use omni_actors::core::ids::{Frames, StageName};
use omni_actors::engine::{Engine, Event, Service};
use omni_actors::model::checkpoint::Checkpoint;
use std::time::{Duration, Instant};

const FRAMES: u32 = 100;
const STREAMS: u64 = 20;

/// One round of each placement after the other, twice.
pub async fn compare() {
    let folder = root().join("tests/fixtures/qwen3_tts/custom_voice");
    let cluster = Cluster::of(&folder);
    let _node = cluster.node("node", "");
    let nodes = cluster.gateway(change).await;
    let checkpoint = Checkpoint::open(&folder).unwrap();
    let placed = async |placement: Placement| {
        engine(&checkpoint, |config| {
            change(config);
            for stage in [StageName::Talker, StageName::Vocoder] {
                config.stages[stage as usize].placement = placement;
            }
        })
        .await
    };
    let engines = [
        ("threads", placed(Placement::Thread).await),
        ("processes", placed(Placement::Process).await),
        ("a node", nodes),
    ];
    println!(
        "{:>12}{:>10}{:>14}{:>14}{:>18}{:>18}",
        "stages in", "streams", "ttfa p50 ms", "ttfa p99 ms", "frame p50 ms", "frame p99 ms"
    );
    for at_once in [1, 4] {
        let mut heard = vec![(Vec::new(), Vec::new()); engines.len()];
        for round in 0..3 {
            for ((_, engine), (first, gaps)) in engines.iter().zip(&mut heard) {
                for seed in 0..STREAMS / at_once {
                    let streams = (0..at_once).map(|number| listen(engine, seed * at_once + number));
                    for (ttfa, frames) in futures::future::join_all(streams).await {
                        // The first round is for caches and code that is read for the first time.
                        if round > 0 {
                            first.push(ttfa);
                            gaps.extend(frames);
                        }
                    }
                }
            }
        }
        for ((name, _), (first, gaps)) in engines.iter().zip(&mut heard) {
            let of = |times: &mut Vec<Duration>, share: f64| {
                times.sort_unstable();
                times[((times.len() - 1) as f64 * share) as usize].as_secs_f64() * 1e3
            };
            println!(
                "{name:>12}{at_once:>10}{:>14.2}{:>14.2}{:>18.3}{:>18.3}",
                of(first, 0.5),
                of(first, 0.99),
                of(gaps, 0.5),
                of(gaps, 0.99)
            );
        }
    }
}

/// Each frame is a chunk, and no stream waits for its listener.
fn change(config: &mut Config) {
    config.stages[StageName::Vocoder as usize].chunk_ramp = vec![Frames(1)];
    config.speech.lead_cap = Duration::from_secs(3600);
}

/// Time to first audio, and from each frame to the next.
async fn listen(engine: &Engine, seed: u64) -> (Duration, Vec<Duration>) {
    let begun = Instant::now();
    let mut stream = engine.speak(frames(FRAMES, seed)).await.unwrap();
    let (mut first, mut last, mut gaps) = (None, begun, Vec::new());
    while let Some(event) = stream.next().await {
        match event {
            Event::Audio(chunk) => {
                let now = Instant::now();
                if first.replace(first.unwrap_or(now - begun)).is_some() {
                    gaps.push((now - last) / chunk.frames.0.max(1));
                }
                last = now;
            }
            Event::Failed(error) => panic!("{error}"),
            _ => {}
        }
    }
    (first.unwrap(), gaps)
}
