//! The vocoder against the reference's activations and waveforms, and a stream in pieces against the stream at once.

use crate::requests::VOICE_GOLDENS;
use candle_core::{DType, Device, Tensor};
use omni_actors::core::ids::{FinishReason, Slot};
use omni_actors::model::ModelError;
use omni_actors::model::checkpoint::Checkpoint;
use omni_actors::model::stage::{SequenceSpec, SequenceWork, StageData, StageFactory, StageModel, VocoderSpec};
use omni_actors::model::stages::vocoder::VocoderFactory;
use omni_actors::model::vocoder::Vocoder;
use proptest::prelude::*;
use std::collections::{BTreeMap, HashMap};
use std::path::Path;
use std::sync::{Arc, LazyLock};

/// The waveform tolerance of the fixtures; typical is 1e-5.
const WAVE: f32 = 2e-4;

const CODE2WAV: &str = "tests/fixtures/qwen3_omni/golden/code2wav.safetensors";
const DECODER_12HZ: &str = "tests/fixtures/qwen3_tts/golden/decoder12hz.safetensors";

static TINY: LazyLock<Arc<Vocoder>> = LazyLock::new(|| load("tests/fixtures/qwen3_omni"));
static TTS: LazyLock<Arc<Vocoder>> = LazyLock::new(|| load("tests/fixtures/qwen3_tts/custom_voice"));
static VOICE: LazyLock<Arc<Vocoder>> = LazyLock::new(|| load("assets/voice/checkpoint"));

fn path(relative: &str) -> std::path::PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join(relative)
}

fn load(folder: &str) -> Arc<Vocoder> {
    let checkpoint = Checkpoint::open(&path(folder)).unwrap();
    Arc::new(Vocoder::load(&checkpoint, &Device::Cpu).unwrap())
}

fn golden(file: &str) -> HashMap<String, Tensor> {
    candle_core::safetensors::load(path(file), &Device::Cpu).unwrap()
}

fn floats(t: &Tensor) -> Vec<f32> {
    t.flatten_all().unwrap().to_vec1().unwrap()
}

/// `[1, groups, frames]` -> frame after frame.
fn codes(t: &Tensor) -> Vec<u32> {
    t.squeeze(0).unwrap().t().unwrap().flatten_all().unwrap().to_dtype(DType::U32).unwrap().to_vec1().unwrap()
}

fn decode_at_once(net: &Vocoder, codes: &[u32]) -> Vec<f32> {
    net.decode(&mut net.stream().unwrap(), codes).unwrap()
}

fn worst(got: &[f32], want: &[f32]) -> f32 {
    assert_eq!(got.len(), want.len());
    got.iter().zip(want).map(|(g, w)| (g - w).abs()).fold(0.0, f32::max)
}

/// Repeatable codes that look like nothing in particular.
fn some_codes(net: &Vocoder, frames: usize) -> Vec<u32> {
    let size = net.config().codebook_size;
    (0..frames * net.config().num_quantizers).map(|i| ((i * 7919 + i / 13 * 31) % size) as u32).collect()
}

#[test]
fn every_stage_of_the_reference_is_reproduced() {
    for (net, file, stages) in [(&TINY, CODE2WAV, 16), (&TTS, DECODER_12HZ, 17)] {
        let golden = golden(file);
        let mut seen = BTreeMap::<String, Vec<Tensor>>::new();
        let codes = codes(&golden["codes"]);
        net.decode_probed(&mut net.stream().unwrap(), &codes, &mut |name, value| {
            seen.entry(format!("stage.{name}")).or_default().push(value.clone());
        })
        .unwrap();
        let mut compared = 0;
        for (name, want) in golden.iter().filter(|(name, _)| name.starts_with("stage.")) {
            let pieces = seen.get(name).unwrap_or_else(|| panic!("no activation {name}"));
            let got = Tensor::cat(pieces, 0).unwrap();
            // The reference mostly has channels first, and long ones are cut.
            let want = want.squeeze(0).unwrap();
            let time_first = ["embed_mean", "pre_conv", "transformer"].iter().any(|stage| name.contains(stage));
            let want = if time_first { want } else { want.t().unwrap() };
            let got = got.narrow(0, 0, want.dims()[0]).unwrap();
            assert_eq!(got.dims(), want.dims(), "{name}");
            let (got, want) = (floats(&got), floats(&want));
            let scale = want.iter().fold(1f32, |a, x| a.max(x.abs()));
            let off = worst(&got, &want);
            println!("{name}: {off:.1e} of {scale:.1}");
            assert!(off <= 1e-4 * scale, "{name} is off by {off}");
            compared += 1;
        }
        assert_eq!(compared, stages);
    }
}

