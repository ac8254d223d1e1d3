//! Thinker and talker driven through the stage trait: golden tokens, whatever the batch and the split of the prompt.

use crate::requests::{FIXTURE, Golden, Nets, TINY, VOICE, VOICE_GOLDENS, bits, embeddings};
use crate::support::sequences::{self, step, step_sequence};
use candle_core::{Device, Tensor};
use omni_actors::core::ids::{FinishReason, Slot};
use omni_actors::model::ModelError;
use omni_actors::model::stage::{
    SequenceSpec, SequenceWork, StageData, StageModel, TalkerSpec, ThinkerMode, ThinkerSpec, VocoderSpec,
};
use omni_actors::model::talker::TalkerPrompt;
use serde_json::json;

/// Answers and emitted embeddings, with the prompt in pieces of `chunk`.
fn think(golden: &Golden, chunk: u32) -> (Vec<u32>, Vec<Tensor>, Option<FinishReason>) {
    golden.think(&golden.thinker, chunk, 1)
}

/// A talker sequence that gets all its embeddings at once; its codes and why it ended.
fn speak(
    stage: &mut dyn StageModel,
    slot: u32,
    sequence: &TalkerSpec,
    text: &[Tensor],
    chunk: u32,
) -> (Vec<Vec<u32>>, Option<FinishReason>) {
    sequences::speak(stage, slot, sequence, Some(StageData::Embeddings(Tensor::cat(text, 0).unwrap().into())), chunk)
}

#[test]
fn every_golden_request_gives_its_tokens_and_codes_whatever_the_pieces_of_the_prompt() {
    for name in VOICE_GOLDENS.into_iter().chain(["text_ethan", "text_ethan_thinker_eos"]) {
        let golden = Golden::read(name);
        let mut whole_embeddings = None;
        for chunk in [1000, 1, 3, 7] {
            let (answer, text, _) = think(&golden, chunk);
            assert_eq!(answer, golden.answer(), "{name}, prompt in pieces of {chunk}");
            let text_bits = bits(&text);
            assert_eq!(*whole_embeddings.get_or_insert(text_bits.clone()), text_bits);
            let (codes, _) = speak(&mut *golden.nets.talker(), 0, &golden.talker, &text, chunk);
            assert_eq!(codes, golden.codes(), "{name}, prompt in pieces of {chunk}");
        }
    }
}

#[test]
fn an_answer_that_ends_by_length_or_by_its_stop_token_says_so() {
    let (answer, text, finish) = think(&Golden::read("text_ethan"), 16);
    assert_eq!((answer.len(), finish), (10, Some(FinishReason::Length)));
    // User turn and header, then every token but the last, which is never embedded.
    let golden = Golden::read("text_ethan");
    let text_embeddings = text.iter().map(|t| t.dims()[0]).sum::<usize>();
    assert_eq!(text_embeddings as u32, golden.talker.prefill_embeddings() + 8);
    let stopped = Golden::read("text_ethan_thinker_eos");
    let (answer, _, finish) = think(&stopped, 16);
    assert_eq!(finish, Some(FinishReason::Stop));
    assert_eq!(answer.last(), stopped.thinker.eos.last());
}

