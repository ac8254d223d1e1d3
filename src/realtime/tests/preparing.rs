//! What is asked of the engine while a turn is spoken.

use super::speech::{append, script, vowels};
use super::*;

const WINDOW_MS: u64 = 300;

fn played() -> Played {
    let mut opening = opening();
    opening.limits.window_ms = WINDOW_MS;
    Played::of(opening)
}

/// Turns are ended by the client.
fn push_to_talk() -> Played {
    let mut played = played();
    played.send(&json!({"type": "session.update", "session": {"audio": {"input": {"turn_detection": null}}}}));
    played
}

fn samples(job: &Job) -> &[u8] {
    let Some(PromptPart::Audio(file)) = job.turns.last().and_then(|turn| turn.parts.last()) else { panic!("{job:?}") };
    &file[44..]
}

fn bytes(samples: &[i16]) -> Vec<u8> {
    samples.iter().flat_map(|sample| sample.to_le_bytes()).collect()
}

fn done() -> AnswerPart {
    AnswerPart::Finished { ending: Ending::Length, usage: Usage::default() }
}

#[test]
fn each_window_that_is_whole_is_asked_for_once_and_the_newest_first() {
    let mut played = push_to_talk();
    played.send(&message("user", "input_text", "Listen."));
    let sound = vowels(1_500);
    let mut ms = 0;
    let mut grows = |played: &mut Played, upto: usize| {
        played.send(&append(&sound[ms * 24..upto * 24]));
        ms = upto;
        played.begun.len()
    };
    // A window and the 25 ms that its last frame may reach into.
    assert_eq!(grows(&mut played, 324), 0);
    assert_eq!(grows(&mut played, 325), 1);
    let first = played.begun[0].clone();
    assert!(first.prepares && !first.speaks && first.max_tokens == Some(1));
    assert_eq!(first.turns.len(), 2, "the conversation is in front of it");
    assert!(samples(&first).starts_with(&bytes(&sound[..325 * 24])), "as it was said");
    assert!(samples(&first)[2 * 325 * 24..].iter().all(|byte| *byte == 0), "and the silence of every turn");
    // While it runs, nothing more is asked; then the newest state is.
    assert_eq!(grows(&mut played, 1_000), 1);
    played.answer(first.id, AnswerPart::Started);
    played.answer(first.id, AnswerPart::Text("no one".to_owned()));
    assert!(played.answer(first.id, done()).is_empty(), "no client hears of it");
    assert_eq!(played.begun.len(), 2);
    let second = played.begun[1].clone();
    assert!(samples(&second).starts_with(&bytes(&sound[..(3 * 300 + 25) * 24])), "three windows are whole");
    // One that failed is not asked for again, but the next is.
    played.answer(second.id, AnswerPart::Failed { code: "c".to_owned(), message: "m".to_owned() });
    assert_eq!(grows(&mut played, 1_200), 2);
    assert_eq!(grows(&mut played, 1_225), 3);
    // The end of the turn ends it, and the answer is that of the whole turn.
    played.send(&json!({"type": "input_audio_buffer.commit"}));
    played.send(&json!({"type": "response.create"}));
    assert_eq!(played.cancelled, [played.begun[2].id]);
    let answer = &played.begun[3];
    assert!(!answer.prepares && samples(answer).starts_with(&bytes(&sound[..1_225 * 24])));
    assert!(played.answer(played.begun[2].id, done()).is_empty());
    check(&played);
}

#[test]
fn a_turn_that_is_dropped_or_changes_is_not_prepared_further() {
    let clear = json!({"type": "input_audio_buffer.clear"});
    let detect =
        json!({"type": "session.update", "session": {"audio": {"input": {"turn_detection": {"type": "server_vad"}}}}});
    for event in [clear, detect] {
        let mut played = push_to_talk();
        played.send(&append(&vowels(700)));
        let job = played.last_job();
        played.send(&event);
        assert_eq!(played.cancelled, [job], "{event}");
        // A detector finds a turn of its own in the same sound.
        let detects = event["type"] == "session.update";
        assert_eq!(played.begun.len(), 1 + usize::from(detects), "{event}");
        assert_eq!(played.session.bytes() > 10_000, detects, "what it held is free");
        check(&played);
    }
}

#[test]
fn the_windows_of_a_turn_that_is_detected_begin_where_the_turn_does() {
    let mut played = played();
    let mut whole = None;
    for piece in script().chunks(2_400) {
        played.send(&append(piece));
        if let Some(job) = played.begun.last().filter(|job| job.prepares && whole.as_ref() != Some(&job.id)) {
            whole = Some(job.id);
            played.answer(job.id, done());
        }
    }
    let [windows @ .., all, answer] = &played.begun[..] else { panic!("{} jobs", played.begun.len()) };
    assert!(!answer.prepares && windows.len() > 2, "{} windows", windows.len());
    assert_eq!(all.turns, answer.turns, "the whole turn, before it was over");
    let turn = samples(answer);
    for (job, number) in windows.iter().zip(1..) {
        assert_eq!((samples(job).len() as u64 / 48 - 2 * 25) / WINDOW_MS, number, "a window more each time");
        let known = samples(job).len() / 48 - 2 * 25 - 10;
        assert!(turn.starts_with(&samples(job)[..known * 48]), "{known} ms");
    }
    check(&played);
}

