//! When each word sounds, of the embedded voice: as JSON, as events and over the WebSocket.

use crate::e2e_http::{SPEECH, Site, decode};
use crate::support::engine::voice;
use futures::{SinkExt, StreamExt};
use omni_actors::core::ids::StageName;
use omni_actors::fault::{FaultKind, FaultPoint, FaultRule};
use serde_json::{Value, json};
use std::time::Duration;
use tokio_tungstenite::tungstenite::Message;

/// Two sentences, so two pieces; a number, white space of all kinds, and signs that are not spoken.
const TEXT: &str = "I bought 12 apples,  two pears - and\n\u{201c}one\u{201d} caf\u{e9} chair.\n\nWe went home late.";
const WORDS: [&str; 14] = [
    "I",
    "bought",
    "12",
    "apples,",
    "two",
    "pears",
    "and",
    "\u{201c}one\u{201d}",
    "caf\u{e9}",
    "chair.",
    "We",
    "went",
    "home",
    "late.",
];
const RATE: u64 = 24_000;
const SEED: u64 = 11;

fn asked(more: &Value) -> Value {
    let mut body = json!({"input": TEXT, "seed": SEED, "response_format": "pcm", "timestamp_granularities": ["word"]});
    body.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
    body
}

async fn site() -> Site {
    Site::of(&voice(), |_| {}).await
}

/// An answer in one piece: its file and its words.
async fn whole(site: &Site, more: &Value) -> (Vec<u8>, Vec<Value>) {
    let answer: Value = serde_json::from_slice(&site.bytes(SPEECH, &asked(more)).await).unwrap();
    assert_eq!(answer["finish_reason"], "stop");
    (decode(&answer["audio"]), answer["words"].as_array().unwrap().clone())
}

fn number(word: &Value, field: &str) -> u64 {
    word[field].as_u64().unwrap()
}

fn samples(pcm: &[u8]) -> Vec<f64> {
    pcm.chunks_exact(2).map(|pair| f64::from(i16::from_le_bytes([pair[0], pair[1]])) / 32768.0).collect()
}

fn loudness(samples: &[f64]) -> f64 {
    (samples.iter().map(|x| x * x).sum::<f64>() / samples.len().max(1) as f64).sqrt()
}