#[test]
fn sequences_of_a_mixed_batch_give_what_they_give_alone() {
    let golden: Vec<Golden> = VOICE_GOLDENS.map(Golden::read).into();
    let mut thinker = VOICE.thinker();
    let mut talker = VOICE.talker();
    let mut answers = vec![vec![]; golden.len()];
    let mut codes = vec![vec![]; golden.len()];
    let mut prompt_left: Vec<u32> = golden.iter().map(|g| g.thinker.prompt.len() as u32).collect();
    let mut speech_left: Vec<u32> = golden.iter().map(|g| g.talker.prefill_positions()).collect();
    let mut fed = vec![0; golden.len()];
    let (mut thinking, mut speaking) = (vec![true; golden.len()], vec![true; golden.len()]);
    for round in 0.. {
        // Sequence i joins at round 2 i; prompts go in pieces of different sizes beside the decode steps of other
        // sequences.
        if let Some(g) = golden.get(round / 2).filter(|_| round % 2 == 0) {
            thinker.open(Slot(round as u32 / 2), SequenceSpec::Thinker(g.thinker.clone())).unwrap();
            talker.open(Slot(round as u32 / 2), SequenceSpec::Talker(g.talker.clone())).unwrap();
        }
        let joined = |i: &usize| *i <= round / 2;
        let mut work = vec![];
        for i in (0..golden.len()).filter(joined).filter(|i| thinking[*i]) {
            let advance = if prompt_left[i] > 0 { (i as u32 + 2).min(prompt_left[i]) } else { 1 };
            prompt_left[i] -= advance.min(prompt_left[i]);
            work.push(SequenceWork { slot: Slot(i as u32), advance });
        }
        for (work, output) in work.iter().zip(thinker.step(&work).unwrap()) {
            let (i, output) = (work.slot.0 as usize, output.unwrap());
            answers[i].extend(output.sampled);
            for embeddings in embeddings(&output) {
                fed[i] += embeddings.dims()[0] as u32;
                talker.push_input(work.slot, Some(StageData::Embeddings(embeddings.into())), false).unwrap();
            }
            if output.finish.is_some() {
                thinking[i] = false;
                talker.push_input(work.slot, None, true).unwrap();
            }
        }
        let mut work = vec![];
        for i in (0..golden.len()).filter(joined).filter(|i| speaking[*i]) {
            let ready = fed[i] >= golden[i].talker.prefill_embeddings() + codes[i].len() as u32 || !thinking[i];
            if speech_left[i] > 0 && ready {
                let advance = (i as u32 + 3).min(speech_left[i]);
                speech_left[i] -= advance;
                work.push(SequenceWork { slot: Slot(i as u32), advance });
            } else if speech_left[i] == 0 && ready {
                work.push(SequenceWork { slot: Slot(i as u32), advance: 1 });
            }
        }
        for (work, output) in work.iter().zip(talker.step(&work).unwrap()) {
            let (i, output) = (work.slot.0 as usize, output.unwrap());
            if let Some(StageData::Codes(frame)) = output.emit {
                codes[i].push(frame);
            }
            speaking[i] = output.finish.is_none();
        }
        if speaking.iter().all(|s| !s) {
            break;
        }
        assert!(round < 1000);
    }
    for (i, g) in golden.iter().enumerate() {
        assert_eq!(answers[i], g.answer(), "{}", VOICE_GOLDENS[i]);
        assert_eq!(codes[i], g.codes(), "{}", VOICE_GOLDENS[i]);
    }
}

#[test]
fn hidden_states_have_the_same_bits_alone_in_a_batch_and_in_pieces() {
    use omni_actors::model::transformer::Segment;
    for nets in [&*TINY, &*VOICE] {
        for stack in [nets.thinker.stack(), nets.talker.stack()] {
            let width = stack.config().hidden_size;
            let noise = |n: usize, seed: usize| {
                let data = (0..n * width).map(|i| ((i * 7919 + seed * 104_729) % 1009) as f32 / 500.0 - 1.0);
                Tensor::from_vec(data.collect::<Vec<_>>(), (n, width), &Device::Cpu).unwrap()
            };
            let (sequence, other) = (noise(23, 1), noise(40, 2));
            let mut cache = stack.new_cache().unwrap();
            let alone = stack.forward(&sequence, &mut [Segment { cache: &mut cache, len: 23 }]).unwrap();
            for pieces in [vec![1; 23], vec![3, 3, 3, 3, 3, 3, 3, 2], vec![7, 7, 7, 2], vec![22, 1]] {
                let (mut cache, mut beside, mut at) = (stack.new_cache().unwrap(), stack.new_cache().unwrap(), 0);
                let mut got = vec![];
                for (turn, len) in pieces.into_iter().enumerate() {
                    // The other sequence before or behind, a prefill piece or a decode step.
                    let tenant = if turn % 3 == 0 { 5 } else { 1 };
                    let x = [other.narrow(0, turn, tenant).unwrap(), sequence.narrow(0, at, len).unwrap()];
                    let mut segments =
                        [Segment { cache: &mut beside, len: tenant }, Segment { cache: &mut cache, len }];
                    let x = if turn % 2 == 0 {
                        Tensor::cat(&x, 0).unwrap()
                    } else {
                        segments.reverse();
                        Tensor::cat(&[&x[1], &x[0]], 0).unwrap()
                    };
                    let out = stack.forward(&x, &mut segments).unwrap();
                    let from = if turn % 2 == 0 { tenant } else { 0 };
                    got.push(out.narrow(0, from, len).unwrap());
                    at += len;
                }
                assert_eq!(bits(&got), bits(std::slice::from_ref(&alone)));
            }
        }
    }
}