#[test]
fn waveforms_equal_the_reference() {
    for (net, file, prefix) in [(&TINY, CODE2WAV, Some("wav.full.first12")), (&TTS, DECODER_12HZ, None)] {
        let golden = golden(file);
        let codes = codes(&golden["codes"]);
        let full = decode_at_once(net, &codes);
        let off = worst(&full, &floats(&golden["wav.full"]));
        println!("wav.full: {off:.1e}");
        assert!(off <= WAVE, "{off}");
        let first = decode_at_once(net, &codes[..12 * net.config().num_quantizers]);
        assert_eq!(first, full[..first.len()], "a prefix decodes to a prefix");
        if let Some(prefix) = prefix {
            let off = worst(&first, &floats(&golden[prefix]));
            assert!(off <= WAVE, "{off}");
        }
    }
}

#[test]
fn speech_of_whole_pipelines_equals_the_reference() {
    let tiny = ["audio_ethan", "image_ethan", "text_ethan", "text_ethan_eos", "text_ethan_thinker_eos", "video_ethan"];
    let cases = tiny.map(|c| (&TINY, format!("tests/fixtures/qwen3_omni/golden/{c}.safetensors")));
    let voices = VOICE_GOLDENS.map(|c| (&VOICE, format!("assets/voice/golden/{c}.safetensors")));
    for (net, file) in cases.into_iter().chain(voices) {
        let golden = golden(&file);
        let off = worst(&decode_at_once(net, &codes(&golden["codes"])), &floats(&golden["wav"]));
        println!("{file}: {off:.1e}");
        assert!(off <= WAVE, "{file} is off by {off}");
    }
}

#[test]
fn the_number_of_samples_follows_from_the_rates() {
    for (net, dropped) in [(&*TINY, 555), (&*VOICE, 555), (&*TTS, 0)] {
        assert_eq!(net.config().samples_per_frame(), 1920);
        assert_eq!(net.samples(0), 0);
        assert_eq!(net.samples(100), 192_000 - dropped);
        for frames in [1, 2, 9] {
            let got = decode_at_once(net, &some_codes(net, frames)).len() as u64;
            assert_eq!(got, net.samples(frames as u64));
        }
    }
}

/// Decodes in pieces of the given sizes, the last one repeated.
fn in_pieces(net: &Vocoder, codes: &[u32], sizes: &[usize]) -> Vec<f32> {
    let mut stream = net.stream().unwrap();
    let (mut rest, mut sizes, mut out) = (codes, sizes.iter().chain(sizes.last().into_iter().cycle()), Vec::new());
    while !rest.is_empty() {
        let n = (sizes.next().unwrap() * net.config().num_quantizers).min(rest.len());
        out.extend(net.decode(&mut stream, &rest[..n]).unwrap());
        rest = &rest[n..];
    }
    out
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 12, failure_persistence: None, ..ProptestConfig::default() })]
    #[test]
    fn a_stream_in_pieces_has_the_samples_of_the_stream_at_once(
        frames in 1usize..60, sizes in proptest::collection::vec(1usize..12, 1..20),
    ) {
        for net in [&*TINY, &*TTS] {
            let codes = some_codes(net, frames);
            prop_assert!(in_pieces(net, &codes, &sizes) == decode_at_once(net, &codes), "other bits for {sizes:?}");
        }
    }

    #[test]
    fn speech_behind_muted_frames_has_the_bits_of_both_decoded_together(
        heard in 0usize..3, absorbed in 1usize..40, size in 1usize..40,
    ) {
        for net in [&*TINY, &*TTS] {
            let (codes, groups) = (some_codes(net, heard + absorbed + 3), net.config().num_quantizers);
            let (before, after) = codes[heard * groups..].split_at(absorbed * groups);
            let mut stream = net.stream().unwrap();
            net.decode(&mut stream, &codes[..heard * groups]).unwrap();
            for (i, piece) in before.chunks(size * groups).enumerate() {
                net.absorb(&mut stream, piece, absorbed.saturating_sub((i + 1) * size)).unwrap();
            }
            let whole = decode_at_once(net, &codes);
            let skipped = net.samples((heard + absorbed) as u64) as usize;
            prop_assert!(net.decode(&mut stream, after).unwrap() == whole[skipped..]);
        }
    }
}

#[test]
fn the_default_voice_streams_frame_by_frame_with_the_same_bits() {
    // Longer than twice the window, so that the cache has moved.
    let codes = some_codes(&VOICE, 160);
    let whole = decode_at_once(&VOICE, &codes);
    assert!(in_pieces(&VOICE, &codes, &[1]) == whole);
    assert!(in_pieces(&VOICE, &codes, &[1, 2, 4, 8, 25]) == whole);
}

