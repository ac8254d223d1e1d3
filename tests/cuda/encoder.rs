//! The encoder of sound and pictures on a GPU against the one on the CPU, row for row.

use crate::gpu;
use candle_core::Device;
use omni_actors::config::Precision;
use omni_actors::config::WeightsKind;
use omni_actors::core::ids::Slot;
use omni_actors::cuda::Gpu;
use omni_actors::cuda::encoder::{CudaEncoderFactory, TowersNet};
use omni_actors::media::Medium;
use omni_actors::media::patches::{PatchConfig, Patches};
use omni_actors::media::picture::Picture;
use omni_actors::media::size::{Size, SizeRule};
use omni_actors::model::Checkpoint;
use omni_actors::model::embeddings::Embeddings;
use omni_actors::model::encoder::{Encodable, EncoderSpec, Features, Grain, Piece, Schedule};
use omni_actors::model::hf::ThinkerConfig;
use omni_actors::model::sampling::{Domain, uniform};
use omni_actors::model::stage::{Launched, SequenceSpec, SequenceWork, StageData, StageFactory, StageModel};
use omni_actors::model::stages::encoder::EncoderFactory;
use omni_actors::model::towers::Towers;
use std::path::Path;
use std::sync::Arc;

const TOWERS: [&str; 2] = ["thinker.audio_tower", "thinker.visual"];

