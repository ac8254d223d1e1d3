//! How much of a prompt is taken over: seen from inside, for outside nothing differs but the time.

mod talker;

use crate::checkpoint::Checkpoint;
use crate::media::{MediaKind, MediaLayout, Positions, Span};
use crate::sampling::SamplingParams;
use crate::stage::{EncodedPart, Reuse, SequenceSpec, SequenceWork, StageData, StageModel, ThinkerMode, ThinkerSpec};
use crate::stages::LanguageModel;
use crate::stages::thinker::{ThinkerFactory, ThinkerStage};
use crate::thinker::Thinker;
use candle_core::{Device, Tensor};
use omni_core::ids::Slot;
use std::path::Path;
use std::sync::Arc;

fn stage(bytes: usize) -> ThinkerStage {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/fixtures/qwen3_omni");
    let checkpoint = Checkpoint::open(&folder).unwrap();
    let loader = checkpoint.loader(&["thinker"], &Device::Cpu);
    let net = Arc::new(Thinker::load(&loader, &checkpoint.omni().unwrap().thinker).unwrap());
    ThinkerFactory::new(net).keeping(bytes).stage()
}

fn spec(prompt: impl Iterator<Item = u32>, owner: u8) -> ThinkerSpec {
    ThinkerSpec {
        prompt: prompt.collect(),
        generated_len: 0,
        mode: ThinkerMode::Sample,
        emit: None,
        sampling: SamplingParams::GREEDY,
        eos: [].into(),
        max_tokens: 100,
        seed: 1,
        media: None,
        reuse: Some(Reuse { owner: [owner; 32], media: [].into() }),
    }
}

fn step(stage: &mut ThinkerStage, advance: u32) -> Option<u32> {
    stage.step(&[SequenceWork { slot: Slot(0), advance }]).unwrap().remove(0).unwrap().sampled
}

/// Positions that are there after the first step of a prompt, of `upto` positions: those, or more where more was found.
fn found(stage: &mut ThinkerStage, spec: &ThinkerSpec, upto: u32) -> usize {
    stage.open(Slot(0), SequenceSpec::Thinker(spec.clone())).unwrap();
    let sampled = step(stage, upto);
    assert_eq!(sampled.is_some(), upto as usize == spec.prompt.len());
    let cached = stage.sequences()[&Slot(0)].cached();
    stage.close(Slot(0));
    cached
}

/// The tokens of an answer to a prompt in one piece.
fn answer(stage: &mut ThinkerStage, spec: &ThinkerSpec, tokens: usize) -> Vec<u32> {
    stage.open(Slot(0), SequenceSpec::Thinker(spec.clone())).unwrap();
    let first = step(stage, spec.prompt.len() as u32);
    let answer = first.into_iter().chain((1..tokens).map(|_| step(stage, 1).unwrap())).collect();
    stage.close(Slot(0));
    answer
}

#[test]
fn the_longest_beginning_in_whole_blocks_is_found_answers_included() {
    let mut stage = stage(1 << 30);
    let asked = spec(0..40, 1);
    // 40 positions, and those of the tokens but for the last, which no step has taken.
    let said = answer(&mut stage, &asked, 10);
    let behind = |tokens: &[u32]| spec((0..40).chain(tokens.iter().copied()).chain(300..320), 1);
    assert_eq!(found(&mut stage, &behind(&said), 17), 32, "what a step begins with, block by block");
    assert_eq!(found(&mut stage, &behind(&said), 40), 48, "the answer's tokens are a part of the conversation");
    let mut other = said.clone();
    other[0] = (other[0] + 1) % 512;
    assert_eq!(found(&mut stage, &behind(&other), 33), 33, "32 that were kept, and one that another token changes");
    assert_eq!(found(&mut stage, &spec(1..41, 1), 5), 5, "another beginning");
    assert_eq!(found(&mut stage, &spec(0..40, 2), 5), 5, "another owner");
}

#[test]
fn the_step_that_samples_the_first_token_tells_how_many_positions_were_kept() {
    let mut stage = stage(1 << 30);
    let told = |stage: &mut ThinkerStage, spec: &ThinkerSpec, advances: &[u32]| -> Vec<u32> {
        stage.open(Slot(0), SequenceSpec::Thinker(spec.clone())).unwrap();
        let step = |advance: &u32| {
            let work = [SequenceWork { slot: Slot(0), advance: *advance }];
            stage.step(&work).unwrap().remove(0).unwrap().cached
        };
        let told = advances.iter().map(step).collect();
        stage.close(Slot(0));
        told
    };
    let asked = spec(0..40, 1);
    assert_eq!(told(&mut stage, &asked, &[40, 1]), [0, 0]);
    assert_eq!(told(&mut stage, &asked, &[40, 1]), [32, 0]);
    assert_eq!(told(&mut stage, &asked, &[10, 10, 20, 1]), [0, 0, 32, 0], "in pieces");
    assert_eq!(told(&mut stage, &spec(0..40, 2), &[40]), [0], "another owner");
}

#[test]
fn the_last_position_of_a_prompt_is_computed_each_time() {
    let mut stage = stage(1 << 30);
    for len in [1, 16, 17, 32, 33] {
        let first = answer(&mut stage, &spec(0..len, 1), 4);
        assert_eq!(answer(&mut stage, &spec(0..len, 1), 4), first, "{len} positions");
    }
    stage.open(Slot(0), SequenceSpec::Thinker(spec(0..32, 1))).unwrap();
    assert_eq!(step(&mut stage, 31), None);
    assert_eq!(stage.sequences()[&Slot(0)].cached(), 31, "16 were found, 15 computed");
}

