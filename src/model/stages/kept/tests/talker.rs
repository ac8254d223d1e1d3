//! The same of a talker, whose positions are known by their inputs.

use crate::ModelError;
use crate::checkpoint::Checkpoint;
use crate::media::Positions;
use crate::sampling::SamplingParams;
use crate::stage::{SequenceSpec, SequenceWork, StageData, StageModel, TalkerSpec};
use crate::stages::LanguageModel;
use crate::stages::kept::chain::Chain;
use crate::stages::kept::store::Key;
use crate::stages::talker::{TalkerFactory, TalkerStage};
use crate::talker::{Talker, TalkerPrompt};
use candle_core::{Device, Tensor};
use omni_core::ids::Slot;
use std::path::Path;
use std::sync::Arc;

/// Input embeddings of a turn of the user.
const TURN: u32 = 40;
/// Those of an answer.
const ANSWER: u32 = 9;

fn stage(bytes: usize) -> TalkerStage {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/fixtures/qwen3_omni");
    let checkpoint = Checkpoint::open(&folder).unwrap();
    let loader = checkpoint.loader(&["talker"], &Device::Cpu);
    let net = Arc::new(Talker::load(&loader, checkpoint.family()).unwrap());
    TalkerFactory::new(net).keeping(bytes).stage()
}

/// An answer to a conversation: its sequence, and all of its input embeddings.
#[derive(Clone)]
struct Spoken {
    spec: TalkerSpec,
    input: Tensor,
}

/// Of `turns` turns, with this text of the answer. Input embeddings are numbers of no meaning; those of the user depend
/// on their place alone, so that a conversation goes on.
fn spoken(stage: &TalkerStage, turns: u32, answer: u32) -> Spoken {
    let (config, user) = (stage.net().config(), turns * TURN);
    let value = |at: u32, of: u32| ((at * 7919 + of * 104_729) % 1009) as f32 / 500.0 - 1.0;
    let width = config.text_hidden_size as u32;
    let number = |at: u32| value(at, if at < user * width { 0 } else { answer });
    let (rows, width) = (user + 3 + ANSWER, width as usize);
    let numbers: Vec<f32> = (0..rows * width as u32).map(number).collect();
    let spec = TalkerSpec {
        prompt: TalkerPrompt::omni(user, 7, &config.tokens).into(),
        generated_len: 0,
        sampling: SamplingParams { repetition_penalty: 1.05, ..SamplingParams::GREEDY },
        predictor: SamplingParams::GREEDY,
        max_tokens: 6,
        min_tokens: 0,
        ignore_eos: true,
        seed: 1,
        forced: None,
        owner: Some([1; 32]),
    };
    Spoken { spec, input: Tensor::from_vec(numbers, (rows as usize, width), &Device::Cpu).unwrap() }
}

impl Spoken {
    fn with(&self, change: impl FnOnce(&mut TalkerSpec)) -> Spoken {
        let mut spec = self.spec.clone();
        change(&mut spec);
        Spoken { spec, ..self.clone() }
    }

    /// With this number in place of an input embedding's first.
    fn with_input(&self, row: usize, number: f32) -> Spoken {
        let mut rows = self.input.to_vec2::<f32>().unwrap();
        rows[row][0] = number;
        Spoken { input: Tensor::new(rows, &Device::Cpu).unwrap(), ..self.clone() }
    }

    /// With a sound in each turn, and positions on three axes.
    fn heard(&self) -> Spoken {
        let prompt = TalkerPrompt::clone(&self.spec.prompt);
        let (turns, positions) = (self.spec.prefill_embeddings() / TURN, self.spec.prefill_positions());
        let media = (0..turns).map(|turn| turn * TURN + 5..turn * TURN + 18).collect();
        let axis =
            |axis: u32| (0..positions).map(|at| (at - if axis > 0 { at % TURN / 9 } else { 0 }) as f32).collect();
        let axes = Positions { axes: [0, 1, 2].map(axis), delta: 0.0 };
        self.with(|spec| spec.prompt = prompt.with_media(media, Some(axes)).into())
    }

