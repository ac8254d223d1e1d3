//! What fault plans cost when nothing is planned.
//!
//! `cargo bench --bench faults` prints nanoseconds of a place that is struck, beside those of an empty function, and
//! microseconds per frame of the tiny checkpoint's pipeline without a plan and with one that is enabled and empty, in turns.
#![allow(clippy::unwrap_used)]

use omni_actors::config::Config;
use omni_actors::core::ids::{Frames, RequestId, StageName};
use omni_actors::engine::{Engine, Event, Service, SpeechParams, SpeechRequest, TextSource};
use omni_actors::fault::{FaultEvent, FaultKind, FaultPlan, FaultPoint, FaultRule, FaultSite};
use omni_actors::model::checkpoint::Checkpoint;
use std::hint::black_box;
use std::path::Path;
use std::time::Instant;

const STRIKES: u64 = 50_000_000;
const FRAMES: u32 = 400;
const TURNS: usize = 9;

#[tokio::main]
async fn main() {
    println!("nanoseconds of one occurrence, mean of {STRIKES}\n");
    println!("{:>40}{:>8.2}", "an empty function", each(|n| _ = black_box(n)));
    let elsewhere = FaultRule::new(StageName::Thinker, FaultPoint::Runner, FaultKind::Panic);
    for (name, plan) in [
        ("no plan", FaultPlan::default()),
        ("a plan for another place", FaultPlan::new(std::slice::from_ref(&elsewhere))),
        ("enabled, no rule", FaultPlan::with(0, true, &[])),
        ("enabled, a rule for another place", FaultPlan::with(0, true, &[elsewhere])),
    ] {
        let site = plan.site(StageName::Talker, FaultPoint::Runner);
        println!("{name:>40}{:>8.2}", each(|n| inject(black_box(&site), n)));
    }

    println!("\nmicroseconds per frame, tiny checkpoint, {FRAMES} frames, least of {TURNS} turns\n");
    let (off, on) = (pipeline(false).await, pipeline(true).await);
    let (mut least_off, mut least_on) = (f64::MAX, f64::MAX);
    for _ in 0..TURNS {
        least_off = least_off.min(frame(&off).await);
        least_on = least_on.min(frame(&on).await);
    }
    println!("{:>40}{least_off:>8.1}", "no plan");
    println!("{:>40}{least_on:>8.1}", "enabled, no rule");
}

fn inject(site: &FaultSite, n: u64) {
    site.inject(|| [FaultEvent::of(RequestId(n))], || false).unwrap();
}

fn each(work: impl Fn(u64)) -> f64 {
    let began = Instant::now();
    for n in 0..STRIKES {
        work(n);
    }
    began.elapsed().as_secs_f64() * 1e9 / STRIKES as f64
}

async fn pipeline(enabled: bool) -> Engine {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures/qwen3_omni");
    let mut config = Config::default();
    config.drill.enabled = enabled;
    Engine::start(&Checkpoint::open(&folder).unwrap(), &config).await.unwrap()
}

/// Microseconds.
async fn frame(engine: &Engine) -> f64 {
    let params =
        SpeechParams { seed: Some(1), max_frames: Some(Frames(FRAMES)), ignore_eos: true, ..SpeechParams::default() };
    let request = SpeechRequest { text: TextSource::Whole("one two three".into()), params };
    let began = Instant::now();
    let mut stream = engine.speak(request).await.unwrap();
    while let Some(event) = stream.next().await {
        assert!(!matches!(event, Event::Failed(_)), "{event:?}");
    }
    began.elapsed().as_secs_f64() * 1e6 / f64::from(FRAMES)
}
