//! Clients that read slowly, or not at all.

use crate::support::attack::Attacked;
use crate::support::http::Ask;
use crate::support::tts::VOICES;
use serde_json::json;
use std::io::Read;
use std::net::TcpStream;

#[test]
fn whole_answers_that_are_not_read_are_bounded_and_cut_where_others_need_the_memory() {
    let attacked = Attacked::base("[server]\nmax_output_bytes = 8388608\n[limits]\nadmission = \"places\"\n");
    // 1.2 MB each: no short answer.
    let body = json!({
        "input": "Hello there.", "speaker_embedding": vec![0.5; 64], "ignore_eos": true, "max_new_tokens": 75,
        "speed": 0.25,
    });
    let ask = Ask::json("/v1/audio/speech", &body);
    let unread = |_| {
        let mut socket = attacked.begin(&ask);
        // The answer has begun: it is whole, and the server has it until it is read.
        socket.read_exact(&mut [0; 12]).unwrap();
        socket
    };
    std::thread::scope(|scope| {
        let clients: Vec<_> = (0..8).map(|_| scope.spawn(|| (0..6).map(unread).collect::<Vec<TcpStream>>())).collect();
        attacked.neighbour_is_served();
        let sockets: Vec<_> = clients.into_iter().map(|client| client.join().unwrap()).collect();
        attacked.neighbour_is_served();
        // A long answer for a client that reads it takes the memory of those that do not.
        assert!(attacked.patiently(&ask).body.len() > 1_100_000);
        assert!(attacked.metric("omni_http_evicted_total") > 0.0);
        drop(sockets);
    });
    attacked.memory_within(48 << 20);
    attacked.is_as_before();
}

#[test]
fn an_answer_in_one_piece_has_a_longest() {
    let attacked = Attacked::base("[limits]\nmax_whole_audio = \"2s\"\n");
    let mut body = json!({
        "input": "Hello there.", "speaker_embedding": vec![0.5; 64], "ignore_eos": true, "max_new_tokens": 60,
    });
    let refused = Ask::json("/v1/audio/speech", &body).send(attacked.url());
    assert_eq!(refused.status, 400);
    assert_eq!(refused.json()["error"]["code"], "answer_too_long", "{}", refused.json());
    body["stream_format"] = json!("audio");
    assert_eq!(Ask::json("/v1/audio/speech", &body).send(attacked.url()).status, 200);
    attacked.is_as_before();
}

#[test]
fn a_list_of_a_thousand_voices_costs_its_readers_nothing() {
    let attacked = Attacked::base("");
    let text = "ü".repeat(4096);
    let embedding = json!(vec![0.5; 64]).to_string();
    std::thread::scope(|scope| {
        for part in 0..4 {
            let (attacked, text, embedding) = (&attacked, &text, &embedding);
            scope.spawn(move || {
                for number in (part..1000).step_by(4) {
                    let name = format!("voice-{number}");
                    let parts: [(&str, &str, &[u8]); 4] = [
                        ("name", "", name.as_bytes()),
                        ("consent", "", text.as_bytes()),
                        ("speaker_description", "", text.as_bytes()),
                        ("speaker_embedding", "", embedding.as_bytes()),
                    ];
                    attacked.patiently(&Ask::form(VOICES, &parts));
                }
            });
        }
    });
    let list = attacked.patiently(&Ask::new("GET", VOICES, &[], "")).json();
    assert_eq!(
        (list["names"].as_array().unwrap().len(), list["uploaded_voices"].as_array().unwrap().len()),
        (1000, 1000)
    );
    let kept = attacked.memory("VmRSS");
    let unread: Vec<TcpStream> = (0..60).map(|_| attacked.begin(&Ask::new("GET", VOICES, &[], ""))).collect();
    attacked.neighbour_is_served();
    let more = attacked.memory("VmRSS").saturating_sub(kept);
    println!("{} MiB for 60 readers of a list", more >> 20);
    assert!(more < 64 << 20, "{more} bytes for readers of a list");
    drop(unread);
    attacked.is_as_before();
}