#[test]
fn bad_codes_leave_the_stream_as_it_was() {
    let mut stream = TINY.stream().unwrap();
    let groups = TINY.config().num_quantizers;
    assert!(TINY.decode(&mut stream, &vec![TINY.config().codebook_size as u32; groups]).is_err());
    assert!(TINY.decode(&mut stream, &vec![0; groups + 1]).is_err());
    let codes = some_codes(&TINY, 3);
    assert_eq!(TINY.decode(&mut stream, &codes).unwrap(), decode_at_once(&TINY, &codes));
}

fn stage() -> Box<dyn StageModel> {
    VocoderFactory::new(TINY.clone()).build().unwrap()
}

fn behind(context: &[u32]) -> SequenceSpec {
    SequenceSpec::Vocoder(VocoderSpec { context: Some(context.into()), goes_on: false })
}

fn audio(emit: Option<&StageData>) -> &[f32] {
    match emit {
        Some(StageData::Audio(samples)) => samples,
        None => &[],
        other => panic!("{other:?}"),
    }
}

#[test]
fn sequences_of_a_stage_speak_side_by_side_and_end_with_their_input() {
    let (mut stage, groups) = (stage(), TINY.config().num_quantizers);
    let long = some_codes(&TINY, 9);
    let short = long[..4 * groups].iter().rev().copied().collect::<Vec<_>>();
    let (a, b) = (Slot(3), Slot(0));
    for (slot, codes) in [(a, &long), (b, &short)] {
        stage.open(slot, SequenceSpec::Vocoder(VocoderSpec::default())).unwrap();
        stage.push_input(slot, Some(StageData::Codes(codes.clone())), true).unwrap();
    }
    assert_eq!(stage.live_sequences(), 2);
    let (mut from_a, mut from_b) = (Vec::new(), Vec::new());
    for (step, (of_a, of_b)) in [(1, 1), (3, 3), (5, 0)].into_iter().enumerate() {
        let work = [SequenceWork { slot: a, advance: of_a }, SequenceWork { slot: b, advance: of_b }];
        let out: Vec<_> = stage.step(&work).unwrap().into_iter().map(Result::unwrap).collect();
        from_a.extend_from_slice(audio(out[0].emit.as_ref()));
        from_b.extend_from_slice(audio(out[1].emit.as_ref()));
        assert_eq!(out[0].finish, (step == 2).then_some(FinishReason::Stop));
        assert_eq!(out[1].finish, (step == 1).then_some(FinishReason::Stop));
        assert_eq!(out[1].stale, step == 2);
    }
    assert_eq!(from_a, decode_at_once(&TINY, &long));
    assert_eq!(from_b, decode_at_once(&TINY, &short));
    stage.close(a);
    stage.close(a);
    assert_eq!(stage.live_sequences(), 1);
}

#[test]
fn a_sequence_may_learn_of_its_end_after_its_last_frame_or_without_any() {
    let mut stage = stage();
    let slot = Slot(1);
    for frames in [0, 2] {
        stage.open(slot, SequenceSpec::Vocoder(VocoderSpec::default())).unwrap();
        let step = |stage: &mut Box<dyn StageModel>, advance| {
            stage.step(&[SequenceWork { slot, advance }]).unwrap().remove(0).unwrap()
        };
        stage.push_input(slot, Some(StageData::Codes(some_codes(&TINY, frames))), false).unwrap();
        assert_eq!(step(&mut stage, frames as u32).finish, None);
        stage.push_input(slot, None, true).unwrap();
        let last = step(&mut stage, 0);
        assert_eq!(last.finish, Some(FinishReason::Stop));
        assert!(audio(last.emit.as_ref()).is_empty());
        stage.close(slot);
    }
}

