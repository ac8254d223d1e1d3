//! What it costs a GPU's step that its hidden states leave the device.
//!
//! `cargo bench --features cuda --bench payload -- [--config FILE] [--sequences N] [--steps N] [--rounds N]`, on a machine with a
//! GPU. A thinker of a real size (by default Qwen3-Omni-30B-A3B with random weights) answers with 64 sequences at once, two
//! steps ahead, and each step hands on a sequence of 2048 bf16 for each. Four ways in turns: sequences are not asked for, stay on the
//! device, are copied out beside the steps, are copied out in the step. Then the copies alone, against copies of the
//! same size without any of our bookkeeping. The goal: the third within 1 % of the second, and 90 % of the plain copies'
//! bandwidth.
#![allow(clippy::unwrap_used)]

use omni_actors::config::{self, Precision};
use omni_actors::core::ids::{Slot, StageName};
use omni_actors::cuda::copies::{EmbeddingArena, HostCopies};
use omni_actors::cuda::thinker::{CudaThinkerFactory, ThinkerNet, ThinkerOptions};
use omni_actors::cuda::{Event, Gpu, Priority};
use omni_actors::model::Checkpoint;
use omni_actors::model::embeddings::{DeviceBuffer, Embeddings};
use omni_actors::model::sampling::SamplingParams;
use omni_actors::model::stage::{
    Launched, SequenceSpec, SequenceWork, StageData, StageFactory, StageModel, StepOutcome, ThinkerMode, ThinkerSpec,
};
use omni_actors::telemetry::CopyMetrics;
use omni_actors::telemetry::trace::Recorder;
use std::collections::VecDeque;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// What becomes of the sequences.
#[derive(Clone, Copy, PartialEq)]
enum Way {
    NotAskedFor,
    OnTheDevice,
    BesideTheSteps,
    InTheStep,
}

const WAYS: [(Way, &str); 4] = [
    (Way::NotAskedFor, "not asked for"),
    (Way::OnTheDevice, "stay on the device"),
    (Way::BesideTheSteps, "copied beside the steps"),
    (Way::InTheStep, "copied in the step"),
];

const AHEAD: usize = 2;
const PROMPT: u32 = 16;

struct Options {
    config: PathBuf,
    sequences: u32,
    steps: u32,
    rounds: u32,
}

fn options() -> Options {
    let mut options = Options { config: "configs/random-omni-30b.toml".into(), sequences: 64, steps: 200, rounds: 5 };
    let mut words = std::env::args().skip(1).filter(|word| word != "--bench");
    while let Some(word) = words.next() {
        let value = words.next().unwrap_or_else(|| panic!("{word} needs a value"));
        match word.as_str() {
            "--config" => options.config = value.into(),
            "--sequences" => options.sequences = value.parse().unwrap(),
            "--steps" => options.steps = value.parse().unwrap(),
            "--rounds" => options.rounds = value.parse().unwrap(),
            other => panic!("unknown option {other}: expected --config, --sequences, --steps or --rounds"),
        }
    }
    options
}

fn main() {
    let options = options();
    let gpu = match Gpu::open(0) {
        Ok(gpu) => gpu,
        Err(why) => {
            println!("SKIPPED: {why}");
            return;
        }
    };
    steps(&gpu, &options);
    copies(&gpu);
}

fn steps(gpu: &Gpu, options: &Options) {
    let config = config::load(&options.config, &[]).unwrap();
    let config::CheckpointSource::Folder(folder) = &config.model.checkpoint else { panic!("a folder is needed") };
    let checkpoint = Checkpoint::open_as(folder, config.model.weights, config.model.tokenizer.as_deref()).unwrap();
    gpu.bind().unwrap();
    let loader = checkpoint.loader(&["thinker"], &candle_core::Device::Cpu);
    let net = ThinkerNet::load(gpu, Precision::Bf16, &loader, &checkpoint.omni().unwrap().thinker).unwrap();
    let net = Arc::new(net);
    let made = |embeddings_in_step| {
        let (slots, batch) = (options.sequences as usize, options.sequences as usize);
        let positions = (PROMPT + options.steps + 8).next_multiple_of(16) as u64;
        // Two models share the GPU: room for what the sequences need and no more.
        let kv_memory = Some(u64::from(options.sequences) * positions * 2 * 48 * 4 * 128 * 2);
        let (prefill_chunk, run_ahead, persistent) = (256, AHEAD, Some(ThinkerOptions::PERSISTENT));
        let options =
            ThinkerOptions { slots, batch, prefill_chunk, run_ahead, kv_memory, embeddings_in_step, persistent };
        CudaThinkerFactory::new(Arc::clone(&net), options).build().unwrap()
    };
    let (mut beside, mut inside) = (made(false), made(true));
    println!(
        "{} sequences, {} steps, {} rounds in turns; {} KiB of sequences per step\n",
        options.sequences,
        options.steps,
        options.rounds,
        options.sequences * net.width() as u32 * 2 / 1024
    );
    let mut times: [(Vec<Duration>, Vec<Duration>); 4] = Default::default();
    for round in 0..=options.rounds {
        for (way, (cadence, device)) in WAYS.iter().map(|(way, _)| *way).zip(&mut times) {
            let model = if way == Way::InTheStep { &mut inside } else { &mut beside };
            let measured = run(&mut **model, way, options);
            // The first round warms up.
            if round > 0 {
                cadence.extend(measured.0);
                device.extend(measured.1);
            }
        }
    }
    println!(
        "{:>26}{:>14}{:>10}{:>16}{:>10}{:>10}",
        "sequences for the next stage", "cadence p50", "p99", "on the device", "p99", "ratio"
    );
    let base = quantile(&mut times[1].0.clone(), 0.5);
    for ((_, name), (cadence, device)) in WAYS.iter().zip(&mut times) {
        let p50 = quantile(cadence, 0.5);
        println!(
            "{name:>26}{:>11.3} ms{:>10.3}{:>13.3} ms{:>10.3}{:>10.4}",
            p50,
            quantile(cadence, 0.99),
            quantile(device, 0.5),
            quantile(device, 0.99),
            p50 / base
        );
    }
}

