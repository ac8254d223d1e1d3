//! The talker of Qwen3-TTS through the stage trait: golden codes, whatever the batch, the split of the prompt and the
//! way the text arrives.

use crate::support::sequences::{speak, step, step_sequence};
use candle_core::{DType, Device, Tensor};
use omni_actors::core::ids::{FinishReason, Slot};
use omni_actors::model::prompt::{Reference, Speaker, TtsPrompter, TtsRequest};
use omni_actors::model::sampling::SamplingParams;
use omni_actors::model::stage::{SequenceSpec, SequenceWork, StageData, StageFactory, StageModel, TalkerSpec};
use omni_actors::model::stages::talker::TalkerFactory;
use omni_actors::model::talker::{CodecSide, Talker, TalkerPrompt, TextSide, Trailing};
use omni_actors::model::{Checkpoint, ModelError};
use omni_actors::tools::verify::{Data, Values, read_values};
use serde_json::{Map, Value, json};
use std::path::{Path, PathBuf};
use std::sync::Arc;

const GOLDEN: &str = "tests/fixtures/qwen3_tts/golden";
const CUSTOM: [&str; 2] = ["cv_streaming_auto_vivian", "cv_nonstreaming_english_ryan_instruct"];
const BASE: [&str; 4] = [
    "base_icl_streaming_english",
    "base_icl_streaming_shorttext",
    "base_xvector_nonstreaming_english",
    "base_xvector_streaming_auto",
];

struct Nets {
    checkpoint: Checkpoint,
    prompter: TtsPrompter,
    talker: Arc<Talker>,
}

impl Nets {
    fn load(folder: &str, overrides: &Map<String, Value>) -> Nets {
        let folder = path("tests/fixtures/qwen3_tts").join(folder);
        let checkpoint = Checkpoint::open_with(&folder, overrides).unwrap();
        let loader = checkpoint.loader(&["talker"], &Device::Cpu);
        let talker = Arc::new(Talker::load(&loader, checkpoint.family()).unwrap());
        loader.finish().unwrap();
        Nets { prompter: checkpoint.tts_prompter().unwrap(), talker, checkpoint }
    }

    fn stage(&self) -> Box<dyn StageModel> {
        TalkerFactory::new(self.talker.clone()).build().unwrap()
    }
}

fn path(relative: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join(relative)
}

/// A golden request with what came of it.
struct Golden {
    manifest: Value,
    tensors: Values,
}

impl Golden {
    fn read(name: &str) -> Golden {
        let file = |ending| std::fs::read(path(GOLDEN).join(format!("{name}.{ending}"))).unwrap();
        Golden {
            manifest: serde_json::from_slice(&file("json")).unwrap(),
            tensors: read_values(&file("safetensors")).unwrap(),
        }
    }

    /// The nets of its checkpoint, which end where the case ends.
    fn nets(&self) -> Nets {
        let case = &self.manifest["case"];
        let mut overrides = case["config_overrides"].as_object().cloned().unwrap_or_default();
        overrides.insert("talker_config.codec_eos_token_id".into(), self.manifest["meta"]["eos"].clone());
        Nets::load(case["checkpoint"].as_str().unwrap(), &overrides)
    }

    fn request(&self) -> TtsRequest<'_> {
        let meta = &self.manifest["meta"];
        let speaker = match self.tensors.get("ref_spk_embedding").map(|vector| &vector.data) {
            Some(Data::Floats(vector)) => Speaker::Cloned {
                x_vector: vector.as_slice().into(),
                reference: self.tensors.get("ref_code").map(|codes| Reference {
                    text: meta["ref_text"].as_str().unwrap().into(),
                    codes: codes.tokens().unwrap().into(),
                }),
            },
            _ => meta["speakers"][0].as_str().map_or(Speaker::Unnamed, Speaker::Named),
        };
        TtsRequest {
            text: meta["text"].as_str().unwrap(),
            language: meta["languages"][0].as_str(),
            speaker,
            instruct: meta["instruct"].as_str(),
            non_streaming: meta["non_streaming_mode"].as_bool(),
        }
    }

    fn sequence(&self, prompt: Arc<TalkerPrompt>) -> TalkerSpec {
        let number = |key: &str| self.manifest["meta"][key].as_u64().unwrap() as u32;
        TalkerSpec {
            generated_len: 0,
            prompt,
            sampling: SamplingParams { repetition_penalty: 1.05, ..SamplingParams::GREEDY },
            predictor: SamplingParams::GREEDY,
            max_tokens: number("n_limit"),
            min_tokens: number("min_new_tokens"),
            ignore_eos: false,
            seed: 1,
            forced: None,
            owner: None,
        }
    }

    fn codes(&self) -> Vec<Vec<u32>> {
        let codes = &self.tensors["codes"];
        codes.tokens().unwrap().chunks(codes.shape[1]).map(<[u32]>::to_vec).collect()
    }
}

