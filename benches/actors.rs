//! What the actor layer costs, and what a slow packager costs the launch path.
//!
//! `cargo bench --bench actors` prints two tables.
//!
//! 1. Microseconds per step through scheduler, runner, sampler, packager and connector with a model that computes
//!    nothing, as run-ahead and batch grow. Run-ahead 1 is the synchronous order: a launch waits for the host.
//! 2. The step cadence of the default voice's talker with the packager as it is and slowed by 50 ms per payload, taken in
//!    turns in one run. The promise is that the second is within 5 % of the first, with the same tokens.
#![allow(clippy::unwrap_used)]

#[path = "../tests/support/stage.rs"]
mod support;

use candle_core::{Device, Tensor};
use omni_actors::actors::{Admission, Wants};
use omni_actors::core::scheduler::{Pace, RowParams, SchedulerConfig};
use omni_actors::fault::{FaultKind, FaultPoint, FaultRule};
use omni_actors::ids::{RequestId, StageName};
use omni_actors::model::Checkpoint;
use omni_actors::model::stage::{RowSpec, TalkerRow, VocoderRow};
use omni_actors::model::stages::talker::TalkerFactory;
use omni_actors::model::talker::{Talker, TalkerPrompt};
use omni_actors::transfer::payload::Part;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};
use support::{Rig, Script, Timed, rig, scheduler};

const STEPS: u32 = 20_000;
const FRAMES: u32 = 150;
const ROUNDS: usize = 5;
const SPEECH: Wants = Wants { tokens: false, speech: true };

#[tokio::main]
async fn main() {
    println!("1. actor layer: microseconds per step, model computes nothing, {STEPS} steps\n");
    println!("{:>10}{:>8}{:>14}{:>14}", "run-ahead", "rows", "us per step", "us per row");
    for run_ahead in [1, 2, 4] {
        for rows in [1, 8, 32] {
            let us = overhead(run_ahead, rows).await;
            println!("{run_ahead:>10}{rows:>8}{us:>14.1}{:>14.2}", us / f64::from(rows));
        }
    }

    println!("\n2. talker of the default voice, {FRAMES} frames, {ROUNDS} rounds in turns: step cadence in ms\n");
    println!("{:>28}{:>10}{:>10}{:>10}", "packager", "p50", "p90", "p99");
    let (mut plain, mut slowed) = (Vec::new(), Vec::new());
    let mut codes = Vec::new();
    for _ in 0..ROUNDS {
        for (slow, cadences) in [(false, &mut plain), (true, &mut slowed)] {
            let (cadence, said) = talker(slow).await;
            cadences.extend(cadence);
            codes.push(said);
        }
    }
    let (plain, slowed) = (report("as it is", plain), report("50 ms per payload", slowed));
    assert!(codes.iter().all(|said| *said == codes[0]), "a slow packager changed a token");
    println!("\nratio of medians {:.3}; tokens identical in all {} runs", slowed / plain, codes.len());
}

async fn overhead(run_ahead: u32, rows: u32) -> f64 {
    let (steps, seen) = flume::unbounded();
    let config = SchedulerConfig { run_ahead, window: STEPS * 2, ..scheduler() };
    let rig = rig(StageName::Talker, Script { steps, stop: STEPS }, config, &[]).await;
    let start = Instant::now();
    for request in 0..rows {
        let params = RowParams { prompt: 0, prompt_input: 0, prompt_emits: 0, pace: Pace::Free, lead: Duration::ZERO };
        let (request, spec) = (RequestId(request.into()), RowSpec::Vocoder(VocoderRow::default()));
        rig.admit(Admission { request, params, spec, wants: SPEECH });
    }
    ends(&rig, rows).await;
    let elapsed = start.elapsed();
    rig.stage.stop().await;
    elapsed.as_secs_f64() * 1e6 / seen.len() as f64
}

/// Waits for the last payload of this many requests; returns all codes in order.
async fn ends(rig: &Rig, rows: u32) -> Vec<u32> {
    let (mut ended, mut codes) = (0, Vec::new());
    while ended < rows {
        let payload = rig.output.recv_async().await.unwrap();
        ended += u32::from(payload.header.end.is_some());
        for part in payload.parts {
            if let Part::U32(frame) = part {
                codes.extend(frame);
            }
        }
    }
    codes
}

/// The times between the starts of consecutive steps, and what was said.
async fn talker(slow: bool) -> (Vec<Duration>, Vec<u32>) {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("assets/voice/checkpoint");
    let checkpoint = Checkpoint::open(&folder).unwrap();
    let config = checkpoint.omni().unwrap();
    let loader = checkpoint.loader(&["talker"], &Device::Cpu);
    let net = Arc::new(Talker::load(&loader, checkpoint.family()).unwrap());
    loader.finish().unwrap();

    let delay = FaultKind::Delay(Duration::from_millis(50));
    let rule =
        FaultRule { stage: StageName::Talker, point: FaultPoint::Packager, kind: delay, nth: 1, times: u64::MAX };
    let (send, times) = flume::unbounded();
    let faults = if slow { vec![rule] } else { Vec::new() };
    let factory = Timed { inner: TalkerFactory::new(net), times: send };
    let rig = rig(StageName::Talker, factory, scheduler(), &faults).await;

    let row = TalkerRow {
        prompt: TalkerPrompt::omni(10, *config.talker.speakers.values().next().unwrap(), &config.talker.tokens).into(),
        sampling: checkpoint.generation().talker,
        predictor: checkpoint.generation().predictor,
        max_tokens: FRAMES + 1,
        min_tokens: 0,
        ignore_eos: true,
        seed: 7,
        forced: None,
    };
    let (prompt, prompt_input) = (row.prefill_positions(), row.prefill_rows());
    let params = RowParams { prompt, prompt_input, prompt_emits: 0, pace: Pace::OnePerStep, lead: Duration::ZERO };
    let request = RequestId(1);
    rig.admit(Admission { request, params, spec: RowSpec::Talker(row), wants: SPEECH });
    let rows = 30;
    let text = Tensor::zeros((rows, config.talker.text_hidden_size), candle_core::DType::F32, &Device::Cpu).unwrap();
    rig.feed(request, 0, Part::Rows(text.into()), rows as u32, true);
    let codes = ends(&rig, 1).await;
    rig.stage.stop().await;

    let starts: Vec<_> = times.drain().map(|(start, _)| start).collect();
    // The first step is the prompt.
    (starts[1..].windows(2).map(|pair| pair[1] - pair[0]).collect(), codes)
}

fn report(what: &str, mut cadence: Vec<Duration>) -> f64 {
    cadence.sort_unstable();
    let ms = |share: f64| cadence[((cadence.len() - 1) as f64 * share) as usize].as_secs_f64() * 1e3;
    println!("{what:>28}{:>10.3}{:>10.3}{:>10.3}", ms(0.5), ms(0.9), ms(0.99));
    ms(0.5)
}
