//! The talker on a GPU against the talker on the CPU: the same codes in f32, whatever the batch, the split of the prompt
//! and the order in which sequences get cache pages; in bf16 the same codes whatever the batch.

use crate::gpu;
use crate::persistent::only_persistent;
use candle_core::Device;
use omni_actors::config::{Precision, WeightsKind};
use omni_actors::core::ids::Slot;
use omni_actors::model::Checkpoint;

use omni_actors::cuda::Gpu;
use omni_actors::cuda::talker::{CudaTalkerFactory, TalkerNet, TalkerOptions};
use omni_actors::model::hf::Family;
use omni_actors::model::sampling::SamplingParams;
use omni_actors::model::stage::{
    Launched, SequenceSpec, SequenceWork, StageData, StageFactory, StageModel, TalkerSpec,
};
use omni_actors::model::stages::talker::TalkerFactory;
use omni_actors::model::talker::{CodecSide, Talker, TalkerPrompt, TextSide, Trailing};
use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;

const SAMPLED: SamplingParams = SamplingParams {
    temperature: 0.9,
    top_k: 40,
    top_p: 0.95,
    min_p: 0.0,
    repetition_penalty: 1.05,
    frequency_penalty: 0.1,
    presence_penalty: 0.05,
};

fn fixture(name: &str) -> Checkpoint {
    Checkpoint::open(&Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures").join(name)).unwrap()
}

fn on_cpu(checkpoint: &Checkpoint) -> Box<dyn StageModel> {
    let loader = checkpoint.loader(&["talker"], &Device::Cpu);
    let net = Talker::load(&loader, checkpoint.family()).unwrap();
    TalkerFactory::new(Arc::new(net)).build().unwrap()
}

pub fn options() -> TalkerOptions {
    TalkerOptions {
        slots: 24,
        buckets: vec![1, 2, 4, 8, 16],
        prefill_chunk: 64,
        run_ahead: 2,
        kv_memory: None,
        text_embeddings: 4096,
        async_h2d: true,
        persistent: Some(TalkerOptions::PERSISTENT),
    }
}

fn on_gpu(gpu: &Gpu, checkpoint: &Checkpoint, precision: Precision, options: TalkerOptions) -> Box<dyn StageModel> {
    let loader = checkpoint.loader(&["talker"], &Device::Cpu);
    let net = TalkerNet::load(gpu, precision, &loader, checkpoint.family()).unwrap();
    loader.finish().unwrap();
    CudaTalkerFactory::new(Arc::new(net), options).build().unwrap()
}

/// A request: what the sequence is, and its text.
#[derive(Clone)]
pub struct Request {
    pub sequence: TalkerSpec,
    pub text: Vec<u32>,
}

/// Requests of different lengths, voices and sampling; every third one is greedy.
fn requests(checkpoint: &Checkpoint, count: u32) -> Vec<Request> {
    let Family::Tts(config) = checkpoint.family() else { panic!("a checkpoint that reads text") };
    let (tokens, groups) = (config.talker.tokens, config.talker.num_code_groups);
    let hidden = config.talker.text.hidden_size;
    (0..count)
        .map(|i| {
            let text: Vec<u32> =
                (0..12 + i * 7 % 40).map(|j| (i * 31 + j * 17) % config.text_vocab_size as u32).collect();
            let plain = 3 + i % 5;
            let mut coded = vec![
                (TextSide::Pad, CodecSide::Token(tokens.nothink)),
                (TextSide::Pad, CodecSide::Token(tokens.think_bos)),
            ];
            if i % 2 == 0 {
                coded.push((TextSide::Pad, CodecSide::XVector));
            }
            if i % 4 == 1 {
                coded.extend((0..20).map(|frame| (TextSide::Pad, CodecSide::Frame(frame))));
            }
            coded.push((TextSide::Bos, CodecSide::Token(tokens.pad)));
            coded.push((TextSide::Input(plain), CodecSide::Token(tokens.bos)));
            let trailing = if i % 3 == 2 { Trailing::Pad } else { Trailing::Text };
            let mut prompt = TalkerPrompt::new(plain, coded, trailing);
            if i % 2 == 0 {
                prompt = prompt
                    .with_x_vector((0..hidden).map(|j| ((j as u32 * 37 + i) % 101) as f32 * 0.01 - 0.5).collect());
            }
            if i % 4 == 1 {
                prompt = prompt.with_reference((0..20 * groups as u32).map(|j| (j * 13 + i) % 64).collect());
            }
            let sampling = if i % 3 == 0 { SamplingParams::GREEDY } else { SAMPLED };
            let sequence = TalkerSpec {
                generated_len: 0,
                prompt: Arc::new(prompt),
                sampling,
                predictor: SamplingParams {
                    repetition_penalty: 1.0,
                    frequency_penalty: 0.0,
                    presence_penalty: 0.0,
                    ..sampling
                },
                max_tokens: 10 + i * 5 % 13,
                min_tokens: 2,
                ignore_eos: i % 5 != 4,
                seed: u64::from(i) * 977 + (1 << 40),
                forced: None,
                owner: None,
            };
            Request { sequence, text }
        })
        .collect()
}

/// What came of a request: its frames, its last token, and what it would have picked where codes were forced.
pub type Speech = (Vec<Vec<u32>>, Option<u32>, Vec<Box<[u32]>>);

/// Runs requests: `chunk` prompt positions at a time, at most `together` sequences in a step, `ahead` steps in flight, a new
/// request whenever a slot is free.
pub fn speak(
    model: &mut dyn StageModel,
    requests: &[Request],
    together: usize,
    chunk: u32,
    ahead: usize,
) -> Vec<Speech> {
    let mut speech: Vec<Speech> = vec![Speech::default(); requests.len()];
    let mut next = 0;
    // Of each open sequence: its request, and prompt positions left.
    let mut open: BTreeMap<Slot, (usize, u32)> = BTreeMap::new();
    let mut flying: std::collections::VecDeque<(Vec<(Slot, usize)>, Launched)> = Default::default();
    let mut turn = 0;
    while next < requests.len() || !open.is_empty() {
        while open.len() < together && next < requests.len() {
            let slot = (0..).map(Slot).find(|slot| !open.contains_key(slot)).unwrap();
            let Request { sequence, text } = &requests[next];
            model.open(slot, SequenceSpec::Talker(sequence.clone())).unwrap();
            // In two pieces.
            let (a, b) = text.split_at(text.len() / 2);
            model.push_input(slot, Some(StageData::Tokens(a.to_vec())), false).unwrap();
            model.push_input(slot, Some(StageData::Tokens(b.to_vec())), true).unwrap();
            open.insert(slot, (next, sequence.prefill_positions()));
            next += 1;
        }
        turn += 1;
        let mut work = Vec::new();
        for (slot, (request, left)) in &mut open {
            // Now and then a sequence sits a step out.
            if together > 1 && (turn + *request) % 7 == 0 && open_sequences(requests.len()) {
                continue;
            }
            let advance = if *left > 0 { chunk.min(*left) } else { 1 };
            *left = left.saturating_sub(advance);
            work.push((SequenceWork { slot: *slot, advance }, *request));
        }
        if !work.is_empty() {
            let sequences: Vec<SequenceWork> = work.iter().map(|(work, _)| *work).collect();
            let launched = model.launch(&sequences).unwrap();
            flying.push_back((work.iter().map(|(work, request)| (work.slot, *request)).collect(), launched));
        }
        while flying.len() >= ahead || (work.is_empty() && !flying.is_empty()) {
            let (sequences, launched) = flying.pop_front().unwrap();
            for ((slot, request), output) in sequences.into_iter().zip(launched.wait().unwrap().sequences) {
                // The slot may have been given on.
                if open.get(&slot).is_none_or(|(now, _)| *now != request) {
                    continue;
                }
                let output = output.unwrap();
                if output.stale {
                    continue;
                }
                if let Some(StageData::Codes(codes)) = output.emit {
                    speech[request].0.push(codes);
                }
                speech[request].2.extend(output.picked);
                if output.finish.is_some() {
                    speech[request].1 = output.sampled;
                    model.close(slot);
                    open.remove(&slot);
                }
            }
        }
    }
    speech
}

fn open_sequences(count: usize) -> bool {
    count > 1
}

#[test]
#[ignore = "needs a GPU"]
fn f32_codes_are_those_of_the_cpu_whatever_the_batch() {
    let gpu = gpu();
    for name in ["qwen3_tts/base", "qwen3_tts/custom_voice"] {
        let checkpoint = fixture(name);
        let requests = requests(&checkpoint, 24);
        let want = speak(on_cpu(&checkpoint).as_mut(), &requests, 1, 1000, 1);
        assert!(want.iter().map(|(frames, ..)| frames.len()).sum::<usize>() > 100);
        for (together, chunk, ahead) in [(1, 1000, 1), (16, 1000, 1), (16, 5, 2), (7, 17, 3)] {
            let mut model = on_gpu(&gpu, &checkpoint, Precision::F32, options());
            let got = speak(model.as_mut(), &requests, together, chunk, ahead);
            for (i, (got, want)) in got.iter().zip(&want).enumerate() {
                assert_eq!(got, want, "{name}, request {i}, {together} sequences, chunks of {chunk}, {ahead} ahead");
            }
        }
    }
}

#[test]
#[ignore = "needs a GPU"]
fn forced_codes_are_said_and_what_follows_is_as_if_they_had_been_sampled() {
    let gpu = gpu();
    let checkpoint = fixture("qwen3_tts/base");
    let mut requests = requests(&checkpoint, 16);
    let mut model = on_gpu(&gpu, &checkpoint, Precision::F32, options());
    let sampled = speak(model.as_mut(), &requests, 16, 1000, 2);
    for (i, (request, (frames, ..))) in requests.iter_mut().zip(&sampled).enumerate() {
        // From none to all, and some sequences without.
        let forced = frames[..(i * 3 % (frames.len() + 1)).min(frames.len())].concat();
        request.sequence.forced = (i % 5 != 4).then(|| forced.into());
    }
    for (together, ahead) in [(1, 1), (16, 3)] {
        let replayed = speak(model.as_mut(), &requests, together, 20, ahead);
        for (i, ((frames, last, picked), (want, want_last, _))) in replayed.iter().zip(&sampled).enumerate() {
            assert_eq!((frames, last), (want, want_last), "request {i}, {together} sequences");
            // What was sampled would be picked again.
            assert!(picked.iter().zip(frames).all(|(picked, frame)| **picked == **frame), "request {i}");
        }
    }
    // The codes of others: a GPU would pick what a CPU would.
    let others: Vec<_> = sampled.iter().rev().map(|(frames, ..)| frames.concat().into()).collect();
    requests.iter_mut().zip(others).for_each(|(request, codes)| request.sequence.forced = Some(codes));
    let want = speak(on_cpu(&checkpoint).as_mut(), &requests, 1, 1000, 1);
    assert!(want.iter().map(|(.., picked)| picked.len()).sum::<usize>() > 100);
    assert_eq!(speak(model.as_mut(), &requests, 7, 17, 2), want);
}

/// What is left of requests that have said some frames, and go on.
fn resume(requests: &[Request], speech: &[Speech], groups: usize) -> (Vec<Request>, Vec<Speech>) {
    let rest = |(i, (request, (frames, last, _))): (usize, (&Request, &Speech))| {
        let said = (i * 5 + 1).min(frames.len());
        let inputs = request.text.len() as u32;
        let prompt = request.sequence.prompt.resume(&frames[..said].concat(), groups, inputs, true).unwrap();
        let sequence = TalkerSpec { prompt: prompt.into(), generated_len: said as u32, ..request.sequence.clone() };
        (Request { sequence, text: request.text.clone() }, (frames[said..].to_vec(), *last, Vec::new()))
    };
    requests.iter().zip(speech).enumerate().map(rest).unzip()
}

#[test]
#[ignore = "needs a GPU"]
fn sequences_that_go_on_say_what_they_would_have_said() {
    let gpu = gpu();
    for name in ["qwen3_tts/base", "qwen3_tts/custom_voice"] {
        let checkpoint = fixture(name);
        let requests = requests(&checkpoint, 24);
        let whole = speak(on_cpu(&checkpoint).as_mut(), &requests, 1, 1000, 1);
        let (rests, want) = resume(&requests, &whole, checkpoint.family().talker().num_code_groups);
        let mut model = on_gpu(&gpu, &checkpoint, Precision::F32, options());
        for (together, chunk, ahead) in [(1, 1000, 1), (16, 9, 2)] {
            let got = speak(model.as_mut(), &rests, together, chunk, ahead);
            for (i, (got, want)) in got.iter().zip(&want).enumerate() {
                assert_eq!(got, want, "{name}, request {i}, {together} sequences, chunks of {chunk}");
            }
        }
    }
}

#[test]
#[ignore = "needs a GPU"]
fn bf16_sequences_that_go_on_say_what_they_would_have_said() {
    let gpu = gpu();
    let checkpoint = sizeable();
    let requests = requests_for_named(&checkpoint, 24);
    let mut model = on_gpu(&gpu, &checkpoint, Precision::Bf16, options());
    let whole = speak(model.as_mut(), &requests, 8, 1000, 2);
    let (rests, want) = resume(&requests, &whole, checkpoint.family().talker().num_code_groups);
    let got = speak(model.as_mut(), &rests, 5, 16, 2);
    let alike = got.iter().zip(&want).filter(|(got, want)| got == want).count();
    eprintln!("{alike} of {} sequences go on with the same codes in bf16", want.len());
    assert_eq!(alike, want.len());
}

#[test]
#[ignore = "needs a GPU"]
fn sequences_that_make_room_go_on_exactly() {
    let gpu = gpu();
    let checkpoint = fixture("qwen3_tts/base");
    let requests = requests(&checkpoint, 12);
    let want = speak(on_cpu(&checkpoint).as_mut(), &requests, 1, 1000, 1);
    // Ten sequences want some five pages each; there are fewer.
    let text = &checkpoint.family().talker().text;
    let page = 2 * text.num_hidden_layers * 16 * text.num_key_value_heads * text.head_dim * 4;
    let small = TalkerOptions { kv_memory: Some(14 * page as u64), ..options() };
    let mut model = on_gpu(&gpu, &checkpoint, Precision::F32, small);
    // Sequences take turns, two to a step, so that others can make room.
    let mut speech: Vec<Speech> = vec![Speech::default(); requests.len()];
    let mut left: Vec<u32> = requests.iter().map(|request| request.sequence.prefill_positions()).collect();
    for (i, request) in requests.iter().enumerate() {
        model.open(Slot(i as u32), SequenceSpec::Talker(request.sequence.clone())).unwrap();
        model.push_input(Slot(i as u32), Some(StageData::Tokens(request.text.clone())), true).unwrap();
    }
    let mut running: Vec<usize> = (0..requests.len()).collect();
    while !running.is_empty() {
        for pair in running.clone().chunks(2) {
            let work: Vec<SequenceWork> = pair
                .iter()
                .map(|i| SequenceWork { slot: Slot(*i as u32), advance: std::mem::take(&mut left[*i]).max(1) })
                .collect();
            for (i, output) in pair.iter().zip(model.step(&work).unwrap()) {
                let output = output.unwrap();
                if let Some(StageData::Codes(codes)) = output.emit {
                    speech[*i].0.push(codes);
                }
                if output.finish.is_some() {
                    speech[*i].1 = output.sampled;
                    model.close(Slot(*i as u32));
                    running.retain(|other| other != i);
                }
            }
        }
    }
    assert_eq!(speech, want);
}

/// A talker of a real size, which the fast kernels take, with weights out of a seed.
pub fn sizeable() -> Checkpoint {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("configs/models");
    let tokenizer = folder.join("tokenizer");
    let folder = folder.join("Qwen3-TTS-12Hz-1.7B-CustomVoice");
    Checkpoint::open_as(&folder, WeightsKind::Random { seed: 7 }, Some(&tokenizer)).unwrap()
}

#[test]
#[ignore = "needs a GPU"]
fn bf16_codes_do_not_depend_on_the_batch() {
    let gpu = gpu();
    let _only = only_persistent();
    let checkpoint = sizeable();
    let requests = requests_for_named(&checkpoint, 40);
    let options = TalkerOptions { slots: 64, buckets: vec![1, 2, 4, 8, 16, 32, 64], ..options() };
    let mut model = on_gpu(&gpu, &checkpoint, Precision::Bf16, options);
    let alone = speak(model.as_mut(), &requests, 1, 1000, 1);
    for (together, chunk, ahead) in [(40, 1000, 2), (5, 9, 1), (20, 16, 3)] {
        let got = speak(model.as_mut(), &requests, together, chunk, ahead);
        for (i, (got, want)) in got.iter().zip(&alone).enumerate() {
            assert_eq!(got, want, "request {i}, {together} sequences, chunks of {chunk}, {ahead} ahead");
        }
    }
    let distinct: std::collections::HashSet<u32> = alone.iter().flat_map(|(frames, ..)| frames.concat()).collect();
    assert!(distinct.len() > 500, "{} different codes", distinct.len());
}

#[test]
#[ignore = "needs a GPU"]
fn a_step_makes_no_blocking_call_on_the_launch_thread() {
    let gpu = gpu();
    let checkpoint = fixture("qwen3_tts/base");
    let requests = requests(&checkpoint, 8);
    let mut model = on_gpu(&gpu, &checkpoint, Precision::F32, options());
    speak(model.as_mut(), &requests, 4, 1000, 2);
    let before = gpu.blocking_calls();
    speak(model.as_mut(), &requests, 8, 20, 2);
    assert_eq!(gpu.blocking_calls(), before);
}

pub fn requests_for_named(checkpoint: &Checkpoint, count: u32) -> Vec<Request> {
    let mut all = requests(checkpoint, count);
    for request in &mut all {
        request.sequence.ignore_eos = true;
    }
    all
}