    fn open(&self, stage: &mut TalkerStage, slot: u32) {
        stage.open(Slot(slot), SequenceSpec::Talker(self.spec.clone())).unwrap();
    }

    fn push(&self, stage: &mut TalkerStage, slot: u32, from: usize, count: usize) {
        let (input, end) = (self.input.narrow(0, from, count).unwrap(), from + count == self.rows());
        stage.push_input(Slot(slot), Some(StageData::Embeddings(input.into())), end).unwrap();
    }

    fn rows(&self) -> usize {
        self.input.dims()[0]
    }
}

fn step(stage: &mut TalkerStage, advance: u32) -> Result<Option<Vec<u32>>, ModelError> {
    let output = stage.step(&[SequenceWork { slot: Slot(0), advance }]).unwrap().remove(0)?;
    Ok(match output.emit {
        Some(StageData::Codes(codes)) => Some(codes),
        _ => None,
    })
}

/// Positions that are there after the first step of a prompt, of `upto` positions: those, or more where more was found.
fn found(stage: &mut TalkerStage, spoken: &Spoken, upto: u32) -> usize {
    spoken.open(stage, 0);
    spoken.push(stage, 0, 0, spoken.rows());
    step(stage, upto).unwrap();
    let cached = stage.sequences()[&Slot(0)].cache().len();
    stage.close(Slot(0));
    cached
}

/// The frames of an answer and the bits of its keys and values. The prompt is computed in pieces of `chunk`, its input
/// comes in pieces of `piece`.
fn speak(stage: &mut TalkerStage, spoken: &Spoken, chunk: u32, piece: usize) -> (Vec<Vec<u32>>, Vec<u32>) {
    spoken.open(stage, 0);
    let (mut pushed, mut done, mut frames) = (0, 0, Vec::new());
    let spec = &spoken.spec;
    while frames.len() + 1 < (spec.max_tokens - spec.generated_len) as usize {
        let count = piece.min(spoken.rows() - pushed);
        if count > 0 {
            spoken.push(stage, 0, pushed, count);
            pushed += count;
        }
        let left = spec.prefill_positions() - done;
        let there = spec.prompt.positions_of(pushed as u32) - done;
        let advance = if left > 0 { there.min(chunk) } else { u32::from(pushed == spoken.rows()) };
        if advance > 0 {
            frames.extend(step(stage, advance).unwrap());
            done += advance.min(left);
        }
    }
    let cache = stage.sequences()[&Slot(0)].cache();
    let bits = cache.block(0, cache.len()).unwrap().bits();
    stage.close(Slot(0));
    (frames, bits)
}

#[test]
fn the_longest_beginning_in_whole_blocks_is_found_by_the_same_owner() {
    let mut stage = stage(1 << 30);
    let [first, next] = [1, 2].map(|turns| spoken(&stage, turns, turns));
    // 49 positions: two blocks of the user's turn; the third has the header and what makes the voice too.
    speak(&mut stage, &first, 1000, 1000);
    assert_eq!(found(&mut stage, &next, 17), 32, "what a step begins with, block by block");
    assert_eq!(found(&mut stage, &next, 40), 40, "32 were found, 8 computed");
    assert_eq!(found(&mut stage, &first, 33), 48, "asked again");
    let other_voice = TalkerPrompt::omni(TURN, 8, &stage.net().config().tokens);
    for (what, spoken, upto, expected) in [
        ("another answer", spoken(&stage, 1, 5), 33, 33),
        ("another voice", first.with(|spec| spec.prompt = other_voice.into()), 33, 33),
        ("another input in the second block", first.with_input(20, 0.25), 17, 17),
        ("another input in the first block", next.with_input(3, 0.25), 5, 5),
        ("other places", next.heard(), 5, 5),
        ("another owner", next.with(|spec| spec.owner = Some([2; 32])), 5, 5),
        ("of no owner", next.with(|spec| spec.owner = None), 5, 5),
    ] {
        assert_eq!(found(&mut stage, &spoken, upto), expected, "{what}");
    }
    // A stage that starts again has nothing of this one.
    assert_eq!(found(&mut self::stage(1 << 30), &next, 5), 5);
}

