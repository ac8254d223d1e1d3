//! `WS /v1/audio/speech/stream`.

use super::scripted::Call;
use super::{Site, json};
use futures::{SinkExt, StreamExt};
use omni_actors::core::ids::Frames;
use omni_actors::engine::{AudioChunk, Event, SubmitError, TextSource};
use serde_json::{Value, json};
use std::time::Duration;
use tokio::net::TcpStream;
use tokio_tungstenite::tungstenite::client::IntoClientRequest;
use tokio_tungstenite::tungstenite::protocol::frame::coding::CloseCode;
use tokio_tungstenite::tungstenite::{Error, Message};
use tokio_tungstenite::{MaybeTlsStream, WebSocketStream, connect_async};

struct Client(WebSocketStream<MaybeTlsStream<TcpStream>>);

impl Client {
    async fn connect(site: &Site) -> Client {
        let (socket, _) = connect_async(format!("ws://{}/v1/audio/speech/stream", site.address)).await.unwrap();
        let mut client = Client(socket);
        assert_eq!(client.event("session.created").await["sample_rate"], 24_000);
        client
    }

    async fn send(&mut self, message: &Value) {
        self.0.send(Message::text(message.to_string())).await.unwrap();
    }

    async fn text(&mut self, text: &str) {
        self.send(&json!({"type": "input.text", "text": text})).await;
    }

    async fn done(&mut self) {
        self.send(&json!({"type": "input.done"})).await;
    }

    async fn next(&mut self) -> Message {
        loop {
            match self.0.next().await.unwrap().unwrap() {
                Message::Ping(_) => {}
                message => return message,
            }
        }
    }

    /// The next message, which must be this event.
    async fn event(&mut self, kind: &str) -> Value {
        let message = self.next().await;
        let event = json(message.to_text().unwrap());
        assert_eq!(event["type"], kind, "{event}");
        event
    }

    /// The next message, which must be audio.
    async fn audio(&mut self) -> Vec<u8> {
        match self.next().await {
            Message::Binary(bytes) => bytes.into(),
            other => panic!("expected audio, got {other:?}"),
        }
    }

    async fn session_done(&mut self, sentences: u32) -> Value {
        let done = self.event("session.done").await;
        assert_eq!(done["total_sentences"], sentences);
        done
    }

    async fn closed(&mut self) -> CloseCode {
        loop {
            match self.next().await {
                Message::Close(frame) => return frame.unwrap().code,
                Message::Text(_) | Message::Binary(_) => {}
                other => panic!("expected the end, got {other:?}"),
            }
        }
    }
}

async fn piece(call: &Call) -> String {
    match &call.speech().text {
        TextSource::Streamed(pieces) => pieces.recv_async().await.unwrap(),
        TextSource::Whole(_) => panic!("expected streamed text"),
    }
}

#[tokio::test]
async fn speech_leaves_before_the_text_is_complete() {
    let site = Site::new();
    let mut client = Client::connect(&site).await;
    client.text("Hello ").await;
    let call = site.service.call().await;
    assert_eq!(piece(&call).await, "Hello ");
    call.started().await;
    call.audio(3).await;
    let start = client.event("audio.start").await;
    assert_eq!((&start["utterance"], &start["format"], &start["request_id"]), (&json!(1), &json!("pcm"), &json!("r7")));
    assert_eq!(client.audio().await.len(), 6);
    // Only now comes the rest.
    client.text("there.").await;
    assert_eq!(piece(&call).await, "there.");
    client.done().await;
    assert_eq!(call.text().await, ""); // the end of the text reaches the engine
    call.audio(2).await;
    call.finish().await;
    assert_eq!(client.audio().await.len(), 4);
    let done = client.event("audio.done").await;
    assert_eq!((&done["samples"], &done["finish_reason"], &done["frames"]), (&json!(5), &json!("stop"), &json!(2)));
    assert!(done["ttfa_ms"].as_f64().unwrap() <= done["total_ms"].as_f64().unwrap());
    assert_eq!((&done["total_bytes"], &done["error"]), (&json!(10), &json!(false)));
    client.session_done(1).await;
}

