//! Conversations as clients have them.

use super::*;
use crate::item::MediaRoom;

#[test]
fn a_session_begins_with_what_it_is() {
    let played = Played::new();
    let session = &played.events[0]["session"];
    assert_eq!(played.events[0]["type"], "session.created");
    assert_eq!((&session["id"], &session["model"]), (&json!("sess_1"), &json!("m")));
    assert_eq!(session["audio"]["output"]["voice"], "ethan");
    assert_eq!(session["audio"]["input"]["turn_detection"]["type"], "server_vad");
}

#[test]
fn a_spoken_answer_has_its_events_in_the_order_that_clients_insist_on() {
    let mut played = Played::new();
    let added = played.send(&message("user", "input_text", "Hello"));
    assert_eq!(types(&added), ["conversation.item.added", "conversation.item.done"]);
    let created = played.send(&json!({"type": "response.create", "response": {
        "metadata": {"client_event_id": "x"}, "instructions": "Be brief",
    }}));
    assert_eq!(types(&created), ["response.created"]);
    assert_eq!(created[0]["response"]["metadata"]["client_event_id"], "x");
    let job = played.last_job();
    let expected = [PromptTurn::text("system", "Be brief"), PromptTurn::text("user", "Hello")];
    assert_eq!(played.begun[0].turns, expected);
    let before = played.events.len();
    played.speak(job, &["Hi", " there"], 2);
    played.finish(job);
    let events = &played.events[before..];
    let expected = [
        "response.output_item.added",
        "conversation.item.added",
        "response.content_part.added",
        "response.output_audio_transcript.delta",
        "response.output_audio_transcript.delta",
        "response.output_audio.delta",
        "response.output_audio.delta",
        "response.output_audio.done",
        "response.output_audio_transcript.done",
        "response.content_part.done",
        "conversation.item.done",
        "response.output_item.done",
        "response.done",
    ];
    assert_eq!(types(events), expected);
    assert_eq!((&events[3]["start_time"], &events[4]["start_time"]), (&json!(0.0), &json!(0.08)));
    assert_eq!(events[1]["previous_item_id"], "item_1");
    let response = &events[12]["response"];
    assert_eq!((&response["status"], &response["output"][0]["id"]), (&json!("completed"), &json!("item_2")));
    assert_eq!(response["output"][0]["content"][0]["transcript"], "Hi there");
    let usage = &response["usage"];
    assert_eq!(
        (&usage["input_tokens"], &usage["output_tokens"], &usage["total_tokens"]),
        (&json!(9), &json!(7), &json!(16))
    );
    assert_eq!(usage["input_token_details"]["text_tokens"], 6);
    assert_eq!(usage["output_token_details"]["audio_tokens"], 4);
    played.send(&message("user", "input_text", "More"));
    played.send(&json!({"type": "response.create"}));
    let turns: Vec<&str> = played.begun[1].turns.iter().map(|turn| turn.role).collect();
    assert_eq!(turns, ["user", "assistant", "user"]);
    check(&played);
}

#[test]
fn the_same_script_gives_the_same_ids_and_seeds() {
    let play = || {
        let mut played = Played::new();
        for _ in 0..3 {
            played.send(&message("user", "input_text", "Hello"));
            played.send(&json!({"type": "response.create"}));
            let job = played.last_job();
            played.speak(job, &["Hi"], 1);
            played.finish(job);
        }
        played
    };
    let (one, other) = (play(), play());
    assert_eq!(one.events, other.events);
    let seeds: BTreeSet<u64> = one.begun.iter().map(|job| job.seed).collect();
    assert_eq!(seeds.len(), 3);
    assert!(seeds.iter().all(|seed| *seed < 1 << 53));
}

/// Cuts the first answer of a conversation that one message began.
fn truncate(index: u64, ms: u64) -> Value {
    json!({
        "type": "conversation.item.truncate", "item_id": "item_2", "content_index": index, "audio_end_ms": ms,
    })
}

#[test]
fn what_was_not_heard_is_not_in_the_next_prompt() {
    let mut played = Played::new();
    played.send(&message("user", "input_text", "Count"));
    played.send(&json!({"type": "response.create"}));
    let job = played.last_job();
    played.speak(job, &["one ", "two ", "three ", "four "], 8);
    played.finish(job);
    let refused = played.send(&truncate(0, 641));
    assert_eq!(refused[0]["error"]["param"], "audio_end_ms");
    assert!(refused[0]["error"]["message"].as_str().unwrap().contains("640 ms"));
    assert_eq!(types(&played.send(&truncate(0, 320))), ["conversation.item.truncated"]);
    played.send(&message("user", "input_text", "Go on"));
    played.send(&json!({"type": "response.create"}));
    assert_eq!(played.begun[1].turns[1], PromptTurn::text("assistant", "one two "));
    check(&played);
}