#[test]
fn a_bad_sequence_fails_alone() {
    let mut stage = stage();
    let (good, bad) = (Slot(0), Slot(1));
    for slot in [good, bad] {
        stage.open(slot, SequenceSpec::Vocoder(VocoderSpec::default())).unwrap();
        stage.push_input(slot, Some(StageData::Codes(some_codes(&TINY, 1))), false).unwrap();
    }
    let refused = |result: Result<(), ModelError>| matches!(result, Err(ModelError::Sequence(_)));
    let size = TINY.config().codebook_size as u32;
    assert!(refused(stage.open(good, SequenceSpec::Vocoder(VocoderSpec::default()))));
    assert!(refused(stage.push_input(bad, Some(StageData::Codes(vec![size; TINY.config().num_quantizers])), false)));
    assert!(refused(stage.push_input(bad, Some(StageData::Codes(vec![0])), false)));
    assert!(refused(stage.push_input(bad, Some(StageData::Tokens(vec![0])), false)));
    assert!(refused(stage.push_input(Slot(9), None, true)));
    let work = [
        SequenceWork { slot: bad, advance: 2 },
        SequenceWork { slot: good, advance: 1 },
        SequenceWork { slot: Slot(9), advance: 0 },
    ];
    let out = stage.step(&work).unwrap();
    assert!(matches!(out[0], Err(ModelError::Sequence(_))));
    assert!(matches!(out[2], Err(ModelError::Sequence(_))));
    assert_eq!(audio(out[1].as_ref().unwrap().emit.as_ref()), decode_at_once(&TINY, &some_codes(&TINY, 1)));
}

#[test]
fn a_sequence_with_a_context_is_heard_from_where_its_reference_ends() {
    let (mut stage, groups) = (VocoderFactory::new(TTS.clone()).build().unwrap(), TTS.config().num_quantizers);
    let codes = some_codes(&TTS, 30);
    let (context, own) = codes.split_at(25 * groups);
    let want = &decode_at_once(&TTS, &codes)[25 * 1920..];
    let (a, b, c) = (Slot(0), Slot(1), Slot(2));
    let nothing = || (Vec::new(), None);
    let (wave, end) = (want.to_vec(), Some(FinishReason::Stop));
    // Two sequences take in the same reference side by side; the second one comes later.
    for (slot, context) in [(a, context), (b, context)] {
        stage.open(slot, behind(context)).unwrap();
        stage.push_input(slot, Some(StageData::Codes(own.to_vec())), true).unwrap();
    }
    let step = |stage: &mut Box<dyn StageModel>, work: &[(Slot, u32)]| -> Vec<(Vec<f32>, Option<FinishReason>)> {
        let work: Vec<_> = work.iter().map(|(slot, advance)| SequenceWork { slot: *slot, advance: *advance }).collect();
        let outputs = stage.step(&work).unwrap().into_iter().map(Result::unwrap);
        outputs.map(|output| (audio(output.emit.as_ref()).to_vec(), output.finish)).collect()
    };
    assert_eq!(step(&mut stage, &[(a, 12)]), [nothing()]);
    assert_eq!(step(&mut stage, &[(b, 7), (a, 13)]), [nothing(), nothing()]);
    assert_eq!(step(&mut stage, &[(a, 5), (b, 18)]), [(wave.clone(), end), nothing()]);
    assert_eq!(step(&mut stage, &[(b, 5)]), [(wave.clone(), end)]);
    // And a third when both are gone.
    stage.close(a);
    stage.close(b);
    stage.open(c, behind(context)).unwrap();
    stage.push_input(c, Some(StageData::Codes(own.to_vec())), true).unwrap();
    assert_eq!(step(&mut stage, &[(c, 25)]), [nothing()]);
    assert_eq!(step(&mut stage, &[(c, 5)]), [(wave, end)]);
}

#[test]
fn a_context_that_is_no_frames_or_not_waited_for_fails_its_sequence_alone() {
    let mut stage = VocoderFactory::new(TTS.clone()).build().unwrap();
    let refused = |result: Result<(), ModelError>| matches!(result, Err(ModelError::Sequence(_)));
    assert!(refused(stage.open(Slot(0), behind(&[0; 7]))));
    assert!(refused(stage.open(Slot(0), behind(&[128; 8]))));
    assert_eq!(stage.live_sequences(), 0);
    stage.open(Slot(0), behind(&some_codes(&TTS, 3))).unwrap();
    stage.push_input(Slot(0), Some(StageData::Codes(some_codes(&TTS, 2))), true).unwrap();
    for advance in [4, 0] {
        let out = stage.step(&[SequenceWork { slot: Slot(0), advance }]).unwrap();
        assert!(out[0].as_ref().is_err_and(|error| error.to_string().contains("of 3 frames of the context")));
    }
    let empty = VocoderSpec { context: Some(Vec::new().into()), goes_on: false };
    stage.open(Slot(1), SequenceSpec::Vocoder(empty)).unwrap();
    stage.push_input(Slot(1), Some(StageData::Codes(some_codes(&TTS, 2))), false).unwrap();
    let out = stage.step(&[SequenceWork { slot: Slot(1), advance: 2 }]).unwrap();
    assert_eq!(audio(out[0].as_ref().unwrap().emit.as_ref()), decode_at_once(&TTS, &some_codes(&TTS, 2)));
}