fn quantile(times: &mut [Duration], share: f64) -> f64 {
    times.sort_unstable();
    times.get(((times.len().max(1) - 1) as f64 * share) as usize).map_or(f64::NAN, |time| time.as_secs_f64() * 1e3)
}

/// One request per sequence, all in step: time between outcomes, and time on the device.
fn run(model: &mut dyn StageModel, way: Way, options: &Options) -> (Vec<Duration>, Vec<Duration>) {
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).build().unwrap();
    for slot in (0..options.sequences).map(Slot) {
        let sequence = ThinkerSpec {
            generated_len: 0,
            prompt: (0..PROMPT).map(|i| 100 + i * 7 + slot.0).collect(),
            mode: ThinkerMode::Sample,
            emit: (way != Way::NotAskedFor).then(|| std::iter::once(0..PROMPT).collect()),
            sampling: SamplingParams::GREEDY,
            eos: Vec::new().into(),
            max_tokens: options.steps + 2,
            seed: 7,
            media: None,
            reuse: None,
        };
        model.open(slot, SequenceSpec::Thinker(sequence)).unwrap();
        drop(model.step(&[SequenceWork { slot, advance: PROMPT }]).unwrap());
    }
    let work: Vec<SequenceWork> =
        (0..options.sequences).map(|slot| SequenceWork { slot: Slot(slot), advance: 1 }).collect();
    // Like a packager: the sequences of all owners are asked for, and dropped when they are there.
    let package = |outcome: StepOutcome| {
        if way == Way::BesideTheSteps {
            let sequences: Vec<Embeddings> = outcome
                .sequences
                .into_iter()
                .filter_map(|sequence| {
                    if let Some(StageData::Embeddings(sequences)) = sequence.unwrap().emit {
                        Some(sequences)
                    } else {
                        None
                    }
                })
                .collect();
            assert_eq!(sequences.len(), options.sequences as usize);
            runtime.spawn(async move {
                for sequences in sequences {
                    assert!(matches!(sequences.fetched().await.unwrap(), Embeddings::Bytes(_)));
                }
            });
        }
    };
    let (mut cadence, mut device) = (Vec::new(), Vec::new());
    let (mut last, mut out): (Option<Instant>, VecDeque<Launched>) = (None, VecDeque::new());
    for step in 0..options.steps + AHEAD as u32 {
        if step < options.steps {
            out.push_back(model.launch(&work).unwrap());
        }
        if out.len() > AHEAD || step >= options.steps {
            let Some(launched) = out.pop_front() else { break };
            let outcome = launched.wait().unwrap();
            let now = Instant::now();
            cadence.extend(last.map(|last| now - last));
            device.extend(outcome.times.total);
            last = Some(now);
            package(outcome);
        }
    }
    (0..options.sequences).map(Slot).for_each(|slot| model.close(slot));
    (cadence, device)
}

/// Copies alone.
fn copies(gpu: &Gpu) {
    const AT_ONCE: usize = 16;
    const ROUNDS: usize = 50;
    gpu.bind().unwrap();
    let stream = gpu.stream(Priority::Normal).unwrap();
    let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
    println!("\n{:>12}{:>16}{:>16}{:>10}", "copy", "plain", "ours", "ratio");
    for sequences in [64, 256, 1024] {
        let (width, bytes) = (2048, sequences * 4096);
        let copies = Arc::new(
            HostCopies::new(gpu, 2 * AT_ONCE, bytes, CopyMetrics::new(StageName::Thinker, Recorder::default()))
                .unwrap(),
        );
        let arena = EmbeddingArena::new(gpu, AT_ONCE * sequences, width, Precision::Bf16, copies).unwrap();
        let source = gpu.zeros::<u8>("source", bytes).unwrap();
        let to: Vec<_> = (0..AT_ONCE).map(|_| gpu.pinned::<u8>(bytes).unwrap()).collect();
        let (mut plain, mut ours) = (Vec::new(), Vec::new());
        for _ in 0..ROUNDS {
            // As ours: an event behind each copy, so that its memory can be used when it is over.
            let begun = Instant::now();
            let ends: Vec<Event> = to
                .iter()
                .map(|to| {
                    source.download_async(&stream, 0, to, 0, bytes).unwrap();
                    let end = Event::new(gpu).unwrap();
                    end.record(&stream).unwrap();
                    end
                })
                .collect();
            ends.iter().for_each(|end| end.wait().unwrap());
            plain.push(begun.elapsed());
            let left: Vec<_> = to.iter().map(|_| arena.unwritten(&stream, sequences).unwrap()).collect();
            let begun = Instant::now();
            let fetched: Vec<_> = left.iter().map(|buffer| buffer.fetch()).collect();
            for fetched in fetched {
                assert_eq!(runtime.block_on(fetched).unwrap().len(), bytes);
            }
            ours.push(begun.elapsed());
        }
        let speed = |times: &mut [Duration]| (AT_ONCE * bytes) as f64 / quantile(times, 0.5) / 1e6;
        let (plain, ours) = (speed(&mut plain), speed(&mut ours));
        println!("{:>8} KiB{plain:>11.1} GB/s{ours:>11.1} GB/s{:>10.3}", bytes / 1024, ours / plain);
    }
}
