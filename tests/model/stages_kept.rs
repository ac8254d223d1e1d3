//! The thinker stage with prompts that it keeps: a second turn begins with what the first one computed, and makes the
//! same bits as a stage that keeps nothing; and by how little a beginning is another one. And the talker's codes.

use crate::requests::{Golden, bits, embeddings};
use crate::support::sequences::{speak, step, step_sequence};
use candle_core::{DType, Device, Tensor};
use omni_actors::core::ids::Slot;
use omni_actors::model::media::{MediaLayout, Positions, Span};
use omni_actors::model::stage::{
    EncodedPart, Reuse, SequenceSpec, SequenceWork, StageData, StageFactory, StageModel, TalkerSpec, ThinkerSpec,
};
use omni_actors::model::stages::talker::TalkerFactory;
use omni_actors::model::stages::thinker::ThinkerFactory;
use std::sync::Arc;

const CASES: [&str; 7] = [
    "voice_heart_0",
    "text_ethan",
    "text_ethan_thinker_eos",
    "audio_ethan",
    "image_ethan",
    "mm_audio_image_ethan",
    "mm_long_audio_ethan",
];
const PLENTY: usize = 1 << 30;

fn stage(golden: &Golden, bytes: usize) -> Box<dyn StageModel> {
    ThinkerFactory::new(golden.nets.thinker.clone()).keeping(bytes).build().unwrap()
}

/// The first turn: the golden request, whose prompt belongs to a tenant.
fn first(golden: &Golden) -> ThinkerSpec {
    // Each span in two parts, as of a sound of two windows.
    let part =
        |span: usize, part: u8, rows: usize| EncodedPart { rows: rows as u32, hash: [2 * span as u8 + part; 32] };
    let parts = |(span, rows): (usize, usize)| -> Arc<[EncodedPart]> {
        [part(span, 1, rows / 2), part(span, 2, rows - rows / 2)].into()
    };
    let layout = golden.thinker.media.as_ref();
    let media = layout.iter().flat_map(|layout| &layout.spans).map(Span::len).enumerate().map(parts).collect();
    ThinkerSpec { reuse: Some(Reuse { owner: [7; 32], media }), ..golden.thinker.clone() }
}

/// The turn behind it: its prompt, its answer, and as much as the first prompt once more, media included.
fn second(golden: &Golden, answer: &[u32]) -> ThinkerSpec {
    let first = first(golden);
    let len = first.prompt.len() + answer.len();
    let prompt: Arc<[u32]> = [&first.prompt, answer, &first.prompt].concat().into();
    let turns = first.emit.iter().flat_map(|turns| turns.iter().cloned());
    let emit = Some(turns.chain(std::iter::once(len as u32..prompt.len() as u32)).collect());
    let mut reuse = first.reuse.clone().unwrap();
    let media = first.media.as_ref().map(|layout| {
        let mut spans = layout.spans.clone();
        for mut span in layout.spans.iter().cloned() {
            span.at.iter_mut().for_each(|range| *range = range.start + len..range.end + len);
            spans.push(span);
        }
        let axes = |positions: &Positions, axis: usize| (0..prompt.len()).map(|at| positions.at(at)[axis]).collect();
        let positions = layout
            .positions
            .as_ref()
            .map(|of| Positions { axes: [0, 1, 2].map(|axis| axes(of, axis)), delta: of.delta });
        reuse.media = [&*reuse.media, &*reuse.media].concat().into();
        MediaLayout { positions, spans }.into()
    });
    ThinkerSpec { prompt, emit, media, reuse: Some(reuse), ..first }
}

/// The embeddings of the media of a turn, in pieces.
fn rows(golden: &Golden, spec: &ThinkerSpec, piece: usize) -> Vec<StageData> {
    let spans = spec.media.as_ref().map_or(0, |layout| layout.spans.len());
    let times = spans / golden.rows.len().max(1);
    (0..times).flat_map(|_| golden.pieces(piece)).collect()
}

/// Opens a turn and gives it its media.
fn open(stage: &mut dyn StageModel, slot: u32, spec: &ThinkerSpec, rows: Vec<StageData>) {
    stage.open(Slot(slot), SequenceSpec::Thinker(spec.clone())).unwrap();
    for input in rows {
        stage.push_input(Slot(slot), Some(input), false).unwrap();
    }
}

/// Answers a turn, its prompt in pieces of `chunk`: tokens, and the bits of what the talker gets.
fn answer(stage: &mut dyn StageModel, slot: u32, spec: &ThinkerSpec, chunk: u32) -> (Vec<u32>, Vec<u32>) {
    let (mut said, mut given, mut left) = (vec![], vec![], spec.prompt.len() as u32);
    loop {
        let advance = if left > 0 { chunk.min(left) } else { 1 };
        left -= advance.min(left);
        let output = step(stage, slot, advance);
        given.extend(embeddings(&output));
        said.extend(output.sampled);
        if output.finish.is_some() {
            stage.close(Slot(slot));
            return (said, bits(&given));
        }
    }
}

