//! The vocoder on a GPU against the one on the CPU and the reference. Paths are relative to the repository, where tests
//! run, so the executable works on another machine too.

use crate::gpu;
use candle_core::{DType, Device, Tensor};
use omni_actors::core::ids::{FinishReason, Slot};
use omni_actors::cuda::Gpu;
use omni_actors::cuda::vocoder::{CudaVocoder, CudaVocoderFactory, Limits, Precision};
use omni_actors::model::stage::{SequenceSpec, SequenceWork, StageData, StageFactory, StageModel, VocoderSpec};
use omni_actors::model::vocoder::Vocoder;
use omni_actors::model::{Checkpoint, ModelError};
use std::collections::HashMap;
use std::path::Path;
use std::sync::Arc;

const OMNI: &str = "tests/fixtures/qwen3_omni";
const TTS: &str = "tests/fixtures/qwen3_tts/custom_voice";
const VOICE: &str = "assets/voice/checkpoint";

struct Both {
    cpu: Vocoder,
    stage: Box<dyn StageModel>,
    gpu: Gpu,
}

fn both(gpu: &Gpu, folder: &str, precision: Precision) -> Both {
    limited(gpu, folder, precision, Limits::new(12, &[1, 2, 4, 8]))
}

fn limited(gpu: &Gpu, folder: &str, precision: Precision, limits: Limits) -> Both {
    let checkpoint = Checkpoint::open(Path::new(folder)).unwrap();
    let net = CudaVocoder::load(gpu, &checkpoint, precision, limits).unwrap();
    let stage = CudaVocoderFactory::new(Arc::new(net)).build().unwrap();
    Both { cpu: Vocoder::load(&checkpoint, &Device::Cpu).unwrap(), stage, gpu: gpu.clone() }
}

impl Both {
    fn codes(&self, frames: usize, seed: usize) -> Vec<u32> {
        let config = self.cpu.config();
        let code = |i: usize| ((i * 7919 + i / 13 * 31 + seed * 101) % config.codebook_size) as u32;
        (0..frames * config.num_quantizers).map(code).collect()
    }

    fn on_cpu(&self, codes: &[u32]) -> Vec<f32> {
        self.cpu.decode(&mut self.cpu.stream().unwrap(), codes).unwrap()
    }

    fn open(&mut self, slot: Slot, codes: &[u32], context: Option<&[u32]>) {
        let spec = VocoderSpec { context: context.map(Into::into), goes_on: false };
        self.stage.open(slot, SequenceSpec::Vocoder(spec)).unwrap();
        self.stage.push_input(slot, Some(StageData::Codes(codes.to_vec())), true).unwrap();
    }

    fn step(&mut self, work: &[(Slot, u32)]) -> Vec<(Vec<f32>, Option<FinishReason>)> {
        let work: Vec<_> = work.iter().map(|(slot, advance)| SequenceWork { slot: *slot, advance: *advance }).collect();
        let outputs = self.stage.step(&work).unwrap().into_iter().map(Result::unwrap);
        outputs.map(|output| (audio(output.emit.as_ref()), output.finish)).collect()
    }

    /// A stream alone, in pieces of the given sizes, the last one repeated.
    fn in_pieces(&mut self, codes: &[u32], sizes: &[u32]) -> Vec<f32> {
        let slot = Slot(90);
        self.open(slot, codes, None);
        let mut left = (codes.len() / self.cpu.config().num_quantizers) as u32;
        let mut sizes = sizes.iter().chain(sizes.last().into_iter().cycle());
        let mut all = Vec::new();
        while left > 0 {
            let frames = left.min(*sizes.next().unwrap());
            left -= frames;
            all.extend(self.step(&[(slot, frames)]).remove(0).0);
        }
        self.stage.close(slot);
        all
    }
}

fn audio(emit: Option<&StageData>) -> Vec<f32> {
    match emit {
        Some(StageData::Audio(samples)) => samples.clone(),
        None => Vec::new(),
        other => panic!("{other:?}"),
    }
}

fn golden(file: &str) -> HashMap<String, Tensor> {
    candle_core::safetensors::load(file, &Device::Cpu).unwrap()
}