#[test]
fn a_seed_gives_the_same_speech_beside_other_sequences() {
    let golden = Golden::read("voice_heart_1");
    let (_, text, _) = think(&golden, 1000);
    let defaults = VOICE.checkpoint.generation();
    let sequence =
        |seed| TalkerSpec { sampling: defaults.talker, predictor: defaults.predictor, seed, ..golden.talker.clone() };
    let (alone, _) = speak(&mut *VOICE.talker(), 0, &sequence(7), &text, 1000);
    let (again, _) = speak(&mut *VOICE.talker(), 3, &sequence(7), &text, 5);
    let (other, _) = speak(&mut *VOICE.talker(), 0, &sequence(8), &text, 1000);
    assert_eq!(alone, again);
    assert_ne!(alone, other);

    let mut stage = VOICE.talker();
    for (slot, seed) in [(0, 5), (1, 7), (2, 9)] {
        stage.open(Slot(slot), SequenceSpec::Talker(sequence(seed))).unwrap();
        stage.push_input(Slot(slot), Some(StageData::Embeddings(Tensor::cat(&text, 0).unwrap().into())), true).unwrap();
    }
    let mut together = vec![];
    for turn in 0..=alone.len() {
        let advance = if turn == 0 { sequence(0).prefill_positions() } else { 1 };
        let work = [2, 1, 0].map(|slot| SequenceWork { slot: Slot(slot), advance });
        let outputs = stage.step(&work).unwrap();
        if let Some(StageData::Codes(frame)) = &outputs[1].as_ref().unwrap().emit {
            together.push(frame.clone());
        }
    }
    assert_eq!(together, alone);
}

#[test]
fn steps_after_the_end_are_stale_and_do_nothing() {
    let golden = Golden::read("voice_alto_0");
    let mut thinker = VOICE.thinker();
    thinker.open(Slot(4), SequenceSpec::Thinker(golden.thinker.clone())).unwrap();
    let mut output = step(&mut *thinker, 4, golden.thinker.prompt.len() as u32);
    while output.finish.is_none() {
        output = step(&mut *thinker, 4, 1);
    }
    let (_, text, _) = think(&golden, 1000);
    let mut talker = VOICE.talker();
    speak(&mut *talker, 4, &golden.talker, &text, 1000);
    for stage in [&mut thinker, &mut talker] {
        for _ in 0..3 {
            let late = step(&mut **stage, 4, 1);
            assert!(late.stale && late.sampled.is_none() && late.finish.is_none());
            assert!(late.emit.is_none());
        }
        assert_eq!(stage.live_sequences(), 1);
        stage.close(Slot(4));
        stage.close(Slot(4));
        assert_eq!(stage.live_sequences(), 0);
    }
}

#[test]
fn a_sequence_that_follows_text_emits_what_a_sampled_sequence_emits() {
    let golden = Golden::read("voice_heart_2");
    let (answer, sampled, _) = think(&golden, 1000);
    let words = &answer[..answer.len() - 1];
    let mut stage = VOICE.thinker();
    let sequence = ThinkerSpec { mode: ThinkerMode::Follow, ..golden.thinker.clone() };
    stage.open(Slot(0), SequenceSpec::Thinker(sequence)).unwrap();
    let mut emitted = vec![];
    let prompt = golden.thinker.prompt.len() as u32;
    for advance in [5, prompt - 5] {
        let output = step(&mut *stage, 0, advance);
        assert_eq!((output.sampled, output.finish), (None, None));
        emitted.extend(embeddings(&output));
    }
    stage.push_input(Slot(0), Some(StageData::Tokens(words[..3].to_vec())), false).unwrap();
    let output = step(&mut *stage, 0, 3);
    assert_eq!((output.sampled, output.finish), (Some(words[2]), None));
    emitted.extend(embeddings(&output));
    stage.push_input(Slot(0), Some(StageData::Tokens(words[3..].to_vec())), true).unwrap();
    let output = step(&mut *stage, 0, words.len() as u32 - 3);
    assert_eq!((output.sampled, output.finish), (words.last().copied(), Some(FinishReason::Stop)));
    emitted.extend(embeddings(&output));
    assert_eq!(bits(&emitted), bits(&sampled));
    assert!(step(&mut *stage, 0, 1).stale);
}

#[test]
fn the_end_of_followed_text_may_come_late() {
    let golden = Golden::read("voice_heart_2");
    let mut stage = VOICE.thinker();
    let sequence = ThinkerSpec { mode: ThinkerMode::Follow, ..golden.thinker.clone() };
    stage.open(Slot(0), SequenceSpec::Thinker(sequence)).unwrap();
    step(&mut *stage, 0, golden.thinker.prompt.len() as u32);
    assert!(step_sequence(&mut *stage, 0, 0).is_err(), "the input has not ended");
    stage.push_input(Slot(0), Some(StageData::Tokens(vec![5])), false).unwrap();
    assert!(step_sequence(&mut *stage, 0, 2).is_err(), "only one token is there");
    assert_eq!(step(&mut *stage, 0, 1).finish, None);
    stage.push_input(Slot(0), None, true).unwrap();
    let output = step(&mut *stage, 0, 0);
    assert_eq!((output.sampled, output.finish), (None, Some(FinishReason::Stop)));
}