#[test]
fn every_golden_request_gives_its_codes_whatever_the_pieces_of_the_prompt() {
    let others = [("voice_design_english", FinishReason::Length), ("cv_streaming_auto_vivian_eos", FinishReason::Stop)];
    let limited = CUSTOM.into_iter().chain(BASE).map(|name| (name, FinishReason::Length));
    for (name, ends) in limited.chain(others) {
        let golden = Golden::read(name);
        let nets = golden.nets();
        let prompt = nets.prompter.prompt(&golden.request()).unwrap();
        let sequence = golden.sequence(prompt.prompt);
        for chunk in [1000, 1, 3, 7] {
            let input = Some(StageData::Tokens(prompt.tokens.clone()));
            let (codes, finish) = speak(&mut *nets.stage(), 0, &sequence, input, chunk);
            assert_eq!(codes, golden.codes(), "{name}, prompt in pieces of {chunk}");
            assert_eq!(finish, Some(ends), "{name}");
        }
    }
}

#[test]
fn text_may_arrive_a_token_at_a_time() {
    for name in ["cv_streaming_auto_vivian", "base_xvector_streaming_auto", "base_icl_streaming_english"] {
        let golden = Golden::read(name);
        let nets = golden.nets();
        let request = golden.request();
        let mut stage = nets.stage();
        let mut stream = nets.prompter.stream(&TtsRequest { text: "", ..request.clone() }).unwrap();
        let (mut waiting, mut prompt, mut codes) = (std::collections::VecDeque::new(), None, vec![]);
        for character in request.text.chars() {
            stream.push(character.encode_utf8(&mut [0; 4])).unwrap();
            prompt = prompt.or_else(|| stream.prompt());
            waiting.extend(stream.take_tokens());
        }
        let sequence = golden.sequence(prompt.expect("it is known before the text ends"));
        stream.finish().unwrap();
        waiting.extend(stream.take_tokens());

        stage.open(Slot(0), SequenceSpec::Talker(sequence.clone())).unwrap();
        let early = step_sequence(&mut *stage, 0, sequence.prefill_positions()).unwrap_err();
        assert!(matches!(&early, ModelError::Sequence(text) if text.contains("input embeddings")), "{early}");
        let first = waiting.drain(..sequence.prefill_embeddings() as usize).collect();
        stage.push_input(Slot(0), Some(StageData::Tokens(first)), false).unwrap();
        let mut output = step(&mut *stage, 0, sequence.prefill_positions());
        loop {
            if let Some(StageData::Codes(frame)) = &output.emit {
                codes.push(frame.clone());
            }
            if output.finish.is_some() {
                break;
            }
            if let Some(token) = waiting.pop_front() {
                let starved = step_sequence(&mut *stage, 0, 1).unwrap_err();
                assert!(matches!(&starved, ModelError::Sequence(text) if text.contains("text embedding")), "{starved}");
                stage.push_input(Slot(0), Some(StageData::Tokens(vec![token])), waiting.is_empty()).unwrap();
            }
            output = step(&mut *stage, 0, 1);
        }
        assert_eq!(codes, golden.codes(), "{name}");
    }
}

