//! The thinker on a GPU against the one on the CPU, token for token.

use crate::gpu;
use candle_core::Device;
use omni_actors::config::Precision;
use omni_actors::core::ids::{FinishReason, Slot};
use omni_actors::cuda::Gpu;
use omni_actors::cuda::thinker::{CudaThinkerFactory, ThinkerNet, ThinkerOptions};
use omni_actors::model::Checkpoint;
use omni_actors::model::sampling::SamplingParams;
use omni_actors::model::stage::{
    Launched, SequenceOutput, SequenceSpec, SequenceWork, StageData, StageFactory, StageModel, ThinkerMode, ThinkerSpec,
};
use omni_actors::model::stages::thinker::ThinkerFactory;
use omni_actors::model::thinker::Thinker;
use std::collections::{HashMap, VecDeque};
use std::path::Path;
use std::sync::Arc;

const OPTIONS: ThinkerOptions = ThinkerOptions {
    slots: 8,
    batch: 6,
    prefill_chunk: 16,
    run_ahead: 2,
    kv_memory: None,
    embeddings_in_step: false,
    persistent: None,
};

struct Both {
    cpu: Box<dyn StageModel>,
    device: Box<dyn StageModel>,
    gpu: Gpu,
    vocabulary: u32,
}

/// The tiny fixture on both.
fn both(options: ThinkerOptions) -> Both {
    let gpu = gpu();
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures/qwen3_omni");
    let checkpoint = Checkpoint::open(&folder).unwrap();
    let config = &checkpoint.omni().unwrap().thinker;
    let loader = checkpoint.loader(&["thinker"], &Device::Cpu);
    let cpu = Arc::new(Thinker::load(&loader, config).unwrap());
    loader.finish().unwrap();
    let loader = checkpoint.loader(&["thinker"], &Device::Cpu);
    let net = Arc::new(ThinkerNet::load(&gpu, Precision::F32, &loader, config).unwrap());
    loader.finish().unwrap();
    Both {
        vocabulary: cpu.vocabulary(),
        cpu: ThinkerFactory::new(cpu).build().unwrap(),
        device: CudaThinkerFactory::new(net, options).build().unwrap(),
        gpu,
    }
}

/// A request: greedy, or sampled in one of many ways.
pub(crate) fn request(number: u32, vocabulary: u32) -> ThinkerSpec {
    let len = 1 + number * 7 % 40;
    let prompt: Vec<u32> = (0..len).map(|i| (i * 31 + number * 17 + i * i % 7) % vocabulary).collect();
    let plain = SamplingParams { temperature: 0.9, ..SamplingParams::GREEDY };
    let sampling = match number % 6 {
        0 => SamplingParams::GREEDY,
        1 => plain,
        2 => SamplingParams { top_k: 20, repetition_penalty: 1.3, ..plain },
        3 => SamplingParams { top_p: 0.8, frequency_penalty: 0.3, ..plain },
        4 => SamplingParams { top_k: 50, top_p: 0.9, min_p: 0.02, presence_penalty: 0.5, ..plain },
        _ => SamplingParams { repetition_penalty: 1.5, presence_penalty: 0.2, ..SamplingParams::GREEDY },
    };
    ThinkerSpec {
        generated_len: 0,
        media: None,
        reuse: None,
        emit: (!number.is_multiple_of(3)).then(|| vec![0..len / 2, len / 2 + len / 4..len].into()),
        prompt: prompt.into(),
        mode: ThinkerMode::Sample,
        sampling,
        // Some end early.
        eos: (0..number % 4).map(|i| (i * 37 + number) % vocabulary).collect(),
        max_tokens: 6 + number * 5 % 20,
        seed: 1000 + u64::from(number),
    }
}

/// What one sequence said: its tokens, the sequences it handed on, how it ended.
#[derive(Debug, Default, PartialEq)]
pub(crate) struct Said {
    pub tokens: Vec<u32>,
    pub sequences: Vec<u32>,
    pub finish: Option<FinishReason>,
}

impl Said {
    pub fn take(&mut self, output: SequenceOutput) {
        if output.stale {
            return;
        }
        assert!(self.finish.is_none(), "a sequence that has ended says no more");
        self.tokens.extend(output.sampled);
        if let Some(StageData::Embeddings(sequences)) = output.emit {
            let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
            let sequences = runtime.block_on(sequences.fetched()).unwrap();
            self.sequences.extend(
                sequences
                    .tensor()
                    .unwrap()
                    .flatten_all()
                    .unwrap()
                    .to_vec1::<f32>()
                    .unwrap()
                    .iter()
                    .map(|x| x.to_bits()),
            );
        }
        self.finish = output.finish;
    }
}

