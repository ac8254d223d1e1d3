//! Every route that makes something, over a real socket, on a real engine.

use crate::support::engine::{engine, idle, tiny};
use crate::support::http::stage_of;
use base64::Engine as _;
use base64::prelude::BASE64_STANDARD;
use futures::{SinkExt, StreamExt};
use omni_actors::config::Config;
use omni_actors::core::ids::StageName;
use omni_actors::engine::Engine;
use omni_actors::fault::{FaultKind, FaultPoint, FaultRule};
use omni_actors::model::checkpoint::Checkpoint;
use omni_actors::server::Server;
use reqwest::{Client, Response};
use serde_json::{Value, json};
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;
use tokio::net::TcpStream;
use tokio::task::JoinHandle;
use tokio_tungstenite::tungstenite::Message;
use tokio_tungstenite::{MaybeTlsStream, WebSocketStream, connect_async};

pub const SPEECH: &str = "/v1/audio/speech";
const CHAT: &str = "/v1/chat/completions";
pub const WAV_HEADER: usize = 44;

pub struct Site {
    pub engine: Engine,
    pub address: SocketAddr,
    pub client: Client,
    serving: JoinHandle<()>,
}

impl Drop for Site {
    fn drop(&mut self) {
        self.serving.abort();
    }
}

impl Site {
    pub async fn new(change: impl FnOnce(&mut Config)) -> Site {
        Site::of(&tiny(), change).await
    }

    pub async fn of(checkpoint: &Checkpoint, change: impl FnOnce(&mut Config)) -> Site {
        let mut config = Config::default();
        let engine = engine(checkpoint, |own| {
            change(own);
            config = own.clone();
        })
        .await;
        config.server.listen = SocketAddr::from(([127, 0, 0, 1], 0));
        let server = Server::bind(&config.server).unwrap();
        let (address, service) = (server.local_addr(), Arc::new(engine.clone()));
        let serving = tokio::spawn(async move { server.serve(service, &config.limits, std::future::pending()).await });
        Site { engine, address, client: Client::new(), serving }
    }

    /// Its address as clients are given it.
    pub fn url(&self) -> String {
        format!("http://{}", self.address)
    }

    pub async fn post(&self, path: &str, body: &Value) -> Response {
        self.client.post(format!("{}{path}", self.url())).json(body).send().await.unwrap()
    }

    /// The body of an answer that must be fine.
    pub async fn bytes(&self, path: &str, body: &Value) -> Vec<u8> {
        let response = self.post(path, body).await;
        assert_eq!(response.status(), 200, "{body}");
        response.bytes().await.unwrap().into()
    }

    /// The events of an answer that must be fine.
    pub async fn events(&self, path: &str, body: &Value) -> Vec<Value> {
        let text = String::from_utf8(self.bytes(path, body).await).unwrap();
        let data = text.lines().filter_map(|line| line.strip_prefix("data: "));
        data.filter(|data| *data != "[DONE]").map(|data| serde_json::from_str(data).unwrap()).collect()
    }

    pub async fn socket(&self) -> WebSocketStream<MaybeTlsStream<TcpStream>> {
        connect_async(format!("ws://{}/v1/audio/speech/stream", self.address)).await.unwrap().0
    }
}

pub fn decode(value: &Value) -> Vec<u8> {
    BASE64_STANDARD.decode(value.as_str().unwrap()).unwrap()
}

/// One sentence, ten frames: the tiny model's random weights never stop by themselves.
fn speech(more: &Value) -> Value {
    let mut body = json!({"input": "One, two, three.", "seed": 5, "max_new_tokens": 10, "response_format": "pcm"});
    body.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
    body
}

fn frames(body: &Value) -> usize {
    body["usage"]["output_tokens"].as_u64().unwrap() as usize
}