#[test]
fn sequences_of_a_mixed_batch_give_what_they_give_alone_and_late_steps_do_nothing() {
    for names in [&CUSTOM[..], &BASE[..]] {
        let golden: Vec<Golden> = names.iter().map(|name| Golden::read(name)).collect();
        let nets = golden[0].nets();
        let prompts: Vec<_> = golden.iter().map(|g| nets.prompter.prompt(&g.request()).unwrap()).collect();
        let sequences: Vec<_> = golden.iter().zip(&prompts).map(|(g, p)| g.sequence(p.prompt.clone())).collect();
        let mut left: Vec<u32> = sequences.iter().map(TalkerSpec::prefill_positions).collect();
        let (mut codes, mut over) = (vec![vec![]; sequences.len()], vec![0; sequences.len()]);
        let mut stage = nets.stage();
        for round in 0.. {
            assert!(round < 200);
            // Sequence i joins at round 3 i; prompts go in pieces of different sizes beside the decode steps of other
            // sequences.
            if let Some(sequence) = sequences.get(round / 3).filter(|_| round % 3 == 0) {
                let slot = Slot(round as u32 / 3);
                stage.open(slot, SequenceSpec::Talker(sequence.clone())).unwrap();
                stage.push_input(slot, Some(StageData::Tokens(prompts[round / 3].tokens.clone())), true).unwrap();
            }
            // A step is asked for before the host has seen that the one before it ended the sequence: two come late.
            let mut work = vec![];
            for i in (0..sequences.len().min(round / 3 + 1)).filter(|i| over[*i] < 3) {
                let advance = if left[i] > 0 { (i as u32 + 2).min(left[i]) } else { 1 };
                left[i] -= advance.min(left[i]);
                work.push(SequenceWork { slot: Slot(i as u32), advance });
            }
            if work.is_empty() && round / 3 >= sequences.len() {
                break;
            }
            for (work, output) in work.iter().zip(stage.step(&work).unwrap()) {
                let (i, output) = (work.slot.0 as usize, output.unwrap());
                assert_eq!(output.stale, over[i] > 0);
                over[i] += u32::from(output.finish.is_some() || over[i] > 0);
                if let Some(StageData::Codes(frame)) = output.emit {
                    codes[i].push(frame);
                }
            }
        }
        for (i, g) in golden.iter().enumerate() {
            assert_eq!(codes[i], g.codes(), "{}", names[i]);
        }
    }
}

#[test]
fn a_seed_gives_the_same_speech_beside_other_sequences_and_voices() {
    let golden: Vec<Golden> = BASE.iter().map(|name| Golden::read(name)).collect();
    let nets = golden[0].nets();
    let defaults = nets.checkpoint.generation();
    let prompts: Vec<_> = golden.iter().map(|g| nets.prompter.prompt(&g.request()).unwrap()).collect();
    let sequence = |i: usize, seed| TalkerSpec {
        sampling: defaults.talker,
        predictor: defaults.predictor,
        max_tokens: 20,
        seed,
        ..golden[i].sequence(prompts[i].prompt.clone())
    };
    let tokens = |i: usize| Some(StageData::Tokens(prompts[i].tokens.clone()));
    let alone: Vec<_> = (0..4).map(|i| speak(&mut *nets.stage(), 0, &sequence(i, 7), tokens(i), 1000).0).collect();
    assert_ne!(alone[0], speak(&mut *nets.stage(), 0, &sequence(0, 8), tokens(0), 1000).0);
    let mut stage = nets.stage();
    for i in 0..4 {
        stage.open(Slot(i as u32), SequenceSpec::Talker(sequence(i, 7))).unwrap();
        stage.push_input(Slot(i as u32), tokens(i), true).unwrap();
    }
    let mut together = vec![vec![]; 4];
    for turn in 0..20 {
        let advance = |i: usize| if turn == 0 { sequence(i, 7).prefill_positions() } else { 1 };
        let work = [2, 0, 3, 1].map(|i| SequenceWork { slot: Slot(i as u32), advance: advance(i) });
        for (work, output) in work.iter().zip(stage.step(&work).unwrap()) {
            if let Some(StageData::Codes(frame)) = output.unwrap().emit {
                together[work.slot.0 as usize].push(frame);
            }
        }
    }
    assert_eq!(together, alone);
}