fn floats(t: &Tensor) -> Vec<f32> {
    t.flatten_all().unwrap().to_vec1().unwrap()
}

/// `[1, groups, frames]` -> frame after frame.
fn codes_of(golden: &HashMap<String, Tensor>) -> Vec<u32> {
    let codes = golden["codes"].squeeze(0).unwrap().t().unwrap().flatten_all().unwrap();
    codes.to_dtype(DType::U32).unwrap().to_vec1().unwrap()
}

fn worst(got: &[f32], want: &[f32]) -> f32 {
    assert_eq!(got.len(), want.len());
    got.iter().zip(want).map(|(g, w)| (g - w).abs()).fold(0.0, |a, b| if b <= a { a } else { b })
}

/// Decibels of the signal above the difference.
fn snr(got: &[f32], want: &[f32]) -> f64 {
    assert_eq!(got.len(), want.len());
    let power = |x: &mut dyn Iterator<Item = f32>| x.map(|x| f64::from(x) * f64::from(x)).sum::<f64>();
    let noise = power(&mut got.iter().zip(want).map(|(g, w)| g - w));
    10.0 * (power(&mut want.iter().copied()) / noise).log10()
}

#[test]
#[ignore = "needs a GPU"]
fn waveforms_in_f32_equal_the_reference() {
    let gpu = gpu();
    for (folder, file) in [
        (OMNI, "tests/fixtures/qwen3_omni/golden/code2wav.safetensors"),
        (TTS, "tests/fixtures/qwen3_tts/golden/decoder12hz.safetensors"),
        (VOICE, ""),
    ] {
        let mut net = both(&gpu, folder, Precision::F32);
        let (codes, want) = if file.is_empty() {
            let codes = net.codes(100, 1);
            (codes.clone(), net.on_cpu(&codes))
        } else {
            let golden = golden(file);
            (codes_of(&golden), floats(&golden["wav.full"]))
        };
        let off = worst(&net.in_pieces(&codes, &[1, 2, 4, 8, 3]), &want);
        println!("{folder}: {off:.1e}");
        assert!(off <= 1e-4, "{folder} is off by {off}");
    }
}

#[test]
#[ignore = "needs a GPU"]
fn tensor_cores_lose_less_than_a_hundredth_of_the_signal() {
    let gpu = gpu();
    let checkpoints = [(OMNI, 40.0), (TTS, 40.0), (VOICE, 55.0)];
    for ((folder, least), precision) in
        checkpoints.into_iter().flat_map(|one| [(one, Precision::Tf32), (one, Precision::F16)])
    {
        let mut net = both(&gpu, folder, precision);
        let codes = match folder {
            // What the voice really says; random codes are further from what it was trained on.
            VOICE => codes_of(&golden("assets/voice/golden/voice_heart_2.safetensors")),
            _ => net.codes(60, 1),
        };
        let snr = snr(&net.in_pieces(&codes, &[8]), &net.on_cpu(&codes));
        println!("{folder}, {precision:?}: {snr:.1} dB");
        assert!(snr >= least, "{folder}, {precision:?}: {snr} dB");
    }
    assert_eq!(gpu.clipped(), 0);
}

#[test]
#[ignore = "needs a GPU"]
fn what_is_too_large_for_16_bits_is_clipped_and_counted() {
    let gpu = gpu();
    // The activations behind the first convolution are a million times what they were.
    let folder = tempfile::tempdir().unwrap();
    for entry in std::fs::read_dir(OMNI).unwrap().map(Result::unwrap).filter(|entry| entry.path().is_file()) {
        std::fs::copy(entry.path(), folder.path().join(entry.file_name())).unwrap();
    }
    let file = folder.path().join("model.safetensors");
    let mut tensors = candle_core::safetensors::load(&file, &Device::Cpu).unwrap();
    let weight = tensors.get_mut("code2wav.decoder.0.conv.weight").unwrap();
    *weight = (&*weight * 1e6).unwrap();
    candle_core::safetensors::save(&tensors, &file).unwrap();
    for (precision, clips) in [(Precision::Tf32, false), (Precision::F16, true)] {
        let mut net = both(&gpu, folder.path().to_str().unwrap(), precision);
        let codes = net.codes(4, 1);
        let samples = net.in_pieces(&codes, &[4]);
        assert!(samples.iter().all(|x| x.is_finite()));
        assert_eq!(gpu.clipped() > 0, clips, "{precision:?}");
    }
}