#[test]
fn a_text_only_sequence_emits_nothing() {
    let golden = Golden::read("voice_heart_0");
    let mut stage = VOICE.thinker();
    stage.open(Slot(0), SequenceSpec::Thinker(ThinkerSpec { emit: None, ..golden.thinker.clone() })).unwrap();
    let mut advance = golden.thinker.prompt.len() as u32;
    let mut answer = vec![];
    loop {
        let output = step(&mut *stage, 0, advance);
        assert!(output.emit.is_none());
        answer.extend(output.sampled);
        if output.finish.is_some() {
            break;
        }
        advance = 1;
    }
    assert_eq!(answer, golden.answer());
}

#[test]
fn a_sequence_that_ignores_the_end_makes_exactly_the_frames_it_is_allowed() {
    let golden = Golden::read("voice_heart_0");
    let (_, text, _) = think(&golden, 1000);
    let long = TalkerSpec { ignore_eos: true, max_tokens: 61, ..golden.talker.clone() };
    let (frames, finish) = speak(&mut *VOICE.talker(), 0, &long, &text, 1000);
    assert_eq!((frames.len(), finish), (60, Some(FinishReason::Length)));
    assert!(frames.iter().flatten().all(|code| *code < 512));
    let one = TalkerSpec { max_tokens: 1, ..golden.talker };
    assert_eq!(speak(&mut *VOICE.talker(), 0, &one, &text, 1000), (vec![], Some(FinishReason::Length)));
}

#[test]
fn a_frame_waits_for_its_text_embedding() {
    let golden = Golden::read("voice_heart_0");
    let (_, text, _) = think(&golden, 1000);
    let text = Tensor::cat(&text, 0).unwrap();
    let ready = golden.talker.prefill_embeddings() as usize;
    let mut stage = VOICE.talker();
    stage.open(Slot(0), SequenceSpec::Talker(golden.talker.clone())).unwrap();
    stage
        .push_input(Slot(0), Some(StageData::Embeddings(text.narrow(0, 0, ready - 1).unwrap().into())), false)
        .unwrap();
    let early = step_sequence(&mut *stage, 0, golden.talker.prefill_positions()).unwrap_err();
    assert!(matches!(&early, ModelError::Sequence(text) if text.contains("input embeddings")), "{early}");
    let mut codes = vec![];
    for (at, advance) in (ready - 1..text.dims()[0]).zip([golden.talker.prefill_positions()].into_iter().chain([1; 99]))
    {
        if at >= ready {
            let starved = step_sequence(&mut *stage, 0, 1).unwrap_err();
            assert!(matches!(&starved, ModelError::Sequence(text) if text.contains("text embedding")), "{starved}");
        }
        stage.push_input(Slot(0), Some(StageData::Embeddings(text.narrow(0, at, 1).unwrap().into())), false).unwrap();
        if let Some(StageData::Codes(frame)) = step(&mut *stage, 0, advance).emit {
            codes.push(frame);
        }
    }
    stage.push_input(Slot(0), None, true).unwrap();
    loop {
        let output = step(&mut *stage, 0, 1);
        if let Some(StageData::Codes(frame)) = output.emit {
            codes.push(frame);
        }
        if output.finish.is_some() {
            break;
        }
    }
    assert_eq!(codes, golden.codes());
}

#[test]
fn an_empty_answer_has_nothing_to_speak() {
    let golden = Golden::read("voice_heart_0");
    let (_, text, _) = think(&golden, 1000);
    let embeddings =
        Tensor::cat(&text, 0).unwrap().narrow(0, 0, golden.talker.prefill_embeddings() as usize - 1).unwrap();
    let mut stage = VOICE.talker();
    stage.open(Slot(0), SequenceSpec::Talker(golden.talker.clone())).unwrap();
    stage.push_input(Slot(0), Some(StageData::Embeddings(embeddings.into())), true).unwrap();
    let output = step(&mut *stage, 0, 0);
    assert_eq!((output.sampled, output.finish), (None, Some(FinishReason::Stop)));
    assert!(step(&mut *stage, 0, 0).stale);
}

