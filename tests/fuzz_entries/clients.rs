//! Clients of a server: bodies, messages and events.

use crate::support::http::Ask;
use crate::support::tts;
use crate::support::wait::PATIENCE;
use crate::support::wyoming::frame;
use crate::{GROWTH, fuzz, memory};
use serde_json::json;
use std::io::{ErrorKind, Read, Write};
use std::net::{Shutdown, TcpStream};
use tokio_tungstenite::tungstenite::{Message, client};

const BATCH: &str = "/v1/audio/speech/batch";

#[test]
fn clients_are_answered_whatever_they_send() {
    let voices = tempfile::tempdir().unwrap();
    // A length that was damaged may ask for minutes of sound: they end.
    let more = "[limits]\nadmission = \"places\"\nmax_requests = 4\nrequest_timeout = \"5s\"\n[reference_audio]\nmin_length = \"100ms\"\n";
    let more = format!("{more}[wyoming]\nlisten = \"127.0.0.1:0\"\n");
    let mut server = tts::serve(&tts::fixture("base"), voices.path(), &more);
    let vector: Vec<f64> = vec![0.1; 64];
    let speech = json!({"input": "Hello there.", "max_new_tokens": 2, "ignore_eos": true, "speaker_embedding": vector,
        "language": "English", "response_format": "wav", "speed": 1.0, "stream": false, "seed": 3});
    let marked = json!({"input": "Hello [pause: 0.5s] [rate: 80%]there.", "markup": "brackets", "max_new_tokens": 2,
        "speaker_embedding": vector, "pronunciations": {"there": "hair"}, "response_format": "pcm"});
    let chat = json!({"messages": [{"role": "user", "content": "Hello."}], "max_tokens": 2, "stream": false});
    let parts = json!([{"type": "text", "text": "Hello."}, {"type": "image_url", "image_url": {"url": "data:,"}},
        {"type": "input_audio", "input_audio": {"data": "UklGRg==", "format": "wav"}},
        {"type": "video", "video": ["UklGRg=="], "fps": 2.0}]);
    let seen = json!({"messages": [{"role": "user", "content": parts}], "max_tokens": 2,
        "mm_processor_kwargs": {"use_audio_in_video": true, "fps": 1.0}});
    let start =
        json!({"type": "session.config", "speaker_embedding": vector, "max_new_tokens": 2, "language": "English"});
    let text = json!({"type": "input.text", "text": "Hello there. "});
    let done = json!({"type": "input.done"});
    let before = memory(&server.pid().to_string());
    let wyoming = server.wyoming();
    fuzz("Wyoming events", 0.05, |dice| {
        let voice = json!({"text": "Hello there. ", "voice": {"name": "mine", "language": "en"}});
        let events = ["synthesize-start", "synthesize-chunk", "synthesize", "synthesize-stop", "describe"];
        let good: Vec<u8> = events.iter().flat_map(|kind| frame(kind, &voice)).collect();
        let mut socket = TcpStream::connect(&wyoming).unwrap();
        socket.set_read_timeout(Some(PATIENCE)).unwrap();
        // A server that has had enough may have closed.
        let _ = socket.write_all(&dice.damaged(&good));
        let _ = socket.shutdown(Shutdown::Write);
        if let Err(error) = socket.read_to_end(&mut Vec::new()) {
            assert!(error.kind() == ErrorKind::ConnectionReset, "the server keeps the connection: {error}");
        }
    });
    fuzz("HTTP bodies", 0.2, |dice| {
        let chats = "/v1/chat/completions";
        let (path, good) =
            [(tts::SPEECH, &speech), (tts::SPEECH, &marked), (chats, &chat), (chats, &seen), (BATCH, &speech)]
                [dice.roll(5)];
        let reply = Ask::text(path, dice.damaged(good.to_string().as_bytes())).send(&server.url);
        assert!(reply.status != 500, "{}", String::from_utf8_lossy(&reply.body));
        if reply.status >= 400 {
            assert!(reply.json()["error"]["message"].is_string());
        }
    });
    fuzz("WebSocket messages", 0.2, |dice| {
        let host = server.url.strip_prefix("http://").unwrap();
        let socket = TcpStream::connect(host).unwrap();
        socket.set_read_timeout(Some(PATIENCE)).unwrap();
        let (mut talk, _) = client(format!("ws://{host}/v1/audio/speech/stream"), socket).unwrap();
        for good in [&start, &text, &text, &done] {
            let bytes = if dice.roll(2) == 0 {
                good.to_string().into_bytes()
            } else {
                dice.damaged(good.to_string().as_bytes())
            };
            let message = match String::from_utf8(bytes) {
                Ok(text) => Message::text(text),
                Err(bytes) => Message::binary(bytes.into_bytes()),
            };
            // A server that has had enough may have closed.
            if talk.send(message).is_err() {
                return;
            }
        }
        let _ = talk.close(None);
        while talk.read().is_ok() {}
    });
    assert!(memory(&server.pid().to_string()) < before + GROWTH, "it grows");
    tts::speaks(&server.url, &speech);
    let metrics = Ask::new("GET", "/metrics", &[], "").send(&server.url);
    let text = String::from_utf8(metrics.body).unwrap();
    let restarts = |line: &str| line.starts_with("omni_stage_restarts_total") && !line.ends_with(" 0");
    assert!(!text.lines().any(restarts), "a stage died of it");
}
