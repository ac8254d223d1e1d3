//! Turns that are found in sound.

use super::*;
use base64::Engine;
use base64::prelude::BASE64_STANDARD;

/// Sound that the detector takes for speech: a buzz with the formants of a vowel, in syllables.
pub(super) fn vowels(ms: usize) -> Vec<i16> {
    let rate = 24_000.0;
    let sample = |at: usize| {
        let t = at as f64 / rate;
        let pitch = 120.0 + 20.0 * (t * 9.0).sin();
        let syllable = (0.5 - 0.5 * (t * std::f64::consts::TAU * 4.0).cos()).powf(0.5);
        let voice: f64 = (1..30)
            .map(|k| {
                let hz = pitch * f64::from(k);
                let gain = |formant: f64, width: f64| (-((hz - formant) / width).powi(2)).exp();
                let level = gain(700.0, 150.0) + 0.6 * gain(1200.0, 180.0) + 0.3 * gain(2600.0, 250.0);
                level * (std::f64::consts::TAU * hz * t).sin()
            })
            .sum();
        (voice * syllable * 6_000.0).clamp(-32_000.0, 32_000.0) as i16
    };
    (0..ms * 24).map(sample).collect()
}

pub(super) fn script() -> Vec<i16> {
    let mut samples = vec![0i16; 24 * 700];
    samples.extend(vowels(900));
    samples.extend(vec![0i16; 24 * 1_500]);
    samples
}

pub(super) fn append(samples: &[i16]) -> Value {
    let bytes: Vec<u8> = samples.iter().flat_map(|sample| sample.to_le_bytes()).collect();
    json!({"type": "input_audio_buffer.append", "audio": BASE64_STANDARD.encode(bytes)})
}

fn play(pieces: &[usize]) -> Played {
    let mut played = Played::new();
    let samples = script();
    let (mut rest, mut sizes) = (&samples[..], pieces.iter().cycle());
    while !rest.is_empty() {
        let (now, later) = rest.split_at((*sizes.next().unwrap()).min(rest.len()));
        played.send(&append(now));
        rest = later;
    }
    played
}

#[test]
fn speech_between_silences_is_a_turn_and_is_answered() {
    let played = play(&[2_400]);
    let expected = [
        "session.created",
        "input_audio_buffer.speech_started",
        "input_audio_buffer.speech_stopped",
        "input_audio_buffer.committed",
        "conversation.item.added",
        "conversation.item.done",
        "response.created",
    ];
    assert_eq!(types(&played.events), expected);
    let start = played.events[1]["audio_start_ms"].as_u64().unwrap();
    let end = played.events[2]["audio_end_ms"].as_u64().unwrap();
    // 300 ms of padding before 700 ms; 500 ms of silence behind 1600 ms.
    assert!((350..=600).contains(&start), "{start}");
    assert!((2000..=2400).contains(&end), "{end}");
    let [PromptTurn { role: "user", parts, .. }] = &played.begun[0].turns[..] else { panic!("{:?}", played.begun) };
    let [PromptPart::Audio(file)] = &parts[..] else { panic!("{parts:?}") };
    // The model hears 208 of the 512 ms of silence that ended the turn, and 25 to 35 ms more, up to a multiple of 10 ms.
    let rest = (file.len() as u64 - 44) / 48 - (end - start - 512 + 208);
    assert!((25..35).contains(&rest), "{rest}");
    assert_eq!((file.len() - 44) % 480, 0);
    assert!(file[file.len() - 1200..].iter().all(|byte| *byte == 0));
    assert_eq!(file[40..44], (file.len() as u32 - 44).to_le_bytes());
    check(&played);
}

#[test]
fn how_sound_is_cut_into_events_changes_nothing() {
    let whole = play(&[48_000]);
    for pieces in [&[2_400][..], &[1, 7, 383, 4_801], &[24_000, 3], &[960]] {
        let cut = play(pieces);
        assert_eq!(cut.events, whole.events, "{pieces:?}");
        assert_eq!(cut.begun, whole.begun, "{pieces:?}");
    }
}

#[test]
fn speech_ends_the_answer_before_and_a_client_may_forbid_that() {
    for interrupt in [true, false] {
        let mut played = Played::new();
        let turns = json!({"type": "server_vad", "interrupt_response": interrupt});
        played.send(&json!({"type": "session.update", "session": {"audio": {"input": {"turn_detection": turns}}}}));
        played.send(&message("user", "input_text", "Hello"));
        played.send(&json!({"type": "response.create"}));
        let job = played.last_job();
        played.speak(job, &["Hi", " there"], 2);
        let before = played.events.len();
        script().chunks(24_000).for_each(|piece| _ = played.send(&append(piece)));
        let events = played.events[before..].to_vec();
        let cut: Vec<_> = events.iter().filter(|event| event["type"] == "response.done").collect();
        if interrupt {
            assert_eq!(played.cancelled, [job]);
            assert_eq!(cut[0]["response"]["status_details"]["reason"], "turn_detected");
            assert_eq!(types(&events)[0], "input_audio_buffer.speech_started");
            assert_eq!(played.begun.len(), 2);
        } else {
            assert!(cut.is_empty() && played.begun.len() == 1);
            // The turn is answered when the answer before is done.
            let events = played.finish(job);
            assert_eq!(*types(&events).last().unwrap(), "response.created");
            assert_eq!(played.begun.len(), 2);
        }
        check(&played);
    }
}

