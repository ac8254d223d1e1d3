//! Keys, deadlines, bytes, and clients that do nothing.

use super::{Site, json};
use futures::{SinkExt, StreamExt};
use omni_actors::config::{KeyConfig, hash_key};
use omni_actors::engine::{LaterReason, Slo, SubmitError, TenantId};
use serde_json::{Value, json};
use std::time::Duration;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio_tungstenite::tungstenite::Message;
use tokio_tungstenite::tungstenite::client::IntoClientRequest;

const SPEECH: &str = "/v1/audio/speech";
const STREAM: &str = "/v1/audio/speech/stream";
const KEY: &str = "sk-alice-0123456789";

fn keyed() -> Site {
    let key = |name: &str, key: &str| KeyConfig {
        weight: 2,
        requests_per_minute: Some(9),
        ..KeyConfig::new(name, hash_key(key))
    };
    Site::with(|server, _| server.keys = vec![key("bob", "sk-bob"), key("alice", KEY)])
}

#[tokio::test]
async fn without_a_key_there_is_401_in_openais_form_and_health_is_terse() {
    let site = keyed();
    for path in ["/v1/models", "/metrics", "/v1/audio/voices", "/debug/trace", "/nowhere"] {
        let response = site.get(path).send().await.unwrap();
        assert_eq!(response.status(), 401, "{path}");
        assert_eq!(response.headers()["www-authenticate"], "Bearer");
        let body: Value = response.json().await.unwrap();
        assert_eq!(body["error"]["code"], "invalid_api_key");
        assert_eq!(body["error"]["type"], "invalid_request_error");
    }
    let wrong = site.get("/v1/models").bearer_auth("sk-alice-0123456788").send().await.unwrap();
    assert_eq!(wrong.status(), 401);
    assert!(!wrong.text().await.unwrap().contains("sk-alice"));
    assert_eq!(site.get("/").send().await.unwrap().status(), 200);
    for path in ["/live", "/ready", "/health"] {
        let response = site.get(path).send().await.unwrap();
        assert_eq!(response.status(), 200, "{path}");
        assert!(!response.text().await.unwrap().contains("stages"), "{path}");
    }
    let full: Value = site.get("/health").bearer_auth(KEY).send().await.unwrap().json().await.unwrap();
    assert_eq!(full["stages"][0]["since"], 1_700_000_000);
    assert_eq!(site.get("/v1/models").bearer_auth(KEY).send().await.unwrap().status(), 200);
}

#[tokio::test]
async fn the_engine_learns_whose_request_it_is_and_when_it_has_to_be_answered() {
    let site = keyed();
    for (fields, slo, life) in [
        (json!({}), Slo::BestEffort, None),
        (json!({"stream": true}), Slo::Realtime(Duration::from_secs(2)), None),
        (json!({"response_format": "pcm", "timeout_ms": 900}), Slo::Realtime(Duration::from_secs(2)), Some(900)),
        (json!({"deadline_ms": 150}), Slo::Realtime(Duration::from_millis(150)), None),
        (json!({"stream": true, "deadline_ms": "none"}), Slo::BestEffort, None),
    ] {
        let mut body = fields.clone();
        body["input"] = json!("Hi");
        let request = site.client.post(site.url(SPEECH)).bearer_auth(KEY).json(&body);
        let response = tokio::spawn(async move { request.send().await.unwrap() });
        let call = site.service.call().await;
        let options = call.speech().params.options;
        assert_eq!(options.tenant.id, TenantId::Key(1));
        assert_eq!((options.tenant.weight, options.tenant.requests_per_minute), (2, Some(9)));
        assert_eq!((options.slo, options.life), (slo, life.map(Duration::from_millis)), "{fields}");
        call.started().await;
        call.audio(2).await;
        call.finish().await;
        let response = response.await.unwrap();
        assert!(!response.headers().contains_key("x-ignored-fields"), "{fields}");
        response.bytes().await.unwrap();
    }
    for wrong in [json!({"deadline_ms": 0}), json!({"deadline_ms": "soon"}), json!({"timeout_ms": 60_001})] {
        let mut body = wrong.clone();
        body["input"] = json!("Hi");
        let response = site.client.post(site.url(SPEECH)).bearer_auth(KEY).json(&body).send().await.unwrap();
        assert_eq!(response.status(), 400, "{wrong}");
    }
}

