//! What a talker frame and a thinker token cost on this machine, for the default voice, as the batch grows.
//!
//! `cargo bench --bench talker` prints milliseconds per step and per sequence, and how many streams of 12.5 frames a second
//! that would carry if nothing else ran. Set `RAYON_NUM_THREADS` to see what threads change.
#![allow(clippy::unwrap_used)]

use candle_core::{Device, Tensor};
use omni_actors::core::ids::Slot;
use omni_actors::model::Checkpoint;
use omni_actors::model::stage::{
    SequenceSpec, SequenceWork, StageData, StageFactory, StageModel, TalkerSpec, ThinkerMode, ThinkerSpec,
};
use omni_actors::model::stages::talker::TalkerFactory;
use omni_actors::model::stages::thinker::ThinkerFactory;
use omni_actors::model::talker::{Talker, TalkerPrompt};
use omni_actors::model::thinker::Thinker;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Steps that are thrown away, and steps that are measured.
const WARM_UP: usize = 5;
const STEPS: usize = 60;
/// One frame of speech.
const FRAME: Duration = Duration::from_millis(80);

fn main() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("assets/voice/checkpoint");
    let checkpoint = Checkpoint::open(&folder).unwrap();
    let loader = checkpoint.loader(&["thinker", "talker"], &Device::Cpu);
    let config = checkpoint.omni().unwrap();
    let thinker = Arc::new(Thinker::load(&loader, &config.thinker).unwrap());
    let talker = Arc::new(Talker::load(&loader, checkpoint.family()).unwrap());
    loader.finish().unwrap();

    let threads = std::env::var("RAYON_NUM_THREADS").unwrap_or_else(|_| "default".into());
    println!("default voice, f32, {threads} threads, median of {STEPS} steps\n");
    println!("{:<24}{:>6}{:>14}{:>14}{:>10}", "", "sequences", "ms per step", "ms per sequence", "streams");
    for sequences in [1, 2, 4, 8] {
        let time = frames(&checkpoint, &talker, sequences);
        let streams = FRAME.as_secs_f64() / time.as_secs_f64() * f64::from(sequences);
        report("talker frame", sequences, time, &format!("{streams:.0}"));
    }
    for sequences in [1, 2, 4, 8] {
        report("thinker token", sequences, tokens(&checkpoint, &thinker, sequences), "");
    }
    report("thinker prompt of 64", 1, prompt(&checkpoint, &thinker), "");
}

fn report(what: &str, sequences: u32, time: Duration, streams: &str) {
    let ms = time.as_secs_f64() * 1e3;
    println!("{what:<24}{sequences:>6}{ms:>14.3}{:>14.3}{streams:>10}", ms / f64::from(sequences));
}

/// Median time of a step in which every sequence makes a frame, sampled as requests sample it.
fn frames(checkpoint: &Checkpoint, net: &Arc<Talker>, sequences: u32) -> Duration {
    let (config, defaults) = (checkpoint.omni().unwrap(), checkpoint.generation());
    let mut stage = TalkerFactory::new(net.clone()).build().unwrap();
    let speaker = config.talker.speaker(config.talker.default_speaker()).unwrap();
    for slot in 0..sequences {
        let sequence = TalkerSpec {
            generated_len: 0,
            prompt: TalkerPrompt::omni(20, speaker, &config.talker.tokens).into(),
            sampling: defaults.talker,
            predictor: defaults.predictor,
            max_tokens: u32::MAX,
            min_tokens: 0,
            ignore_eos: true,
            seed: u64::from(slot),
            forced: None,
            owner: None,
        };
        let width = config.talker.text_hidden_size;
        let text = Tensor::randn(0f32, 1.0, (30, width), &Device::Cpu).unwrap();
        stage.open(Slot(slot), SequenceSpec::Talker(sequence.clone())).unwrap();
        stage.push_input(Slot(slot), Some(StageData::Embeddings(text.into())), true).unwrap();
        stage.step(&[SequenceWork { slot: Slot(slot), advance: sequence.prefill_positions() }]).unwrap();
    }
    median(&mut *stage, sequences, |emit| assert!(matches!(emit, Some(StageData::Codes(_)))))
}

/// Median time of a step in which every sequence samples a token.
fn tokens(checkpoint: &Checkpoint, net: &Arc<Thinker>, sequences: u32) -> Duration {
    let mut stage = ThinkerFactory::new(net.clone()).build().unwrap();
    for slot in 0..sequences {
        stage.open(Slot(slot), SequenceSpec::Thinker(thinker_spec(checkpoint, 32))).unwrap();
        stage.step(&[SequenceWork { slot: Slot(slot), advance: 32 }]).unwrap();
    }
    median(&mut *stage, sequences, |_| {})
}

/// Median time of a prompt of 64 tokens.
fn prompt(checkpoint: &Checkpoint, net: &Arc<Thinker>) -> Duration {
    let mut stage = ThinkerFactory::new(net.clone()).build().unwrap();
    let mut times: Vec<Duration> = (0..STEPS)
        .map(|_| {
            stage.open(Slot(0), SequenceSpec::Thinker(thinker_spec(checkpoint, 64))).unwrap();
            let start = Instant::now();
            stage.step(&[SequenceWork { slot: Slot(0), advance: 64 }]).unwrap();
            let time = start.elapsed();
            stage.close(Slot(0));
            time
        })
        .collect();
    times.sort();
    times[times.len() / 2]
}

fn thinker_spec(checkpoint: &Checkpoint, prompt: u32) -> ThinkerSpec {
    ThinkerSpec {
        generated_len: 0,
        prompt: (0..prompt).map(|i| i * 7 % 900).collect(),
        mode: ThinkerMode::Sample,
        emit: None,
        sampling: checkpoint.generation().thinker,
        eos: [].into(),
        max_tokens: u32::MAX,
        seed: 0,
        media: None,
        reuse: None,
    }
}

fn median(stage: &mut dyn StageModel, sequences: u32, check: impl Fn(Option<&StageData>)) -> Duration {
    let work: Vec<SequenceWork> = (0..sequences).map(|slot| SequenceWork { slot: Slot(slot), advance: 1 }).collect();
    let mut times: Vec<Duration> = (0..WARM_UP + STEPS)
        .map(|_| {
            let start = Instant::now();
            let outputs = stage.step(&work).unwrap();
            let time = start.elapsed();
            outputs.iter().for_each(|output| check(output.as_ref().unwrap().emit.as_ref()));
            time
        })
        .skip(WARM_UP)
        .collect();
    times.sort();
    times[times.len() / 2]
}
