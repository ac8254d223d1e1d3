//! The Wyoming protocol over real sockets, on a real engine: what Home Assistant sends, and what it must not send.

use crate::support::engine::{engine, idle, tiny};
use crate::support::wait::PATIENCE;
use crate::support::wyoming::frame;
use omni_actors::config::{Config, KeyConfig};
use omni_actors::engine::{Engine, Service};
use omni_actors::server::{ServeError, Server};
use serde_json::{Map, Value, json};
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;
use tokio::io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader};
use tokio::net::TcpStream;
use tokio::sync::oneshot;
use tokio::task::JoinHandle;

const TEXT: &str = "One, two, three.";
const AN_HOUR: Duration = Duration::from_secs(3600);
const ANYWHERE: SocketAddr = SocketAddr::new(std::net::IpAddr::V4(std::net::Ipv4Addr::LOCALHOST), 0);

struct Site {
    engine: Engine,
    http: SocketAddr,
    wyoming: SocketAddr,
    shutdown: Option<oneshot::Sender<()>>,
    serving: JoinHandle<()>,
}

impl Drop for Site {
    fn drop(&mut self) {
        self.serving.abort();
    }
}

impl Site {
    /// Ten frames for each request: the tiny model's random weights never stop by themselves.
    async fn new(change: impl FnOnce(&mut Config)) -> Site {
        let mut config = Config::default();
        let engine = engine(&tiny(), |own| {
            own.server.listen = ANYWHERE;
            own.wyoming.listen = Some(ANYWHERE);
            own.wyoming.seed = Some(5);
            own.limits.max_audio = Duration::from_millis(800);
            // A pause of the test is none of the text.
            own.speech.flush_after = AN_HOUR;
            change(own);
            config = own.clone();
        })
        .await;
        let server = Server::bind(&config.server).unwrap().with_wyoming(&config.wyoming, None).unwrap();
        let (http, wyoming, service) = (server.local_addr(), server.wyoming_addr().unwrap(), Arc::new(engine.clone()));
        let (shutdown, stopped) = oneshot::channel::<()>();
        let stopped = async {
            let _ = stopped.await;
        };
        let serving = tokio::spawn(async move { server.serve(service, &config.limits, stopped).await });
        Site { engine, http, wyoming, shutdown: Some(shutdown), serving }
    }

    async fn client(&self) -> Client {
        Client(BufReader::new(TcpStream::connect(self.wyoming).await.unwrap()))
    }

    async fn metrics(&self) -> String {
        reqwest::get(format!("http://{}/metrics", self.http)).await.unwrap().text().await.unwrap()
    }

    /// The samples of the HTTP route.
    async fn over_http(&self, voice: &str) -> Vec<u8> {
        let body = json!({"input": TEXT, "seed": 5, "voice": voice, "response_format": "pcm"});
        let url = format!("http://{}/v1/audio/speech", self.http);
        let response = reqwest::Client::new().post(url).json(&body).send().await.unwrap();
        assert_eq!(response.status(), 200);
        response.bytes().await.unwrap().into()
    }
}

struct Client(BufReader<TcpStream>);

#[derive(Debug)]
struct Event {
    kind: String,
    data: Map<String, Value>,
    payload: Vec<u8>,
}

impl Client {
    async fn write(&mut self, bytes: &[u8]) {
        self.0.write_all(bytes).await.unwrap();
    }

    async fn send(&mut self, kind: &str, data: Value) {
        self.write(&frame(kind, &data)).await;
    }

    /// `None` when the server has closed.
    async fn event(&mut self) -> Option<Event> {
        tokio::time::timeout(PATIENCE, self.read()).await.expect("the server sends nothing")
    }

    async fn read(&mut self) -> Option<Event> {
        let mut line = String::new();
        if self.0.read_line(&mut line).await.ok()? == 0 {
            return None;
        }
        let mut line: Map<String, Value> = serde_json::from_str(&line).unwrap();
        let length = |field: &str| line.get(field).map_or(0, |length| length.as_u64().unwrap() as usize);
        let (mut data, mut payload) = (vec![0; length("data_length")], vec![0; length("payload_length")]);
        self.0.read_exact(&mut data).await.unwrap();
        self.0.read_exact(&mut payload).await.unwrap();
        let Some(Value::String(kind)) = line.remove("type") else { panic!("{line:?}") };
        Some(Event { kind, data: serde_json::from_slice(&data).unwrap(), payload })
    }

    async fn expect(&mut self, kind: &str) -> Event {
        let event = self.event().await.unwrap();
        assert_eq!(event.kind, kind, "{:?}", event.data);
        event
    }

