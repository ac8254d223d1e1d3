//! Requests whose wishes are strange: nobody else hears of them, and the server learns nothing from them.

use crate::support::attack::Attacked;
use crate::support::http::{Ask, Reply};
use serde_json::{Value, json};

const SPEECH: &str = "/v1/audio/speech";

fn refused(reply: &Reply, field: &str, says: &str) {
    let body = reply.json();
    assert_eq!((reply.status, body["error"]["param"].as_str()), (400, Some(field)), "{body}");
    let message = body["error"]["message"].as_str().unwrap();
    assert!(message.contains(says), "{message}");
}

/// One frame, streamed: a listener without a deadline of its own.
fn frame(change: &Value) -> Ask {
    let mut body = json!({
        "input": "one", "stream_format": "audio", "response_format": "pcm", "max_new_tokens": 1, "ignore_eos": true,
    });
    body.as_object_mut().unwrap().extend(change.as_object().unwrap().clone());
    Ask::json(SPEECH, &body)
}

#[test]
fn a_first_chunk_larger_than_a_step_is_refused_and_the_largest_is_made() {
    let attacked = Attacked::embedded("");
    for frames in [33, 600, 5000] {
        let body = json!({"initial_codec_chunk_frames": frames, "max_new_tokens": frames + 100});
        let reply = frame(&body).send(attacked.url());
        refused(&reply, "initial_codec_chunk_frames", "more than the 32 that the first chunk may have");
    }
    let largest = frame(&json!({"initial_codec_chunk_frames": 32, "max_new_tokens": 40})).send(attacked.url());
    assert_eq!(largest.status, 200);
    attacked.is_as_before();
}

#[test]
fn a_first_chunk_that_the_talker_could_never_fill_is_refused() {
    let attacked = Attacked::embedded("[stages.talker]\nwindow = 16\n");
    let reply = frame(&json!({"initial_codec_chunk_frames": 16, "max_new_tokens": 60})).send(attacked.url());
    refused(&reply, "initial_codec_chunk_frames", "more than the 15");
    let reply = frame(&json!({"initial_codec_chunk_frames": 15, "max_new_tokens": 60})).send(attacked.url());
    assert_eq!(reply.status, 200);
    attacked.is_as_before();
}

#[test]
fn deadlines_of_a_millisecond_lower_the_capacity_of_no_server() {
    // However slow the machine is, no stream is late by the server's own deadline.
    let attacked = Attacked::embedded("[limits]\nfirst_audio_deadline = \"1h\"\n");
    let hasty = frame(&json!({"deadline_ms": 1}));
    std::thread::scope(|scope| {
        for _ in 0..6 {
            scope.spawn(|| {
                for _ in 0..20 {
                    let status = hasty.send(attacked.url()).status;
                    assert!([200, 429].contains(&status), "{status}");
                }
            });
        }
        attacked.neighbour_is_served();
    });
    attacked.neighbour_is_served();
    assert_eq!(attacked.metric("omni_admission_capacity"), 16.0);
    assert_eq!(frame(&json!({})).send(attacked.url()).status, 200, "an ordinary listener, at once");
    attacked.is_as_before();
}

#[test]
fn an_idle_server_takes_a_listener_however_long_others_waited() {
    // Every first sound comes later than this deadline and twice as late.
    let attacked = Attacked::embedded("[limits]\nfirst_audio_deadline = \"10ms\"\n");
    for _ in 0..8 {
        let reply = frame(&json!({"max_new_tokens": 12})).send(attacked.url());
        assert_eq!(reply.status, 200, "{}", String::from_utf8_lossy(&reply.body));
        attacked.waits_for_rest();
    }
    attacked.is_as_before();
}

#[test]
fn a_chapter_in_one_piece_is_refused() {
    let attacked = Attacked::embedded("");
    let chapter = "A sentence of a book. ".repeat(1310);
    std::thread::scope(|scope| {
        for _ in 0..15 {
            scope.spawn(|| {
                let body = json!({"input": chapter, "ignore_eos": true, "max_new_tokens": 6000});
                let reply = Ask::json(SPEECH, &body).send(attacked.url());
                refused(&reply, "input", "more than the 4000 that ignore_eos speaks in one piece");
            });
        }
        attacked.neighbour_is_served();
    });
    let hours = frame(&json!({"max_new_tokens": 10_000_000})).send(attacked.url());
    refused(&hours, "max_new_tokens", "that one answer may have");
    attacked.is_as_before();
}
