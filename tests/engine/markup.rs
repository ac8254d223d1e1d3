//! Texts with markup through the whole pipeline: exact pauses, several voices, rates, and the same samples whatever
//! happens to the stages.

use crate::support::engine::{Answer, collect, engine, idle, root, say, speech, voice};
use omni_actors::core::ids::{Frames, StageName};
use omni_actors::engine::{
    Engine, Event, Markup, Pronunciations, RequestError, Service, SpeechRequest, SubmitError, TextSource, VoiceChoice,
};
use omni_actors::fault::{FaultKind, FaultPoint, FaultRule};
use omni_actors::model::Checkpoint;
use std::sync::Arc;

const RATE: usize = 24_000;

fn marked(text: &str, markup: Markup, seed: u64) -> SpeechRequest {
    let mut request = speech(text, seed);
    request.params.markup = Some(markup);
    request
}

fn brackets(text: &str, seed: u64) -> SpeechRequest {
    marked(text, Markup::Brackets, seed)
}

fn by(name: &str, text: &str, seed: u64) -> SpeechRequest {
    let mut request = speech(text, seed);
    request.params.voice = VoiceChoice::named(Some(name.to_owned()));
    request
}

async fn refused(engine: &Engine, request: SpeechRequest) -> String {
    match engine.speak(request).await {
        Err(SubmitError::Invalid { param, message }) => format!("{param}: {message}"),
        other => panic!("{other:?}"),
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_pause_is_exactly_so_many_zeros_and_what_is_around_it_fades() {
    let engine = engine(&voice(), |_| {}).await;
    let (one, two) =
        (say(&engine, speech("Two cups of tea.", 7)).await, say(&engine, by("alto", "She is alone.", 8)).await);
    let text = "[pause: 100ms]Two cups of tea.[pause: 0.25s] [voice: alto] She is alone. [pause: 50ms]";
    let both = say(&engine, brackets(text, 7)).await.samples;
    let (lead, rest, end) = (RATE / 10, RATE / 4, RATE / 20);
    let (first, second) = (lead, lead + one.samples.len() + rest);
    assert_eq!(both.len(), lead + one.samples.len() + rest + two.samples.len() + end);
    for silence in [0..lead, first + one.samples.len()..second, both.len() - end..both.len()] {
        assert!(both[silence].iter().all(|sample| *sample == 0.0));
    }
    // 10 ms fade in behind a pause, 5 ms fade out before one; all else is as if spoken alone.
    let (fade_in, fade_out) = (240, 120);
    for (begin, alone) in [(first, &one.samples), (second, &two.samples)] {
        let kept = fade_in..alone.len() - fade_out;
        assert!(both[begin..][kept.clone()] == alone[kept]);
        let edges = [both[begin], both[begin + alone.len() - 1]];
        assert!(edges.iter().all(|sample| sample.abs() < 1e-3), "{edges:?}");
    }
    idle(&engine).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_rate_changes_the_length_of_its_piece_alone() {
    let engine = engine(&voice(), |_| {}).await;
    let one = say(&engine, speech("Two cups of tea.", 7)).await.samples;
    let two = say(&engine, speech("She is alone.", 8)).await.samples;
    let text = "<speak><prosody rate='80%'>Two cups of tea.</prosody>She is alone.</speak>";
    let both = say(&engine, marked(text, Markup::Ssml, 7)).await.samples;
    let slow = (one.len() as f64 / f64::from(0.8_f32)).round() as usize;
    assert_eq!(both.len(), slow + two.len());
    assert!(both[slow + 240..] == two[240..], "the second piece is as if alone");
}

#[tokio::test(flavor = "multi_thread")]
async fn nothing_changes_where_markup_asks_for_nothing() {
    let engine = engine(&voice(), |_| {}).await;
    let plain = say(&engine, speech("Two cups of tea.", 7)).await;
    for (markup, text) in [
        (Markup::Brackets, "Two cups of tea."),
        (Markup::Brackets, "[voice: default]Two cups[rate: 100%] of tea."),
        (Markup::Ssml, "<speak>Two cups\n of <sub alias=\"tea\">coffee</sub>.</speak>"),
    ] {
        assert!(say(&engine, marked(text, markup, 7)).await == plain, "{text}");
    }
    let mut request = speech("Two cups of COFFEE.", 7);
    let mut list = Pronunciations::default();
    list.insert("coffee", "tea").unwrap();
    request.params.pronunciations = Some(Arc::new(list));
    assert!(say(&engine, request).await == plain);
}

#[tokio::test(flavor = "multi_thread")]
async fn the_samples_are_the_same_when_stages_are_killed_between_and_inside_of_pieces() {
    let text = "Two cups of tea.[pause: 0.2s][voice: alto][rate: 125%]She is alone much of the time.[pause: 0.1s] \
                [rate: 100%]He wore a red ribbon.";
    let calm = engine(&voice(), |_| {}).await;
    let expected = say(&calm, brackets(text, 3)).await;
    assert!(expected.end.as_ref().is_some_and(Result::is_ok));
    for (stage, after) in [(StageName::Talker, 12), (StageName::Vocoder, 5), (StageName::Thinker, 2)] {
        let engine = engine(&voice(), |config| {
            config.faults = vec![FaultRule::new(stage, FaultPoint::Runner, FaultKind::Panic).nth(after).times(2)];
        })
        .await;
        let answer = say(&engine, brackets(text, 3)).await;
        assert!(answer.samples == expected.samples, "{stage}");
        assert_eq!(answer.end, expected.end, "{stage}");
        let restarts: u32 = engine.health().stages.iter().map(|stage| stage.restarts).sum();
        assert!(restarts > 0, "{stage}: nothing was killed");
        idle(&engine).await;
    }
}

async fn streamed(engine: &Engine, pieces: &[&str], markup: Markup) -> Answer {
    let (writer, text) = flume::unbounded();
    for piece in pieces {
        writer.send((*piece).to_owned()).unwrap();
    }
    drop(writer);
    let request = SpeechRequest { text: TextSource::Streamed(text), ..marked("", markup, 7) };
    collect(engine.speak(request).await.unwrap()).await
}

#[tokio::test(flavor = "multi_thread")]
async fn a_text_that_comes_in_pieces_may_be_cut_inside_of_a_tag() {
    let engine = engine(&voice(), |_| {}).await;
    let text = "Two cups of tea.[pause: 0.1s] [voice: alto]She is alone.";
    let whole = say(&engine, brackets(text, 7)).await;
    let pieces = ["Two cups of tea.[pau", "se: 0.1", "s] [voice: al", "to]She is", " alone."];
    assert!(streamed(&engine, &pieces, Markup::Brackets).await == whole);
    let pieces =
        ["<speak>Two cups of tea.<break time=\"0.", "1s\"/> <voice name='alto'>She is alone.</voice></spe", "ak>"];
    assert!(streamed(&engine, &pieces, Markup::Ssml).await == whole);
    let failed = |answer: Answer| match answer.end {
        Some(Err(RequestError::Refused(message))) => message,
        other => panic!("{other:?}"),
    };
    let told = failed(streamed(&engine, &["Tea. [la", "ugh]"], Markup::Brackets).await);
    assert!(told.starts_with("line 1, column 6: the tag [laugh] is unknown"), "{told}");
    let told = failed(streamed(&engine, &["[voice: bob]Tea."], Markup::Brackets).await);
    assert!(told.contains("line 1, column 1") && told.contains("bob"), "{told}");
    let told = failed(streamed(&engine, &["[pause: 1s]"], Markup::Brackets).await);
    assert!(told.contains("nothing to speak"), "{told}");
    idle(&engine).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_mistake_refuses_the_request_before_it_begins() {
    let engine = engine(&voice(), |config| config.limits.max_input_chars = 200).await;
    for (text, told) in [
        ("One [laugh] two", "input: line 1, column 5: the tag [laugh] is unknown"),
        ("One\n [voice: bob]two", "input: line 2, column 2: "),
        ("[pause: 1s]", "input: there is nothing to speak between the tags"),
    ] {
        let message = refused(&engine, brackets(text, 1)).await;
        assert!(message.starts_with(told), "{message}");
    }
    let mut request = brackets("One", 1);
    (request.params.ignore_eos, request.params.max_frames) = (true, Some(Frames(3)));
    assert!(refused(&engine, request).await.starts_with("markup: "));
    let mut request = speech("a a a", 1);
    let mut list = Pronunciations::default();
    list.insert("a", &"b ".repeat(100)).unwrap();
    request.params.pronunciations = Some(Arc::new(list));
    assert!(refused(&engine, request).await.contains("more than the 200 characters"));
    idle(&engine).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_pause_in_front_is_heard_behind_the_first_event() {
    let engine = engine(&voice(), |_| {}).await;
    let mut stream = engine.speak(brackets("[pause: 0.2s]One.", 1)).await.unwrap();
    assert!(matches!(stream.next().await, Some(Event::Started { seed: 1, .. })));
    assert!(matches!(stream.next().await, Some(Event::Audio(chunk)) if chunk.samples.len() == 4800));
}

#[tokio::test(flavor = "multi_thread")]
async fn qwen3_tts_changes_its_voice_and_says_words_as_they_are_written_word_by_word() {
    let checkpoint = Checkpoint::open(&root().join("tests/fixtures/qwen3_tts/custom_voice")).unwrap();
    let engine = engine(&checkpoint, |_| {}).await;
    let frames = |mut request: SpeechRequest| {
        request.params.max_frames = Some(Frames(6));
        request
    };
    let one = say(&engine, frames(by("Vivian", "Good day.", 3))).await.samples;
    let two = say(&engine, frames(by("Ryan", "So it is.", 4))).await.samples;
    let mut request = frames(by("Vivian", "Good day. [pause: 0.1s] [voice: RYAN] So it is.", 3));
    request.params.markup = Some(Markup::Brackets);
    let both = say(&engine, request).await.samples;
    let second = one.len() + RATE / 10;
    assert_eq!(both.len(), second + two.len());
    assert!(both[..one.len() - 120] == one[..one.len() - 120] && both[second + 240..] == two[240..]);

    let mut list = Pronunciations::default();
    list.insert("gif", "jif").unwrap();
    let list = Some(Arc::new(list));
    let mut answers = Vec::new();
    for (pieces, pronunciations) in [(["A GI", "F, so"], list), (["A ji", "f, so"], None)] {
        let (writer, text) = flume::unbounded();
        pieces.into_iter().for_each(|piece| writer.send(piece.to_owned()).unwrap());
        drop(writer);
        let mut request = SpeechRequest { text: TextSource::Streamed(text), ..frames(by("Vivian", "", 3)) };
        request.params.pronunciations = pronunciations;
        answers.push(collect(engine.speak(request).await.unwrap()).await);
    }
    let [listed, written] = &answers[..] else { panic!("two answers") };
    assert_eq!(listed.end, written.end);
    assert!(listed.samples == written.samples && listed.end.as_ref().is_some_and(Result::is_ok));
    idle(&engine).await;
}