#[test]
fn conversations_of_two_owners_share_the_room_and_the_one_used_last_stays() {
    let mut probe = stage(1 << 30);
    answer(&mut probe, &spec(0..32, 1), 1);
    let block = probe.kept_bytes() / 2;
    assert!(block > 0);
    let mut stage = stage(4 * block + block / 2);
    for owner in [1, 2, 1, 3] {
        answer(&mut stage, &spec(0..33, owner), 1);
        assert!(stage.kept_bytes() <= 4 * block);
    }
    assert_eq!(stage.kept_bytes(), 4 * block);
    let there = [1, 3, 2].map(|owner| found(&mut stage, &spec(0..33, owner), 17));
    assert_eq!(there, [32, 32, 17], "17 are computed where none were found");
}

/// A conversation of `turns` times a text, a sound and a picture, on three axes, of which the talker takes all. Its
/// embeddings are numbers of no meaning.
fn heard_and_seen(stage: &ThinkerStage, turns: u32) -> (ThinkerSpec, Vec<Tensor>) {
    const TURN: u32 = 45;
    let config = stage.net().config();
    let mut layout = MediaLayout { positions: None, spans: Vec::new() };
    let (mut rows, mut hashes) = (Vec::new(), Vec::new());
    for turn in 0..turns {
        for (number, kind, at) in [(1, MediaKind::Audio, 7..20), (2, MediaKind::Image, 22..34)] {
            let at = (turn * TURN + at.start) as usize..(turn * TURN + at.end) as usize;
            let (count, width) = (at.len(), config.media_width(kind));
            let number = turn * 10 + number;
            let value = |i: usize| ((i as u32 * 7919 + number * 104_729) % 1009) as f32 / 500.0 - 1.0;
            rows.push(Tensor::from_vec((0..count * width).map(value).collect(), (count, width), &Device::Cpu).unwrap());
            hashes.push([EncodedPart { rows: count as u32, hash: [number as u8; 32] }].into());
            layout.spans.push(Span { kind, at: vec![at] });
        }
    }
    // Of the picture the axes differ; what is behind it goes on from there.
    let axis = |axis: u32| (0..turns * TURN).map(|at| (at - if axis > 0 { at % TURN / 9 } else { 0 }) as f32).collect();
    layout.positions = Some(Positions { axes: [0, 1, 2].map(axis), delta: 3.0 });
    let mut spec = spec((0..turns * TURN).map(|at| at * 31 % 500), 1);
    spec.emit = Some(std::iter::once(0..turns * TURN).collect());
    spec.media = Some(layout.into());
    spec.reuse = Some(Reuse { owner: [1; 32], media: hashes.into() });
    spec.max_tokens = 12;
    (spec, rows)
}

/// The tokens of an answer, and the bits of what the talker is given, the prompt in pieces of `chunk`.
fn given(stage: &mut ThinkerStage, (spec, rows): &(ThinkerSpec, Vec<Tensor>), chunk: u32) -> (Vec<u32>, Vec<u32>) {
    stage.open(Slot(0), SequenceSpec::Thinker(spec.clone())).unwrap();
    for rows in rows {
        stage.push_input(Slot(0), Some(StageData::Embeddings(rows.clone().into())), false).unwrap();
    }
    let (mut tokens, mut bits, mut left) = (Vec::new(), Vec::new(), spec.prompt.len() as u32);
    loop {
        let advance = chunk.min(left).max(1);
        left -= advance.min(left);
        let output = stage.step(&[SequenceWork { slot: Slot(0), advance }]).unwrap().remove(0).unwrap();
        tokens.extend(output.sampled);
        if let Some(StageData::Embeddings(given)) = output.emit {
            let numbers = given.tensor().unwrap().flatten_all().unwrap().to_vec1::<f32>().unwrap();
            bits.extend(numbers.into_iter().map(f32::to_bits));
        }
        if output.finish.is_some() {
            stage.close(Slot(0));
            return (tokens, bits);
        }
    }
}

#[test]
fn what_the_talker_gets_of_kept_sound_and_pictures_has_the_bits_of_what_was_computed() {
    let mut keeps = stage(1 << 30);
    let talks = [1, 2, 3].map(|turns| heard_and_seen(&keeps, turns));
    let expected = talks.each_ref().map(|talk| given(&mut stage(0), talk, 1000));
    for chunks in [[1000, 1000, 1000], [5, 16, 1], [33, 7, 64]] {
        for (turn, chunk) in chunks.into_iter().enumerate() {
            let bytes = keeps.kept_bytes();
            assert_eq!(given(&mut keeps, &talks[turn], chunk), expected[turn], "turn {turn} in pieces of {chunk}");
            assert!(keeps.kept_bytes() >= bytes);
        }
    }
    // With a little room some blocks come and go.
    for blocks in [1, 2, 4, 5] {
        let mut keeps = stage(blocks * keeps.kept_bytes() / 9);
        for turn in [0, 1, 0, 2, 1, 2] {
            assert_eq!(given(&mut keeps, &talks[turn], 20), expected[turn], "turn {turn}, {blocks} ninths kept");
        }
    }
    // Embeddings of the first turn need not come for the second: two blocks of it are known.
    let (second, _) = &talks[1];
    keeps.open(Slot(0), SequenceSpec::Thinker(second.clone())).unwrap();
    assert_eq!(step(&mut keeps, 32), None);
}
