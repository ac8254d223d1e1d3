//! The thinker and talker stages with media in the prompt: golden tokens and codes, however the prompt is cut and its
//! embeddings arrive; and what is refused.

use crate::requests::{FIXTURE, Golden, TINY, bits, path, tensor};
use crate::support::sequences;
use candle_core::{Device, Tensor};
use omni_actors::core::ids::Slot;
use omni_actors::model::Checkpoint;
use omni_actors::model::encoder::{Encodable, EncoderSpec, Features, Grain, Schedule};
use omni_actors::model::media::{MediaKind, MediaLayout, Span};
use omni_actors::model::stage::{
    SequenceSpec, SequenceWork, StageData, StageFactory, StageModel, ThinkerMode, ThinkerSpec,
};
use omni_actors::model::stages::encoder::EncoderFactory;
use omni_actors::model::thinker::Thinker;
use omni_actors::model::towers::Towers;
use omni_actors::tools::verify::read_values;
use serde_json::json;
use std::sync::Arc;

const CASES: [&str; 4] = ["audio_ethan", "image_ethan", "mm_audio_image_ethan", "mm_long_audio_ethan"];

#[test]
fn requests_with_media_give_their_tokens_and_codes_however_prompt_and_media_are_cut() {
    for name in CASES {
        let golden = Golden::read(name);
        let mut whole = None;
        for (chunk, piece) in [(1000, 1000), (1, 5), (7, 3), (64, 13)] {
            let (answer, text, _) = golden.think(&golden.thinker, chunk, piece);
            assert_eq!(answer, golden.answer(), "{name}, prompt in pieces of {chunk}");
            let text_bits = bits(&text);
            assert_eq!(*whole.get_or_insert(text_bits.clone()), text_bits, "{name}, prompt in pieces of {chunk}");
            let mut talker = TINY.talker();
            let text = StageData::Embeddings(Tensor::cat(&text, 0).unwrap().into());
            let (codes, _) = sequences::speak(&mut *talker, 0, &golden.talker, Some(text), chunk);
            assert_eq!(codes, golden.codes(), "{name}, prompt in pieces of {chunk}");
        }
    }
}

#[test]
fn an_answer_that_resumes_behind_media_goes_on_with_the_same_tokens() {
    for name in ["image_ethan", "mm_audio_image_ethan"] {
        let golden = Golden::read(name);
        let (answer, text, _) = golden.think(&golden.thinker, 1000, 1000);
        let asked = golden.thinker.prompt.len() as u32;
        for said in 1..answer.len() {
            let mut spec = golden.thinker.clone();
            spec.prompt = [&golden.thinker.prompt, &answer[..said]].concat().into();
            spec.generated_len = said as u32;
            let ranges = spec.emit.iter().flat_map(|ranges| ranges.iter().cloned());
            spec.emit = Some(ranges.chain(std::iter::once(asked..asked + said as u32)).collect());
            let (rest, again, _) = golden.think(&spec, 11, 4);
            assert_eq!(rest, answer[said..], "{name} after {said} tokens");
            assert_eq!(bits(&again), bits(&text), "{name} after {said} tokens");
        }
    }
}

#[test]
fn text_beside_media_in_a_batch_gives_what_it_gives_alone() {
    let golden = Golden::read("mm_audio_image_ethan");
    let text = ThinkerSpec {
        prompt: golden.thinker.prompt.iter().take(9).chain(&[5, 6, 7]).copied().collect(),
        media: None,
        emit: Some(std::iter::once(0..12).collect()),
        ..golden.thinker.clone()
    };
    let (alone, alone_text) = {
        let mut stage = TINY.thinker();
        stage.open(Slot(0), SequenceSpec::Thinker(text.clone())).unwrap();
        assert!(stage.push_input(Slot(0), None, true).is_err(), "text takes no input");
        run(&mut *stage, &[(0, 12)])
    };
    let mut both = TINY.thinker();
    both.open(Slot(0), SequenceSpec::Thinker(golden.thinker.clone())).unwrap();
    both.open(Slot(1), SequenceSpec::Thinker(text)).unwrap();
    for input in golden.pieces(1000) {
        both.push_input(Slot(0), Some(input), false).unwrap();
    }
    let prompt = golden.thinker.prompt.len() as u32;
    let (answers, texts) = run(&mut *both, &[(0, prompt), (1, 12)]);
    assert_eq!(answers[0], golden.answer());
    assert_eq!((&answers[1], bits(&texts[1])), (&alone[0], bits(&alone_text[0])));
}