fn turn(stage: &mut dyn StageModel, golden: &Golden, spec: &ThinkerSpec, chunk: u32) -> (Vec<u32>, Vec<u32>) {
    open(stage, 0, spec, rows(golden, spec, 5));
    answer(stage, 0, spec, chunk)
}

#[test]
fn a_turn_that_begins_with_kept_positions_makes_the_same_bits_as_one_that_computes_them() {
    for name in CASES {
        let golden = Golden::read(name);
        let (said, given) = turn(&mut *stage(&golden, 0), &golden, &first(&golden), 1000);
        assert_eq!(said, golden.answer(), "{name}");
        let later = second(&golden, &said);
        let expected = turn(&mut *stage(&golden, 0), &golden, &later, 1000);
        for (before, behind) in [(1000, 1000), (1, 7), (7, 1), (64, 23), (16, 16)] {
            let case = format!("{name}, first prompt in pieces of {before}, second of {behind}");
            let mut keeps = stage(&golden, PLENTY);
            assert_eq!(turn(&mut *keeps, &golden, &first(&golden), before), (said.clone(), given.clone()), "{case}");
            assert_eq!(turn(&mut *keeps, &golden, &later, behind), expected, "{case}");
            assert_eq!(turn(&mut *keeps, &golden, &later, before), expected, "{case}, asked again");
            assert_eq!(turn(&mut *keeps, &golden, &first(&golden), behind), (said.clone(), given.clone()), "{case}");
        }
    }
}

#[test]
fn a_talker_that_keeps_prompts_says_the_golden_codes_each_time() {
    for name in CASES {
        let golden = Golden::read(name);
        let (_, text, _) = golden.think(&golden.thinker, 1000, 1000);
        let text = Tensor::cat(&text, 0).unwrap();
        let spec = TalkerSpec { owner: Some([7; 32]), ..golden.talker.clone() };
        let mut keeps = TalkerFactory::new(golden.nets.talker.clone()).keeping(PLENTY).build().unwrap();
        for chunk in [1000, 1, 7, 64] {
            let input = StageData::Embeddings(text.clone().into());
            let (codes, _) = speak(&mut *keeps, 0, &spec, Some(input), chunk);
            keeps.close(Slot(0));
            assert_eq!(codes, golden.codes(), "{name}, prompt in pieces of {chunk}");
        }
    }
}

#[test]
fn however_little_is_kept_answers_stay_the_same() {
    for name in ["text_ethan", "mm_audio_image_ethan"] {
        let golden = Golden::read(name);
        let (said, given) = turn(&mut *stage(&golden, 0), &golden, &first(&golden), 1000);
        let later = second(&golden, &said);
        let expected = turn(&mut *stage(&golden, 0), &golden, &later, 1000);
        for kib in [1, 8, 30, 60, 100, 150] {
            let mut keeps = stage(&golden, kib << 10);
            for _ in 0..2 {
                assert_eq!(turn(&mut *keeps, &golden, &first(&golden), 9), (said.clone(), given.clone()), "{kib} KiB");
                assert_eq!(turn(&mut *keeps, &golden, &later, 20), expected, "{name}, {kib} KiB");
            }
        }
    }
}

#[test]
fn a_turn_uses_what_another_sequence_is_still_computing() {
    let golden = Golden::read("mm_audio_image_ethan");
    let spec = first(&golden);
    let expected = turn(&mut *stage(&golden, 0), &golden, &spec, 1000);
    let mut both = stage(&golden, PLENTY);
    open(&mut *both, 0, &spec, rows(&golden, &spec, 1000));
    let _ = step(&mut *both, 0, 50);
    // Its positions 0..48 are kept: nothing was encoded for them here.
    open(&mut *both, 1, &spec, Vec::new());
    assert!(step(&mut *both, 1, 48).sampled.is_none());
    for input in rows(&golden, &spec, 3) {
        both.push_input(Slot(1), Some(input), false).unwrap();
    }
    let rest = spec.prompt.len() as u32 - 50;
    let work = [SequenceWork { slot: Slot(0), advance: rest }, SequenceWork { slot: Slot(1), advance: rest + 2 }];
    let mut said: [Vec<u32>; 2] = Default::default();
    for (said, output) in said.iter_mut().zip(both.step(&work).unwrap()) {
        said.extend(output.unwrap().sampled);
    }
    while said[0].len() < expected.0.len() {
        let work = [0, 1].map(|slot| SequenceWork { slot: Slot(slot), advance: 1 });
        for (said, output) in said.iter_mut().zip(both.step(&work).unwrap()) {
            said.extend(output.unwrap().sampled);
        }
    }
    assert_eq!(said, [expected.0.clone(), expected.0]);
}

