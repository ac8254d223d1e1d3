//! Clients that take places and do not use them.

use crate::support::attack::{Attacked, frame};
use crate::support::http::{Ask, Reply};
use crate::support::recording::{data_url, good};
use rustix::net::sockopt::set_socket_recv_buffer_size;
use serde_json::json;
use std::io::{Read, Write};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

const SPEECH: &str = "/v1/audio/speech";
/// Four places, and a client may keep one waiting for ten seconds.
const FEW: &str = "[limits]\nmax_requests = 4\nstalled_client_timeout = \"10s\"\n";

/// An hour of speech.
fn long() -> String {
    "This is one sentence of a very long text. ".repeat(1500)
}

/// Does something every `every` until the flag is set or it fails.
fn now_and_then(over: &AtomicBool, every: Duration, mut something: impl FnMut() -> bool) {
    while !over.load(Ordering::Relaxed) && something() {
        // The pace is the attack.
        #[expect(clippy::disallowed_methods, reason = "the pace of a slow client is the attack")]
        std::thread::sleep(every);
    }
}

/// Ends what is done [`now_and_then`], also where the test fails.
struct Ends<'a>(&'a AtomicBool);

impl Drop for Ends<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

/// A place was given up, and no request was ended for that.
fn some_were_paused_and_none_was_ended(attacked: &Attacked) {
    attacked.waits_for("omni_requests_paused_total", |paused| paused > 0.0);
    assert_eq!(attacked.metric("omni_requests_ended_total"), 0.0, "a request was ended");
}

fn all_places_are_taken(attacked: &Attacked) {
    attacked.waits_for("omni_requests_in_flight", |requests| requests >= 4.0);
}

/// Speech of `input` that no connection has room for: 30 KB for a frame.
fn immense(input: &str, frames: u32, alone: bool) -> Ask {
    let body = json!({
        "input": input, "seed": 7, "max_new_tokens": frames, "ignore_eos": alone, "speaker_embedding": vec![0.5; 64],
        "stream_format": "audio", "response_format": "pcm", "speed": 0.25, "sample_rate": 48_000,
    });
    Ask::new("POST", SPEECH, &["Content-Type: application/json", "Connection: close"], body.to_string())
}

#[test]
fn a_reader_that_comes_back_hears_every_sample() {
    let attacked = Attacked::base("[limits]\nmax_requests = 1\n");
    // One request of the stages, and a text in pieces, each of which is one.
    for ask in [immense("Hello there.", 300, true), immense(&"It is raining. ".repeat(400), 300, false)] {
        let whole = attacked.patiently(&ask).body;
        assert!(whole.len() > 8 << 20, "{} bytes", whole.len());
        let paused = attacked.metric("omni_requests_paused_total");
        let mut slow = attacked.begin(&ask);
        // A buffer of a fixed size: one that grows with what is read may come to take all that is left.
        set_socket_recv_buffer_size(&slow, 64 << 10).unwrap();
        attacked.waits_for("omni_requests_in_flight", |requests| requests > 0.0);
        // Its place is taken twice, the second time when it has read more than had been made, and so goes on.
        let mut bytes = Vec::new();
        for read_on in [0, 5 << 20] {
            (&slow).take(read_on).read_to_end(&mut bytes).unwrap();
            attacked.neighbour_is_served();
        }
        slow.read_to_end(&mut bytes).unwrap();
        assert!(Reply::read(&bytes).expect("the answer was cut").body == whole, "it heard other samples");
        assert!(attacked.metric("omni_requests_paused_total") >= paused + 2.0);
    }
    some_were_paused_and_none_was_ended(&attacked);
    attacked.is_as_before();
}

#[test]
fn slow_readers_of_long_texts_give_their_places_up() {
    let attacked = Attacked::embedded(FEW);
    let over = AtomicBool::new(false);
    let body = json!({"input": long(), "stream_format": "audio", "response_format": "pcm"});
    let mut readers = [(); 4].map(|()| attacked.begin(&Ask::json(SPEECH, &body)));
    all_places_are_taken(&attacked);
    std::thread::scope(|scope| {
        for reader in &mut readers {
            // A sixth of real time.
            let read = || reader.read_exact(&mut [0; 32 << 10]).is_ok();
            scope.spawn(|| now_and_then(&over, Duration::from_secs(4), read));
        }
        let _ends = Ends(&over);
        attacked.neighbour_is_served();
        some_were_paused_and_none_was_ended(&attacked);
    });
    drop(readers);
    attacked.is_as_before();
}

