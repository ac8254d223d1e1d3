//! Random histories.

use super::*;
use base64::Engine;
use base64::prelude::BASE64_STANDARD;
use proptest::prelude::*;

/// One thing that happens.
#[derive(Clone, Debug)]
enum Step {
    Client(Value),
    /// A part for one of the jobs that were begun.
    Answer(usize, u8),
}

fn client() -> impl Strategy<Value = Value> {
    let id = prop_oneof![(1..14u32).prop_map(|n| format!("item_{n}")), Just("root".to_owned()), Just("x".to_owned())];
    let response = (1..9u32).prop_map(|n| format!("resp_{n}"));
    let audio = (0..3_000usize, any::<u8>()).prop_map(|(n, byte)| BASE64_STANDARD.encode(vec![byte; n]));
    prop_oneof![
        (id.clone(), any::<bool>(), "[a-z ]{0,12}").prop_map(|(id, placed, text)| {
            let mut event = message("user", "input_text", &text);
            if placed {
                event["previous_item_id"] = json!(id);
            }
            event
        }),
        "[a-z ]{0,220}".prop_map(|text| message("assistant", "output_text", &text)),
        audio.clone().prop_map(|audio| json!({"type": "conversation.item.create", "item": {
            "type": "message", "role": "user", "content": [{"type": "input_audio", "audio": audio}],
        }})),
        audio.prop_map(|audio| json!({"type": "input_audio_buffer.append", "audio": audio})),
        Just(json!({"type": "input_audio_buffer.commit"})),
        Just(json!({"type": "input_audio_buffer.clear"})),
        any::<bool>().prop_map(|none| json!({"type": "response.create", "response": {
            "conversation": if none { "none" } else { "auto" }, "instructions": "be kind",
        }})),
        Just(json!({"type": "response.create"})),
        Just(json!({"type": "response.cancel"})),
        response.prop_map(|id| json!({"type": "response.cancel", "response_id": id})),
        (id.clone(), 0..3u32, 0..900u32).prop_map(|(id, index, ms)| json!({
            "type": "conversation.item.truncate", "item_id": id, "content_index": index, "audio_end_ms": ms,
        })),
        id.clone().prop_map(|id| json!({"type": "conversation.item.delete", "item_id": id})),
        id.prop_map(|id| json!({"type": "conversation.item.retrieve", "item_id": id})),
        (any::<bool>(), any::<bool>(), 0..3usize).prop_map(|(text, detect, format)| json!({
            "type": "session.update", "session": {
                "output_modalities": [if text { "text" } else { "audio" }],
                "tools": if detect { json!([{"type": "function", "name": "f"}]) } else { json!([]) },
                "audio": {"input": {
                    "turn_detection": if detect { json!({"type": "semantic_vad"}) } else { Value::Null },
                    "format": {"type": (["audio/pcm", "audio/pcmu", "audio/pcma"][format])},
                    "transcription": if text { json!({}) } else { Value::Null },
                }},
            },
        })),
        (any::<bool>(), "[a-z ]{0,220}").prop_map(|(call, text)| json!({"type": "conversation.item.create", "item": {
            "type": if call { "function_call" } else { "function_call_output" },
            "call_id": "c", "name": "f", "arguments": "{}", "output": text,
        }})),
        Just(json!({"type": "nonsense", "item": {"id": [1, 2, {}]}})),
    ]
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![client().prop_map(Step::Client), (0..64usize, 0..6u8).prop_map(|(job, part)| Step::Answer(job, part)),]
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(256))]
    #[test]
    fn whatever_happens_every_response_is_done_once_and_all_limits_hold(
        steps in proptest::collection::vec(step(), 0..80),
    ) {
        let mut opening = opening();
        // Half of what an event of sound may have.
        opening.limits.window_ms = 30;
        let mut played = Played::of(opening);
        let mut over = Vec::new();
        for step in &steps {
            match step {
                Step::Client(event) => _ = played.send(event),
                Step::Answer(job, part) => {
                    let Some(job) = (!played.begun.is_empty()).then(|| played.begun[job % played.begun.len()].id) else {
                        continue;
                    };
                    let part = match part {
                        0 => AnswerPart::Started,
                        1 => AnswerPart::Text("word ".to_owned()),
                        2 => AnswerPart::Text("<tool_call>{\"name\": \"f\"}</tool_call>".to_owned()),
                        3 => AnswerPart::Audio(vec![0; 3840]),
                        4 => AnswerPart::Finished { ending: Ending::Length, usage: Usage::default() },
                        _ => AnswerPart::Failed { code: "c".to_owned(), message: "m".to_owned() },
                    };
                    if matches!(part, AnswerPart::Finished { .. } | AnswerPart::Failed { .. }) {
                        over.push(job);
                    }
                    played.answer(job, part);
                }
            }
            // What is prepared holds the sounds of its prompt once more, and one is prepared at most.
            prop_assert!(played.session.bytes() <= 2 * (200_000 + 100_000), "{} bytes", played.session.bytes());
            let ended = |job: &&Job| !played.cancelled.contains(&job.id) && !over.contains(&job.id);
            prop_assert!(played.begun.iter().filter(|job| job.prepares).filter(ended).count() <= 1);
        }
        // Whatever is still being made comes to its end.
        for job in played.begun.iter().map(|job| job.id).collect::<Vec<_>>() {
            played.answer(job, AnswerPart::Failed { code: "c".to_owned(), message: "m".to_owned() });
        }
        for job in played.begun.iter().map(|job| job.id).collect::<Vec<_>>() {
            played.answer(job, AnswerPart::Failed { code: "c".to_owned(), message: "m".to_owned() });
        }
        check(&played);
        let count = |kind: &str| played.events.iter().filter(|event| event["type"] == kind).count();
        prop_assert_eq!(count("response.created"), count("response.done"));
    }
}