#[tokio::test(flavor = "multi_thread")]
async fn every_word_of_the_text_has_its_place_and_its_time() {
    let site = site().await;
    let (file, words) = whole(&site, &json!({})).await;
    let plain = site.bytes(SPEECH, &json!({"input": TEXT, "seed": SEED, "response_format": "pcm"})).await;
    assert!(file == plain, "the words change no sample");
    assert_eq!(words.iter().map(|word| word["word"].as_str().unwrap()).collect::<Vec<_>>(), WORDS);
    let (text, sound) = (TEXT.chars().collect::<Vec<_>>(), samples(&file));
    let mut end = 0;
    for word in &words {
        let place = number(word, "text_start") as usize..number(word, "text_end") as usize;
        assert_eq!(text[place].iter().collect::<String>(), word["word"].as_str().unwrap());
        let (from, to) = (number(word, "start_sample"), number(word, "end_sample"));
        assert!(end <= from && from < to && to <= sound.len() as u64, "{word}");
        let seconds = |field: &str| word[field].as_f64().unwrap() * RATE as f64;
        assert!((seconds("start") - from as f64).abs() < 3.0 && (seconds("end") - to as f64).abs() < 3.0, "{word}");
        // What lasts from a word's beginning to its end is louder than a pause.
        assert!(loudness(&sound[from as usize..to as usize]) > 0.01, "{word}");
        end = to;
    }
    // A piece begins with silence, which belongs to no word.
    for first in [&words[0], &words[10]] {
        let from = number(first, "start_sample") as usize;
        let (before, after) = (&sound[from - 2400..from - 1200], &sound[from..from + 2400]);
        assert!(loudness(before) < 0.1 * loudness(after), "{first}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn events_tell_the_same_words_while_the_speech_is_made() {
    let site = site().await;
    let (file, words) = whole(&site, &json!({})).await;
    let events = site.events(SPEECH, &asked(&json!({"stream_format": "sse"}))).await;
    let kinds: Vec<_> = events.iter().map(|event| event["type"].as_str().unwrap()).collect();
    let told: Vec<Value> = events.iter().filter(|event| event["type"] == "speech.word").cloned().collect();
    let bare = |mut word: Value| {
        word.as_object_mut().unwrap().remove("type");
        word
    };
    assert_eq!(told.into_iter().map(bare).collect::<Vec<_>>(), words);
    let sound = events.iter().filter(|event| event["type"] == "speech.audio.delta");
    assert!(sound.flat_map(|event| decode(&event["audio"])).eq(file), "other samples");
    assert_eq!(kinds.last(), Some(&"speech.audio.done"));
    let first = kinds.iter().position(|kind| *kind == "speech.word");
    assert!(first < kinds.iter().rposition(|kind| *kind == "speech.audio.delta"), "{kinds:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn times_are_those_of_the_audio_as_it_is_sent() {
    let site = site().await;
    let (_, words) = whole(&site, &json!({})).await;
    for (speed, rate, format) in [(2.0, 8000, "pcm"), (0.5, 48_000, "wav"), (1.25, 8000, "mulaw"), (1.0, 24_000, "mp3")]
    {
        let more = json!({"speed": speed, "sample_rate": rate, "response_format": format});
        let (_, others) = whole(&site, &more).await;
        assert_eq!(others.len(), words.len());
        for (word, other) in words.iter().zip(&others) {
            let seconds = |field: &str| number(word, field) as f64 / RATE as f64 / speed;
            let expected = (seconds("end_sample") * f64::from(rate)).round() as u64;
            assert_eq!(number(other, "end_sample"), expected, "{other}");
            assert!((other["start"].as_f64().unwrap() - seconds("start_sample")).abs() < 2e-4, "{other}");
            assert_eq!(other["text_start"], word["text_start"]);
        }
    }
    // Words before the first sample that is sent are left out; the times of the others stay.
    let from = number(&words[5], "start_sample");
    let (_, rest) = whole(&site, &json!({"start_sample": from})).await;
    assert_eq!(rest, words[5..]);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_stage_that_dies_changes_no_time() {
    let (file, words) = whole(&site().await, &json!({})).await;
    for (stage, nth) in
        [(StageName::Talker, 9), (StageName::Talker, 40), (StageName::Vocoder, 2), (StageName::Thinker, 4)]
    {
        let site = Site::of(&voice(), |config| {
            config.faults = vec![FaultRule::new(stage, FaultPoint::Runner, FaultKind::Panic).nth(nth)];
            config.supervision.backoff = Duration::from_millis(1);
        })
        .await;
        let (other, told) = whole(&site, &json!({})).await;
        assert!(other == file, "other samples behind a {stage} that died");
        assert_eq!(told, words, "behind a {stage} that died");
        let health = site.client.get(format!("http://{}/health", site.address)).send().await.unwrap();
        let health: Value = health.json().await.unwrap();
        let restarts = health["stages"].as_array().unwrap().iter().map(|stage| stage["restarts"].as_u64().unwrap());
        assert_eq!(restarts.sum::<u64>(), 1, "{health}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_session_tells_the_words_of_a_text_that_comes_in_pieces() {
    let site = site().await;
    let (_, words) = whole(&site, &json!({})).await;
    let mut socket = site.socket().await;
    let mut send = vec![json!({"type": "session.config", "seed": SEED, "timestamp_granularities": ["word"]})];
    let chars: Vec<char> = TEXT.chars().collect();
    send.extend(chars.chunks(7).map(|piece| json!({"type": "input.text", "text": piece.iter().collect::<String>()})));
    send.push(json!({"type": "input.done"}));
    for message in send {
        socket.send(Message::text(message.to_string())).await.unwrap();
    }
    let mut told = Vec::new();
    loop {
        let message = tokio::time::timeout(Duration::from_secs(60), socket.next()).await.unwrap().unwrap().unwrap();
        let Message::Text(text) = message else { continue };
        let event: Value = serde_json::from_str(&text).unwrap();
        match event["type"].as_str().unwrap() {
            "audio.word" => told.push(event),
            "audio.done" => break,
            "error" => panic!("{event}"),
            _ => {}
        }
    }
    assert_eq!(told.len(), words.len());
    for (event, word) in told.iter().zip(&words) {
        assert_eq!((&event["utterance"], &event["utterance_index"]), (&json!(1), &json!(0)));
        for (field, value) in word.as_object().unwrap() {
            assert_eq!(&event[field], value, "{event}");
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn what_has_no_words_is_refused_with_the_field() {
    let site = site().await;
    let without = Site::new(|_| {}).await;
    let refused = async |site: &Site, path: &str, body: &Value, param: &str, says: &str| {
        let response = site.post(path, body).await;
        assert_eq!(response.status(), 400, "{body}");
        let error: Value = response.json().await.unwrap();
        let message = error["error"]["message"].as_str().unwrap();
        assert!(error["error"]["param"] == param && message.contains(says), "{error}");
    };
    refused(&without, SPEECH, &asked(&json!({})), "timestamp_granularities", "has no aligner").await;
    let bare = asked(&json!({"stream_format": "audio"}));
    refused(&site, SPEECH, &bare, "stream_format", "without times of words").await;
    let several = asked(&json!({"timestamp_granularities": ["word", "segment"]}));
    refused(&site, SPEECH, &several, "timestamp_granularities", "\"segment\" is unknown").await;
    let batch = json!({"items": [asked(&json!({}))]});
    refused(&site, "/v1/audio/speech/batch", &batch, "timestamp_granularities", "batch").await;
    let request = site.client.post(format!("http://{}{SPEECH}", site.address)).header("range", "bytes=9-");
    let response = request.json(&asked(&json!({}))).send().await.unwrap();
    assert_eq!(response.status(), 400);
    let error: Value = response.json().await.unwrap();
    assert_eq!(error["error"]["param"], "Range", "{error}");
    // An empty list asks for nothing.
    let none = site.post(SPEECH, &asked(&json!({"timestamp_granularities": []}))).await;
    assert_eq!(none.headers()["content-type"], "audio/pcm");
}