#[test]
fn many_slow_readers_of_long_texts_let_others_in() {
    let attacked = Attacked::embedded(FEW);
    // What the engine says in a second fills their connections with eight, so that they wait to be read soon.
    let body = json!({
        "input": long(), "stream_format": "audio", "response_format": "pcm", "speed": 0.25, "sample_rate": 48_000,
    });
    let mut readers: Vec<_> = (0..64).map(|_| attacked.begin(&Ask::json(SPEECH, &body))).collect();
    attacked.waits_for("omni_requests_in_flight", |requests| requests > 0.0);
    let over = AtomicBool::new(false);
    std::thread::scope(|scope| {
        // Each has its turn after 6.4 s, less than a tenth of real time.
        scope.spawn(|| {
            let mut turns = (0..64).cycle();
            readers.iter().for_each(|reader| reader.set_read_timeout(Some(Duration::from_millis(100))).unwrap());
            now_and_then(&over, Duration::from_millis(100), || {
                let reader: &mut std::net::TcpStream = &mut readers[turns.next().unwrap()];
                // Some were refused.
                let _ = reader.read(&mut [0; 4096]);
                true
            });
        });
        let _ends = Ends(&over);
        (0..3).for_each(|_| attacked.neighbour_is_served());
    });
    drop(readers);
    attacked.is_as_before();
}

#[test]
fn writers_of_a_letter_now_and_then_give_their_places_up() {
    let attacked = Attacked::embedded(FEW);
    let over = AtomicBool::new(false);
    let letter = frame(0x81, json!({"type": "input.text", "text": "a "}).to_string().as_bytes());
    let mut writers = [(); 4].map(|()| attacked.websocket());
    writers.iter_mut().for_each(|writer| writer.write_all(&letter).unwrap());
    all_places_are_taken(&attacked);
    std::thread::scope(|scope| {
        for writer in &mut writers {
            let write = || writer.write_all(&letter).is_ok();
            scope.spawn(|| now_and_then(&over, Duration::from_secs(4), write));
        }
        let _ends = Ends(&over);
        attacked.neighbour_is_served();
        some_were_paused_and_none_was_ended(&attacked);
    });
    drop(writers);
    attacked.is_as_before();
}

#[test]
fn clients_that_send_one_byte_more_and_leave_hold_no_place() {
    let attacked = Attacked::embedded("[limits]\nmax_requests = 4\n");
    let body = json!({"input": long()});
    let mut leaving = [(); 4].map(|()| attacked.begin(&Ask::json(SPEECH, &body)));
    all_places_are_taken(&attacked);
    leaving.iter_mut().for_each(|client| client.write_all(b"x").unwrap());
    drop(leaving);
    attacked.neighbour_is_served();
    attacked.is_as_before();
}

#[test]
fn uploads_in_a_loop_let_others_clone() {
    let attacked = Attacked::base("");
    let over = AtomicBool::new(false);
    std::thread::scope(|scope| {
        for number in 0..8 {
            let (attacked, over) = (&attacked, &over);
            scope.spawn(move || {
                let name = format!("voice {number}");
                let recording = good(number);
                let parts: [(&str, &str, &[u8]); 3] = [
                    ("name", "", name.as_bytes()),
                    ("consent", "", b"form 12"),
                    ("audio_sample", "; filename=\"a.wav\"\r\nContent-Type: audio/wav", &recording),
                ];
                let (upload, delete) = (
                    Ask::form("/v1/audio/voices", &parts),
                    Ask::new("DELETE", &format!("/v1/audio/voices/voice%20{number}"), &[], ""),
                );
                while !over.load(Ordering::Relaxed) {
                    let status = upload.send(attacked.url()).status;
                    assert!([200, 409, 429].contains(&status), "{status}");
                    delete.send(attacked.url());
                }
            });
        }
        let _ends = Ends(&over);
        for number in 0..3 {
            let body = json!({
                "input": "Hello there.", "seed": 1, "max_new_tokens": 3, "ref_audio": data_url(&good(100 + number)),
            });
            attacked.patiently(&Ask::json(SPEECH, &body));
        }
        attacked.neighbour_is_served();
    });
    attacked.is_as_before();
}