#[test]
fn a_truncation_that_is_refused_leaves_the_answer_running() {
    let mut played = Played::new();
    played.send(&message("user", "input_text", "Count"));
    played.send(&json!({"type": "response.create"}));
    let job = played.last_job();
    played.speak(job, &["one ", "two "], 2);
    for (index, ms, param) in [(1, 80, "content_index"), (0, 161, "audio_end_ms")] {
        let refused = played.send(&truncate(index, ms));
        assert_eq!(types(&refused), ["error"]);
        assert_eq!(refused[0]["error"]["param"], param);
    }
    assert!(played.cancelled.is_empty());
    assert_eq!(types(&played.answer(job, AnswerPart::Audio(vec![0; 3840]))), ["response.output_audio.delta"]);
    let events = played.send(&truncate(0, 80));
    assert_eq!(*types(&events).last().unwrap(), "conversation.item.truncated");
    assert_eq!(played.cancelled, [job]);
    check(&played);
}

#[test]
fn an_answer_that_is_cut_off_keeps_what_the_talker_had_taken() {
    let mut played = Played::new();
    played.send(&message("user", "input_text", "Count"));
    played.send(&json!({"type": "response.create"}));
    let job = played.last_job();
    played.speak(job, &["one ", "two ", "three ", "four "], 2);
    let events = played.send(&json!({"type": "response.cancel"}));
    assert_eq!(played.cancelled, [job]);
    let response = &events.last().unwrap()["response"];
    assert_eq!(response["status"], "cancelled");
    assert_eq!(response["status_details"]["reason"], "client_cancelled");
    assert_eq!(response["output"][0]["status"], "incomplete");
    // Whatever is still on its way is nothing.
    assert!(played.answer(job, AnswerPart::Audio(vec![0; 3840])).is_empty());
    let truncate = json!({
        "type": "conversation.item.truncate", "item_id": "item_2", "content_index": 0, "audio_end_ms": 100,
    });
    played.send(&truncate);
    let item = played.send(&json!({"type": "conversation.item.retrieve", "item_id": "item_2"}));
    assert_eq!(item[0]["item"]["content"][0]["transcript"], "one two ");
    let again = played.send(&json!({"type": "response.cancel"}));
    assert_eq!(again[0]["error"]["code"], "response_cancel_not_active");
    check(&played);
}

#[test]
fn responses_out_of_band_run_beside_the_conversation_and_leave_it_alone() {
    let mut played = Played::new();
    played.send(&message("user", "input_text", "Hello"));
    played.send(&json!({"type": "response.create"}));
    let active = played.last_job();
    let other = json!({"type": "response.create", "response": {
        "conversation": "none", "output_modalities": ["text"], "metadata": {"topic": "x"},
        "input": [{"type": "item_reference", "id": "item_1"},
                  {"type": "message", "role": "user", "content": [{"type": "input_text", "text": "Which topic?"}]}],
    }});
    let created = played.send(&other);
    assert_eq!(created[0]["response"]["conversation_id"], Value::Null);
    let beside = played.last_job();
    assert_eq!(played.begun[1].turns, [PromptTurn::text("user", "Hello"), PromptTurn::text("user", "Which topic?")]);
    let refused = played.send(&json!({"type": "response.create"}));
    assert_eq!(refused[0]["error"]["code"], "conversation_already_has_active_response");
    played.speak(active, &["Hi"], 1);
    played.answer(beside, AnswerPart::Started);
    played.answer(beside, AnswerPart::Text("Greetings".to_owned()));
    let done = played.finish(beside);
    assert!(!types(&done).contains(&"conversation.item.done"));
    assert_eq!(done.last().unwrap()["response"]["metadata"]["topic"], "x");
    played.finish(active);
    assert_eq!(played.session.conversation().ids(), ["item_1", "item_2"]);
    check(&played);
}

#[test]
fn items_have_the_places_that_clients_give_them() {
    let mut played = Played::new();
    let item = |id: &str, previous: Value| {
        json!({
            "type": "conversation.item.create", "previous_item_id": previous,
            "item": {"id": id, "type": "message", "role": "user", "content": [{"type": "input_text", "text": id}]},
        })
    };
    played.send(&item("a", Value::Null));
    played.send(&item("b", Value::Null));
    played.send(&item("c", json!("a")));
    let first = played.send(&item("d", json!("root")));
    assert_eq!(first[0]["previous_item_id"], Value::Null);
    assert_eq!(played.session.conversation().ids(), ["d", "a", "c", "b"]);
    assert_eq!(played.send(&item("e", json!("x")))[0]["error"]["param"], "previous_item_id");
    assert_eq!(played.send(&item("a", Value::Null))[0]["error"]["param"], "item.id");
    let deleted = played.send(&json!({"type": "conversation.item.delete", "item_id": "a"}));
    assert_eq!(types(&deleted), ["conversation.item.deleted"]);
    assert_eq!(played.session.conversation().ids(), ["d", "c", "b"]);
    check(&played);
}