fn fixture() -> Checkpoint {
    Checkpoint::open(&Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures/qwen3_omni")).unwrap()
}

/// The towers of the published model with random weights.
fn sizeable() -> Checkpoint {
    let models = Path::new(env!("CARGO_MANIFEST_DIR")).join("configs/models");
    let folder = models.join("Qwen3-Omni-30B-A3B-Instruct");
    Checkpoint::open_as(&folder, WeightsKind::Random { seed: 7 }, Some(&models.join("tokenizer"))).unwrap()
}

/// Checkpoints, and in which precision.
fn cases() -> [(Checkpoint, Precision); 3] {
    [(fixture(), Precision::F32), (fixture(), Precision::Bf16), (sizeable(), Precision::Bf16)]
}

fn on_gpu(gpu: &Gpu, checkpoint: &Checkpoint, precision: Precision) -> CudaEncoderFactory {
    let loader = checkpoint.loader(&TOWERS, &Device::Cpu);
    let net = TowersNet::load(gpu, precision, &loader, &checkpoint.omni().unwrap().thinker).unwrap();
    loader.finish().unwrap();
    CudaEncoderFactory::new(Arc::new(net))
}

fn on_cpu(checkpoint: &Checkpoint) -> Box<dyn StageModel> {
    let (loader, config) = (checkpoint.loader(&TOWERS, &Device::Cpu), &checkpoint.omni().unwrap().thinker);
    let towers = Arc::new(Towers::load(&loader, config).unwrap());
    loader.finish().unwrap();
    EncoderFactory::new(towers, config.clone(), crate::support::golden::threads()).build().unwrap()
}

/// Clips of all lengths around a chunk and a window, pictures of all shapes, and both in one request.
fn requests(config: &ThinkerConfig) -> Vec<Vec<Encodable>> {
    let audio = config.audio.as_ref().unwrap();
    let (chunk, window) = (audio.chunk_frames() as u32, audio.window_frames() as u32);
    let sound = |frames| Encodable::Sound { frames };
    let pictures = |grid| Encodable::Pictures { grid };
    vec![
        vec![sound(2 * window + chunk + 3)],
        vec![sound(1)],
        vec![sound(chunk), sound(chunk - 1)],
        vec![pictures([1, 2, 2])],
        vec![pictures([2, 6, 4]), sound(window - 5)],
        vec![pictures([1, 24, 30])],
        vec![sound(chunk / 2), pictures([3, 4, 10])],
    ]
}

/// Rows of a request, as numbers, request after request. `together` of them share each step, `ahead` steps are out.
fn encode(
    stage: &mut dyn StageModel,
    config: &ThinkerConfig,
    requests: &[Vec<Encodable>],
    together: usize,
    ahead: usize,
    grain: Grain,
) -> Vec<Vec<f32>> {
    let features = |request: usize, piece: &Piece| {
        let width = match requests[request][piece.medium] {
            Encodable::Sound { .. } => config.audio.as_ref().unwrap().num_mel_bins,
            Encodable::Pictures { .. } => config.vision.as_ref().unwrap().patch_width(),
        };
        let seed = request as u64 * 100 + piece.medium as u64;
        let number = |i| uniform(seed, Domain::Codes, (piece.range.start * width) as u32 + i, 3) * 2.0 - 1.0;
        Features::Numbers((0..(piece.range.len() * width) as u32).map(number).collect())
    };
    encode_of(stage, config, requests, together, ahead, grain, &features)
}

/// [`encode`] of these features.
fn encode_of(
    stage: &mut dyn StageModel,
    config: &ThinkerConfig,
    requests: &[Vec<Encodable>],
    together: usize,
    ahead: usize,
    grain: Grain,
    features: &dyn Fn(usize, &Piece) -> Features,
) -> Vec<Vec<f32>> {
    let mut rows = vec![Vec::new(); requests.len()];
    let mut units = Vec::new();
    for (number, media) in requests.iter().enumerate() {
        let slot = Slot(number as u32);
        let frames = |medium: &Encodable| if let Encodable::Sound { frames } = medium { *frames } else { 0 };
        let longest = media.iter().map(frames).max().unwrap();
        let schedule = Schedule::of(config, media, grain).unwrap();
        stage
            .open(slot, SequenceSpec::Encoder(EncoderSpec { media: media.as_slice().into(), longest, done: 0, grain }))
            .unwrap();
        for piece in schedule.pieces_from(0) {
            stage.push_input(slot, Some(StageData::Features(features(number, &piece))), false).unwrap();
        }
        units.push(schedule.units());
    }
    for first in (0..requests.len()).step_by(together) {
        let batch = first..(first + together).min(requests.len());
        let mut out = std::collections::VecDeque::new();
        let most = units[batch.clone()].iter().max().copied().unwrap();
        let mut take = |(of, launched): (Vec<usize>, Launched)| {
            for (number, output) in of.into_iter().zip(launched.wait().unwrap().sequences) {
                if let Some(StageData::Embeddings(emitted)) = output.unwrap().emit {
                    rows[number].extend(emitted.tensor().unwrap().flatten_all().unwrap().to_vec1::<f32>().unwrap());
                }
            }
        };
        for unit in 0..most {
            let of: Vec<usize> = batch.clone().filter(|number| unit < units[*number]).collect();
            let work: Vec<_> = of.iter().map(|n| SequenceWork { slot: Slot(*n as u32), advance: 1 }).collect();
            out.push_back((of, stage.launch(&work).unwrap()));
            if out.len() >= ahead {
                take(out.pop_front().unwrap());
            }
        }
        out.into_iter().for_each(&mut take);
        batch.for_each(|number| stage.close(Slot(number as u32)));
    }
    assert_eq!(stage.live_sequences(), 0);
    rows
}

/// `|got - want| / |want|`.
fn error(got: &[f32], want: &[f32]) -> f64 {
    assert_eq!(got.len(), want.len());
    let difference: f64 = got.iter().zip(want).map(|(a, b)| f64::from(a - b).powi(2)).sum();
    (difference / want.iter().map(|b| f64::from(*b).powi(2)).sum::<f64>()).sqrt()
}

#[test]
#[ignore = "needs a GPU"]
fn rows_in_f32_are_those_of_the_cpu_and_nearly_so_in_bf16() {
    let (gpu, checkpoint) = (gpu(), fixture());
    let config = &checkpoint.omni().unwrap().thinker;
    let requests = requests(config);
    let want = encode(&mut *on_cpu(&checkpoint), config, &requests, 1, 1, Grain::Fine);
    for (precision, bound) in [(Precision::F32, 1e-5), (Precision::Bf16, 3e-2)] {
        let mut stage = on_gpu(&gpu, &checkpoint, precision).build().unwrap();
        let got = encode(&mut *stage, config, &requests, 3, 2, Grain::Coarse);
        for (number, (got, want)) in got.iter().zip(&want).enumerate() {
            let error = error(got, want);
            // Written so that NaN fails.
            assert!(error < bound, "request {number} in {}: {error}", precision.as_str());
        }
    }
}

/// An image, and a video of an odd number of frames, of noise.
fn noise(config: &ThinkerConfig, cut: &PatchConfig) -> Vec<Arc<Medium>> {
    let rule = SizeRule { factor: cut.factor(), min_pixels: 1, max_pixels: 1 << 30 };
    let merge = config.vision.as_ref().unwrap().spatial_merge_size;
    let frames = |count: u64, blocks: [usize; 2]| {
        let [height, width] = blocks.map(|side| side * merge * cut.patch_size);
        let frame = |number| {
            let byte = |i| (uniform(number, Domain::Codes, i, 5) * 256.0) as u8;
            Picture::new(Size { height, width }, (0..(height * width * 3) as u32).map(byte).collect())
        };
        Patches::new((0..count).map(frame).collect(), &rule, cut).unwrap()
    };
    let video = Medium::Video { frames: frames(5, [5, 7]), second_per_grid: 1.0, sound: None };
    vec![Arc::new(Medium::Image(frames(1, [11, 13]))), Arc::new(video)]
}

#[test]
#[ignore = "needs a GPU"]
fn patches_that_the_device_makes_of_pixels_are_those_of_the_host() {
    let gpu = gpu();
    for (checkpoint, precision) in cases() {
        let config = &checkpoint.omni().unwrap().thinker;
        let tower = config.vision.as_ref().unwrap();
        let cut = PatchConfig {
            patch_size: tower.patch_size,
            merge_size: tower.spatial_merge_size,
            temporal_patch_size: tower.temporal_patch_size,
            mean: [0.5, 0.25, 0.4],
            std: [0.5, 0.3, 0.2],
        };
        let media = noise(config, &cut);
        let requests = [media.iter().map(|medium| Encodable::of(medium, false).unwrap()).collect()];
        let pixels = |_, piece: &Piece| {
            let (medium, range) = (Arc::clone(&media[piece.medium]), piece.range.clone());
            Features::Of { medium, sound: false, range }
        };
        let numbers = |request, piece: &Piece| Features::Numbers(pixels(request, piece).numbers());
        let mut stage = on_gpu(&gpu, &checkpoint, precision).build().unwrap();
        for grain in [Grain::Fine, Grain::Coarse] {
            let [device, host] = [&pixels as &dyn Fn(usize, &Piece) -> Features, &numbers]
                .map(|features| encode_of(&mut *stage, config, &requests, 1, 2, grain, features));
            assert!(device == host, "{grain:?} in {}", precision.as_str());
            assert!(device.iter().flatten().all(|x| x.is_finite()) && device[0].iter().any(|x| *x != 0.0));
        }
    }
}

/// The rows of a picture of 12 embeddings of noise, as a stage emits them.
fn emitted(stage: &mut dyn StageModel, config: &ThinkerConfig) -> Embeddings {
    let (slot, media) = (Slot(0), [Encodable::Pictures { grid: [1, 4, 12] }]);
    let schedule = Schedule::of(config, &media, Grain::Coarse).unwrap();
    let spec = EncoderSpec { media: media.into(), longest: 0, done: 0, grain: Grain::Coarse };
    stage.open(slot, SequenceSpec::Encoder(spec)).unwrap();
    for piece in schedule.pieces_from(0) {
        let count = piece.range.len() * config.vision.as_ref().unwrap().patch_width();
        let numbers = (0..count as u32).map(|i| uniform(3, Domain::Codes, i, 3) * 2.0 - 1.0).collect();
        stage.push_input(slot, Some(StageData::Features(Features::Numbers(numbers))), false).unwrap();
    }
    let units = (0..schedule.units()).map(|_| stage.launch(&[SequenceWork { slot, advance: 1 }]).unwrap());
    let outputs = units.map(|launched| launched.wait().unwrap().sequences.remove(0).unwrap().emit);
    let rows = outputs.flatten().last().unwrap();
    stage.close(slot);
    let StageData::Embeddings(rows) = rows else { panic!("{rows:?}") };
    rows
}

#[test]
#[ignore = "needs a GPU"]
fn a_thinker_reads_rows_where_the_encoder_left_them_as_those_that_were_copied() {
    for precision in [Precision::F32, Precision::Bf16] {
        let thinker = crate::kept::fixture(precision);
        let (gpu, config) = (&thinker.gpu, &thinker.config);
        let recorder = omni_actors::telemetry::trace::Recorder::default();
        let mut leaves = on_gpu(gpu, &fixture(), precision).leaving_rows(recorder).build().unwrap();
        let mut copies = on_gpu(gpu, &fixture(), precision).build().unwrap();
        let (spec, rows) = crate::kept::heard_and_seen(config, 1);
        let with = |seen: Vec<Embeddings>| std::iter::once(Embeddings::from(rows[0].clone())).chain(seen);
        let copied = emitted(&mut *copies, config);
        assert!(matches!(copied, Embeddings::Host(_)));
        let expected = crate::kept::answered_with(&mut thinker.keeps(0), &spec, with(vec![copied.clone()]), 1000);
        // More often than the memory for what is left has room.
        for round in 0..400 {
            let left = emitted(&mut *leaves, config);
            assert!(matches!(left, Embeddings::Device(_)), "round {round}");
            if round >= 3 {
                continue;
            }
            let home = futures::executor::block_on(left.clone().fetched()).unwrap().tensor().unwrap();
            let numbers = |rows: candle_core::Tensor| rows.flatten_all().unwrap().to_vec1::<f32>().unwrap();
            assert!(numbers(home) == numbers(copied.tensor().unwrap()), "those that are fetched");
            // In one piece, and what is behind the first five alone after those as they were copied.
            let behind = left.clone().behind(5).unwrap().unwrap();
            let before = copied.tensor().unwrap().narrow(0, 0, 5).unwrap().into();
            for (seen, chunk) in [(vec![left], [1000, 40, 7][round]), (vec![before, behind], [1000, 9, 28][round])] {
                let mut stage = thinker.keeps(0);
                let blocking = gpu.blocking_calls();
                let said = crate::kept::answered_with(&mut stage, &spec, with(seen), chunk);
                assert_eq!(said, expected, "{} in pieces of {chunk}", precision.as_str());
                assert_eq!(gpu.blocking_calls(), blocking, "no launch waits for the device");
            }
        }
    }
}

#[test]
#[ignore = "needs a GPU"]
fn rows_do_not_depend_on_what_is_encoded_beside_them() {
    let gpu = gpu();
    for (checkpoint, precision) in cases() {
        let config = &checkpoint.omni().unwrap().thinker;
        let requests = requests(config);
        let mut stage = on_gpu(&gpu, &checkpoint, precision).build().unwrap();
        let alone = encode(&mut *stage, config, &requests, 1, 1, Grain::Fine);
        for (together, ahead, grain) in [(7, 1, Grain::Coarse), (3, 2, Grain::Fine), (2, 3, Grain::Coarse)] {
            let rows = encode(&mut *stage, config, &requests, together, ahead, grain);
            assert!(rows == alone, "{together} together, {ahead} ahead, {grain:?}");
        }
    }
}

#[test]
#[ignore = "needs a GPU"]
fn the_kernels_of_tensor_cores_equal_the_plain_ones_at_real_sizes() {
    let (gpu, checkpoint) = (gpu(), sizeable());
    let config = &checkpoint.omni().unwrap().thinker;
    let requests = [vec![Encodable::Sound { frames: 800 }], vec![Encodable::Pictures { grid: [1, 30, 40] }]];
    let factory = on_gpu(&gpu, &checkpoint, Precision::Bf16);
    let fast = encode(&mut *factory.build().unwrap(), config, &requests, 2, 1, Grain::Coarse);
    let plain = encode(&mut *factory.plain().build().unwrap(), config, &requests, 2, 1, Grain::Coarse);
    for (fast, plain) in fast.iter().zip(&plain) {
        let error = error(fast, plain);
        println!("tensor cores differ by {error:.1e} of the rows");
        assert!(error < 3e-2, "{error}");
    }
}

/// On other GPUs than Hopper both are the same kernels.
#[test]
#[ignore = "needs a GPU"]
fn the_kernels_for_hopper_have_the_bits_of_those_for_any_gpu() {
    let (gpu, checkpoint) = (gpu(), sizeable());
    let config = &checkpoint.omni().unwrap().thinker;
    let mut requests = requests(config);
    // Enough for the large tiles.
    requests.extend((0..6).map(|_| vec![Encodable::Sound { frames: 800 }]));
    requests.push(vec![Encodable::Pictures { grid: [1, 30, 52] }]);
    let factory = on_gpu(&gpu, &checkpoint, Precision::Bf16);
    let best = encode(&mut *factory.build().unwrap(), config, &requests, 8, 1, Grain::Coarse);
    let any = encode(&mut *factory.portable().build().unwrap(), config, &requests, 8, 1, Grain::Coarse);
    assert!(best == any);
    assert!(best.iter().flatten().all(|x| x.is_finite()));
}

#[test]
#[ignore = "needs a GPU"]
fn a_step_makes_no_blocking_call_on_the_launch_thread() {
    let (gpu, checkpoint) = (gpu(), fixture());
    let config = &checkpoint.omni().unwrap().thinker;
    let requests = requests(config);
    let mut stage = on_gpu(&gpu, &checkpoint, Precision::Bf16).build().unwrap();
    encode(&mut *stage, config, &requests, 7, 2, Grain::Coarse);
    let before = gpu.blocking_calls();
    encode(&mut *stage, config, &requests, 7, 2, Grain::Coarse);
    assert_eq!(gpu.blocking_calls(), before);
}
