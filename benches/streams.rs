//! How many streams of the default voice this machine makes in real time.
//!
//! `cargo bench --bench streams` speaks 100 frames (8 s) in 1, 2, 4, ... streams at once through the whole engine, without
//! HTTP, and prints for each number: time to first audio, seconds of speech made per second, the real-time factor of the
//! slowest stream, and how many streams a listener would have heard a gap in.
#![allow(clippy::unwrap_used)]

#[path = "support/tests.rs"]
mod support;

use omni_actors::core::playback::Playback;
use omni_actors::engine::{Engine, Event, Service};
use std::time::{Duration, Instant};
use support::engine::{engine, frames, voice};

const FRAMES: u32 = 100;

struct Heard {
    first: Duration,
    whole: Duration,
    speech: Duration,
    underruns: u32,
}

#[tokio::main]
async fn main() {
    let engine = engine(&voice(), |config| config.limits.max_requests = 64).await;
    let cores = std::thread::available_parallelism().map_or(1, usize::from);
    println!("default voice, {FRAMES} frames per stream, {cores} cores\n");
    println!(
        "{:>8}{:>12}{:>12}{:>14}{:>10}{:>14}",
        "streams", "ttfa p50", "ttfa max", "audio-s per s", "rtf max", "with underrun"
    );
    listen(&engine, 0).await;
    for streams in [1, 2, 4, 8, 16] {
        let start = Instant::now();
        let mut heard = futures::future::join_all((0..streams).map(|seed| listen(&engine, seed))).await;
        let took = start.elapsed();
        heard.sort_unstable_by_key(|stream| stream.first);
        let speech: Duration = heard.iter().map(|stream| stream.speech).sum();
        let rtf = heard.iter().map(|s| s.whole.as_secs_f64() / s.speech.as_secs_f64()).fold(0.0, f64::max);
        println!(
            "{streams:>8}{:>9} ms{:>9} ms{:>14.2}{rtf:>10.3}{:>14}",
            heard[heard.len() / 2].first.as_millis(),
            heard[heard.len() - 1].first.as_millis(),
            speech.as_secs_f64() / took.as_secs_f64(),
            heard.iter().filter(|stream| stream.underruns > 0).count(),
        );
    }
}

async fn listen(engine: &Engine, seed: u64) -> Heard {
    let start = Instant::now();
    let mut stream = engine.speak(frames(FRAMES, seed)).await.unwrap();
    let (mut player, mut first, mut samples) = (Playback::default(), None, 0);
    while let Some(event) = stream.next().await {
        match event {
            Event::Audio(chunk) => {
                let length = Duration::from_secs_f64(chunk.samples.len() as f64 / 24_000.0);
                player.chunk(start.elapsed(), length);
                first.get_or_insert(start.elapsed());
                samples += chunk.samples.len();
            }
            Event::Failed(error) => panic!("{error}"),
            _ => {}
        }
    }
    Heard {
        first: first.unwrap(),
        whole: start.elapsed(),
        speech: Duration::from_secs_f64(samples as f64 / 24_000.0),
        underruns: player.underruns,
    }
}