/// Answers and what the talker gets of several sequences, whole prompts first.
fn run(stage: &mut dyn StageModel, sequences: &[(u32, u32)]) -> (Vec<Vec<u32>>, Vec<Vec<Tensor>>) {
    let mut answers = vec![vec![]; sequences.len()];
    let mut texts = vec![vec![]; sequences.len()];
    let mut open: Vec<(usize, SequenceWork)> = sequences
        .iter()
        .enumerate()
        .map(|(i, (slot, prompt))| (i, SequenceWork { slot: Slot(*slot), advance: *prompt }))
        .collect();
    while !open.is_empty() {
        let work: Vec<_> = open.iter().map(|(_, work)| *work).collect();
        let outputs = stage.step(&work).unwrap();
        let mut left = vec![];
        for ((i, work), output) in open.into_iter().zip(outputs) {
            let output = output.unwrap();
            answers[i].extend(output.sampled);
            if let Some(StageData::Embeddings(embeddings)) = &output.emit {
                texts[i].push(embeddings.tensor().unwrap());
            }
            if output.finish.is_none() {
                left.push((i, SequenceWork { advance: 1, ..work }));
            }
        }
        open = left;
    }
    (answers, texts)
}

#[test]
fn what_does_not_fit_is_refused_with_what_was_expected() {
    let golden = Golden::read("mm_audio_image_ethan");
    let refused = |change: &dyn Fn(&mut MediaLayout)| {
        let mut layout = MediaLayout::clone(golden.thinker.media.as_ref().unwrap());
        change(&mut layout);
        let spec = ThinkerSpec { media: Some(layout.into()), ..golden.thinker.clone() };
        TINY.thinker().open(Slot(0), SequenceSpec::Thinker(spec)).unwrap_err().to_string()
    };
    assert!(refused(&|layout| layout.spans[0].at[0].end = 999).contains("beyond 76 tokens"));
    assert!(refused(&|layout| layout.spans[1] = layout.spans[0].clone()).contains("another span has too"));
    assert!(refused(&|layout| layout.spans[0].at.clear()).contains("is empty"));
    assert!(refused(&|layout| layout.positions.as_mut().unwrap().axes[1].truncate(3)).contains("on each axis"));
    assert!(refused(&|layout| layout.positions.as_mut().unwrap().delta = f32::NAN).contains("not finite"));
    let follow = ThinkerSpec { mode: ThinkerMode::Follow, ..golden.thinker.clone() };
    let error = TINY.thinker().open(Slot(0), SequenceSpec::Thinker(follow)).unwrap_err().to_string();
    assert!(error.contains("cannot have media"), "{error}");

    let mut stage = TINY.thinker();
    stage.open(Slot(0), SequenceSpec::Thinker(golden.thinker.clone())).unwrap();
    let push = |stage: &mut dyn StageModel, input: Option<StageData>, end| {
        stage.push_input(Slot(0), input, end).err().map(|error| error.to_string()).unwrap_or_default()
    };
    let rows = |n: usize, width: usize| {
        let zeros = Tensor::zeros((n, width), candle_core::DType::F32, &Device::Cpu).unwrap();
        Some(StageData::Embeddings(zeros.into()))
    };
    assert!(push(&mut *stage, Some(StageData::Tokens(vec![1])), false).contains("takes their embeddings only"));
    assert!(push(&mut *stage, rows(2, 63), false).contains("expected [1..="));
    assert!(push(&mut *stage, rows(500, 64), false).contains("expected [1..="));
    assert!(push(&mut *stage, None, true).contains("are missing"));
    let work = [SequenceWork { slot: Slot(0), advance: golden.thinker.prompt.len() as u32 }];
    let error = stage.step(&work).unwrap().remove(0).unwrap_err().to_string();
    assert!(error.contains("has not arrived"), "{error}");
    for input in golden.pieces(1000) {
        assert_eq!(push(&mut *stage, Some(input), false), "");
    }
    assert!(push(&mut *stage, rows(1, 64), false).contains("behind the last one"));
    assert!(stage.step(&work).unwrap().remove(0).is_ok(), "it goes on once its embeddings are there");
}