#[test]
fn what_is_wrong_names_its_field_and_changes_nothing() {
    let mut played = Played::new();
    let before = played.events[0]["session"].clone();
    for (event, code, param) in [
        (json!({}), "missing_required_parameter", json!("type")),
        (json!({"type": "session.updat"}), "invalid_value", json!("type")),
        (json!({"type": "session.update"}), "invalid_value", Value::Null),
        (
            json!({"type": "session.update", "session": {"instructions": 7}}),
            "invalid_value",
            json!("session.instructions"),
        ),
        (
            json!({"type": "session.update", "session": {"instructions": "x".repeat(101)}}),
            "invalid_value",
            json!("instructions"),
        ),
        (
            json!({"type": "session.update", "session": {"audio": {"output": {"speed": "a"}}}}),
            "invalid_value",
            json!("session.audio.output.speed"),
        ),
        (
            json!({"type": "session.update", "session": {"audio": {"output": {"voice": "nobody"}}}}),
            "invalid_value",
            json!("audio.output.voice"),
        ),
        (
            json!({"type": "session.update", "session": {"audio": {"input": {"format": {"type": "audio/mp3"}}}}}),
            "invalid_value",
            json!("audio.input.format"),
        ),
        (
            json!({"type": "session.update", "session": {"tools": [{"type": "mcp", "name": "f"}]}}),
            "invalid_value",
            json!("tools"),
        ),
        (
            json!({"type": "session.update", "session": {"tools": [{"type": "function", "name": "a b"}]}}),
            "invalid_value",
            json!("tools"),
        ),
        (
            json!({"type": "session.update", "session": {
                "tools": [{"type": "function", "name": "f", "description": "x".repeat(101)}],
            }}),
            "invalid_value",
            json!("tools"),
        ),
        (
            json!({"type": "session.update", "session": {"tool_choice": "required"}}),
            "unsupported_parameter",
            json!("tool_choice"),
        ),
        (
            json!({"type": "conversation.item.create", "item": {"type": "function_call_output", "output": "x"}}),
            "missing_required_parameter",
            json!("item.call_id"),
        ),
        (
            json!({"type": "conversation.item.create", "item": {
                "type": "function_call", "call_id": "c", "name": "f", "arguments": "x",
            }}),
            "invalid_value",
            json!("item.arguments"),
        ),
        (json!({"type": "input_audio_buffer.append", "audio": "!"}), "invalid_value", json!("audio")),
        (json!({"type": "input_audio_buffer.append", "audio": "AAAA"}), "invalid_value", json!("audio")),
        (json!({"type": "input_audio_buffer.commit"}), "input_audio_buffer_commit_empty", Value::Null),
        (
            json!({"type": "input_audio_buffer.append", "audio": "AAAA".repeat(40_000)}),
            "input_audio_buffer_full",
            json!("audio"),
        ),
        (json!({"type": "response.create"}), "nothing_to_answer", Value::Null),
        (
            json!({"type": "response.create", "response": {"metadata": {"a": 1}}}),
            "invalid_value",
            json!("response.metadata"),
        ),
        (
            json!({"type": "conversation.item.retrieve", "item_id": "x"}),
            "item_retrieve_invalid_item_id",
            json!("item_id"),
        ),
    ] {
        let told = played.send(&event);
        assert_eq!(types(&told), ["error"], "{event}");
        let error = &told[0]["error"];
        assert_eq!((error["code"].as_str(), &error["param"]), (Some(code), &param), "{error}");
        assert_eq!(error["type"], "invalid_request_error");
    }
    let error = played.send(&json!({"type": "x", "event_id": "mine"}));
    assert_eq!(error[0]["error"]["event_id"], "mine");
    let after = played.send(&json!({"type": "session.update", "session": {}}));
    assert_eq!(after[0]["session"], before);
}

#[test]
fn a_conversation_that_is_full_takes_nothing_more_until_something_is_deleted() {
    let mut played = Played::new();
    for _ in 0..12 {
        played.send(&message("user", "input_text", "x"));
    }
    let full = played.send(&message("user", "input_text", "x"));
    assert_eq!(full[0]["error"]["code"], "conversation_full");
    played.send(&json!({"type": "conversation.item.delete", "item_id": "item_3"}));
    assert_eq!(types(&played.send(&message("user", "input_text", "x")))[0], "conversation.item.added");
    check(&played);
}

