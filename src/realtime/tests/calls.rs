//! Sessions whose sound the server plays.

use super::*;

fn call() -> Played {
    Played::of(Opening { plays: true, ..opening() })
}

/// A user's text, whose spoken answer is begun.
fn asked(played: &mut Played) -> JobId {
    played.send(&message("user", "input_text", "Hello."));
    played.send(&json!({"type": "response.create"}));
    played.last_job()
}

/// Plays so many pieces of 20 ms, and says how many there were.
fn play(played: &mut Played, count: usize) -> usize {
    let mut there = 0;
    for _ in 0..count {
        let (samples, effects) = played.session.play();
        there += usize::from(samples.is_some());
        played.take(effects);
    }
    there
}

fn microphone(played: &mut Played, samples: &[i16]) {
    for piece in samples.chunks(PLAYED) {
        let effects = played.session.listen(piece);
        played.take(effects);
    }
}

fn of_kind<'a>(played: &'a Played, kind: &str) -> Vec<&'a Value> {
    played.events.iter().filter(|event| event["type"] == kind).collect()
}

#[test]
fn sound_is_played_in_its_pace_and_not_told() {
    let mut played = call();
    let job = asked(&mut played);
    played.speak(job, &["Good ", "day."], 2);
    // Two frames of 80 ms are eight pieces of 20; the answer goes on, so the ninth is late.
    assert_eq!(play(&mut played, 9), 8);
    assert!(of_kind(&played, "output_audio_buffer.stopped").is_empty());
    played.answer(job, AnswerPart::Audio(vec![1; 100]));
    played.finish(job);
    assert!(played.session.is_playing());
    assert_eq!(play(&mut played, 9), 1, "the rest, and silence behind it");
    assert!(!played.session.is_playing());
    let kinds = types(&played.events);
    let of_output: Vec<_> = kinds.iter().filter(|kind| kind.starts_with("output_audio_buffer")).collect();
    assert_eq!(of_output, [&"output_audio_buffer.started", &"output_audio_buffer.stopped"]);
    assert!(!kinds.contains(&"response.output_audio.delta") && kinds.contains(&"response.output_audio.done"));
    check(&played);
}

#[test]
fn more_is_asked_for_while_less_than_five_seconds_wait() {
    let mut played = call();
    let job = asked(&mut played);
    played.speak(job, &["a"], 62);
    assert!(played.session.wants(job));
    played.speak(job, &["b"], 1);
    assert!(!played.session.wants(job) && played.session.wants(JobId(77)));
    assert!(played.session.bytes() > 240_000);
    play(&mut played, 4);
    assert!(played.session.wants(job));
}

#[test]
fn who_is_interrupted_has_said_what_was_played() {
    for finishes in [false, true] {
        let mut played = call();
        let job = asked(&mut played);
        played.speak(job, &["One ", "two ", "three ", "four "], 4);
        if finishes {
            played.finish(job);
        }
        assert_eq!(play(&mut played, 8), 8);
        microphone(&mut played, &speech::script());
        let kinds = types(&played.events);
        let at = |kind: &str| kinds.iter().position(|other| *other == kind).unwrap_or_else(|| panic!("{kind}"));
        assert!(at("input_audio_buffer.speech_started") < at("output_audio_buffer.cleared"));
        assert!(at("output_audio_buffer.cleared") < at("conversation.item.truncated"));
        let truncated = of_kind(&played, "conversation.item.truncated")[0].clone();
        assert_eq!(truncated["audio_end_ms"], 160);
        assert_eq!(played.cancelled.len(), usize::from(!finishes));
        assert_eq!(play(&mut played, 1), 0, "nothing of it is played any more");
        // Two frames of four: the next prompt has two of the four words.
        let turns = &played.begun.last().unwrap().turns;
        let said = turns.iter().find(|turn| turn.role == "assistant").unwrap();
        assert_eq!(said.parts, [PromptPart::Text("One two ".to_owned())], "{finishes}");
        check(&played);
    }
}