#[tokio::test]
async fn what_peers_clients_read_is_there() {
    let site = Site::new();
    let mut client = Client::connect(&site).await;
    client.text("Hello there.").await;
    let call = site.service.call().await;
    piece(&call).await;
    client.done().await;
    assert_eq!(call.text().await, "");
    call.started().await;
    let start = client.event("audio.start").await;
    assert_eq!((&start["sentence_text"], &start["sentence_index"]), (&json!("Hello there."), &json!(0)));
    assert_eq!(start["utterance_index"], 0);
    call.finish().await;
    assert_eq!(client.event("audio.done").await["sentence_index"], 0);
    let done = client.session_done(1).await;
    assert_eq!((&done["utterance_index"], &done["utterance"]), (&json!(0), &json!(1)));
    // Every input.done is answered, even one without text.
    client.done().await;
    client.event("error").await;
    client.session_done(0).await;
}

#[tokio::test]
async fn any_format_and_speed_can_be_streamed() {
    let site = Site::new();
    let mut client = Client::connect(&site).await;
    let config = json!({"type": "session.config", "response_format": "mp3", "speed": 2});
    client.send(&config).await;
    let updated = client.event("session.updated").await;
    assert_eq!((&updated["response_format"], &updated["speed"]), (&json!("mp3"), &json!(2.0)));
    client.text("Hi").await;
    client.done().await;
    let call = site.service.call().await;
    call.started().await;
    assert_eq!(client.event("audio.start").await["format"], "mp3");
    call.audio(4800).await;
    let mut file = client.audio().await;
    assert_eq!(file[..2], [0xff, 0xf3]);
    call.finish().await;
    file.extend(client.audio().await);
    let done = client.event("audio.done").await;
    assert_eq!((&done["samples"], &done["total_bytes"]), (&json!(2400), &json!(file.len())));
}

#[tokio::test]
async fn utterances_follow_each_other() {
    let site = Site::new();
    let mut client = Client::connect(&site).await;
    for text in ["One.", "Two."] {
        client.text(text).await;
        client.done().await;
    }
    for (number, text) in [(1, "One."), (2, "Two.")] {
        let call = site.service.call().await;
        assert_eq!(call.text().await, text);
        call.started().await;
        call.finish().await;
        assert_eq!(client.event("audio.start").await["utterance"], number);
        assert_eq!(client.event("audio.done").await["ttfa_ms"], Value::Null);
        client.session_done(1).await;
    }
    client.send(&json!({"type": "session.close"})).await;
    assert_eq!(client.event("session.closed").await["utterances"], 2);
    assert_eq!(client.closed().await, CloseCode::Normal);
}

#[tokio::test]
async fn cancel_stops_at_once_and_the_session_goes_on() {
    let site = Site::new();
    let mut client = Client::connect(&site).await;
    client.text("A long story").await;
    client.done().await;
    client.text("and a queued one").await;
    let call = site.service.call().await;
    call.started().await;
    call.audio(3).await;
    client.event("audio.start").await;
    client.audio().await;
    client.send(&json!({"type": "response.cancel"})).await;
    let cancelled = client.event("audio.cancelled").await;
    assert_eq!((&cancelled["utterance"], &cancelled["samples"]), (&json!(1), &json!(3)));
    call.dropped.await.unwrap();
    client.done().await; // the end of the queued one, which is gone
    client.text("Next.").await;
    client.done().await;
    let call = site.service.call().await;
    assert_eq!(call.text().await, "Next.");
    call.started().await;
    assert_eq!(client.event("audio.start").await["utterance"], 2);
    // With nothing to stop, cancel is answered all the same.
    call.finish().await;
    client.event("audio.done").await;
    client.session_done(1).await;
    client.send(&json!({"type": "input.cancel"})).await;
    assert_eq!(client.event("audio.cancelled").await["utterance"], Value::Null);
}

#[tokio::test]
async fn the_configuration_holds_for_the_utterances_after_it() {
    let site = Site::new();
    let mut client = Client::connect(&site).await;
    client
        .send(
            &json!({"type": "session.config", "voice": "Alto", "response_format": "wav", "seed": 5, "temperature": 0.3}),
        )
        .await;
    let updated = client.event("session.updated").await;
    assert_eq!(
        (&updated["voice"], &updated["response_format"], &updated["seed"]),
        (&json!("alto"), &json!("wav"), &json!(5))
    );
    client.text("Hi").await;
    let call = site.service.call().await;
    let request = &call.speech().params;
    assert_eq!((request.voice.name(), request.seed, request.speech.temperature), (Some("alto"), Some(5), Some(0.3)));
    call.started().await;
    call.audio(1).await;
    assert_eq!(client.event("audio.start").await["format"], "wav");
    assert_eq!(client.audio().await.len(), 44 + 2);
}