#[test]
fn without_turn_detection_the_client_says_when_a_turn_ends() {
    let mut played = Played::new();
    played.send(&json!({"type": "session.update", "session": {"audio": {"input": {
        "turn_detection": null, "format": {"type": "audio/pcmu"}, "transcription": {"language": "de"},
    }}}}));
    let sound = json!({"type": "input_audio_buffer.append", "audio": BASE64_STANDARD.encode([0x12; 1_600])});
    assert!(played.send(&sound).is_empty());
    let committed = played.send(&json!({"type": "input_audio_buffer.commit"}));
    assert_eq!(
        types(&committed),
        ["input_audio_buffer.committed", "conversation.item.added", "conversation.item.done"]
    );
    // What was said is written down by a request of its own.
    let job = played.last_job();
    assert!(!played.begun[0].speaks);
    assert_eq!(played.begun[0].turns[0].parts.len(), 2);
    played.answer(job, AnswerPart::Started);
    played.answer(job, AnswerPart::Text("Hallo".to_owned()));
    let done = played.finish(job);
    assert_eq!(types(&done), ["conversation.item.input_audio_transcription.completed"]);
    assert_eq!(done[0]["transcript"], "Hallo");
    let item = played.send(&json!({"type": "conversation.item.retrieve", "item_id": "item_1"}));
    let part = &item[0]["item"]["content"][0];
    assert_eq!((&part["transcript"], part["audio"].as_str().unwrap().len()), (&json!("Hallo"), 4_268));
    check(&played);
}

#[test]
fn a_turn_that_has_no_room_yet_stays_in_the_buffer() {
    let mut played = Played::new();
    played.send(&json!({"type": "session.update", "session": {"audio": {"input": {"turn_detection": null}}}}));
    for _ in 0..12 {
        played.send(&message("user", "input_text", "x"));
    }
    played.send(&append(&[3; 24 * 200]));
    let commit = json!({"type": "input_audio_buffer.commit"});
    assert_eq!(played.send(&commit)[0]["error"]["code"], "conversation_full");
    played.send(&json!({"type": "conversation.item.delete", "item_id": "item_1"}));
    let committed = played.send(&commit);
    assert_eq!(types(&committed)[0], "input_audio_buffer.committed");
    let id = &committed[0]["item_id"];
    let item = played.send(&json!({"type": "conversation.item.retrieve", "item_id": id}));
    let audio = item[0]["item"]["content"][0]["audio"].as_str().unwrap();
    assert_eq!(audio.len(), 24 * 200 * 2 / 3 * 4);
    assert_eq!(played.send(&commit)[0]["error"]["code"], "input_audio_buffer_commit_empty", "it was taken once");
    check(&played);
}

#[test]
fn a_turn_as_long_as_the_buffer_ends_there() {
    let mut played = Played::new();
    for piece in vowels(5_000).chunks(12_000) {
        played.send(&append(piece));
    }
    let ended: Vec<_> = played.events.iter().filter(|event| event["type"] == "input_audio_buffer.committed").collect();
    assert!(!ended.is_empty());
    assert!(played.session.bytes() < 200_000 + 2 * 48_000);
    check(&played);
}

#[test]
fn a_model_that_does_not_hear_says_so_and_answers_in_text() {
    let mut deaf = opening();
    (deaf.abilities.hears, deaf.abilities.sees) = (false, false);
    let (session, _) = Session::new(deaf);
    let mut played = Played { session, ..Played::new() };
    let image = json!({"type": "input_image", "image_url": "data:image/png;base64,aaaa"});
    let sound = json!({"type": "input_audio", "audio": "AAAA"});
    let item = |part: Value| json!({"type": "conversation.item.create", "item": {"role": "user", "content": [part]}});
    for (event, says) in
        [(append(&[0; 2_400]), "cannot hear"), (item(sound), "cannot hear"), (item(image), "cannot see")]
    {
        let told = played.send(&event);
        assert_eq!(told[0]["error"]["code"], "unsupported_parameter");
        assert!(told[0]["error"]["message"].as_str().unwrap().contains(says), "{told:?}");
    }
    played.send(&message("user", "input_text", "Hello"));
    assert_eq!(types(&played.send(&json!({"type": "response.create"}))), ["response.created"]);
}