#[test]
fn windows_and_slices_are_encoded_one_at_a_time_with_the_same_bits() {
    let golden = Golden::read("mm_long_audio_ethan");
    let tower = TINY.towers.audio().unwrap();
    let clip = tensor(&golden.tensors, "in.input_features").unwrap().get(0).unwrap();
    let frames = clip.dims()[1];
    let chunk = tower.padded_chunk(frames);
    // Last window first: none sees another.
    let mut parts: Vec<_> = tower.windows(frames).collect();
    assert_eq!((parts.len(), parts[0].clone()), (frames.div_ceil(200), 0..200));
    parts.reverse();
    let encoded = parts.iter().map(|window| {
        let rows = tower.encode_window(&clip.narrow(1, window.start, window.len()).unwrap(), chunk).unwrap();
        assert_eq!(rows.rows.dims(), [tower.tokens(window.len()), 64]);
        rows.rows
    });
    let mut encoded: Vec<_> = encoded.collect();
    encoded.reverse();
    assert_eq!(bits(&encoded), bits(&[tower.encode(&clip).unwrap().rows]));
    assert!(tower.encode_window(&clip, chunk).is_err_and(|error| error.to_string().contains("at most 200 frames")));
    assert!(
        tower.encode(&clip.narrow(0, 0, 80).unwrap()).is_err_and(|error| error.to_string().contains("[128, frames]"))
    );

    let file = path("tests/fixtures/qwen3_omni/golden/vision_tower.safetensors");
    let tensors = read_values(&std::fs::read(file).unwrap()).unwrap();
    let grid = tensors["video.grid_thw"].tokens().unwrap();
    let [slices, rows, columns] = [0, 1, 2].map(|i| grid[i] as usize);
    let (tower, patches) = (TINY.towers.vision().unwrap(), tensor(&tensors, "video.pixel_values").unwrap());
    let layout = tower.layout(rows, columns).unwrap();
    let n = rows * columns;
    let begin = |i: usize| tower.begin(&patches.narrow(0, i * n, n).unwrap(), &layout).unwrap();
    let mut all: Vec<_> = (0..slices).map(begin).collect();
    let merged = n / tower.config().merge_unit();
    assert!(tower.merge(&begin(0), 0, 1).is_err_and(|error| error.to_string().contains("0 of 4 layers")));
    // Layer by layer, the last slice first.
    for _ in 0..tower.config().depth {
        assert!(all.iter_mut().rev().all(|slice| tower.advance(slice, n).unwrap()));
    }
    let encoded: Vec<_> = all.iter().map(|slice| tower.merge(slice, 0, merged).unwrap().joined().unwrap()).collect();
    assert!(tower.merge(&all[0], merged, 1).is_err_and(|error| error.to_string().contains("has no embeddings")));
    assert!(slices > 1);
    let truth = bits(&[tower.encode(&patches, [slices, rows, columns]).unwrap().joined().unwrap()]);
    assert_eq!(bits(&encoded), truth);
    // A layer in pieces, and rows one by one.
    for piece in (4..=n).step_by(4) {
        let mut encoded = Vec::new();
        for number in 0..slices {
            let mut slice = begin(number);
            let mut steps = 0;
            while tower.advance(&mut slice, piece).unwrap() {
                steps += 1;
            }
            let pieces = n.div_ceil(piece);
            assert_eq!(steps, tower.config().depth * if pieces == 1 { 1 } else { 2 * pieces }, "{piece} of {n}");
            encoded.extend((0..merged).map(|row| tower.merge(&slice, row, 1).unwrap().joined().unwrap()));
        }
        assert_eq!(bits(&encoded), truth, "in pieces of {piece}");
    }
    assert!(tower.encode(&patches, [3, rows, columns]).is_err_and(|error| error.to_string().contains("of the grid")));
    assert!(tower.layout(3, 4).is_err_and(|error| error.to_string().contains("expected multiples of 2")));
}

