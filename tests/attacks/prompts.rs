//! Requests that are short to send and long to read: they are refused before anything goes over them.

use crate::support::attack::Attacked;
use crate::support::http::Ask;
use crate::support::recording::{data_url, good};
use serde_json::json;

#[test]
fn conversations_of_empty_messages_are_refused_before_they_are_rendered() {
    let attacked = Attacked::embedded("");
    let empty = "{\"role\":\"assistant\",\"content\":\"\"},".repeat(340_000);
    let body = format!("{{\"messages\":[{empty}{{\"role\":\"user\",\"content\":\"Hello.\"}}]}}");
    let ask = Ask::text("/v1/chat/completions", body);
    std::thread::scope(|scope| {
        for _ in 0..3 {
            scope.spawn(|| {
                let reply = ask.send(attacked.url());
                assert!([400, 503].contains(&reply.status), "{}", reply.status);
            });
        }
        attacked.neighbour_is_served();
    });
    let few = "{\"role\":\"assistant\",\"content\":\"\"},".repeat(1024);
    let body = format!("{{\"messages\":[{few}{{\"role\":\"user\",\"content\":\"Hello.\"}}]}}");
    let reply = Ask::text("/v1/chat/completions", body).send(attacked.url()).json();
    let message = reply["error"]["message"].as_str().unwrap();
    assert!(message.contains("1025 messages are more than the limit of 1024"), "{message}");
    attacked.is_as_before();
}

#[test]
fn a_transcript_in_front_of_every_piece_is_short() {
    let attacked = Attacked::base("");
    let (voice, pieces) = (data_url(&good(0)), "Yes. No. ".repeat(2000));
    let body = |chars: usize| {
        json!({"input": pieces, "ref_audio": voice, "ref_text": "word ".repeat(chars / 5), "max_new_tokens": 1,
            "stream_format": "audio", "response_format": "pcm"})
    };
    let reply = Ask::json("/v1/audio/speech", &body(20_000)).send(attacked.url()).json();
    assert_eq!(reply["error"]["param"], "ref_text", "{reply}");
    assert!(reply["error"]["message"].as_str().unwrap().contains("limits.max_instruction_chars"), "{reply}");
    // As long as it may be, in front of forty-five pieces: each is planned when its turn comes.
    let speaking = [(); 2].map(|()| attacked.begin(&Ask::json("/v1/audio/speech", &body(4000))));
    attacked.waits_for("omni_requests_in_flight", |requests| requests > 0.0);
    attacked.neighbour_is_served();
    drop(speaking);
    attacked.is_as_before();
}