#[test]
fn a_full_context_fails_its_sequence_and_no_other() {
    let short = json!({
        "thinker_config.text_config.max_position_embeddings": 40,
        "talker_config.text_config.max_position_embeddings": 30,
    });
    let nets = Nets::load(FIXTURE, &short);
    let golden = Golden::read("text_ethan");
    let mut thinker = nets.thinker();
    thinker.open(Slot(0), SequenceSpec::Thinker(golden.thinker.clone())).unwrap();
    thinker
        .open(
            Slot(1),
            SequenceSpec::Thinker(ThinkerSpec {
                prompt: golden.thinker.prompt[..20].into(),
                emit: None,
                ..golden.thinker.clone()
            }),
        )
        .unwrap();
    // 39 prompt positions and one more fit.
    step(&mut *thinker, 0, 39);
    step(&mut *thinker, 0, 1);
    let work = [SequenceWork { slot: Slot(0), advance: 1 }, SequenceWork { slot: Slot(1), advance: 20 }];
    let outputs = thinker.step(&work).unwrap();
    assert!(matches!(&outputs[0], Err(ModelError::Sequence(text)) if text.contains("max_position_embeddings")));
    assert!(outputs[1].as_ref().unwrap().sampled.is_some());
    let long = ThinkerSpec { prompt: vec![1; 41].into(), emit: None, ..golden.thinker.clone() };
    assert!(matches!(thinker.open(Slot(2), SequenceSpec::Thinker(long)), Err(ModelError::Sequence(_))));

    let (_, text, _) = think(&golden, 1000);
    let mut talker = nets.talker();
    talker.open(Slot(0), SequenceSpec::Talker(golden.talker.clone())).unwrap();
    talker.push_input(Slot(0), Some(StageData::Embeddings(Tensor::cat(&text, 0).unwrap().into())), true).unwrap();
    assert_eq!(golden.talker.prefill_positions(), 28);
    step(&mut *talker, 0, 28);
    step(&mut *talker, 0, 1);
    step(&mut *talker, 0, 1);
    assert!(
        matches!(step_sequence(&mut *talker, 0, 1), Err(ModelError::Sequence(text)) if text.contains("max_position_embeddings"))
    );
}

#[test]
fn input_that_does_not_fit_is_refused_and_harms_no_other_sequence() {
    let golden = Golden::read("text_ethan");
    let (mut thinker, mut talker) = (TINY.thinker(), TINY.talker());
    let refused = |result: Result<(), ModelError>| assert!(matches!(result, Err(ModelError::Sequence(_))));
    refused(thinker.open(Slot(0), SequenceSpec::Vocoder(VocoderSpec::default())));
    refused(
        thinker.open(
            Slot(0),
            SequenceSpec::Thinker(ThinkerSpec { prompt: vec![99_999].into(), ..golden.thinker.clone() }),
        ),
    );
    refused(
        thinker.open(Slot(0), SequenceSpec::Thinker(ThinkerSpec { prompt: vec![].into(), ..golden.thinker.clone() })),
    );
    refused(thinker.open(
        Slot(0),
        SequenceSpec::Thinker(ThinkerSpec { emit: Some(std::iter::once(0..99).collect()), ..golden.thinker.clone() }),
    ));
    let strange = TalkerPrompt::omni(2, 99_999, &TINY.talker.config().tokens).into();
    refused(talker.open(Slot(0), SequenceSpec::Talker(TalkerSpec { prompt: strange, ..golden.talker.clone() })));
    refused(talker.open(Slot(0), SequenceSpec::Talker(TalkerSpec { max_tokens: 0, ..golden.talker.clone() })));
    thinker.open(Slot(0), SequenceSpec::Thinker(golden.thinker.clone())).unwrap();
    refused(thinker.open(Slot(0), SequenceSpec::Thinker(golden.thinker.clone())));
    refused(thinker.push_input(Slot(0), Some(StageData::Tokens(vec![1])), false));
    talker.open(Slot(0), SequenceSpec::Talker(golden.talker.clone())).unwrap();
    refused(talker.push_input(Slot(0), Some(StageData::Codes(vec![1])), false));
    refused(talker.push_input(
        Slot(0),
        Some(StageData::Embeddings(Tensor::zeros((2, 7), candle_core::DType::F32, &Device::Cpu).unwrap().into())),
        false,
    ));
    refused(talker.push_input(Slot(9), None, true));
    assert!(step_sequence(&mut *thinker, 0, 40).is_err(), "more than the prompt has");
    assert!(step_sequence(&mut *thinker, 8, 1).is_err(), "not open");
    assert_eq!(step(&mut *thinker, 0, 39).sampled, Some(golden.answer()[0]));
}