#[test]
fn who_is_interrupted_with_nothing_left_to_play_has_said_what_was_played() {
    // The next frame is late, or a call is written behind what was said.
    for calls in [false, true] {
        let mut played = call();
        let tools = if calls { json!([{"type": "function", "name": "f"}]) } else { json!([]) };
        played.send(&json!({"type": "session.update", "session": {"type": "realtime", "tools": tools}}));
        let job = asked(&mut played);
        played.speak(job, &["One ", "two ", if calls { "<tool_call>" } else { "three " }], 2);
        assert_eq!(play(&mut played, 9), 8);
        microphone(&mut played, &speech::script());
        let truncated = of_kind(&played, "conversation.item.truncated");
        assert_eq!((truncated.len(), &truncated[0]["audio_end_ms"]), (1, &json!(160)), "{calls}");
        assert_eq!(played.cancelled, [job]);
        let turns = &played.begun.last().unwrap().turns;
        let said = turns.iter().find(|turn| turn.role == "assistant").unwrap();
        assert_eq!(said.parts, [PromptPart::Text("One two ".to_owned())], "{calls}");
        assert_eq!(play(&mut played, 1), 0);
        assert_eq!(of_kind(&played, "output_audio_buffer.stopped").len(), 1, "nothing of it was dropped");
        assert!(of_kind(&played, "output_audio_buffer.cleared").is_empty());
        check(&played);
    }
}

#[test]
fn who_is_interrupted_before_the_first_sound_has_said_nothing() {
    let mut played = call();
    let job = asked(&mut played);
    played.speak(job, &["One ", "two "], 0);
    microphone(&mut played, &speech::script());
    assert_eq!(of_kind(&played, "conversation.item.truncated")[0]["audio_end_ms"], 0);
    assert!(of_kind(&played, "output_audio_buffer.cleared").is_empty());
    check(&played);
}

#[test]
fn the_client_may_stop_the_sound() {
    let mut played = call();
    let job = asked(&mut played);
    played.speak(job, &["One ", "two "], 2);
    play(&mut played, 4);
    let events = played.send(&json!({"type": "output_audio_buffer.clear"}));
    let kinds = types(&events);
    assert_eq!(kinds[kinds.len() - 2..], ["output_audio_buffer.cleared", "conversation.item.truncated"]);
    assert_eq!(played.cancelled, [job]);
    assert_eq!(play(&mut played, 3), 0);
    let events = played.send(&json!({"type": "output_audio_buffer.clear"}));
    assert!(events.is_empty(), "there was nothing");
    check(&played);
    let events = Played::new().send(&json!({"type": "output_audio_buffer.clear"}));
    assert_eq!(events[0]["error"]["code"], "unsupported_parameter");
}

#[test]
fn a_cancelled_answer_is_played_as_far_as_it_was_made() {
    let mut played = call();
    let job = asked(&mut played);
    played.speak(job, &["One "], 1);
    played.send(&json!({"type": "response.cancel"}));
    assert_eq!(play(&mut played, 9), 4);
    assert_eq!(of_kind(&played, "output_audio_buffer.stopped").len(), 1);
}

#[test]
fn answers_that_wait_to_be_played_are_counted_and_the_formats_of_calls_are_not_chosen() {
    let mut played = call();
    for _ in 0..3 {
        let job = asked(&mut played);
        played.speak(job, &["a"], 1);
        played.finish(job);
    }
    let events = played.send(&json!({"type": "response.create"}));
    assert_eq!(events[0]["error"]["code"], "too_many_responses");
    for audio in
        [json!({"input": {"format": {"type": "audio/pcmu"}}}), json!({"output": {"format": {"type": "audio/pcma"}}})]
    {
        let events = played.send(&json!({"type": "session.update", "session": {"type": "realtime", "audio": audio}}));
        assert!(events[0]["error"]["message"].as_str().unwrap().contains("Opus"), "{}", events[0]);
    }
}

#[test]
fn a_microphone_without_turn_detection_keeps_its_last_sound() {
    let mut played = call();
    played.send(&json!({"type": "session.update", "session": {
        "type": "realtime", "audio": {"input": {"turn_detection": null}},
    }}));
    // Three seconds where two are kept.
    microphone(&mut played, &[3; 24 * 3_000]);
    played.send(&json!({"type": "input_audio_buffer.commit"}));
    let item = of_kind(&played, "input_audio_buffer.committed")[0]["item_id"].clone();
    let events = played.send(&json!({"type": "conversation.item.retrieve", "item_id": item}));
    let audio = events[0]["item"]["content"][0]["audio"].as_str().unwrap();
    assert_eq!(audio.len(), 24 * 2_000 * 2 / 3 * 4);
    check(&played);
}
