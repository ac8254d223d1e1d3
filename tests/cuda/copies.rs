//! Embeddings from a thinker to a talker on GPUs: handed over where they are, through the host, and to another GPU.

use crate::gpu;
use candle_core::Device;
use omni_actors::config::Precision;
use omni_actors::core::ids::Slot;
use omni_actors::cuda::Gpu;
use omni_actors::cuda::talker::{CudaTalkerFactory, TalkerNet, TalkerOptions};
use omni_actors::cuda::thinker::{CudaThinkerFactory, ThinkerNet, ThinkerOptions};
use omni_actors::model::Checkpoint;
use omni_actors::model::embeddings::Embeddings;
use omni_actors::model::sampling::SamplingParams;
use omni_actors::model::stage::{
    SequenceOutput, SequenceSpec, SequenceWork, StageData, StageFactory, StageModel, TalkerSpec, ThinkerMode,
    ThinkerSpec,
};
use omni_actors::model::stages::talker::TalkerFactory;
use omni_actors::model::stages::thinker::ThinkerFactory;
use omni_actors::model::talker::{Talker, TalkerPrompt};
use omni_actors::model::thinker::Thinker;
use std::path::Path;
use std::sync::Arc;

const ROWS: u32 = 3;
const USER: u32 = 10;
const ANSWER: u32 = 20;
const FRAMES: u32 = 12;