#[test]
fn the_last_position_of_a_prompt_is_computed_each_time() {
    for user in [7, 8, 23, 24] {
        let mut stage = stage(1 << 30);
        let whole = spoken(&stage, 1, 1);
        let tokens = stage.net().config().tokens;
        let rows = whole.input.narrow(0, 0, user + 12).unwrap();
        let spec = whole.with(|spec| spec.prompt = TalkerPrompt::omni(user as u32, 7, &tokens).into()).spec;
        let spoken = Spoken { spec, input: rows };
        let first = speak(&mut stage, &spoken, 1000, 1000);
        assert_eq!(speak(&mut stage, &spoken, 1000, 1000), first, "{} positions", user + 9);
    }
}

#[test]
fn one_bit_of_an_input_or_another_place_changes_all_keys_behind_it() {
    let spec = spoken(&stage(0), 1, 1).spec;
    let keys = |rows: &[[f32; 4]], axes: Option<&Positions>, piece: usize| -> Vec<Key> {
        let mut chain = Chain::of_talker(&spec).unwrap();
        for rows in rows.chunks(piece) {
            let inputs = Tensor::from_slice(rows.as_flattened(), (rows.len(), 4), &Device::Cpu).unwrap();
            chain.inputs(&inputs, axes).unwrap();
        }
        assert_eq!(chain.positions(), rows.len());
        chain.keys().to_vec()
    };
    let rows: Vec<[f32; 4]> = (0..50).map(|at| [at as f32, 0.0, 1.0, 0.5]).collect();
    let places = |changed: f32| {
        let mut axes = [(); 3].map(|()| (0..50).map(|at| at as f32).collect::<Vec<_>>());
        axes[2][20] += changed;
        Positions { axes, delta: 0.0 }
    };
    let expected = keys(&rows, None, 50);
    assert_eq!(expected.len(), 3);
    for (what, same) in [
        ("in pieces of 1", keys(&rows, None, 1)),
        ("in pieces of 7", keys(&rows, None, 7)),
        ("on three axes that are alike", keys(&rows, Some(&places(0.0)), 50)),
    ] {
        assert_eq!(same, expected, "{what}");
    }
    let with = |number: usize, value: f32| {
        let mut rows = rows.clone();
        rows[20][number] = value;
        keys(&rows, None, 50)
    };
    for (what, other) in [
        ("the last bit of a number", with(2, f32::from_bits(1.0f32.to_bits() ^ 1))),
        ("the sign of nothing", with(1, -0.0)),
        ("another place", keys(&rows, Some(&places(1.0)), 50)),
    ] {
        let same: Vec<bool> = other.iter().zip(&expected).map(|(key, expected)| key == expected).collect();
        assert_eq!(same, [true, false, false], "{what}");
    }
}

#[test]
fn answers_have_the_same_bits_whatever_is_kept_and_however_prompts_are_cut() {
    let mut keeps = stage(1 << 30);
    let texts = [1, 2, 3].map(|turns| spoken(&keeps, turns, turns));
    for talks in [texts.each_ref().map(Spoken::heard), texts] {
        let expected = talks.each_ref().map(|talk| speak(&mut stage(0), talk, 1000, 1000));
        for cuts in [[(1000, 1000); 3], [(5, 3), (16, 16), (1, 1)], [(33, 20), (7, 1000), (64, 17)]] {
            for (turn, (chunk, piece)) in cuts.into_iter().enumerate() {
                let spoken = speak(&mut keeps, &talks[turn], chunk, piece);
                assert!(spoken == expected[turn], "turn {turn} in pieces of {chunk}, input of {piece}");
            }
        }
        let all = keeps.kept_bytes();
        // With a little room some blocks come and go.
        for ninths in [1, 2, 4, 5] {
            let mut keeps = stage(ninths * all / 9);
            for turn in [0, 1, 0, 2, 1, 2] {
                let spoken = speak(&mut keeps, &talks[turn], 20, 11);
                assert!(spoken == expected[turn], "turn {turn}, {ninths} ninths kept");
                assert!(keeps.kept_bytes() <= ninths * all / 9);
            }
        }
    }
}