#[tokio::test]
async fn without_keys_an_address_is_the_neighbour() {
    let site = Site::new();
    let response = site.post(SPEECH, &json!({"input": "Hi"}));
    let call = site.service.call().await;
    let home = TenantId::Address([127, 0, 0, 1].into());
    assert_eq!(call.speech().params.options.tenant.id, home);
    call.started().await;
    call.audio(2).await;
    call.finish().await;
    assert_eq!(response.await.unwrap().status(), 200);
}

#[tokio::test]
async fn what_would_come_too_late_is_429_and_says_when_to_come_again() {
    let site = Site::new();
    for (reason, code) in [
        (LaterReason::Streams(6), "overloaded"),
        (LaterReason::Yields, "overloaded"),
        (LaterReason::Share, "rate_limit_exceeded"),
        (LaterReason::OwnRate(60), "rate_limit_exceeded"),
    ] {
        site.service.refuse_next(SubmitError::Later { reason, retry_after: Duration::from_millis(2300) });
        let response = site.post(SPEECH, &json!({"input": "Hi", "stream": true})).await.unwrap();
        assert_eq!(response.status(), 429);
        assert_eq!(response.headers()["retry-after"], "3");
        let body: Value = response.json().await.unwrap();
        assert_eq!(body["error"]["code"], code);
        assert!(body["error"]["message"].as_str().unwrap().contains("try again in 3 s"), "{body}");
    }
}

async fn websocket(site: &Site, protocols: Option<&str>) -> Result<Socket, u16> {
    let mut request = format!("ws://{}{STREAM}", site.address).into_client_request().unwrap();
    if let Some(protocols) = protocols {
        request.headers_mut().insert("sec-websocket-protocol", protocols.parse().unwrap());
    }
    match tokio_tungstenite::connect_async(request).await {
        Ok((socket, response)) => {
            assert_eq!(response.headers().get("sec-websocket-protocol").is_some(), protocols.is_some());
            Ok(socket)
        }
        Err(tokio_tungstenite::tungstenite::Error::Http(response)) => Err(response.status().as_u16()),
        Err(other) => panic!("{other}"),
    }
}

type Socket = tokio_tungstenite::WebSocketStream<tokio_tungstenite::MaybeTlsStream<TcpStream>>;

async fn hear(socket: &mut Socket) -> Value {
    loop {
        match socket.next().await.unwrap().unwrap() {
            Message::Text(text) => return json(&text),
            Message::Ping(_) | Message::Pong(_) => {}
            other => panic!("{other:?}"),
        }
    }
}

#[tokio::test]
async fn a_browser_says_its_key_as_a_protocol() {
    let site = keyed();
    assert_eq!(websocket(&site, None).await.err(), Some(401));
    assert_eq!(websocket(&site, Some("realtime, openai-insecure-api-key.nobody")).await.err(), Some(401));
    let mut socket = websocket(&site, Some(&format!("realtime, openai-insecure-api-key.{KEY}"))).await.unwrap();
    assert_eq!(hear(&mut socket).await["type"], "session.created");
}

#[tokio::test]
async fn a_session_in_which_nothing_is_said_is_closed() {
    let site = Site::with(|server, _| server.idle_timeout = Duration::from_millis(200));
    let mut socket = websocket(&site, None).await.unwrap();
    assert_eq!(hear(&mut socket).await["type"], "session.created");
    let error = hear(&mut socket).await;
    assert_eq!((&error["type"], &error["code"]), (&json!("error"), &json!("idle_timeout")));
    assert!(matches!(socket.next().await, Some(Ok(Message::Close(_))) | None));
}

#[tokio::test]
async fn who_begins_to_write_and_stops_loses_the_place_and_not_the_session() {
    let site = Site::with(|_, limits| limits.stalled_client_timeout = Duration::from_millis(200));
    let mut socket = websocket(&site, None).await.unwrap();
    hear(&mut socket).await;
    socket.send(Message::text(json!({"type": "input.text", "text": "Well"}).to_string())).await.unwrap();
    let call = site.service.call().await;
    let error = hear(&mut socket).await;
    assert_eq!((&error["code"], &error["utterance"]), (&json!("timed_out"), &json!(1)));
    call.dropped.await.unwrap();
    socket.send(Message::text(json!({"type": "input.done"}).to_string())).await.unwrap();
    assert_eq!(hear(&mut socket).await["type"], "session.done");
}