    /// The samples of one answer, from its start to its stop.
    async fn speech(&mut self) -> Vec<u8> {
        let start = self.expect("audio-start").await;
        assert_eq!((&start.data["width"], &start.data["channels"]), (&json!(2), &json!(1)));
        let rate = start.data["rate"].as_u64().unwrap();
        let mut samples = Vec::new();
        loop {
            let event = self.event().await.unwrap();
            assert_eq!(event.data["timestamp"], samples.len() as u64 / 2 * 1000 / rate);
            match event.kind.as_str() {
                "audio-chunk" => samples.extend_from_slice(&event.payload),
                "audio-stop" => return samples,
                other => panic!("{other} inside of an answer"),
            }
        }
    }

    /// The code and text of the error that ends the connection.
    async fn error(&mut self) -> (String, String) {
        let error = self.expect("error").await;
        assert!(self.event().await.is_none(), "the connection goes on");
        let text = |field: &str| error.data[field].as_str().unwrap().to_owned();
        (text("code"), text("text"))
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn voices_and_what_the_server_can_do_are_told() {
    let site = Site::new(|config| config.wyoming.languages = vec!["en".to_owned(), "de".to_owned()]).await;
    let mut client = site.client().await;
    client.write(b"{\"type\": \"describe\"}\n").await;
    let info = client.expect("info").await.data;
    let [program] = info["tts"].as_array().unwrap().as_slice() else { panic!("{info:?}") };
    assert_eq!((&program["installed"], &program["supports_synthesize_streaming"]), (&json!(true), &json!(true)));
    let told: Vec<_> = program["voices"].as_array().unwrap().iter().map(|voice| voice["name"].clone()).collect();
    let known: Vec<_> = site.engine.voices().iter().map(|voice| json!(voice.name)).collect();
    assert!(!known.is_empty() && told == known, "{told:?}");
    for voice in program["voices"].as_array().unwrap() {
        assert_eq!((&voice["languages"], &voice["speakers"]), (&json!(["en", "de"]), &Value::Null));
        assert!(voice["attribution"]["name"].is_string() && voice["attribution"]["url"].is_string());
    }
    assert_eq!(info["asr"], json!([]));
    client.send("ping", json!({"text": "still there?"})).await;
    assert_eq!(client.expect("pong").await.data["text"], "still there?");
}

#[tokio::test(flavor = "multi_thread")]
async fn samples_are_those_of_the_http_route_whole_and_in_pieces() {
    let site = Site::new(|_| {}).await;
    let voice = site.engine.voices().last().unwrap().name.clone();
    let expected = site.over_http(&voice).await;
    assert!(expected.iter().any(|byte| *byte != 0));
    let mut client = site.client().await;
    client.send("synthesize", json!({"text": TEXT, "voice": {"name": voice}})).await;
    assert!(client.speech().await == expected, "other samples");

    // As Home Assistant does: pieces, the whole text for servers that know no streams, the end.
    client.send("synthesize-start", json!({"voice": {"name": voice}})).await;
    for piece in ["One, ", "two", "", ", three."] {
        client.send("synthesize-chunk", json!({"text": piece})).await;
    }
    client.send("synthesize", json!({"text": TEXT, "voice": {"name": voice}})).await;
    client.send("synthesize-stop", json!({})).await;
    // The next request waits for its turn.
    client.send("synthesize", json!({"text": TEXT, "voice": {"name": "any", "speaker": voice}})).await;
    assert!(client.speech().await == expected, "other samples");
    client.expect("synthesize-stopped").await;
    assert!(client.speech().await == expected, "other samples");

    client.send("synthesize-start", json!({})).await;
    client.send("synthesize-stop", json!({})).await;
    client.expect("synthesize-stopped").await;
    idle(&site.engine).await;
    let counted = "omni_http_responses_total{route=\"wyoming\",status=\"200\"} ";
    assert!(site.metrics().await.contains(counted));
}

#[tokio::test(flavor = "multi_thread")]
async fn speech_begins_before_the_text_ends_and_ends_with_its_client() {
    let site = Site::new(|config| config.limits.max_audio = AN_HOUR).await;
    let mut client = site.client().await;
    client.send("synthesize-start", json!({})).await;
    client.send("synthesize-chunk", json!({"text": "One, two, three. And"})).await;
    client.expect("audio-start").await;
    client.expect("audio-chunk").await;
    drop(client);
    idle(&site.engine).await;

    // Also with something unread behind it.
    let mut client = site.client().await;
    client.send("synthesize", json!({"text": TEXT})).await;
    for _ in 0..2 {
        client.send("synthesize", json!({"text": TEXT})).await;
    }
    client.expect("audio-start").await;
    drop(client);
    idle(&site.engine).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn what_is_wrong_is_told_and_ends_the_connection() {
    let site = Site::new(|config| config.limits.max_input_chars = 20).await;
    let line = |fields: Value| format!("{fields}\n");
    let long = "a".repeat(70_000);
    for (sent, code, says) in [
        ("GET / HTTP/1.1\r\n\r\n".to_owned(), "invalid_json", "not valid JSON"),
        (line(json!({"data": {}})), "missing_required_parameter", "type is missing"),
        (line(json!({"type": "ping", "data_length": -4})), "invalid_value", "data_length: -4 is not from 0 to"),
        (line(json!({"type": "ping", "payload_length": 1_u64 << 40})), "invalid_value", "server.max_body_bytes"),
        (long, "message_too_large", "65536 bytes"),
        (
            line(json!({"type": "synthesize-chunk", "data": {"text": "a"}})),
            "invalid_value",
            "without a synthesize-start",
        ),
        (line(json!({"type": "synthesize"})), "missing_required_parameter", "text is missing"),
        (line(json!({"type": "synthesize", "data": {"text": "a".repeat(21)}})), "text_too_long", "the limit of 20"),
        (
            line(json!({"type": "synthesize", "data": {"text": "a", "voice": {"name": "nobody"}}})),
            "invalid_value",
            "voice.name: there is no voice \"nobody\"; choose one of",
        ),
    ] {
        let mut client = site.client().await;
        client.write(sent.as_bytes()).await;
        let (found, text) = client.error().await;
        assert!(found == code && text.contains(says), "{sent}: {found} {text}");
    }
    idle(&site.engine).await;
    // An event of another kind of server is none of these.
    let mut client = site.client().await;
    client.write(b"{\"type\": \"transcribe\", \"payload_length\": 3}\nabc").await;
    client.send("ping", json!({})).await;
    client.expect("pong").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn connections_count_with_those_of_http() {
    let site = Site::new(|config| config.server.max_connections = 1).await;
    let mut first = site.client().await;
    // A text has begun: the connection is in use.
    first.send("synthesize-start", json!({})).await;
    first.send("ping", json!({})).await;
    first.expect("pong").await;
    let (code, text) = site.client().await.error().await;
    assert_eq!(code, "too_many_connections");
    assert!(text.contains("1 connections are open already (server.max_connections)"), "{text}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_client_that_says_nothing_or_half_an_event_is_told_so() {
    let site = Site::new(|config| config.server.idle_timeout = Duration::from_millis(50)).await;
    assert_eq!(site.client().await.error().await.0, "idle_timeout");
    let site = Site::new(|config| config.server.read_timeout = Duration::from_millis(50)).await;
    let mut client = site.client().await;
    client.write(b"{\"type\"").await;
    assert_eq!(client.error().await.0, "request_timeout");
    let site = Site::new(|config| config.limits.stalled_client_timeout = Duration::from_millis(50)).await;
    let mut client = site.client().await;
    client.send("synthesize-start", json!({})).await;
    assert_eq!(client.error().await.0, "timed_out");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_shutdown_lets_the_stream_end() {
    let mut site = Site::new(|config| {
        config.server.drain_grace = AN_HOUR;
        config.limits.max_audio = Duration::from_secs(4);
    })
    .await;
    let voice = site.engine.voices()[0].name.clone();
    let expected = site.over_http(&voice).await;
    let mut client = site.client().await;
    client.send("synthesize-start", json!({"voice": {"name": voice}})).await;
    client.send("synthesize-chunk", json!({"text": TEXT})).await;
    client.send("synthesize-chunk", json!({"text": " "})).await;
    let start = client.expect("audio-start").await;
    assert_eq!(start.data["timestamp"], 0);
    site.shutdown.take().unwrap().send(()).unwrap();
    client.send("synthesize-stop", json!({})).await;
    let mut samples = Vec::new();
    loop {
        let event = client.event().await.unwrap();
        match event.kind.as_str() {
            "audio-chunk" => samples.extend(event.payload),
            "audio-stop" => break,
            other => panic!("{other}: {:?}", event.data),
        }
    }
    assert!(samples == expected, "other samples");
    client.expect("synthesize-stopped").await;
    assert!(client.event().await.is_none());
    tokio::time::timeout(PATIENCE, &mut site.serving).await.expect("the server ends").unwrap();
}

#[tokio::test]
async fn a_listener_without_keys_beside_keys_needs_a_line_that_allows_it() {
    let mut config = Config::default();
    config.server.listen = ANYWHERE;
    config.server.keys = vec![KeyConfig::new("a", [0; 32])];
    config.wyoming.listen = Some(ANYWHERE);
    let refused = Server::bind(&config.server).unwrap().with_wyoming(&config.wyoming, None).unwrap_err();
    assert!(matches!(refused, ServeError::WyomingTooOpen(..)));
    assert!(refused.to_string().contains("wyoming.without_key = true"), "{refused}");
    config.wyoming.without_key = true;
    assert!(Server::bind(&config.server).unwrap().with_wyoming(&config.wyoming, None).is_ok());
}
