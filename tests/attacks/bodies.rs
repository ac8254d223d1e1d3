//! Bodies that cost more than their bytes, and bodies that do not end.

use crate::support::attack::Attacked;
use crate::support::http::Ask;
use serde_json::{Value, json};
use std::io::Write;

#[test]
fn json_of_millions_of_objects_is_refused_before_a_tree_is_built() {
    let attacked = Attacked::embedded("");
    let body = format!("[{}{{}}]", "{\"\":0},".repeat((15 << 20) / 7));
    let ask = Ask::text("/v1/audio/speech", body);
    std::thread::scope(|scope| {
        for _ in 0..3 {
            scope.spawn(|| {
                let error = ask.send(attacked.url()).json();
                let code = error["error"]["code"].as_str().unwrap();
                assert!(["invalid_json", "too_much_input"].contains(&code), "{error}");
            });
        }
        attacked.neighbour_is_served();
    });
    let told = ask.send(attacked.url()).json();
    assert!(told["error"]["message"].as_str().unwrap().contains("server.max_json_values"), "{told}");
    let deep = "[".repeat(1000) + &"]".repeat(1000);
    let told = Ask::text("/v1/audio/speech", deep).send(attacked.url()).json();
    assert!(told["error"]["message"].as_str().unwrap().contains("server.max_json_depth"), "{told}");
    attacked.is_as_before();
}

#[test]
fn large_bodies_that_do_not_end_leave_room_for_ordinary_ones() {
    let attacked = Attacked::embedded("");
    let unfinished: Vec<_> = (0..8)
        .map(|_| {
            let mut socket = attacked.connect();
            let head = "POST /v1/audio/speech HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n\
                        Content-Length: 16000000\r\n\r\n";
            // The last ones are refused: the server may have closed the connection.
            let _ = socket.write_all(head.as_bytes()).and_then(|()| socket.write_all(&vec![b' '; 15_000_000]));
            socket
        })
        .collect();
    attacked.waits_for("omni_http_input_bytes", |bytes| bytes >= 45e6);
    attacked.neighbour_is_served();
    drop(unfinished);
    attacked.is_as_before();
}

#[test]
fn a_batch_does_not_copy_what_its_items_share() {
    let attacked = Attacked::base("");
    let items: Vec<Value> = (0..32).map(|number| json!({"input": format!("Number {number}.")})).collect();
    let body = json!({
        "items": items, "max_new_tokens": 1, "speaker_embedding": vec![0.5; 64], "unknown": "x".repeat(13 << 20),
        "numbers": vec![0; 90_000],
    });
    let ask = Ask::json("/v1/audio/speech/batch", &body);
    std::thread::scope(|scope| {
        for _ in 0..2 {
            scope.spawn(|| {
                let answer = attacked.patiently(&ask).json();
                assert_eq!(answer["succeeded"], 32, "{answer}");
            });
        }
        attacked.neighbour_is_served();
    });
    attacked.memory_within(192 << 20);
    attacked.is_as_before();
}

#[test]
fn recordings_that_batches_name_are_counted() {
    // 360 MB in all if none were counted, and a process for each; more only takes longer.
    const ITEMS: usize = 6;
    let folder = tempfile::tempdir().unwrap();
    for number in 0..ITEMS {
        // It is no recording, which the server learns only when it has read it.
        std::fs::write(folder.path().join(format!("{number}.wav")), vec![7; 10_000_000]).unwrap();
    }
    let attacked = Attacked::base(&format!("[reference_audio]\nallowed_folders = [{:?}]\n", folder.path()));
    let file = |number: usize| format!("file://{}/{number}.wav", folder.path().display());
    let items: Vec<Value> = (0..ITEMS).map(|number| json!({"input": "Hello.", "ref_audio": file(number)})).collect();
    let ask = Ask::json("/v1/audio/speech/batch", &json!({"items": items, "max_new_tokens": 1}));
    std::thread::scope(|scope| {
        for _ in 0..6 {
            scope.spawn(|| assert_eq!(attacked.very_patiently(&ask).json()["failed"], ITEMS));
        }
        attacked.neighbour_is_served();
    });
    attacked.memory_within(256 << 20);
    attacked.is_as_before();
}