#[test]
fn the_end_is_not_sampled_before_the_least_number_of_tokens() {
    // The end is what the golden begins with.
    let golden = Golden::read("cv_streaming_auto_vivian");
    let first = golden.codes()[0][0];
    let nets = Nets::load("custom_voice", json!({"talker_config.codec_eos_token_id": first}).as_object().unwrap());
    let prompt = nets.prompter.prompt(&golden.request()).unwrap();
    let spoken = |least| {
        let sequence = TalkerSpec { min_tokens: least, ..golden.sequence(prompt.prompt.clone()) };
        speak(&mut *nets.stage(), 0, &sequence, Some(StageData::Tokens(prompt.tokens.clone())), 1000).0
    };
    assert_eq!(spoken(0), Vec::<Vec<u32>>::new());
    let frames = spoken(3);
    assert!(frames.len() >= 3 && frames.iter().all(|frame| frame[0] != first), "{frames:?}");
}

#[test]
fn voices_and_input_that_do_not_fit_are_refused_and_harm_no_other_sequence() {
    let golden = Golden::read("base_icl_streaming_english");
    let nets = golden.nets();
    let prompt = nets.prompter.prompt(&golden.request()).unwrap();
    let sequence = golden.sequence(prompt.prompt.clone());
    let mut stage = nets.stage();
    stage.open(Slot(0), SequenceSpec::Talker(sequence.clone())).unwrap();

    let layout = |side| TalkerPrompt::new(3, vec![(TextSide::Pad, side)], Trailing::Text);
    let with_vector = |vector: Vec<f32>| layout(CodecSide::XVector).with_x_vector(vector.into());
    let with_codes = |codes: Vec<u32>, frame| layout(CodecSide::Frame(frame)).with_reference(codes.into());
    let strange = [
        (layout(CodecSide::XVector), "none came with it"),
        (with_vector(vec![0.0; 63]), "63 numbers: expected 64"),
        (with_vector([vec![0.0; 63], vec![f32::INFINITY]].concat()), "number 63 of the speaker embedding is inf"),
        (with_codes(vec![1; 12], 0), "12 codes: expected frames of 8"),
        (with_codes(vec![1; 16], 2), "frame 2 of a reference of 2"),
        (with_codes(vec![128, 1, 1, 1, 1, 1, 1, 1], 0), "code 128 in group 0: expected 0..128"),
        (with_codes(vec![1, 1, 1, 1, 1, 1, 1, u32::MAX], 0), "in group 7: expected 0..128"),
        (layout(CodecSide::Token(1152)), "codec id 1152"),
    ];
    for (prompt, text) in strange {
        let refused =
            stage.open(Slot(1), SequenceSpec::Talker(TalkerSpec { prompt: prompt.into(), ..sequence.clone() }));
        assert!(matches!(&refused, Err(ModelError::Sequence(why)) if why.contains(text)), "{refused:?}");
    }
    let refused =
        |result: Result<(), ModelError>| assert!(matches!(result, Err(ModelError::Sequence(_))), "{result:?}");
    refused(stage.push_input(Slot(0), Some(StageData::Tokens(vec![512])), false));
    refused(stage.push_input(Slot(0), Some(StageData::Codes(vec![1])), false));
    refused(stage.push_input(
        Slot(0),
        Some(StageData::Embeddings(Tensor::zeros((1, 80), DType::F32, &Device::Cpu).unwrap().into())),
        false,
    ));
    assert_eq!(stage.live_sequences(), 1);
    stage.close(Slot(0));
    let (codes, _) = speak(&mut *stage, 0, &sequence, Some(StageData::Tokens(prompt.tokens)), 1000);
    assert_eq!(codes, golden.codes());
}

