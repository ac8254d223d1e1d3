//! Sessions of `/v1/realtime` over a real socket, on real engines with the small checkpoints.

#[cfg(feature = "webrtc")]
mod calls;
mod conversations;
mod guests;
mod preparing;
mod secrets;
mod speech;
mod tools;

use crate::e2e_http::Site;
use crate::support::wait::PATIENCE;
use base64::Engine as _;
use base64::prelude::BASE64_STANDARD;
use futures::{SinkExt, StreamExt};
use omni_actors::config::Config;
use omni_actors::core::ids::StageName;
use omni_actors::fault::{FaultKind, FaultPoint, FaultRule};
use serde_json::{Value, json};
use std::time::Duration;
use tokio::net::TcpStream;
use tokio::time::timeout;
use tokio_tungstenite::tungstenite::Message;
use tokio_tungstenite::{MaybeTlsStream, WebSocketStream, connect_async};

const CHAT: &str = "/v1/chat/completions";
/// The small checkpoint never ends an answer by itself.
const TOKENS: u32 = 6;

async fn site() -> Site {
    with(|_| {}).await
}

async fn with(change: impl FnOnce(&mut Config)) -> Site {
    Site::new(change).await
}

/// A site whose talker, from its fourth step on, is so slow that no answer of 400 frames ends while a test waits.
async fn slow_site() -> Site {
    let pause = FaultKind::Delay(Duration::from_millis(500));
    let slow = FaultRule::new(StageName::Talker, FaultPoint::Runner, pause).nth(4).times(u64::MAX);
    with(|config| config.faults = vec![slow]).await
}

/// A client of a session.
struct Talk {
    socket: WebSocketStream<MaybeTlsStream<TcpStream>>,
}

impl Talk {
    async fn new(site: &Site) -> Talk {
        Talk::of(site, "?seed=11").await
    }

    /// After `session.created`, and an update that makes answers short and turns the client's.
    async fn of(site: &Site, query: &str) -> Talk {
        Talk::at(&site.address.to_string(), query).await
    }

    /// The same at an address.
    async fn at(address: &str, query: &str) -> Talk {
        let mut talk = Talk::to(address, query).await;
        assert_eq!(talk.next().await["type"], "session.created");
        let settings = json!({"max_output_tokens": TOKENS, "audio": {"input": {"turn_detection": null}}});
        talk.update(settings).await;
        talk
    }

    async fn bare(site: &Site, query: &str) -> Talk {
        Talk::to(&site.address.to_string(), query).await
    }

    async fn to(address: &str, query: &str) -> Talk {
        let url = format!("ws://{address}/v1/realtime{query}");
        Talk { socket: connect_async(url).await.unwrap().0 }
    }

    async fn send(&mut self, event: Value) {
        self.socket.send(Message::text(event.to_string())).await.unwrap();
    }

    /// The next event; `Null` when the server has closed.
    async fn next(&mut self) -> Value {
        loop {
            match timeout(PATIENCE, self.socket.next()).await.expect("no event came") {
                Some(Ok(Message::Text(text))) => return serde_json::from_str(&text).unwrap(),
                Some(Ok(Message::Ping(_) | Message::Pong(_))) => {}
                Some(Ok(Message::Close(_)) | Err(_)) | None => return Value::Null,
                other => panic!("{other:?}"),
            }
        }
    }

    /// The events up to one of this type. An error that is not awaited fails the test.
    async fn until(&mut self, kind: &str) -> Vec<Value> {
        let mut events = Vec::new();
        loop {
            let event = self.next().await;
            assert!(!event.is_null(), "closed before {kind}: {events:?}");
            assert!(kind == "error" || event["type"] != "error", "{event}");
            let found = event["type"] == kind;
            events.push(event);
            if found {
                return events;
            }
        }
    }

    async fn update(&mut self, mut settings: Value) -> Value {
        settings["type"] = json!("realtime");
        self.send(json!({"type": "session.update", "session": settings})).await;
        self.until("session.updated").await.pop().unwrap()
    }

    async fn say(&mut self, text: &str) {
        let content = json!([{"type": "input_text", "text": text}]);
        let item = json!({"type": "message", "role": "user", "content": content});
        self.send(json!({"type": "conversation.item.create", "item": item})).await;
        self.until("conversation.item.done").await;
    }

    /// A whole answer, in text or in sound.
    async fn answer(&mut self, modality: &str) -> Answer {
        let response = json!({"output_modalities": [modality]});
        self.send(json!({"type": "response.create", "response": response})).await;
        Answer::of(self.until("response.done").await)
    }

    async fn append(&mut self, pcm: &[u8]) {
        for piece in pcm.chunks(9_600) {
            let audio = BASE64_STANDARD.encode(piece);
            self.send(json!({"type": "input_audio_buffer.append", "audio": audio})).await;
        }
    }
}

/// The events of a response.
struct Answer {
    events: Vec<Value>,
}

impl Answer {
    fn of(events: Vec<Value>) -> Answer {
        Answer { events }
    }

    fn response(&self) -> &Value {
        &self.events.last().unwrap()["response"]
    }

    fn seed(&self) -> u64 {
        self.response()["seed"].as_u64().unwrap()
    }

    fn item(&self) -> String {
        self.response()["output"][0]["id"].as_str().unwrap().to_owned()
    }

    fn joined(&self, kind: &str) -> String {
        let of_kind = self.events.iter().filter(|event| event["type"] == kind);
        of_kind.map(|event| event["delta"].as_str().unwrap()).collect()
    }

    fn text(&self) -> String {
        self.joined("response.output_text.delta") + &self.joined("response.output_audio_transcript.delta")
    }

    fn sound(&self) -> Vec<u8> {
        let deltas = self.events.iter().filter(|event| event["type"] == "response.output_audio.delta");
        deltas.flat_map(|event| BASE64_STANDARD.decode(event["delta"].as_str().unwrap()).unwrap()).collect()
    }
}

/// What chat answers to the same messages with the same seed: the text, and the samples.
async fn chat(site: &Site, messages: &Value, seed: u64, speaks: bool) -> (String, Vec<u8>) {
    let mut body = json!({"messages": messages, "seed": seed, "max_tokens": TOKENS});
    if speaks {
        body["modalities"] = json!(["text", "audio"]);
        body["audio"] = json!({"format": "pcm16", "max_new_tokens": TOKENS});
    }
    let answer: Value = site.post(CHAT, &body).await.json().await.unwrap();
    let message = &answer["choices"][0]["message"];
    let data = message["audio"]["data"].as_str().unwrap_or_default();
    (
        message["content"].as_str().unwrap_or_else(|| panic!("{answer}")).to_owned(),
        BASE64_STANDARD.decode(data).unwrap(),
    )
}
