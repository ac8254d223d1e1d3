//! What the actor layer costs.
//!
//! `cargo bench --bench actors` prints microseconds per step through scheduler, runner, sampler, packager and connector with
//! a model that computes nothing, as run-ahead and batch grow. Run-ahead 1 is the synchronous order: a launch waits for the
//! host. It also prints what a call site of the trace costs the thread that records. What slow actors cost the launch path
//! is the business of `launch_path`.
#![allow(clippy::unwrap_used)]

#[path = "support/tests.rs"]
mod support;

use omni_actors::core::ids::{Generation, RequestId, StageName, StepId};
use omni_actors::core::scheduler::{Pace, SchedulerConfig};
use omni_actors::telemetry::trace::{self, Component, Recorder, Session, Track, What};
use std::time::Instant;
use support::stage::{Rig, SPEECH, Script, rig, scheduler, sequence};

const STEPS: u32 = 20_000;
const RECORDS: u64 = 500_000;

#[tokio::main]
async fn main() {
    println!("a record of a trace: nanoseconds on the thread that makes it, mean of {RECORDS}\n");
    let recorder = Recorder::default();
    println!("{:>20}{:>10.2}", "nobody listens", record(&recorder));
    let session = Session::begin(&recorder);
    println!("{:>20}{:>10.2}\n", "somebody listens", record(&recorder));
    assert_eq!(session.end().records.len(), RECORDS as usize);

    println!("actor layer: microseconds per step, model computes nothing, {STEPS} steps\n");
    println!("{:>10}{:>8}{:>14}{:>14}", "run-ahead", "sequences", "us per step", "us per sequence");
    for run_ahead in [1, 2, 4] {
        for sequences in [1, 8, 32] {
            let us = overhead(run_ahead, sequences).await;
            println!("{run_ahead:>10}{sequences:>8}{us:>14.1}{:>14.2}", us / f64::from(sequences));
        }
    }
}

/// Nanoseconds of a call site as the launch thread has them: a span between two moments that it knows anyhow.
fn record(recorder: &Recorder) -> f64 {
    let track = recorder.writer(Track::of(StageName::Talker, Generation(1), Component::Launch));
    let began = Instant::now();
    for step in 0..RECORDS {
        let what = || What::Launched { step: StepId(step), sequences: 8, ahead: 1 };
        trace::span(std::hint::black_box(track), began, began, what);
    }
    began.elapsed().as_secs_f64() * 1e9 / RECORDS as f64
}

async fn overhead(run_ahead: u32, sequences: u32) -> f64 {
    let (steps, seen) = flume::unbounded();
    let config = SchedulerConfig { run_ahead, window: STEPS * 2, ..scheduler() };
    let rig = rig(StageName::Talker, Script { steps, stop: STEPS }, config, &[]).await;
    let start = Instant::now();
    for request in 0..sequences {
        rig.admit(sequence(RequestId(request.into()), Pace::Free, SPEECH));
    }
    ends(&rig, sequences).await;
    let elapsed = start.elapsed();
    rig.stage.stop().await;
    elapsed.as_secs_f64() * 1e6 / seen.len() as f64
}

/// Waits for the last payload of this many requests.
async fn ends(rig: &Rig, sequences: u32) {
    let mut ended = 0;
    while ended < sequences {
        ended += u32::from(rig.output.recv_async().await.unwrap().header.end.is_some());
    }
}
