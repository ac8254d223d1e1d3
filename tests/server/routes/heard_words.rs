//! When each word sounds, of a checkpoint without an aligner of its own: the aligner of the config hears it.

use crate::e2e_http::{SPEECH, Site, decode};
use crate::support::engine::root;
use omni_actors::core::ids::StageName;
use omni_actors::fault::{FaultKind, FaultPoint, FaultRule};
use omni_actors::model::Checkpoint;
use serde_json::{Value, json};
use std::collections::BTreeSet;
use std::time::Duration;

const TEXT: &str = "\u{201c}Hello\u{201d}, how are you \u{2014} today?\n 今天 it's 12 o'clock.";
const WORDS: [&str; 10] =
    ["\u{201c}Hello\u{201d},", "how", "are", "you", "today?", "今", "天", "it's", "12", "o'clock."];

fn tts() -> Checkpoint {
    Checkpoint::open(&root().join("tests/fixtures/qwen3_tts/custom_voice")).unwrap()
}

/// Six seconds of speech for each answer, more than the tiny aligner has classes for: the tiny model's random weights
/// never stop by themselves.
async fn site(faults: Vec<FaultRule>) -> Site {
    Site::of(&tts(), |config| {
        config.aligner.checkpoint = Some(root().join("tests/fixtures/qwen3_forced_aligner"));
        config.limits.max_audio = Duration::from_secs(6);
        config.supervision.backoff = Duration::from_millis(1);
        config.faults = faults;
    })
    .await
}

fn asked(more: &Value) -> Value {
    let mut body = json!({"input": TEXT, "seed": 3, "response_format": "pcm", "timestamp_granularities": ["word"]});
    body.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
    body
}

/// An answer in one piece: its file and its words.
async fn whole(site: &Site) -> (Vec<u8>, Vec<Value>) {
    let answer: Value = serde_json::from_slice(&site.bytes(SPEECH, &asked(&json!({}))).await).unwrap();
    (decode(&answer["audio"]), answer["words"].as_array().unwrap().clone())
}

/// The sound and the words of events, and the last event.
async fn streamed(site: &Site) -> (Vec<u8>, Vec<Value>, Value) {
    let mut events = site.events(SPEECH, &asked(&json!({"stream_format": "sse"}))).await;
    let last = events.pop().unwrap();
    let sound = events.iter().filter(|event| event["type"] == "speech.audio.delta");
    let sound = sound.flat_map(|event| decode(&event["audio"])).collect();
    let bare = |mut word: Value| {
        word.as_object_mut().unwrap().remove("type");
        word
    };
    let words = events.into_iter().filter(|event| event["type"] == "speech.word").map(bare).collect();
    (sound, words, last)
}

#[tokio::test(flavor = "multi_thread")]
async fn a_checkpoint_without_an_aligner_tells_the_words_that_the_one_of_the_config_hears() {
    let site = site(Vec::new()).await;
    let (file, words) = whole(&site).await;
    let plain = site.bytes(SPEECH, &json!({"input": TEXT, "seed": 3, "response_format": "pcm"})).await;
    assert!(file == plain && file.len() == 6 * 48_000, "the words change no sample");
    let told: Vec<_> = words.iter().map(|word| word["word"].as_str().unwrap()).collect();
    assert_eq!(told, WORDS);
    let text: Vec<char> = TEXT.chars().collect();
    let (mut end, mut starts) = (0, BTreeSet::new());
    for word in &words {
        let number = |field: &str| word[field].as_u64().unwrap();
        let place = number("text_start") as usize..number("text_end") as usize;
        // The dash belongs to no word.
        assert_eq!(text[place].iter().collect::<String>(), word["word"].as_str().unwrap());
        let (from, to) = (number("start_sample"), number("end_sample"));
        assert!(end <= from && from <= to && to <= 6 * 24_000, "{word}");
        end = to;
        starts.insert(from);
    }
    // Multiples of 80 ms and what is spread between them, not all the same.
    assert!(starts.len() > 1, "{words:?}");
    let (sound, events, last) = streamed(&site).await;
    assert!(sound == file && events == words, "{events:?}");
    assert_eq!(last["type"], "speech.audio.done");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_talker_that_dies_in_the_middle_changes_no_time() {
    let (file, words) = whole(&site(Vec::new()).await).await;
    let died = site(vec![FaultRule::new(StageName::Talker, FaultPoint::Runner, FaultKind::Panic).nth(9)]).await;
    let (other, told) = whole(&died).await;
    assert!(other == file && told == words, "{told:?}");
    let health = died.client.get(format!("http://{}/health", died.address)).send().await.unwrap();
    let health: Value = health.json().await.unwrap();
    let restarts = health["stages"].as_array().unwrap().iter().map(|stage| stage["restarts"].as_u64().unwrap());
    assert_eq!(restarts.sum::<u64>(), 1, "{health}");
}

#[tokio::test(flavor = "multi_thread")]
async fn an_aligner_that_dies_once_is_not_noticed_and_one_that_dies_twice_costs_the_words_alone() {
    let (file, words) = whole(&site(Vec::new()).await).await;
    let fault = || FaultRule::new(None, FaultPoint::Aligner, FaultKind::Panic);
    let (sound, told, last) = streamed(&site(vec![fault()]).await).await;
    assert!(sound == file && told == words, "{told:?}");
    assert_eq!(last["type"], "speech.audio.done");
    let site = site(vec![fault().times(2)]).await;
    let (sound, told, last) = streamed(&site).await;
    assert!(sound == file, "the speech is whole");
    assert_eq!((told.len(), &last["type"]), (0, &json!("error")));
    let message = last["error"]["message"].as_str().unwrap();
    assert!(message.contains("the times of some of its words are not known"), "{message}");
    // The next one works.
    assert_eq!(whole(&site).await.1, words);
}

#[tokio::test(flavor = "multi_thread")]
async fn without_an_aligner_the_refusal_says_how_to_get_one() {
    let site = Site::of(&tts(), |_| {}).await;
    let response = site.post(SPEECH, &asked(&json!({}))).await;
    assert_eq!(response.status(), 400);
    let error: Value = response.json().await.unwrap();
    let message = error["error"]["message"].as_str().unwrap();
    assert!(message.contains("has no aligner") && message.contains("aligner.checkpoint"), "{error}");
}