#[tokio::test]
async fn mistakes_are_told_and_survived() {
    let site = Site::new();
    let mut client = Client::connect(&site).await;
    client.0.send(Message::text("{")).await.unwrap();
    assert_eq!(client.event("error").await["code"], "invalid_json");
    client.0.send(Message::binary(vec![1, 2, 3])).await.unwrap();
    assert!(client.event("error").await["message"].as_str().unwrap().contains("text frames"));
    client.send(&json!({"type": "input.song"})).await;
    assert_eq!(client.event("error").await["param"], "type");
    client.send(&json!({"type": "input.text", "text": 7})).await;
    assert_eq!(client.event("error").await["code"], "invalid_type");
    client.done().await;
    assert!(client.event("error").await["message"].as_str().unwrap().contains("without any input.text"));
    client.session_done(0).await;
    client.send(&json!({"type": "session.config", "voice": "nobody"})).await;
    assert_eq!(client.event("error").await["param"], "voice");
    client.send(&json!({"type": "session.config", "response_format": "aac"})).await;
    assert_eq!(client.event("error").await["param"], "response_format");
    client.text(&"x".repeat(1001)).await;
    assert_eq!(client.event("error").await["code"], "text_too_long");
    client.done().await;
    client.session_done(0).await;
    client.text("Still here.").await;
    client.done().await;
    assert_eq!(site.service.call().await.text().await, "Still here.");
}

#[tokio::test]
async fn too_long_a_text_ends_the_utterance_that_is_being_spoken() {
    let site = Site::new();
    let mut client = Client::connect(&site).await;
    client.text(&"x".repeat(600)).await;
    let call = site.service.call().await;
    call.started().await;
    piece(&call).await;
    client.event("audio.start").await;
    client.text(&"x".repeat(600)).await;
    let error = client.event("error").await;
    assert_eq!((&error["code"], &error["utterance"]), (&json!("text_too_long"), &json!(1)));
    call.dropped.await.unwrap();
}

#[tokio::test]
async fn a_refusal_and_a_failure_concern_one_utterance() {
    let site = Site::new();
    let mut client = Client::connect(&site).await;
    site.service.refuse_next(SubmitError::Full { limit: 4, retry_after: Duration::from_secs(2) });
    client.text("Refused").await;
    let error = client.event("error").await;
    assert_eq!((&error["code"], &error["retry_after_s"]), (&json!("rate_limit_exceeded"), &json!(2)));
    client.text(", all of it.").await;
    client.done().await;
    client.session_done(0).await;
    client.text("Fails").await;
    let call = site.service.call().await;
    call.started().await;
    call.fail().await;
    client.event("audio.start").await;
    let error = client.event("error").await;
    assert_eq!((&error["code"], &error["utterance"]), (&json!("stage_failed"), &json!(2)));
    client.text(", all of it.").await;
    client.done().await;
    client.session_done(0).await;
    client.text("Works.").await;
    client.done().await;
    assert_eq!(site.service.call().await.text().await, "Works.");
}

#[tokio::test]
async fn a_place_to_begin_is_kept_for_the_utterance_that_is_taken() {
    let site = Site::new();
    let mut client = Client::connect(&site).await;
    client.send(&json!({"type": "session.config", "seed": 5, "start_sample": 100})).await;
    client.event("session.updated").await;
    site.service.refuse_next(SubmitError::Full { limit: 4, retry_after: Duration::from_secs(2) });
    for (start, taken) in [(100, false), (100, true), (0, true)] {
        client.text("The same again.").await;
        client.done().await;
        if !taken {
            assert_eq!(client.event("error").await["code"], "rate_limit_exceeded");
            client.session_done(0).await;
            continue;
        }
        let call = site.service.call().await;
        call.started().await;
        assert_eq!(client.event("audio.start").await["start_sample"], start);
        assert_eq!(call.text().await, "The same again.");
        call.audio(200).await;
        assert_eq!(client.audio().await.len(), 2 * (200 - start));
        call.finish().await;
        assert_eq!(client.event("audio.done").await["samples"], 200 - start);
        client.session_done(1).await;
    }
}