#[test]
fn a_picture_has_the_same_rows_whatever_the_grain_of_its_units() {
    let checkpoint = Checkpoint::open(&path(FIXTURE)).unwrap();
    let config = &checkpoint.omni().unwrap().thinker;
    let loader = checkpoint.loader(&["thinker.audio_tower", "thinker.visual"], &Device::Cpu);
    let towers = Arc::new(Towers::load(&loader, config).unwrap());
    let width = config.vision.as_ref().unwrap().patch_width();
    let media: Arc<[Encodable]> = [Encodable::Pictures { grid: [2, 8, 24] }].into();
    let encoded = [Grain::Fine, Grain::Coarse].map(|grain| {
        let mut stage = EncoderFactory::new(Arc::clone(&towers), config.clone(), crate::support::golden::threads())
            .build()
            .unwrap();
        let schedule = Schedule::of(config, &media, grain).unwrap();
        let spec = EncoderSpec { media: Arc::clone(&media), longest: 0, done: 0, grain };
        stage.open(Slot(0), SequenceSpec::Encoder(spec)).unwrap();
        for piece in schedule.pieces_from(0) {
            let number = |i: usize| ((piece.range.start * width + i) % 97) as f32 / 97.0;
            let numbers = Features::Numbers((0..piece.range.len() * width).map(number).collect());
            stage.push_input(Slot(0), Some(StageData::Features(numbers)), false).unwrap();
        }
        let mut rows = Vec::new();
        for _ in 0..schedule.units() {
            let output = stage.step(&[SequenceWork { slot: Slot(0), advance: 1 }]).unwrap().remove(0).unwrap();
            if let Some(StageData::Embeddings(embeddings)) = output.emit {
                rows.push(embeddings.tensor().unwrap());
            }
        }
        (schedule.units(), bits(&rows))
    });
    assert_eq!(encoded[0].1, encoded[1].1);
    assert!(encoded[1].0 < encoded[0].0, "{} units, and {} fine ones", encoded[1].0, encoded[0].0);
}

#[test]
fn a_checkpoint_without_towers_loads_and_says_that_it_cannot_hear_or_see() {
    let overrides = json!({ "thinker_config.audio_config": null, "thinker_config.vision_config": null });
    let folder = path(FIXTURE);
    let checkpoint = Checkpoint::open_with(&folder, overrides.as_object().unwrap()).unwrap();
    let config = checkpoint.omni().unwrap();
    let loader = checkpoint.loader(&["thinker"], &Device::Cpu);
    let towers = Towers::load(&loader, &config.thinker).unwrap();
    let thinker = Thinker::load(&loader, &config.thinker).unwrap();
    loader.finish().unwrap();
    assert!(towers.audio().err().unwrap().to_string().contains("cannot hear"));
    assert!(towers.vision().err().unwrap().to_string().contains("cannot see"));
    for (kind, said) in [(MediaKind::Audio, "cannot hear"), (MediaKind::Video, "cannot see")] {
        let layout = MediaLayout { positions: None, spans: vec![Span { kind, at: std::iter::once(1..2).collect() }] };
        assert!(thinker.config().check_media(&layout, 5).unwrap_err().to_string().contains(said));
    }
}

#[test]
fn a_tower_that_cannot_be_served_is_told_with_its_field() {
    let folder = path(FIXTURE);
    for (field, value, said) in [
        ("audio_config.encoder_attention_heads", json!(5), "does not divide d_model = 48"),
        ("audio_config.n_window_infer", json!(99), "at least the 100 frames of a chunk"),
        ("audio_config.activation_function", json!("relu"), "expected \"gelu\""),
        ("audio_config.output_dim", json!(32), "differs from thinker_config.text_config.hidden_size = 64"),
        ("audio_config.d_model", json!(null), "audio_config.d_model is missing"),
        ("vision_config.num_heads", json!(8), "multiple of 4"),
        ("vision_config.num_position_embeddings", json!(35), "is not a square"),
        ("vision_config.deepstack_visual_indexes", json!([1, 4]), "below depth = 4"),
        ("vision_config.hidden_act", json!("gelu"), "expected \"gelu_pytorch_tanh\""),
    ] {
        let overrides = json!({ format!("thinker_config.{field}"): value });
        let error = Checkpoint::open_with(&folder, overrides.as_object().unwrap()).unwrap_err().to_string();
        assert!(error.contains(said), "{field}: {error}");
    }
    // A tensor that the config does not describe is one too many.
    let overrides = json!({ "thinker_config.vision_config.depth": 3, "thinker_config.vision_config.deepstack_visual_indexes": [1, 2] });
    let checkpoint = Checkpoint::open_with(&folder, overrides.as_object().unwrap()).unwrap();
    let loader = checkpoint.loader(&["thinker.visual"], &Device::Cpu);
    drop(Towers::load(&loader, &checkpoint.omni().unwrap().thinker).unwrap());
    assert!(loader.finish().unwrap_err().to_string().contains("extra   thinker.visual.blocks.3."));
}