#[tokio::test(flavor = "multi_thread")]
async fn speech_is_the_same_however_it_is_sent() {
    let site = Site::new(|_| {}).await;
    let raw = site.bytes(SPEECH, &speech(&json!({}))).await;
    assert!(raw.iter().any(|byte| *byte != 0));

    let wav = site.bytes(SPEECH, &speech(&json!({"response_format": "wav"}))).await;
    assert_eq!(wav[WAV_HEADER..], raw);
    assert_eq!(hound::WavReader::new(wav.as_slice()).unwrap().duration() as usize, raw.len() / 2);

    let whole = site.bytes(SPEECH, &speech(&json!({"stream": false}))).await;
    assert_eq!(whole, raw);

    let streamed_wav = site.bytes(SPEECH, &speech(&json!({"response_format": "wav", "stream_format": "audio"}))).await;
    assert_eq!(streamed_wav[WAV_HEADER..], raw);

    let events = site.events(SPEECH, &speech(&json!({"stream": true}))).await;
    let (done, deltas) = events.split_last().unwrap();
    assert_eq!((&done["type"], &done["finish_reason"]), (&json!("speech.audio.done"), &json!("length")));
    assert!(deltas.len() > 1, "all in one piece");
    assert_eq!(deltas.iter().flat_map(|delta| decode(&delta["audio"])).collect::<Vec<_>>(), raw);
    assert_eq!(frames(done), 10);

    let mut socket = site.socket().await;
    let say = ["session.config", "input.text", "input.done", "session.close"]
        .map(|kind| json!({"type": kind, "seed": 5, "max_new_tokens": 10, "text": "One, two, three."}));
    for message in say {
        socket.send(Message::text(message.to_string())).await.unwrap();
    }
    let (mut audio, mut kinds) = (Vec::new(), Vec::new());
    while let Some(Ok(message)) = socket.next().await {
        match message {
            Message::Binary(bytes) => audio.extend_from_slice(&bytes),
            Message::Text(text) => {
                kinds.push(serde_json::from_str::<Value>(&text).unwrap()["type"].as_str().unwrap().to_owned());
            }
            _ => {}
        }
    }
    let expected =
        ["session.created", "session.updated", "audio.start", "audio.done", "session.done", "session.closed"];
    assert_eq!(kinds, expected);
    assert_eq!(audio, raw);
    idle(&site.engine).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_chat_without_an_end_is_as_long_as_asked_and_no_longer_than_the_model_can_be() {
    let site = Site::new(|_| {}).await;
    let ask = |more: Value| {
        let mut body = json!({"messages": [{"role": "user", "content": "one two"}], "seed": 5, "ignore_eos": true});
        body.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        body
    };
    let spoken = json!({"max_tokens": 11, "modalities": ["text", "audio"], "audio": {"max_new_tokens": 6}});
    let answer: Value = serde_json::from_slice(&site.bytes(CHAT, &ask(spoken)).await).unwrap();
    let used = &answer["usage"]["completion_tokens_details"];
    assert_eq!((&used["text_tokens"], &used["audio_tokens"]), (&json!(11), &json!(6)), "{used}");
    assert_eq!(answer["choices"][0]["finish_reason"], "length");
    let refused = site.post(CHAT, &ask(json!({"max_tokens": 100_000_000}))).await;
    assert_eq!(refused.status(), 400);
    let error: Value = refused.json().await.unwrap();
    assert_eq!(error["error"]["param"], "max_tokens");
    assert!(error["error"]["message"].as_str().unwrap().contains("more than the"), "{error}");
    idle(&site.engine).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_spoken_answer_is_the_same_whole_and_streamed() {
    let site = Site::new(|_| {}).await;
    let ask = |stream: bool, format: &str| {
        json!({"messages": [{"role": "user", "content": "Hello?"}], "modalities": ["text", "audio"], "seed": 3,
            "max_completion_tokens": 6, "audio": {"format": format, "max_new_tokens": 8}, "stream": stream})
    };
    let whole: Value = serde_json::from_slice(&site.bytes(CHAT, &ask(false, "wav")).await).unwrap();
    let message = &whole["choices"][0]["message"];
    assert_eq!(whole["usage"]["completion_tokens_details"]["audio_tokens"], 8);
    let chunks = site.events(CHAT, &ask(true, "pcm16")).await;
    let deltas: Vec<&Value> = chunks.iter().map(|chunk| &chunk["choices"][0]["delta"]).collect();
    let text: String = deltas.iter().filter_map(|delta| delta["content"].as_str()).collect();
    assert_eq!(text, message["content"]);
    let audio: Vec<u8> =
        deltas.iter().map(|delta| &delta["audio"]["data"]).filter(|data| data.is_string()).flat_map(decode).collect();
    assert_eq!(audio, decode(&message["audio"]["data"])[WAV_HEADER..]);
    assert_eq!(chunks.last().unwrap()["choices"][0]["finish_reason"], whole["choices"][0]["finish_reason"]);
    // Without speech the words are the same.
    let mut silent = ask(false, "wav");
    silent["modalities"] = json!(["text"]);
    let silent: Value = serde_json::from_slice(&site.bytes(CHAT, &silent).await).unwrap();
    assert_eq!(silent["choices"][0]["message"]["content"], message["content"]);
    idle(&site.engine).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn one_request_too_many_is_429_until_the_first_client_leaves() {
    let site = Site::new(|config| config.limits.max_requests = 1).await;
    let endless = speech(&json!({"max_new_tokens": 100_000}));
    let running = site.post(SPEECH, &endless).await;
    assert_eq!(running.status(), 200);
    let refused = site.post(SPEECH, &speech(&json!({}))).await;
    assert_eq!(refused.status(), 429);
    assert!(refused.headers().contains_key("retry-after"));
    drop(running);
    idle(&site.engine).await;
    assert_eq!(site.post(SPEECH, &speech(&json!({}))).await.status(), 200);
}

#[tokio::test(flavor = "multi_thread")]
async fn cancel_and_disconnect_free_everything() {
    let site = Site::new(|_| {}).await;
    let mut socket = site.socket().await;
    for round in 0..3 {
        for message in [
            json!({"type": "session.config", "max_new_tokens": 100_000}),
            json!({"type": "input.text", "text": "One, two, three. And"}),
        ] {
            socket.send(Message::text(message.to_string())).await.unwrap();
        }
        while !socket.next().await.unwrap().unwrap().is_binary() {}
        if round < 2 {
            socket.send(Message::text(json!({"type": "input.cancel"}).to_string())).await.unwrap();
            while !socket.next().await.unwrap().unwrap().to_string().contains("audio.cancelled") {}
        } else {
            socket.close(None).await.unwrap();
        }
        idle(&site.engine).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_stage_that_dies_changes_no_stream_and_shows_in_health() {
    let rule = FaultRule::new(StageName::Talker, FaultPoint::Runner, FaultKind::Panic).nth(5);
    let site = Site::new(|config| {
        config.faults = vec![rule];
        config.supervision.backoff = Duration::from_millis(1);
    })
    .await;
    let disturbed = site.bytes(SPEECH, &speech(&json!({}))).await;
    assert!(disturbed == site.bytes(SPEECH, &speech(&json!({}))).await, "other samples");
    let health: Value =
        site.client.get(format!("http://{}/health", site.address)).send().await.unwrap().json().await.unwrap();
    assert_eq!(stage_of(&health, "talker")["restarts"], 1);
    assert!(stage_of(&health, "talker")["last_reason"].as_str().unwrap().contains("injected fault"));
}