#[tokio::test]
async fn text_that_waits_for_the_engine_while_sound_comes_is_spoken_once() {
    let site = Site::new();
    let mut client = Client::connect(&site).await;
    let words: Vec<String> = (0..200).map(|number| format!("{number} ")).collect();
    client.text(&words[0]).await;
    let call = site.service.call().await;
    call.started().await;
    client.event("audio.start").await;
    for word in &words[1..] {
        client.text(word).await;
    }
    client.done().await;
    // Where a piece makes room for the next one, sound is there too.
    let mut heard = String::new();
    while heard.len() < words.concat().len() {
        let sound = call.audio(1);
        let (text, ()) = tokio::join!(piece(&call), sound);
        heard.push_str(&text);
        client.audio().await;
    }
    heard.push_str(&call.text().await);
    assert_eq!(heard, words.concat());
}

#[tokio::test]
async fn a_client_that_leaves_aborts_its_utterance_even_while_text_is_awaited() {
    let site = Site::new();
    let mut client = Client::connect(&site).await;
    client.text("Hel").await;
    let call = site.service.call().await;
    drop(client);
    call.dropped.await.unwrap();
}

#[tokio::test]
async fn a_client_that_does_not_read_pauses_its_utterance_and_can_still_cancel() {
    let site = Site::new();
    let mut client = Client::connect(&site).await;
    client.text("Hi").await;
    client.done().await;
    let call = site.service.call().await;
    call.started().await;
    let chunk = AudioChunk { samples: vec![0.0; 1_440_000].into(), frames: Frames(750) };
    let mut taken = 0;
    let pause = Duration::from_secs(2);
    while tokio::time::timeout(pause, call.events.send_async(Event::Audio(chunk.clone()))).await.is_ok() {
        taken += 1;
        assert!(taken < 100, "the server reads on although the client does not");
    }
    client.send(&json!({"type": "input.cancel"})).await;
    call.dropped.await.unwrap();
}

#[tokio::test]
async fn too_large_a_message_closes_the_connection() {
    let site = Site::new();
    let mut client = Client::connect(&site).await;
    // The server may close before it has read all, which is fine.
    let _ = client.0.send(Message::text("x".repeat(65 << 10))).await;
    assert_eq!(client.event("error").await["code"], "message_too_large");
    assert_eq!(client.closed().await, CloseCode::Size);
}

#[tokio::test]
async fn pages_of_other_origins_are_kept_out() {
    let site = Site::new();
    let mut request = format!("ws://{}/v1/audio/speech/stream", site.address).into_client_request().unwrap();
    request.headers_mut().insert("origin", "http://elsewhere.example".parse().unwrap());
    match connect_async(request).await {
        Err(Error::Http(response)) => assert_eq!(response.status(), 403),
        other => panic!("expected a refusal, got {:?}", other.map(|_| ())),
    }
}

#[tokio::test]
async fn idle_sessions_are_closed_at_shutdown_and_count_as_connections() {
    let mut site = Site::with(|server, _| server.max_connections = 1);
    let mut client = Client::connect(&site).await;
    // A conversation keeps its place for some seconds of silence.
    client.send(&json!({"type": "session.config"})).await;
    client.event("session.updated").await;
    let refused = site.client.get(site.url("/health")).send().await.unwrap();
    assert_eq!(refused.status(), 503);
    drop(site.shutdown.take());
    assert_eq!(client.closed().await, CloseCode::Away);
    site.serving.await.unwrap();
}

#[tokio::test]
async fn a_session_that_gives_up_its_place_is_told_why() {
    let site = Site::with(|server, _| server.max_connections = 1);
    let mut client = Client::connect(&site).await;
    let address = format!("ws://{}/v1/audio/speech/stream", site.address);
    let joining = async {
        // Refused until the first connection counts as idle.
        while let Err(error) = connect_async(&address).await {
            assert!(matches!(&error, Error::Http(response) if response.status() == 503), "{error}");
        }
    };
    tokio::time::timeout(Duration::from_secs(60), joining).await.unwrap();
    assert_eq!(client.event("error").await["code"], "too_many_connections");
    assert_eq!(client.closed().await, CloseCode::Again);
}

#[tokio::test]
async fn a_session_that_a_shutdown_cuts_is_told_so() {
    let mut site = Site::with(|server, _| server.drain_grace = Duration::from_millis(100));
    let mut client = Client::connect(&site).await;
    client.text("A text that does not end ").await;
    let call = site.service.call().await;
    piece(&call).await;
    drop(site.shutdown.take());
    assert_eq!(client.closed().await, CloseCode::Away);
    site.serving.await.unwrap();
}
