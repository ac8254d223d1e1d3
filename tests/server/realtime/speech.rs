//! Turns that are spoken.

use super::*;
use crate::support::engine::{idle, voice};
use crate::support::recording::{PCM, hum};

/// Samples of 16 bits at 24 kHz: the embedded voice says this.
pub(super) async fn recording(text: &str) -> Vec<u8> {
    let site = Site::of(&voice(), |_| {}).await;
    let body = json!({"input": text, "seed": 3, "response_format": "pcm"});
    site.bytes("/v1/audio/speech", &body).await
}

const QUESTION: &str = "Good morning. Could you tell me the time?";

fn silence(ms: usize) -> Vec<u8> {
    vec![0; 48 * ms]
}

/// A series without labels, of all sessions of this process: it only grows.
fn counted(name: &str) -> f64 {
    let text = omni_actors::telemetry::render();
    let value = text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(' '));
    value.map_or(0.0, |value| value.parse().unwrap())
}

fn wav(rate: u32, pcm: &[u8]) -> String {
    BASE64_STANDARD.encode(crate::support::recording::Wav { rate, ..PCM }.with(pcm))
}

#[tokio::test(flavor = "multi_thread")]
async fn push_to_talk_is_answered_as_a_recording_in_chat() {
    let site = site().await;
    let mut talk = Talk::new(&site).await;
    // Its samples are played faster than they were made.
    let pcm = hum(1, 24_000);
    talk.append(&pcm).await;
    talk.send(json!({"type": "input_audio_buffer.commit"})).await;
    let committed = talk.until("conversation.item.done").await;
    assert_eq!(committed[0]["type"], "input_audio_buffer.committed");
    let answer = talk.answer("audio").await;
    // The model hears a turn with 25 ms of silence, or a little more, at its end.
    let heard = [&pcm[..], &silence(30)].concat();
    let sound = json!({"type": "input_audio", "input_audio": {"data": wav(24_000, &heard), "format": "wav"}});
    let messages = json!([{"role": "user", "content": [sound]}]);
    let (text, samples) = chat(&site, &messages, answer.seed(), true).await;
    assert_eq!(answer.text(), text);
    assert!(answer.sound() == samples && !samples.is_empty());
    let details = &answer.response()["usage"]["input_token_details"];
    assert_eq!(details["audio_tokens"], 14);
}

#[tokio::test(flavor = "multi_thread")]
async fn speech_between_silences_is_heard_as_a_turn_and_answered() {
    let sounds = counted("omni_realtime_first_sound_seconds_count");
    let speech = recording(QUESTION).await;
    let site = site().await;
    let mut talk = Talk::new(&site).await;
    talk.update(json!({"audio": {"input": {
        "turn_detection": {"type": "server_vad", "silence_duration_ms": 600}, "transcription": {},
    }}}))
    .await;
    talk.append(&silence(800)).await;
    talk.append(&speech).await;
    talk.append(&silence(1_500)).await;
    let events = talk.until("response.done").await;
    assert!(counted("omni_realtime_first_sound_seconds_count") > sounds);
    let at = |kind: &str| events.iter().position(|event| event["type"] == kind).unwrap_or_else(|| panic!("no {kind}"));
    let order =
        ["input_audio_buffer.speech_started", "input_audio_buffer.speech_stopped", "input_audio_buffer.committed"];
    assert!(order.iter().map(|kind| at(kind)).is_sorted());
    let start = events[at(order[0])]["audio_start_ms"].as_u64().unwrap();
    assert!((400..1_000).contains(&start), "{start}");
    let mut all = events;
    let transcribed = "conversation.item.input_audio_transcription.completed";
    if all.iter().all(|event| event["type"] != transcribed) {
        all.extend(talk.until(transcribed).await);
    }
    idle(&site.engine).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn who_speaks_into_an_answer_ends_it_and_is_answered() {
    let speech = recording(QUESTION).await;
    let before = ["omni_realtime_interruptions_total", "omni_realtime_turns_total"].map(counted);
    let site = slow_site().await;
    let mut talk = Talk::new(&site).await;
    talk.update(json!({
        "max_output_tokens": 400, "audio": {"input": {"turn_detection": {"type": "semantic_vad", "eagerness": "high"}}},
    }))
    .await;
    talk.say("Tell me a story").await;
    talk.send(json!({"type": "response.create"})).await;
    talk.until("response.output_audio.delta").await;
    talk.append(&speech).await;
    let cut = Answer::of(talk.until("response.done").await);
    let response = cut.response();
    assert_eq!((&response["status"], &response["id"]), (&json!("cancelled"), &json!("resp_1")));
    assert_eq!(response["status_details"]["reason"], "turn_detected");
    // At most the frame that was on its way.
    let decided = cut.events.iter().position(|event| event["type"] == "input_audio_buffer.speech_started").unwrap();
    let sound = |event: &&Value| event["type"] == "response.output_audio.delta";
    assert_eq!(cut.events[decided..].iter().filter(sound).count(), 0);
    talk.append(&silence(1_500)).await;
    let next = talk.until("response.created").await.pop().unwrap();
    assert_eq!(next["response"]["id"], "resp_2");
    let now = ["omni_realtime_interruptions_total", "omni_realtime_turns_total"].map(counted);
    assert!(before[0] < now[0] && before[1] < now[1], "{before:?} {now:?}");
    drop(talk);
    idle(&site.engine).await;
}
