//! Whether decode steps of the thinker of Qwen3-Omni-30B-A3B are delayed by an encoding on the same GPU, stages alone without
//! a server, at real sizes with random weights.
//!
//! `cargo bench --features cuda --bench beside`, on a machine with a GPU of 80 GB. For so many running answers: the time from
//! step to step (two ahead) in the quiet, while a clip of 60 s and while a picture of 4 megapixels are encoded three times;
//! how long an encoding takes beside them, and alone. The embeddings must not depend on any of it.
#![allow(clippy::unwrap_used)]

#[path = "support/omni_30b.rs"]
mod omni_30b;

use candle_core::Device;
use omni_actors::config::Precision;
use omni_actors::core::ids::Slot;
use omni_actors::cuda::encoder::{CudaEncoderFactory, TowersNet};
use omni_actors::cuda::thinker::{CudaThinkerFactory, ThinkerNet, ThinkerOptions};
use omni_actors::media::Medium;
use omni_actors::media::patches::{PatchConfig, Patches};
use omni_actors::media::picture::Picture;
use omni_actors::media::size::{Size, SizeRule};
use omni_actors::model::encoder::{Encodable, EncoderSpec, Features, Grain, Schedule};
use omni_actors::model::hf::ThinkerConfig;
use omni_actors::model::sampling::SamplingParams;
use omni_actors::model::stage::{
    SequenceSpec, SequenceWork, StageData, StageFactory, StageModel, ThinkerMode, ThinkerSpec,
};
use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

const ANSWERS: [u32; 2] = [1, 8];
const STEPS: usize = 300;
const PROMPT: u32 = 200;
/// Frames of a minute of sound.
const FRAMES: u32 = 6000;

fn main() {
    let Some((gpu, checkpoint)) = omni_30b::open() else { return };
    let config = &checkpoint.omni().unwrap().thinker;
    let loader = checkpoint.loader(&["thinker"], &Device::Cpu);
    let thinker = Arc::new(ThinkerNet::load(&gpu, Precision::Bf16, &loader, config).unwrap());
    let loader = checkpoint.loader(&["thinker.audio_tower", "thinker.visual"], &Device::Cpu);
    let towers = Arc::new(TowersNet::load(&gpu, Precision::Bf16, &loader, config).unwrap());
    let media = [("60 s of sound", None), ("4 megapixels", Some(picture(config)))];
    let encoder = || CudaEncoderFactory::new(Arc::clone(&towers)).build().unwrap();
    let rows = media.each_ref().map(|(name, medium)| {
        let mut encoder = encoder();
        let rows = encode(&mut *encoder, config, medium);
        let begun = Instant::now();
        assert_eq!(encode(&mut *encoder, config, medium), rows);
        println!("{name} alone: {:.1} ms", ms(begun.elapsed()));
        rows
    });
    for answers in ANSWERS {
        let mut thinker = begin(&thinker, answers);
        let quiet = steps(&mut *thinker, answers, STEPS, || false);
        println!("{answers} answers, quiet: p50 {:.2}, p95 {:.2} ms", quiet.0, quiet.1);
        for ((name, medium), rows) in media.iter().zip(rows) {
            let over = AtomicBool::new(false);
            let (took, cadence) = std::thread::scope(|scope| {
                let encodes = scope.spawn(|| {
                    let mut encoder = encoder();
                    let mut once = || {
                        let begun = Instant::now();
                        assert_eq!(encode(&mut *encoder, config, medium), rows, "they depend on what runs beside");
                        begun.elapsed()
                    };
                    once();
                    let took: Duration = (0..3).map(|_| once()).sum();
                    over.store(true, Ordering::Relaxed);
                    took / 3
                });
                // Until the encodings are over.
                let cadence = steps(&mut *thinker, answers, usize::MAX, || over.load(Ordering::Relaxed));
                (encodes.join().unwrap(), cadence)
            });
            let ((p50, p95), ratio) = (cadence, cadence.0 / quiet.0);
            let took = ms(took);
            println!(
                "{answers} answers, {name}: p50 {p50:.2}, p95 {p95:.2} ms, ratio {ratio:.2}; an encoding {took:.1} ms"
            );
        }
    }
}

fn ms(time: Duration) -> f64 {
    time.as_secs_f64() * 1e3
}