pub(crate) fn alone(stage: &mut dyn StageModel, sequence: &ThinkerSpec, chunk: u32) -> Said {
    let slot = Slot(0);
    stage.open(slot, SequenceSpec::Thinker(sequence.clone())).unwrap();
    let (mut said, mut left) = (Said::default(), sequence.prompt.len() as u32);
    while said.finish.is_none() {
        let advance = if left > 0 { chunk.min(left) } else { 1 };
        left -= advance.min(left);
        said.take(stage.step(&[SequenceWork { slot, advance }]).unwrap().remove(0).unwrap());
    }
    stage.close(slot);
    said
}

/// The requests, of which every other one ends at a token that it says on its way, with what a CPU says to them.
fn requests(both: &mut Both, count: u32) -> Vec<(ThinkerSpec, Said)> {
    let request = |number| {
        let mut sequence = request(number, both.vocabulary);
        let mut want = alone(&mut *both.cpu, &sequence, 1000);
        if number % 2 == 1 {
            sequence.eos =
                vec![sequence.eos.first().copied().unwrap_or(0), want.tokens[want.tokens.len().min(5) - 1]].into();
            want = alone(&mut *both.cpu, &sequence, 1000);
            assert_eq!(want.finish, Some(FinishReason::Stop), "request {number}");
        }
        (sequence, want)
    };
    (0..count).map(request).collect()
}

#[test]
#[ignore = "needs a GPU"]
fn a_sequence_alone_says_what_it_says_on_a_cpu_whatever_the_pieces_of_its_prompt() {
    let mut both = both(OPTIONS);
    for (number, (sequence, want)) in requests(&mut both, 12).into_iter().enumerate() {
        for chunk in [1000, 1, 7] {
            assert_eq!(alone(&mut *both.device, &sequence, chunk), want, "request {number} in pieces of {chunk}");
        }
    }
    assert_eq!(both.device.live_sequences(), 0);
}

#[test]
#[ignore = "needs a GPU"]
fn sequences_that_join_and_leave_say_what_they_say_alone_with_two_steps_launched_ahead() {
    let mut both = both(OPTIONS);
    let (requests, want): (Vec<ThinkerSpec>, Vec<Said>) = requests(&mut both, 24).into_iter().unzip();
    let stage = &mut *both.device;
    let mut said: Vec<Said> = requests.iter().map(|_| Said::default()).collect();
    // Slot to request and prompt positions left; a slot is free again once the end of its sequence was seen.
    let mut running: HashMap<Slot, (usize, u32)> = HashMap::new();
    let mut waiting: VecDeque<usize> = (0..requests.len()).collect();
    let mut pending: VecDeque<(Vec<(Slot, usize)>, Launched)> = VecDeque::new();
    let blocking = both.gpu.blocking_calls();
    for step in 0.. {
        // One more every other step, so that prompts and answers share steps.
        if step % 2 == 0 && running.len() < 6 {
            let slot = (0..8).map(Slot).find(|slot| !running.contains_key(slot)).unwrap();
            if let Some(number) = waiting.pop_front() {
                stage.open(slot, SequenceSpec::Thinker(requests[number].clone())).unwrap();
                running.insert(slot, (number, requests[number].prompt.len() as u32));
            }
        }
        let mut work = Vec::new();
        let mut of = Vec::new();
        let mut slots: Vec<Slot> = running.keys().copied().collect();
        slots.sort_unstable();
        for slot in slots {
            let (number, left) = running.get_mut(&slot).unwrap();
            let advance = if *left > 0 { (3 + step % 9).min(*left) } else { 1 };
            *left -= advance.min(*left);
            work.push(SequenceWork { slot, advance });
            of.push((slot, *number));
        }
        if !work.is_empty() {
            pending.push_back((of, stage.launch(&work).unwrap()));
        }
        // Two steps stay on their way while there is something to launch.
        while pending.len() > if work.is_empty() { 0 } else { 2 } {
            let (of, launched) = pending.pop_front().unwrap();
            for ((slot, number), output) in of.into_iter().zip(launched.wait().unwrap().sequences) {
                // A slot may have been given to another sequence since.
                let current = running.get(&slot).is_some_and(|(now, _)| *now == number);
                let output = output.unwrap();
                assert!(current || output.stale || said[number].finish.is_some());
                said[number].take(output);
                if current && said[number].finish.is_some() {
                    stage.close(slot);
                    running.remove(&slot);
                }
            }
        }
        if running.is_empty() && waiting.is_empty() && pending.is_empty() {
            break;
        }
    }
    assert_eq!(both.gpu.blocking_calls(), blocking, "no launch waits for the device");
    for (number, (said, want)) in said.iter().zip(&want).enumerate() {
        assert_eq!(said, want, "request {number}");
    }
}