#[test]
fn a_sequence_that_goes_on_says_what_it_would_have_said() {
    for name in ["cv_streaming_auto_vivian", "cv_nonstreaming_english_ryan_instruct", "base_icl_streaming_english"] {
        let golden = Golden::read(name);
        let nets = golden.nets();
        let prompt = nets.prompter.prompt(&golden.request()).unwrap();
        let defaults = nets.checkpoint.generation();
        let sampling = SamplingParams { frequency_penalty: 0.2, presence_penalty: 0.1, ..defaults.talker };
        let sequence =
            TalkerSpec { sampling, predictor: defaults.predictor, seed: 7, ..golden.sequence(prompt.prompt.clone()) };
        let tokens = || Some(StageData::Tokens(prompt.tokens.clone()));
        let (whole, finish) = speak(&mut *nets.stage(), 0, &sequence, tokens(), 1000);
        let (groups, inputs) = (whole[0].len(), prompt.tokens.len() as u32);
        let mut stage = nets.stage();
        for said in 0..=whole.len() {
            let codes = whole[..said].concat();
            let resume = prompt.prompt.resume(&codes, groups, inputs, true).unwrap();
            let resumed = TalkerSpec { prompt: resume.into(), generated_len: said as u32, ..sequence.clone() };
            let (rest, end) = speak(&mut *stage, 0, &resumed, tokens(), 5);
            assert_eq!((rest.as_slice(), end), (&whole[said..], finish), "{name} after {said} frames");
            stage.close(Slot(0));
        }
    }
}

#[test]
fn forced_codes_are_said_and_what_follows_is_as_if_they_had_been_sampled() {
    let golden = Golden::read("cv_streaming_auto_vivian");
    let nets = golden.nets();
    let prompt = nets.prompter.prompt(&golden.request()).unwrap();
    let defaults = nets.checkpoint.generation();
    let sequence = TalkerSpec {
        sampling: defaults.talker,
        predictor: defaults.predictor,
        seed: 7,
        ..golden.sequence(prompt.prompt.clone())
    };
    let tokens = || Some(StageData::Tokens(prompt.tokens.clone()));
    let (sampled, finish) = speak(&mut *nets.stage(), 0, &sequence, tokens(), 1000);
    assert_eq!(sampled.len(), 23);
    for frames in [0, 1, 9, 23] {
        let replay = TalkerSpec { forced: Some(sampled[..frames].concat().into()), ..sequence.clone() };
        assert_eq!(speak(&mut *nets.stage(), 0, &replay, tokens(), 1000), (sampled.clone(), finish), "{frames} forced");
    }

    // Other codes than the ones it would pick, which it tells; the seventh frame ends it.
    let (end, groups) = (nets.talker.config().tokens.eos, sampled[0].len());
    let mut other: Vec<Vec<u32>> = golden.codes()[..6].to_vec();
    other.push(vec![end; groups]);
    other[6][1..].fill(0);
    let mut stage = nets.stage();
    let forced = TalkerSpec { forced: Some(other.concat().into()), ..sequence.clone() };
    stage.open(Slot(0), SequenceSpec::Talker(forced)).unwrap();
    stage.push_input(Slot(0), tokens(), true).unwrap();
    for (at, frame) in other.iter().enumerate() {
        let output = step(&mut *stage, 0, if at == 0 { sequence.prefill_positions() } else { 1 });
        let picked = output.picked.unwrap();
        assert_eq!(output.sampled, Some(frame[0]));
        if at == 6 {
            assert_eq!((output.finish, picked.len()), (Some(FinishReason::Stop), 1));
            break;
        }
        assert!(matches!(output.emit, Some(StageData::Codes(codes)) if codes == *frame));
        if at == 0 {
            assert_eq!(picked[0], sampled[0][0]);
        }
        assert!(picked.len() == groups && *picked != **frame);
    }

    let refused = |codes: Vec<u32>, text: &str| {
        let sequence = TalkerSpec { forced: Some(codes.into()), ..sequence.clone() };
        let refused = nets.stage().open(Slot(0), SequenceSpec::Talker(sequence));
        assert!(matches!(&refused, Err(ModelError::Sequence(why)) if why.contains(text)), "{refused:?}");
    };
    refused(vec![1; groups + 1], "9 forced codes: expected frames of 8");
    refused([vec![1152], vec![1; groups - 1]].concat(), "forced code 1152 in group 0");
    refused([vec![1; groups - 1], vec![128]].concat(), "forced code 128 in group 7");
}