#[test]
fn a_sequence_that_finds_its_beginning_speaks_beside_others_as_alone() {
    let mut keeps = stage(1 << 30);
    let [first, second] = [1, 2].map(|turns| spoken(&keeps, turns, turns));
    let alone = [&first, &second].map(|spoken| speak(&mut stage(0), spoken, 1000, 1000).0);
    speak(&mut keeps, &first, 1000, 1000);
    // One finds two blocks, the other finds nothing.
    let both = [first.with(|spec| spec.owner = None), second];
    for (slot, spoken) in (0..).zip(&both) {
        spoken.open(&mut keeps, slot);
        spoken.push(&mut keeps, slot, 0, spoken.rows());
    }
    let mut frames: [Vec<Vec<u32>>; 2] = Default::default();
    for turn in 0..5 {
        let work = [0, 1].map(|at| {
            let advance = if turn == 0 { both[at].spec.prefill_positions() } else { 1 };
            SequenceWork { slot: Slot(at as u32), advance }
        });
        for (frames, output) in frames.iter_mut().zip(keeps.step(&work).unwrap()) {
            if let Some(StageData::Codes(codes)) = output.unwrap().emit {
                frames.push(codes);
            }
        }
    }
    assert_eq!(frames, alone);
}

#[test]
fn what_a_sequence_used_or_computed_that_failed_is_not_used_again() {
    let mut keeps = stage(1 << 30);
    let good = spoken(&keeps, 1, 1);
    let expected = speak(&mut stage(0), &good, 1000, 1000);
    let broken = good.with_input(20, f32::NAN);
    // Before anything was kept, and when its first block had been found.
    for _ in 0..2 {
        broken.open(&mut keeps, 0);
        broken.push(&mut keeps, 0, 0, broken.rows());
        assert!(step(&mut keeps, broken.spec.prefill_positions()).is_err());
        keeps.close(Slot(0));
        assert_eq!(found(&mut keeps, &good, 17), 17);
        assert!(speak(&mut keeps, &good, 1000, 1000) == expected);
        assert_eq!(found(&mut keeps, &good, 17), 32);
    }
}

#[test]
fn the_frames_of_a_sequence_that_resumes_are_not_kept() {
    let mut plain = stage(1 << 30);
    let groups = plain.net().config().num_code_groups;
    let whole = spoken(&plain, 1, 1).with(|spec| spec.max_tokens = 40);
    let (frames, _) = speak(&mut plain, &whole, 1000, 1000);
    let resumed = whole.with(|spec| {
        let prompt = spec.prompt.resume(&frames[..30].concat(), groups, whole.rows() as u32, true);
        (spec.prompt, spec.generated_len) = (prompt.unwrap().into(), 30);
    });
    let mut keeps = stage(1 << 30);
    for _ in 0..2 {
        assert_eq!(speak(&mut keeps, &resumed, 1000, 1000).0, frames[30..]);
        assert_eq!(keeps.kept_bytes(), plain.kept_bytes());
    }
    assert_eq!(found(&mut keeps, &whole, 33), 48, "what stood before them is");
}

#[test]
fn conversations_of_two_owners_share_the_room_and_the_one_used_last_stays() {
    let mut probe = stage(1 << 30);
    let talk = spoken(&probe, 1, 1);
    speak(&mut probe, &talk, 1000, 1000);
    let block = probe.kept_bytes() / 3;
    assert!(block > 0);
    let mut stage = stage(6 * block + block / 2);
    let of = |owner: u8| talk.with(|spec| spec.owner = Some([owner; 32]));
    for owner in [1, 2, 1, 3] {
        speak(&mut stage, &of(owner), 1000, 1000);
        assert!(stage.kept_bytes() <= 6 * block);
    }
    assert_eq!(stage.kept_bytes(), 6 * block);
    let there = [1, 3, 2].map(|owner| found(&mut stage, &of(owner), 33));
    assert_eq!(there, [48, 48, 33], "33 are computed where none were found");
}