#[test]
fn turns_of_calls_are_prepared_while_they_are_spoken() {
    let mut opening = opening();
    (opening.plays, opening.limits.window_ms) = (true, WINDOW_MS);
    let mut played = Played::of(opening);
    for piece in script().chunks(PLAYED) {
        let before = played.begun.len();
        let effects = played.session.listen(piece);
        played.take(effects);
        let begun: Vec<JobId> = played.begun[before..].iter().filter(|job| job.prepares).map(|job| job.id).collect();
        begun.into_iter().for_each(|job| _ = played.answer(job, done()));
    }
    let [windows @ .., all, answer] = &played.begun[..] else { panic!("{} jobs", played.begun.len()) };
    assert!(!answer.prepares && windows.len() > 2, "{} windows", windows.len());
    assert!(windows.iter().chain([all]).all(|job| job.prepares));
    assert_eq!(all.turns, answer.turns, "the whole turn, before it was over");
    assert!(played.cancelled.is_empty());
    check(&played);
}

#[test]
fn a_turn_that_may_be_over_is_asked_for_as_a_whole_once_in_each_pause() {
    // No turn is as long as a window.
    let mut opening = opening();
    (opening.limits.window_ms, opening.limits.audio_ms, opening.limits.bytes) = (8_000, 10_000, 1 << 20);
    let mut played = Played::of(opening);
    let detection = json!({"type": "server_vad", "silence_duration_ms": 1_500});
    played.send(&json!({"type": "session.update", "session": {"audio": {"input": {"turn_detection": detection}}}}));
    let hear = |played: &mut Played, samples: &[i16]| {
        for piece in samples.chunks(2_400) {
            let before = played.begun.len();
            played.send(&append(piece));
            let begun: Vec<JobId> =
                played.begun[before..].iter().filter(|job| job.prepares).map(|job| job.id).collect();
            begun.into_iter().for_each(|job| _ = played.answer(job, done()));
        }
        played.begun.len()
    };
    assert_eq!(hear(&mut played, &[vec![0; 24 * 700], vowels(900)].concat()), 0);
    assert_eq!(hear(&mut played, &[0; 24 * 500]), 1, "208 ms of silence are all that the model hears of it");
    let pause = played.begun[0].clone();
    assert!(pause.prepares && !pause.speaks && pause.max_tokens == Some(1));
    assert_eq!(hear(&mut played, &[0; 24 * 200]), 1, "more silence changes nothing");
    // Speech goes on: that was not the whole turn.
    hear(&mut played, &[vowels(900), vec![0; 24 * 2_000]].concat());
    let [_, .., all, answer] = &played.begun[..] else { panic!("{} jobs", played.begun.len()) };
    assert!(all.prepares && !answer.prepares && all.turns == answer.turns);
    assert_eq!((played.begun.len(), played.cancelled.len()), (3, 0));
    let known = samples(&pause).len() - 2 * 24 * 35;
    assert!(samples(all).len() > samples(&pause).len() && samples(all).starts_with(&samples(&pause)[..known]));
    check(&played);
}

#[test]
fn sessions_of_text_answers_that_are_made_and_pictures_prepare_nothing() {
    // No sound, and sound of a model that has no windows.
    let mut silent = played();
    silent.send(&message("user", "input_text", "Hello"));
    silent.send(&json!({"type": "response.create"}));
    assert!(silent.begun.iter().all(|job| !job.prepares));
    let mut none = Played::new();
    script().chunks(2_400).for_each(|piece| _ = none.send(&append(piece)));
    assert_eq!(none.begun.iter().filter(|job| job.prepares).count(), 0);
    // The answer may become a part of the prompt: its end is waited for.
    silent.send(&json!({"type": "session.update", "session": {"audio": {"input": {"turn_detection": null}}}}));
    silent.send(&append(&vowels(700)));
    assert_eq!(silent.begun.len(), 1);
    silent.finish(silent.last_job());
    assert!(silent.begun.len() == 2 && silent.begun[1].prepares);
    // Pictures would be decoded once more for each window.
    let mut seen = push_to_talk();
    let picture = json!({"type": "input_image", "image_url": "data:image/png;base64,aGVsbG8="});
    seen.send(&json!({"type": "conversation.item.create", "item": {
        "type": "message", "role": "user", "content": [picture],
    }}));
    seen.send(&append(&vowels(700)));
    assert!(seen.begun.is_empty());
    [silent, none, seen].iter().for_each(check);
}