/// Whether the media positions of a turn's first prompt are found: then it needs no embeddings for them.
fn finds(stage: &mut dyn StageModel, golden: &Golden, spec: &ThinkerSpec) -> bool {
    let layout = golden.thinker.media.as_ref().unwrap();
    let last = layout.spans.iter().flat_map(|span| &span.at).map(|range| range.end).max().unwrap() as u32;
    open(stage, 0, spec, Vec::new());
    let found = step_sequence(stage, 0, last);
    stage.close(Slot(0));
    match found {
        Ok(_) => true,
        Err(error) => {
            assert!(error.to_string().contains("has not arrived"), "{error}");
            false
        }
    }
}

#[test]
fn a_beginning_is_found_by_all_that_it_was_computed_from_and_by_nothing_less() {
    let golden = Golden::read("mm_audio_image_ethan");
    let mut keeps = stage(&golden, PLENTY);
    let (said, _) = turn(&mut *keeps, &golden, &first(&golden), 1000);
    let later = second(&golden, &said);
    assert!(finds(&mut *keeps, &golden, &later), "the same conversation");
    let changed = |change: &dyn Fn(&mut ThinkerSpec)| {
        let mut spec = later.clone();
        change(&mut spec);
        spec
    };
    let layout = |change: &dyn Fn(&mut MediaLayout)| {
        changed(&|spec| {
            let mut layout = MediaLayout::clone(spec.media.as_ref().unwrap());
            change(&mut layout);
            spec.media = Some(layout.into());
        })
    };
    let reuse = |change: &dyn Fn(&mut Reuse)| changed(&|spec| change(spec.reuse.as_mut().unwrap()));
    let parts = |span: usize, change: &dyn Fn(&mut [EncodedPart])| {
        reuse(&|reuse| {
            let mut media = reuse.media.to_vec();
            let mut parts = media[span].to_vec();
            change(&mut parts);
            media[span] = parts.into();
            reuse.media = media.into();
        })
    };
    let hashes = |span: usize| parts(span, &|parts| parts[0].hash[31] ^= 1);
    let others = [
        ("another owner", reuse(&|reuse| reuse.owner[31] ^= 1)),
        ("nobody's", changed(&|spec| spec.reuse = None)),
        ("another sound", hashes(0)),
        ("another picture", hashes(1)),
        (
            "a window that begins one row later",
            parts(0, &|parts| {
                parts[0].rows += 1;
                parts[1].rows -= 1;
            }),
        ),
        (
            "another first token",
            changed(&|spec| {
                let mut prompt = spec.prompt.to_vec();
                prompt[0] += 1;
                spec.prompt = prompt.into();
            }),
        ),
        ("another place of a token", layout(&|layout| layout.positions.as_mut().unwrap().axes[2][3] += 0.5)),
        ("no places", layout(&|layout| layout.positions = None)),
        ("another kind", layout(&|layout| layout.spans[1].kind = omni_actors::model::media::MediaKind::Video)),
        (
            "the rows one further",
            layout(&|layout| {
                let range = layout.spans[0].at[0].clone();
                layout.spans[0].at = std::iter::once(range.start + 1..range.end + 1).collect();
            }),
        ),
    ];
    for (what, spec) in others {
        assert!(!finds(&mut *keeps, &golden, &spec), "{what}");
    }
    assert!(finds(&mut *keeps, &golden, &later), "none of them has replaced it");
    // What stands behind it makes no difference.
    let mut prompt = later.prompt.to_vec();
    *prompt.last_mut().unwrap() += 1;
    assert!(finds(&mut *keeps, &golden, &changed(&|spec| spec.prompt = prompt.clone().into())));
    let told = reuse(&|reuse| reuse.media = reuse.media[1..].into());
    let error = keeps.open(Slot(0), SequenceSpec::Thinker(told)).unwrap_err().to_string();
    assert!(error.contains("3 media of a prompt are told: it has 4"), "{error}");
    let told = parts(0, &|parts| parts[0].rows += 1);
    let error = keeps.open(Slot(0), SequenceSpec::Thinker(told)).unwrap_err().to_string();
    assert!(error.contains("rows of a medium are told: it has"), "{error}");
    // A stage of its own has nothing of this one.
    assert!(!finds(&mut *stage(&golden, PLENTY), &golden, &later));
}

#[test]
fn what_a_sequence_has_computed_that_failed_is_not_used_again() {
    let golden = Golden::read("audio_ethan");
    let spec = first(&golden);
    let mut keeps = stage(&golden, PLENTY);
    let span = &golden.thinker.media.as_ref().unwrap().spans[0];
    let broken = Tensor::full(f32::NAN, (span.len(), 64), &Device::Cpu).unwrap().to_dtype(DType::F32).unwrap();
    open(&mut *keeps, 0, &spec, vec![StageData::Embeddings(broken.into())]);
    let error = step_sequence(&mut *keeps, 0, spec.prompt.len() as u32).unwrap_err();
    keeps.close(Slot(0));
    assert!(!finds(&mut *keeps, &golden, &spec), "after {error}");
    assert_eq!(turn(&mut *keeps, &golden, &spec, 1000).0, golden.answer());
    assert!(finds(&mut *keeps, &golden, &spec));
}