#[tokio::test]
async fn a_connection_on_which_nothing_more_is_asked_is_closed() {
    let site = Site::with(|server, _| server.read_timeout = Duration::from_millis(200));
    let mut socket = TcpStream::connect(site.address).await.unwrap();
    socket.write_all(b"GET /live HTTP/1.1\r\nHost: localhost\r\n\r\n").await.unwrap();
    let mut answer = String::new();
    // To its end, which the server makes.
    socket.read_to_string(&mut answer).await.unwrap();
    assert!(answer.starts_with("HTTP/1.1 200") && answer.ends_with("{\"live\":true}"), "{answer}");
}

#[tokio::test]
async fn bodies_are_bounded_together() {
    let site = Site::with(|server, _| (server.max_body_bytes, server.max_input_bytes) = (4096, 6000));
    let head = |length: usize| {
        format!(
            "POST {SPEECH} HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nConnection: close\r\nContent-Length: {length}\r\n\r\n"
        )
    };
    // Half a body, which stays.
    let mut slow = TcpStream::connect(site.address).await.unwrap();
    slow.write_all(head(4096).as_bytes()).await.unwrap();
    slow.write_all(&[b' '; 3000]).await.unwrap();
    let input = json!({"input": "x".repeat(999), "pad": " ".repeat(2900)}).to_string();
    let refused = loop {
        // Until the server has read what the slow one sent.
        let mut socket = TcpStream::connect(site.address).await.unwrap();
        socket.write_all(head(input.len()).as_bytes()).await.unwrap();
        socket.write_all(input.as_bytes()).await.unwrap();
        let mut answer = String::new();
        tokio::select! {
            read = socket.read_to_string(&mut answer) => { read.unwrap(); break answer }
            call = site.service.call() => drop(call),
        }
    };
    assert!(refused.starts_with("HTTP/1.1 503"), "{refused}");
    assert!(refused.contains("retry-after: 1") && refused.contains("too_much_input"), "{refused}");
    // What the slow one held is free when it has left.
    drop(slow);
    loop {
        let response =
            site.client.post(site.url(SPEECH)).header("content-type", "application/json").body(input.clone());
        let response = tokio::spawn(async move { response.send().await.unwrap() });
        tokio::select! {
            call = site.service.call() => { drop(call); break }
            refused = response => assert_eq!(refused.unwrap().status(), 503),
        }
    }
}

#[tokio::test]
async fn what_websockets_send_is_bounded_together_too() {
    let site = Site::with(|server, _| (server.max_body_bytes, server.max_input_bytes) = (60_000, 60_000));
    let mut socket = websocket(&site, None).await.unwrap();
    hear(&mut socket).await;
    // Taken as it comes, any amount fits.
    for _ in 0..5 {
        let message = json!({"type": "nonsense", "pad": "x".repeat(30_000)}).to_string();
        socket.send(Message::text(message)).await.unwrap();
        assert_eq!(hear(&mut socket).await["code"], "invalid_value");
    }
    // Two messages of which neither is complete do not: the second one has no room.
    let unfinished = |socket: &mut Socket| {
        let plain = match socket.get_mut() {
            tokio_tungstenite::MaybeTlsStream::Plain(plain) => plain,
            _ => unreachable!(),
        };
        let mut bytes = vec![0x81, 0xfe];
        bytes.extend_from_slice(&50_000u16.to_be_bytes());
        bytes.extend_from_slice(&[0; 4 + 40_000]);
        plain.try_write(&bytes).unwrap()
    };
    let mut other = websocket(&site, None).await.unwrap();
    hear(&mut other).await;
    assert_eq!(unfinished(&mut socket), 40_008);
    assert_eq!(unfinished(&mut other), 40_008);
    // Whichever was read last.
    let told = tokio::select! { told = hear(&mut socket) => told, told = hear(&mut other) => told };
    assert_eq!(told["code"], "too_much_input");
}