fn checkpoint() -> Checkpoint {
    Checkpoint::open(&Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures/qwen3_omni")).unwrap()
}

fn thinker(gpu: Option<&Gpu>, precision: Precision, embeddings_in_step: bool) -> Box<dyn StageModel> {
    let checkpoint = checkpoint();
    let config = &checkpoint.omni().unwrap().thinker;
    let loader = checkpoint.loader(&["thinker"], &Device::Cpu);
    let Some(gpu) = gpu else {
        return ThinkerFactory::new(Arc::new(Thinker::load(&loader, config).unwrap())).build().unwrap();
    };
    gpu.bind().unwrap();
    let net = ThinkerNet::load(gpu, precision, &loader, config).unwrap();
    let options = ThinkerOptions {
        slots: 8,
        batch: 8,
        prefill_chunk: 16,
        run_ahead: 2,
        kv_memory: None,
        embeddings_in_step,
        persistent: None,
    };
    CudaThinkerFactory::new(Arc::new(net), options).build().unwrap()
}

fn talker(gpu: Option<&Gpu>, precision: Precision, async_h2d: bool) -> Box<dyn StageModel> {
    let checkpoint = checkpoint();
    let loader = checkpoint.loader(&["talker"], &Device::Cpu);
    let Some(gpu) = gpu else {
        return TalkerFactory::new(Arc::new(Talker::load(&loader, checkpoint.family()).unwrap())).build().unwrap();
    };
    gpu.bind().unwrap();
    let net = TalkerNet::load(gpu, precision, &loader, checkpoint.family()).unwrap();
    let options = TalkerOptions {
        slots: 8,
        buckets: vec![1, 2, 4],
        prefill_chunk: 32,
        run_ahead: 2,
        kv_memory: None,
        text_embeddings: 1024,
        async_h2d,
        persistent: Some(TalkerOptions::PERSISTENT),
    };
    CudaTalkerFactory::new(Arc::new(net), options).build().unwrap()
}

fn here(embeddings: Embeddings) -> Embeddings {
    tokio::runtime::Builder::new_current_thread().build().unwrap().block_on(embeddings.fetched()).unwrap()
}

/// Follows a text for each of [`ROWS`] embeddings that share their steps; all embeddings that each hands on, in order.
fn hand(model: &mut dyn StageModel) -> Vec<Vec<Embeddings>> {
    let mut handed = vec![Vec::new(); ROWS as usize];
    let slots: Vec<Slot> = (0..ROWS).map(Slot).collect();
    for slot in &slots {
        let row = ThinkerSpec {
            generated_len: 0,
            prompt: (0..USER).map(|i| 7 + i * 3 + slot.0).collect(),
            mode: ThinkerMode::Follow,
            emit: Some(std::iter::once(0..USER).collect()),
            sampling: SamplingParams::GREEDY,
            eos: Vec::new().into(),
            max_tokens: 1000,
            seed: 1,
            media: None,
            reuse: None,
        };
        model.open(*slot, SequenceSpec::Thinker(row)).unwrap();
        let answer = (0..ANSWER).map(|i| 40 + i * 5 + slot.0).collect();
        model.push_input(*slot, Some(StageData::Tokens(answer)), true).unwrap();
    }
    for advance in [USER - 3, 3, 1, 4, ANSWER - 5] {
        let work: Vec<SequenceWork> = slots.iter().map(|slot| SequenceWork { slot: *slot, advance }).collect();
        for (row, output) in model.step(&work).unwrap().into_iter().enumerate() {
            if let Some(StageData::Embeddings(embeddings)) = output.unwrap().emit {
                handed[row].push(embeddings);
            }
        }
    }
    slots.into_iter().for_each(|slot| model.close(slot));
    handed
}

/// A sequence of a talker for embeddings that were handed over, behind the frames that it has generated.
fn spec(slot: Slot, generated: &[u32]) -> TalkerSpec {
    let checkpoint = checkpoint();
    let omni = checkpoint.omni().unwrap();
    let (speaker, groups) = (*omni.talker.speakers.values().next().unwrap(), omni.talker.num_code_groups);
    let prompt = TalkerPrompt::omni(USER, speaker, &omni.talker.tokens);
    TalkerSpec {
        generated_len: (generated.len() / groups) as u32,
        prompt: prompt.resume(generated, groups, USER + ANSWER, true).unwrap().into(),
        sampling: checkpoint.generation().talker,
        predictor: checkpoint.generation().predictor,
        max_tokens: FRAMES + 1,
        min_tokens: 0,
        ignore_eos: true,
        seed: 7 + u64::from(slot.0),
        forced: None,
        owner: None,
    }
}

/// Opens a sequence for the embeddings; its prompt positions.
fn open(model: &mut dyn StageModel, slot: Slot, spec: TalkerSpec, handed: Vec<Embeddings>) -> u32 {
    let prompt = spec.prefill_positions();
    model.open(slot, SequenceSpec::Talker(spec)).unwrap();
    for embeddings in handed {
        model.push_input(slot, Some(StageData::Embeddings(embeddings)), false).unwrap();
    }
    model.push_input(slot, None, true).unwrap();
    prompt
}

/// Runs one step; what each sequence says in it.
fn step(model: &mut dyn StageModel, work: &[(Slot, u32)]) -> Vec<Vec<u32>> {
    let work: Vec<SequenceWork> =
        work.iter().map(|(slot, advance)| SequenceWork { slot: *slot, advance: *advance }).collect();
    let codes = |output: SequenceOutput| match output.emit {
        Some(StageData::Codes(codes)) => codes,
        _ => Vec::new(),
    };
    model.step(&work).unwrap().into_iter().map(|output| codes(output.unwrap())).collect()
}

/// What a talker says to the embeddings.
fn say(model: &mut dyn StageModel, handed: Vec<Vec<Embeddings>>) -> Vec<Vec<u32>> {
    let slots: Vec<Slot> = (0..ROWS).map(Slot).collect();
    let prompts = slots.iter().zip(handed).map(|(slot, handed)| open(model, *slot, spec(*slot, &[]), handed));
    let prompts: Vec<u32> = prompts.collect();
    let mut said = vec![Vec::new(); ROWS as usize];
    for advance in std::iter::once(prompts[0]).chain(std::iter::repeat_n(1, FRAMES as usize)) {
        let work: Vec<_> = slots.iter().map(|slot| (*slot, advance)).collect();
        said.iter_mut().zip(step(model, &work)).for_each(|(said, codes)| said.extend(codes));
    }
    slots.into_iter().for_each(|slot| model.close(slot));
    assert!(said.iter().all(|codes| codes.len() >= FRAMES as usize), "{said:?}");
    said
}

fn on_the_host(handed: Vec<Vec<Embeddings>>) -> Vec<Vec<Embeddings>> {
    handed.into_iter().map(|embeddings| embeddings.into_iter().map(here).collect()).collect()
}

fn values(handed: &[Vec<Embeddings>]) -> Vec<Vec<u32>> {
    let bits = |embeddings: &Embeddings| -> Vec<u32> {
        embeddings
            .tensor()
            .unwrap()
            .flatten_all()
            .unwrap()
            .to_vec1::<f32>()
            .unwrap()
            .iter()
            .map(|x| x.to_bits())
            .collect()
    };
    handed.iter().map(|embeddings| embeddings.iter().flat_map(bits).collect()).collect()
}

#[test]
#[ignore = "needs a GPU"]
fn embeddings_are_the_same_wherever_they_are_taken_over() {
    let gpu = gpu();
    let want_rows = hand(&mut *thinker(None, Precision::F32, false));
    let want = say(&mut *talker(None, Precision::F32, false), want_rows.clone());
    let there = hand(&mut *thinker(Some(&gpu), Precision::F32, false));
    assert!(there.iter().flatten().all(|embeddings| matches!(embeddings, Embeddings::Device(_))), "{there:?}");
    let in_step = hand(&mut *thinker(Some(&gpu), Precision::F32, true));
    assert!(in_step.iter().flatten().all(|embeddings| matches!(embeddings, Embeddings::Bytes(_))), "{in_step:?}");
    let fetched = on_the_host(there.clone());
    assert_eq!(values(&fetched), values(&want_rows));
    assert_eq!(values(&in_step), values(&want_rows));

    let talker = |async_h2d| talker(Some(&gpu), Precision::F32, async_h2d);
    assert_eq!(say(&mut *talker(true), there.clone()), want, "on the device");
    assert_eq!(say(&mut *talker(true), fetched.clone()), want, "through the host, ahead of the step");
    assert_eq!(say(&mut *talker(false), fetched), want, "through the host, in the step");
    // In the engine's own precision the ways agree with each other.
    let there = hand(&mut *thinker(Some(&gpu), Precision::Bf16, false));
    let fetched = on_the_host(there.clone());
    let bf16 = |embeddings| say(&mut *self::talker(Some(&gpu), Precision::Bf16, true), embeddings);
    assert_eq!(bf16(there), bf16(fetched));
}

#[test]
#[ignore = "needs a GPU"]
fn a_sequence_that_leaves_before_a_step_leaves_nothing_to_the_next() {
    let gpu = gpu();
    let there = hand(&mut *thinker(Some(&gpu), Precision::F32, false));
    let mut model = talker(Some(&gpu), Precision::F32, true);
    let want = say(&mut *model, there.clone());
    let groups = checkpoint().omni().unwrap().talker.num_code_groups;
    for round in 0..20 {
        // What comes next gets its slot and its room for text. It had spoken before: what it said would be penalized.
        for ((slot, said), handed) in (0..ROWS).map(Slot).zip(&want).zip(there.iter().rev()) {
            open(&mut *model, slot, spec(slot, &said[..4 * groups]), handed.clone());
            model.close(slot);
        }
        assert_eq!(say(&mut *model, there.clone()), want, "round {round}");
    }
}

#[test]
#[ignore = "needs a GPU"]
fn a_sequence_that_resumes_keeps_the_text_that_it_has_not_used() {
    let gpu = gpu();
    let there = hand(&mut *thinker(Some(&gpu), Precision::F32, false));
    let mut model = talker(Some(&gpu), Precision::F32, true);
    let want = say(&mut *model, there.clone());
    let groups = checkpoint().omni().unwrap().talker.num_code_groups;
    let [resumed, other] = [Slot(0), Slot(1)];
    for frames in 1..FRAMES as usize {
        let mut said = want[0][..frames * groups].to_vec();
        let prompt = open(&mut *model, resumed, spec(resumed, &said), there[0].clone());
        said.extend(step(&mut *model, &[(resumed, prompt)]).concat());
        // Gets what is free of the room for text.
        let prompt = open(&mut *model, other, spec(other, &[]), there[1].clone());
        said.extend(step(&mut *model, &[(resumed, 1), (other, prompt)]).swap_remove(0));
        while said.len() < want[0].len() {
            said.extend(step(&mut *model, &[(resumed, 1), (other, 1)]).swap_remove(0));
        }
        assert_eq!(said, want[0], "resumed behind {frames} frames");
        [resumed, other].into_iter().for_each(|slot| model.close(slot));
    }
}

#[test]
#[ignore = "needs a GPU"]
fn embeddings_of_one_step_share_one_copy_and_keep_it() {
    let gpu = gpu();
    let mut model = thinker(Some(&gpu), Precision::F32, false);
    let handed = hand(&mut *model);
    let first: Vec<Embeddings> = handed.iter().map(|embeddings| here(embeddings[0].clone())).collect();
    let begins: Vec<(usize, usize)> = first
        .iter()
        .map(|embeddings| match embeddings {
            Embeddings::Bytes(bytes) => (bytes.data().as_ptr() as usize, bytes.data().len()),
            other => panic!("{other:?}"),
        })
        .collect();
    for pair in begins.windows(2) {
        assert_eq!(pair[0].0 + pair[0].1, pair[1].0, "one copy has the embeddings of all who share a step");
    }
    // Others come and go; what is still in use stays as it is.
    let before = values(std::slice::from_ref(&first));
    drop(handed);
    for _ in 0..30 {
        on_the_host(hand(&mut *model));
    }
    assert_eq!(values(&[first]), before);
}

#[test]
#[ignore = "needs a GPU"]
fn handing_over_and_taking_over_never_block_the_launch_thread() {
    let gpu = gpu();
    let (mut think, mut talk) = (thinker(Some(&gpu), Precision::F32, false), talker(Some(&gpu), Precision::F32, true));
    let before = gpu.blocking_calls();
    let there = hand(&mut *think);
    let fetched = on_the_host(there.clone());
    say(&mut *talk, there);
    say(&mut *talk, fetched);
    assert_eq!(gpu.blocking_calls(), before);
}

#[test]
#[ignore = "needs two GPUs"]
fn embeddings_cross_between_two_gpus() {
    let (first, second) = (&Gpu::open(0).unwrap(), &Gpu::open(1).unwrap());
    let there = hand(&mut *thinker(Some(first), Precision::F32, false));
    let want = say(&mut *talker(Some(first), Precision::F32, true), there.clone());
    assert_eq!(say(&mut *talker(Some(second), Precision::F32, true), there), want);
}