#[test]
fn a_full_conversation_has_room_for_one_answer_and_for_no_second_one() {
    let mut played = Played::new();
    for _ in 0..12 {
        played.send(&message("user", "input_text", "x"));
    }
    played.send(&json!({"type": "response.create"}));
    let job = played.last_job();
    played.speak(job, &["Yes."], 1);
    played.finish(job);
    let again = json!({"type": "response.create", "response": {"instructions": "Go on."}});
    assert_eq!(played.send(&again)[0]["error"]["code"], "conversation_full");
    let beside = json!({"type": "response.create", "response": {"conversation": "none", "instructions": "Go on."}});
    assert_eq!(types(&played.send(&beside)), ["response.created"]);
    played.send(&json!({"type": "conversation.item.delete", "item_id": "item_3"}));
    assert_eq!(types(&played.send(&again)), ["response.created"]);
    check(&played);
}

#[test]
fn an_answer_that_fails_says_why_and_the_session_goes_on() {
    let mut played = Played::new();
    played.send(&message("user", "input_text", "x"));
    played.send(&json!({"type": "response.create"}));
    let job = played.last_job();
    let told = played.answer(job, AnswerPart::Failed { code: "busy".to_owned(), message: "later".to_owned() });
    assert_eq!(types(&told), ["response.done"]);
    assert_eq!(told[0]["response"]["status"], "failed");
    assert_eq!(told[0]["response"]["status_details"]["error"]["message"], "later");
    assert_eq!(types(&played.send(&json!({"type": "response.create"}))), ["response.created"]);
    check(&played);
}

#[test]
fn the_first_sounds_of_a_long_conversation_are_given_by_their_transcripts() {
    let mut played = Played::new();
    let sound = |transcript: Option<&str>| {
        json!({"type": "conversation.item.create", "item": {
            "type": "message", "role": "user",
            "content": [{"type": "input_audio", "audio": "AAAA".repeat(800), "transcript": transcript}],
        }})
    };
    for transcript in [None, Some("second"), None, None] {
        played.send(&sound(transcript));
    }
    played.send(&json!({"type": "response.create"}));
    let turns = &played.begun[0].turns;
    assert_eq!(turns[0], PromptTurn::text("user", "second"));
    assert_eq!(turns.len(), 3);
    assert!(turns[1..].iter().all(|turn| matches!(turn.parts[..], [PromptPart::Audio(_)])));
}

#[test]
fn room_for_media_is_made_for_some_turns_so_that_the_prompt_begins_alike() {
    let limits = Limits { media: 8, media_ms: 1_000, ..opening().limits };
    let kept = |sounds: usize, ms: u64| {
        let media = vec![(ms, ms); sounds];
        let mut room = MediaRoom::of(&limits, &media);
        media.iter().rev().take_while(|(ms, _)| room.take(*ms)).count()
    };
    // Up to 8 all of them; then two go at once.
    assert_eq!([1, 8, 9, 10, 11, 12, 13].map(|sounds| kept(sounds, 10)), [1, 8, 7, 8, 7, 8, 7]);
    // Seconds bound them as well: five of 200 ms.
    assert_eq!([5, 6, 7, 8].map(|sounds| kept(sounds, 200)), [5, 4, 5, 4]);
    assert_eq!(kept(3, 2_000), 0, "none of them fits");
}

#[test]
fn the_turn_that_is_to_be_answered_keeps_its_sound() {
    // Three sounds have room, and a quarter of all is four.
    let limits = Limits { media: 16, media_ms: 1_000, ..opening().limits };
    let kept = |sounds: usize| {
        let media = vec![(300u64, 300u64); sounds];
        let mut room = MediaRoom::of(&limits, &media);
        media.iter().rev().take_while(|(ms, _)| room.take(*ms)).count()
    };
    assert_eq!([3, 4, 5, 6, 7, 8].map(kept), [3, 1, 2, 3, 1, 2]);
    // One that is as long as it may be goes without the silence behind it.
    let mut longest = opening();
    longest.limits.media_ms = 1_000;
    let mut played = Played::of(longest);
    for _ in 0..2 {
        played.send(&json!({"type": "conversation.item.create", "item": {
            "type": "message", "role": "user", "content": [{"type": "input_audio", "audio": "AAAA".repeat(16_000)}],
        }}));
    }
    played.send(&json!({"type": "response.create"}));
    let [PromptTurn { parts, .. }] = &played.begun[0].turns[..] else { panic!("{:?}", played.begun) };
    let [PromptPart::Audio(file)] = &parts[..] else { panic!("{parts:?}") };
    assert_eq!(file.len(), 44 + 48 * 1_000);
}