#[test]
#[ignore = "needs a GPU"]
fn a_stream_has_the_same_bits_however_it_is_cut_and_whatever_is_beside_it() {
    let gpu = gpu();
    for (folder, precision) in [
        (OMNI, Precision::F16),
        (TTS, Precision::F16),
        (VOICE, Precision::F16),
        (OMNI, Precision::Tf32),
        (TTS, Precision::Tf32),
        (TTS, Precision::F32),
    ] {
        let mut net = both(&gpu, folder, precision);
        // Longer than the window, so that the ring has gone round.
        let codes = net.codes(160, 1);
        let single = net.in_pieces(&codes, &[1]);
        assert!(single.iter().all(|x| x.is_finite()));
        for sizes in [&[1, 2, 4, 8][..], &[3, 5, 7], &[160], &[12]] {
            assert!(net.in_pieces(&codes, sizes) == single, "{folder}: other bits in pieces of {sizes:?}");
        }
        // Seven streams at different places, one of them ours.
        let groups = net.cpu.config().num_quantizers;
        for i in 1..7 {
            let codes = net.codes(160, i as usize + 1);
            net.open(Slot(i), &codes, None);
        }
        net.open(Slot(0), &codes[..60 * groups], None);
        let mut heard = Vec::new();
        for round in 0..10u32 {
            let mut work: Vec<_> =
                (1..7).filter(|i| !(i + round).is_multiple_of(3)).map(|i| (Slot(i), 1 + i % 5)).collect();
            let at = work.len() / 2;
            work.insert(at, (Slot(0), 6));
            heard.extend(net.step(&work).swap_remove(at).0);
        }
        assert!(heard[..] == single[..heard.len()], "{folder}: other bits beside others");
        assert!(heard.len() > 50 * 1920);
    }
}

#[test]
#[ignore = "needs a GPU"]
fn sequences_end_with_their_input_and_their_slots_are_used_again() {
    let gpu = gpu();
    let mut net = both(&gpu, OMNI, Precision::F32);
    let codes = net.codes(9, 1);
    let want = net.on_cpu(&codes);
    for round in 0..30 {
        let slot = Slot(round % 3);
        net.open(slot, &codes, None);
        let first = net.step(&[(slot, 4)]).remove(0);
        let last = net.step(&[(slot, 5)]).remove(0);
        assert_eq!((first.1, last.1), (None, Some(FinishReason::Stop)));
        assert!(worst(&[first.0, last.0].concat(), &want) <= 1e-4, "round {round}");
        assert!(net.stage.step(&[SequenceWork { slot, advance: 1 }]).unwrap()[0].as_ref().unwrap().stale);
        net.stage.close(slot);
        net.stage.close(slot);
        assert_eq!(net.stage.live_sequences(), 0);
    }
}

#[test]
#[ignore = "needs a GPU"]
fn a_bad_sequence_fails_alone() {
    let gpu = gpu();
    let mut net = limited(&gpu, OMNI, Precision::F32, Limits::new(2, &[1]));
    let codes = net.codes(1, 1);
    for slot in [Slot(0), Slot(1)] {
        net.open(slot, &codes, None);
    }
    let sequence = |result: Result<(), ModelError>| matches!(result, Err(ModelError::Sequence(_)));
    let size = net.cpu.config().codebook_size as u32;
    let groups = net.cpu.config().num_quantizers;
    assert!(sequence(net.stage.open(Slot(0), SequenceSpec::Vocoder(VocoderSpec::default()))));
    assert!(sequence(net.stage.open(Slot(2), SequenceSpec::Vocoder(VocoderSpec::default()))), "there are two streams");
    net.stage.close(Slot(1));
    net.stage.open(Slot(1), SequenceSpec::Vocoder(VocoderSpec::default())).unwrap();
    assert!(sequence(net.stage.push_input(Slot(1), Some(StageData::Codes(vec![size; groups])), false)));
    assert!(sequence(net.stage.push_input(Slot(1), Some(StageData::Codes(vec![0; groups + 1])), false)));
    let work = [(Slot(1), 1), (Slot(0), 1), (Slot(9), 0)].map(|(slot, advance)| SequenceWork { slot, advance });
    let out = net.stage.step(&work).unwrap();
    assert!(matches!(out[0], Err(ModelError::Sequence(_))) && matches!(out[2], Err(ModelError::Sequence(_))));
    assert!(worst(&audio(out[1].as_ref().unwrap().emit.as_ref()), &net.on_cpu(&codes)) <= 1e-4);
}