/// A thinker with answers that run.
fn begin(net: &Arc<ThinkerNet>, answers: u32) -> Box<dyn StageModel> {
    let options = ThinkerOptions {
        slots: 8,
        batch: 8,
        prefill_chunk: 256,
        run_ahead: 2,
        kv_memory: Some(4 << 30),
        embeddings_in_step: false,
        persistent: Some(ThinkerOptions::PERSISTENT),
    };
    let mut model = CudaThinkerFactory::new(Arc::clone(net), options).build().unwrap();
    for number in 0..answers {
        let sequence = ThinkerSpec {
            generated_len: 0,
            prompt: (0..PROMPT).map(|i| 100 + (i + number) * 7919 % 100_000).collect(),
            mode: ThinkerMode::Sample,
            emit: None,
            sampling: SamplingParams::GREEDY,
            eos: Vec::new().into(),
            max_tokens: 20_000,
            seed: 7,
            media: None,
            reuse: None,
        };
        model.open(Slot(number), SequenceSpec::Thinker(sequence)).unwrap();
        model.launch(&[SequenceWork { slot: Slot(number), advance: PROMPT }]).unwrap().wait().unwrap();
    }
    model
}

/// The median and the 95th percentile of the time from step to step in ms, over at most so many, or until it is over.
fn steps(model: &mut dyn StageModel, answers: u32, most: usize, over: impl Fn() -> bool) -> (f64, f64) {
    let work: Vec<_> = (0..answers).map(|number| SequenceWork { slot: Slot(number), advance: 1 }).collect();
    let (mut out, mut last, mut times) = (VecDeque::new(), None, Vec::new());
    while times.len() < most && !over() {
        out.push_back(model.launch(&work).unwrap());
        if out.len() == 2 {
            out.pop_front().unwrap().wait().unwrap();
            let now = Instant::now();
            times.extend(last.replace(now).map(|last| ms(now - last)));
        }
    }
    out.into_iter().for_each(|step| drop(step.wait().unwrap()));
    times.sort_unstable_by(f64::total_cmp);
    (times[times.len() / 2], times[times.len() * 95 / 100])
}

/// A picture of 2048 by 2048 pixels.
fn picture(config: &ThinkerConfig) -> Arc<Medium> {
    let tower = config.vision.as_ref().unwrap();
    let cut = PatchConfig {
        patch_size: tower.patch_size,
        merge_size: tower.spatial_merge_size,
        temporal_patch_size: tower.temporal_patch_size,
        mean: [0.5; 3],
        std: [0.5; 3],
    };
    let rule = SizeRule { factor: cut.factor(), min_pixels: 1, max_pixels: 1 << 30 };
    let size = Size { height: 2048, width: 2048 };
    let pixels = (0..size.height * size.width * 3).map(|i| ((i * 7919) >> 5) as u8).collect();
    Arc::new(Medium::Image(Patches::new(vec![Picture::new(size, pixels)], &rule, &cut).unwrap()))
}

/// Encodes a picture, or a minute of sound; a sum of the bits of its embeddings.
fn encode(stage: &mut dyn StageModel, config: &ThinkerConfig, picture: &Option<Arc<Medium>>) -> u64 {
    let sound = Encodable::Sound { frames: FRAMES };
    let medium = picture.as_ref().map_or(sound, |picture| Encodable::of(picture, false).unwrap());
    let longest = if picture.is_none() { FRAMES } else { 0 };
    let media = [medium];
    let grain = Grain::default();
    let schedule = Schedule::of(config, &media, grain).unwrap();
    let slot = Slot(0);
    let spec = EncoderSpec { media: media.as_slice().into(), longest, done: 0, grain };
    stage.open(slot, SequenceSpec::Encoder(spec)).unwrap();
    for piece in schedule.pieces_from(0) {
        let features = match picture {
            Some(picture) => {
                Features::Of { medium: Arc::clone(picture), sound: false, range: piece.range.start..piece.range.end }
            }
            None => {
                let count = piece.range.len() * config.audio.as_ref().unwrap().num_mel_bins;
                Features::Numbers((0..count).map(|i| (i % 13) as f32 * 0.1 - 0.6).collect())
            }
        };
        stage.push_input(slot, Some(StageData::Features(features)), false).unwrap();
    }
    let (mut out, mut sum) = (VecDeque::new(), 0u64);
    let mut take = |step: omni_actors::model::stage::Launched| {
        for output in step.wait().unwrap().sequences {
            if let Some(StageData::Embeddings(rows)) = output.unwrap().emit {
                let numbers = rows.tensor().unwrap().flatten_all().unwrap().to_vec1::<f32>().unwrap();
                sum = numbers.iter().fold(sum, |sum, x| sum.rotate_left(5) ^ u64::from(x.to_bits()));
            }
        }
    };
    for _ in 0..schedule.units() {
        out.push_back(stage.launch(&[SequenceWork { slot, advance: 1 }]).unwrap());
        if out.len() == 2 {
            take(out.pop_front().unwrap());
        }
    }
    out.into_iter().for_each(&mut take);
    stage.close(slot);
    sum
}