#[test]
#[ignore = "needs a GPU"]
fn answers_that_go_on_say_what_they_would_have_said() {
    let mut both = both(OPTIONS);
    for (number, (sequence, want)) in requests(&mut both, 12).into_iter().enumerate() {
        for said in (1..want.tokens.len()).step_by(3) {
            let prompt = [&sequence.prompt, &want.tokens[..said]].concat();
            let resume =
                ThinkerSpec { prompt: prompt.into(), generated_len: said as u32, emit: None, ..sequence.clone() };
            for stage in [&mut both.cpu, &mut both.device] {
                let rest = alone(&mut **stage, &resume, 7);
                assert_eq!(rest.tokens, want.tokens[said..], "request {number} after {said} tokens");
                assert_eq!(rest.finish, want.finish, "request {number} after {said} tokens");
            }
        }
    }
}

#[test]
#[ignore = "needs a GPU"]
fn an_answer_that_leaves_before_it_goes_on_says_nothing_to_the_next_in_its_slot() {
    let mut both = both(OPTIONS);
    for (number, (sequence, want)) in requests(&mut both, 12).into_iter().enumerate() {
        // What it has said would be penalized.
        let said = want.tokens.len() - 1;
        let prompt = [&sequence.prompt, &want.tokens[..said]].concat();
        let gone = ThinkerSpec { prompt: prompt.into(), generated_len: said as u32, emit: None, ..sequence.clone() };
        both.device.open(Slot(0), SequenceSpec::Thinker(gone)).unwrap();
        both.device.close(Slot(0));
        assert_eq!(alone(&mut *both.device, &sequence, 7), want, "request {number}");
    }
}

#[test]
#[ignore = "needs a GPU"]
fn text_that_is_given_is_followed_without_the_layers() {
    let mut both = both(OPTIONS);
    let sequence = ThinkerSpec { mode: ThinkerMode::Follow, ..request(4, both.vocabulary) };
    let len = sequence.prompt.len() as u32;
    let run = |stage: &mut dyn StageModel| {
        let (slot, mut said) = (Slot(3), Said::default());
        stage.open(slot, SequenceSpec::Thinker(sequence.clone())).unwrap();
        stage.push_input(slot, Some(StageData::Tokens(vec![5, 6, 7])), false).unwrap();
        for (advance, fed) in [(3, None), (len - 3, None), (2, Some(vec![9, 8])), (3, None)] {
            if let Some(tokens) = fed {
                stage.push_input(slot, Some(StageData::Tokens(tokens)), true).unwrap();
            }
            said.take(stage.step(&[SequenceWork { slot, advance }]).unwrap().remove(0).unwrap());
        }
        stage.close(slot);
        said
    };
    let want = run(&mut *both.cpu);
    assert_eq!(want.finish, Some(FinishReason::Stop));
    assert_eq!(run(&mut *both.device), want);
}

#[test]
#[ignore = "needs a GPU"]
fn a_sequence_without_room_in_the_cache_fails_alone_and_others_go_on() {
    // Six pages of 16 positions: keys and values of 6 layers with 2 heads of 32 numbers.
    let kv_memory = Some(6 * 16 * 2 * 6 * 2 * 32 * 4);
    let mut both = both(ThinkerOptions { kv_memory, ..OPTIONS });
    let stage = &mut *both.device;
    let long = ThinkerSpec { prompt: vec![1; 200].into(), emit: None, ..request(0, both.vocabulary) };
    let short = request(6, both.vocabulary);
    let want = alone(&mut *both.cpu, &short, 1000);
    stage.open(Slot(1), SequenceSpec::Thinker(long)).unwrap();
    let mut step = |advance| stage.step(&[SequenceWork { slot: Slot(1), advance }]).unwrap().remove(0);
    assert!(step(60).is_ok());
    let error = step(100).unwrap_err().to_string();
    assert!(error.contains("KV cache is full"), "{error}");
    assert_eq!(alone(stage, &short, 5), want);
    stage.close(Slot(1));
}