#[test]
#[ignore = "needs a GPU"]
fn a_sequence_with_a_context_is_heard_from_where_its_reference_ends() {
    let gpu = gpu();
    let mut net = both(&gpu, TTS, Precision::F16);
    let (codes, groups) = (net.codes(30, 1), net.cpu.config().num_quantizers);
    let want = net.in_pieces(&codes, &[8])[25 * 1920..].to_vec();
    let (context, own) = codes.split_at(25 * groups);
    let nothing = || (Vec::new(), None);
    let speech = || (want.clone(), Some(FinishReason::Stop));
    // Two sequences take in the same reference side by side, the second one having come later.
    for slot in [Slot(0), Slot(1)] {
        net.open(slot, own, Some(context));
    }
    assert_eq!(net.step(&[(Slot(0), 12)]), [nothing()]);
    assert_eq!(net.step(&[(Slot(1), 7), (Slot(0), 13)]), [nothing(), nothing()]);
    assert_eq!(net.step(&[(Slot(0), 5), (Slot(1), 18)]), [speech(), nothing()]);
    assert_eq!(net.step(&[(Slot(1), 5)]), [speech()]);
    // And a third when both are gone, in pieces.
    net.stage.close(Slot(0));
    net.stage.close(Slot(1));
    net.open(Slot(2), own, Some(context));
    assert_eq!(net.step(&[(Slot(2), 25)]), [nothing()]);
    let [first, last] = [2, 3].map(|frames| net.step(&[(Slot(2), frames)]).remove(0).0);
    assert_eq!([first, last].concat(), want);
}

#[test]
#[ignore = "needs a GPU"]
fn more_references_than_are_kept_work_too() {
    let gpu = gpu();
    let limits = Limits { contexts: 1, ..Limits::new(4, &[4]) };
    let mut net = limited(&gpu, TTS, Precision::F16, limits);
    let groups = net.cpu.config().num_quantizers;
    let all: Vec<_> = (0..3).map(|seed| net.codes(9, seed)).collect();
    let want: Vec<_> = all.iter().map(|codes| net.in_pieces(codes, &[4])[6 * 1920..].to_vec()).collect();
    for (i, codes) in all.iter().enumerate() {
        net.open(Slot(i as u32), &codes[6 * groups..], Some(&codes[..6 * groups]));
    }
    let work = |frames| [0, 1, 2].map(|i| (Slot(i), frames));
    net.step(&work(6));
    let heard: Vec<_> = net.step(&work(3)).into_iter().map(|(samples, _)| samples).collect();
    assert_eq!(heard, want);
}

#[test]
#[ignore = "needs a GPU"]
fn launching_waits_for_nothing() {
    let gpu = gpu();
    let mut net = both(&gpu, VOICE, Precision::F16);
    let codes = net.codes(24, 1);
    net.open(Slot(0), &codes, None);
    let before = net.gpu.blocking_calls();
    // Three steps ahead of the first that is waited for.
    let pending: Vec<_> =
        (0..3).map(|_| net.stage.launch(&[SequenceWork { slot: Slot(0), advance: 8 }]).unwrap()).collect();
    assert_eq!(net.gpu.blocking_calls(), before);
    let mut heard = Vec::new();
    for step in pending {
        let outcome = step.wait().unwrap();
        println!("{:?}", outcome.times.total.unwrap());
        heard.extend(audio(outcome.sequences[0].as_ref().unwrap().emit.as_ref()));
    }
    net.stage.close(Slot(0));
    assert!(heard == net.in_pieces(&codes, &[8]));
}
