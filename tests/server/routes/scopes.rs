//! What a key is for, how much it may have of it, whose voices it may delete, and where its name shows.

use super::{Site, json};
use crate::support::http::Ask;
use futures::{SinkExt, StreamExt};
use omni_actors::config::{KeyConfig, Scope, hash_key};
use reqwest::{Method, Response};
use serde_json::{Value, json};
use tokio_tungstenite::tungstenite::Message;
use tokio_tungstenite::tungstenite::client::IntoClientRequest;

const SPEECH: &str = "/v1/audio/speech";
const VOICES: &str = "/v1/audio/voices";

fn key(name: &str) -> KeyConfig {
    KeyConfig::new(name, hash_key(&secret(name)))
}

fn secret(name: &str) -> String {
    format!("sk-{name}-0123456789")
}

fn only(name: &str, scope: Scope) -> KeyConfig {
    KeyConfig { scopes: vec![scope], ..key(name) }
}

async fn ask(site: &Site, name: &str, method: Method, path: &str) -> Response {
    site.client.request(method, site.url(path)).bearer_auth(secret(name)).send().await.unwrap()
}

async fn error(response: Response, status: u16, code: &str) -> String {
    assert_eq!(response.status(), status);
    let body: Value = response.json().await.unwrap();
    assert_eq!(body["error"]["code"], code, "{body}");
    body["error"]["message"].as_str().unwrap().to_owned()
}

#[tokio::test]
async fn a_key_is_for_what_its_scopes_say() {
    let site = Site::with(|server, _| {
        server.keys = vec![
            only("speak", Scope::Speak),
            only("chat", Scope::Chat),
            only("voices", Scope::Voices),
            only("metrics", Scope::Metrics),
            only("drill", Scope::Drill),
            only("cluster", Scope::Cluster),
            key("usual"),
        ];
    });
    let routes = [
        (Method::POST, SPEECH, vec!["speak", "usual"]),
        (Method::POST, "/v1/audio/speech/batch", vec!["speak", "usual"]),
        (Method::GET, "/v1/audio/speech/stream", vec!["speak", "usual"]),
        (Method::POST, "/v1/chat/completions", vec!["chat", "usual"]),
        (Method::GET, VOICES, vec!["speak", "chat", "voices", "usual"]),
        (Method::POST, VOICES, vec!["voices", "usual"]),
        (Method::DELETE, "/v1/audio/voices/a", vec!["voices", "usual"]),
        (Method::GET, "/metrics", vec!["metrics", "usual"]),
        (Method::GET, "/debug/trace", vec!["metrics", "usual"]),
        (Method::GET, "/debug/faults", vec!["drill"]),
        (Method::POST, "/debug/faults", vec!["drill"]),
        (Method::DELETE, "/debug/faults", vec!["drill"]),
        (Method::POST, "/cluster/drain", vec!["cluster"]),
        (Method::GET, "/cluster", vec!["speak", "chat", "voices", "metrics", "drill", "cluster", "usual"]),
        (Method::GET, "/v1/models", vec!["speak", "chat", "voices", "metrics", "drill", "cluster", "usual"]),
    ];
    for (method, path, may) in routes {
        for name in ["speak", "chat", "voices", "metrics", "drill", "cluster", "usual"] {
            let response = ask(&site, name, method.clone(), path).await;
            if may.contains(&name) {
                // It got as far as the handler, which wants more than was sent.
                assert!(![401, 403].contains(&response.status().as_u16()), "{method} {path} {name}");
            } else {
                let told = error(response, 403, "insufficient_scope").await;
                assert!(told.contains(&format!("{name:?}")) && told.contains("scope"), "{told}");
            }
        }
    }
    assert_eq!(site.service.accepted(), 0);
}

#[tokio::test]
async fn requests_in_a_minute_are_uploads_and_refused_ones_too() {
    let site = Site::with(|server, _| {
        server.keys = vec![KeyConfig { requests_per_minute: Some(3), ..key("busy") }, key("other")];
    });
    assert_eq!(ask(&site, "busy", Method::POST, SPEECH).await.status(), 415);
    assert_eq!(ask(&site, "busy", Method::POST, VOICES).await.status(), 415);
    assert_eq!(ask(&site, "busy", Method::DELETE, "/v1/audio/voices/none").await.status(), 404);
    for (method, path) in [(Method::POST, SPEECH), (Method::POST, VOICES), (Method::GET, "/v1/audio/speech/stream")] {
        let refused = ask(&site, "busy", method, path).await;
        assert!(refused.headers().contains_key("retry-after"));
        let told = error(refused, 429, "rate_limit_exceeded").await;
        assert!(told.contains("3 requests a minute are the limit of the key \"busy\""), "{told}");
    }
    assert_eq!(ask(&site, "busy", Method::GET, "/metrics").await.status(), 200, "an operator may still look");
    assert_eq!(ask(&site, "other", Method::POST, SPEECH).await.status(), 415);
}

#[tokio::test]
async fn bytes_in_a_minute_are_those_of_all_bodies() {
    let site = Site::with(|server, _| {
        server.keys = vec![KeyConfig { bytes_per_minute: Some(2048), ..key("large") }];
    });
    let send = |bytes: usize| {
        let body = json!({ "pad": "x".repeat(bytes) });
        site.client.post(site.url(SPEECH)).bearer_auth(secret("large")).json(&body).send()
    };
    assert_eq!(send(1500).await.unwrap().status(), 400, "it has no input");
    let told = error(send(1500).await.unwrap(), 429, "rate_limit_exceeded").await;
    assert!(told.contains("2048 bytes a minute"), "{told}");
    assert_eq!(send(100).await.unwrap().status(), 400, "for this there is room");
}

#[tokio::test]
async fn speech_is_counted_and_what_is_over_the_hour_waits() {
    let site = Site::with(|server, _| {
        server.keys = vec![KeyConfig { speech_seconds_per_hour: Some(1), ..key("talker") }];
    });
    let speak = || {
        let body = json!({"input": "Hi", "response_format": "pcm"});
        let request = site.client.post(site.url(SPEECH)).bearer_auth(secret("talker")).json(&body);
        tokio::spawn(async move { request.send().await.unwrap() })
    };
    let response = speak();
    let call = site.service.call().await;
    call.started().await;
    // What has begun is not cut: 1.5 s at 24 kHz.
    call.audio(24_000).await;
    call.audio(12_000).await;
    call.finish().await;
    assert_eq!(response.await.unwrap().bytes().await.unwrap().len(), 72_000);
    let told = error(speak().await.unwrap(), 429, "rate_limit_exceeded").await;
    assert!(told.contains("1 seconds of speech an hour are the limit of the key \"talker\""), "{told}");
    let metrics = ask(&site, "talker", Method::GET, "/metrics").await.text().await.unwrap();
    for line in [
        "omni_key_speech_seconds_total{key=\"talker\"} 1",
        "omni_key_refusals_total{key=\"talker\",reason=\"speech\"} 1",
        "omni_key_requests_total{key=\"talker\",status=\"200\"} 1",
        "omni_key_requests_total{key=\"talker\",status=\"429\"} 1",
    ] {
        assert!(metrics.contains(line), "{line}\n{metrics}");
    }
    let chat = |more: Value| {
        let mut body = json!({"messages": [{"role": "user", "content": "Hi"}]});
        body.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        let request = site.client.post(site.url("/v1/chat/completions")).bearer_auth(secret("talker")).json(&body);
        tokio::spawn(async move { request.send().await.unwrap() })
    };
    let spoken = chat(json!({"modalities": ["text", "audio"], "audio": {"format": "wav"}}));
    error(spoken.await.unwrap(), 429, "rate_limit_exceeded").await;
    // What makes no speech needs none of it.
    let response = chat(json!({}));
    let call = site.service.call().await;
    call.started().await;
    call.text_delta("Hello.").await;
    call.finish().await;
    assert_eq!(response.await.unwrap().status(), 200);
    for path in ["/v1/realtime/client_secrets", "/v1/realtime/calls/rtc_0/hangup"] {
        assert_ne!(ask(&site, "talker", Method::POST, path).await.status(), 429, "{path}");
    }
    for path in ["/v1/realtime", "/v1/audio/speech/stream"] {
        assert_eq!(ask(&site, "talker", Method::GET, path).await.status(), 429, "{path}");
    }
}

#[tokio::test]
async fn items_of_a_batch_that_are_over_the_hour_are_not_spoken() {
    let site = Site::with(|server, limits| {
        server.keys = vec![KeyConfig { speech_seconds_per_hour: Some(1), ..key("reader") }];
        // One item after the other.
        limits.max_requests = 2;
    });
    let body = json!({"items": [{"input": "One."}, {"input": "Two."}]});
    let request = site.client.post(site.url("/v1/audio/speech/batch")).bearer_auth(secret("reader")).json(&body);
    let response = tokio::spawn(async move { request.send().await.unwrap() });
    let call = site.service.call().await;
    call.started().await;
    call.audio(36_000).await;
    call.finish().await;
    let answer: Value = response.await.unwrap().json().await.unwrap();
    assert_eq!((&answer["results"][0]["status"], &answer["succeeded"]), (&json!("success"), &json!(1)));
    assert_eq!(answer["results"][1]["code"], "rate_limit_exceeded", "{answer}");
    assert_eq!(site.service.accepted(), 1);
}

#[tokio::test]
async fn a_key_has_so_many_requests_at_once_and_no_more() {
    let site = Site::with(|server, _| {
        server.keys = vec![KeyConfig { max_connections: Some(1), ..key("one") }];
    });
    let body = json!({"input": "Hi", "response_format": "pcm"});
    let request = site.client.post(site.url(SPEECH)).bearer_auth(secret("one")).json(&body);
    let first = tokio::spawn(async move { request.send().await.unwrap() });
    let call = site.service.call().await;
    call.started().await;
    call.audio(2).await;
    let first = first.await.unwrap();
    let told = error(ask(&site, "one", Method::GET, "/v1/models").await, 429, "rate_limit_exceeded").await;
    assert!(told.contains("1 requests at once are the limit"), "{told}");
    assert_eq!(site.get("/live").send().await.unwrap().status(), 200);
    // The place is free when the last byte has gone, or the client.
    drop(first);
    call.dropped.await.unwrap();
    while ask(&site, "one", Method::GET, "/v1/models").await.status() != 200 {}
    // A WebSocket holds it for as long as it is open.
    let mut socket = websocket(&site, "one").await;
    assert_eq!(ask(&site, "one", Method::GET, "/v1/models").await.status(), 429);
    socket.close(None).await.unwrap();
    while ask(&site, "one", Method::GET, "/v1/models").await.status() != 200 {}
}

type Socket = tokio_tungstenite::WebSocketStream<tokio_tungstenite::MaybeTlsStream<tokio::net::TcpStream>>;

async fn websocket(site: &Site, name: &str) -> Socket {
    let mut request = format!("ws://{}/v1/audio/speech/stream", site.address).into_client_request().unwrap();
    request.headers_mut().insert("authorization", format!("Bearer {}", secret(name)).parse().unwrap());
    let mut socket = tokio_tungstenite::connect_async(request).await.unwrap().0;
    assert_eq!(hear(&mut socket).await["type"], "session.created");
    socket
}

async fn hear(socket: &mut Socket) -> Value {
    loop {
        match socket.next().await.unwrap().unwrap() {
            Message::Text(text) => return json(&text),
            Message::Binary(_) | Message::Ping(_) | Message::Pong(_) => {}
            other => panic!("{other:?}"),
        }
    }
}

#[tokio::test]
async fn utterances_of_a_session_count_as_requests_and_its_messages_as_bytes() {
    let site = Site::with(|server, _| {
        server.keys = vec![
            KeyConfig { requests_per_minute: Some(1), ..key("busy") },
            KeyConfig { bytes_per_minute: Some(1024), ..key("large") },
        ];
    });
    let mut socket = websocket(&site, "busy").await;
    for utterance in 1..=2 {
        for message in [json!({"type": "input.text", "text": "Well."}), json!({"type": "input.done"})] {
            socket.send(Message::text(message.to_string())).await.unwrap();
        }
        if utterance == 1 {
            let call = site.service.call().await;
            call.started().await;
            call.finish().await;
            while hear(&mut socket).await["type"] != "session.done" {}
        }
    }
    let refused = hear(&mut socket).await;
    assert_eq!((&refused["type"], &refused["code"]), (&json!("error"), &json!("rate_limit_exceeded")), "{refused}");
    assert_eq!(site.service.accepted(), 1);

    let mut socket = websocket(&site, "large").await;
    let message = json!({"type": "nonsense", "pad": "x".repeat(800)}).to_string();
    let mut codes = Vec::new();
    while codes.last() != Some(&json!("rate_limit_exceeded")) {
        socket.send(Message::text(message.clone())).await.unwrap();
        codes.push(hear(&mut socket).await["code"].clone());
    }
    assert!(codes.len() <= 4, "{codes:?}");
    assert!(matches!(socket.next().await, Some(Ok(Message::Close(_))) | None));
}

#[tokio::test]
async fn a_voice_belongs_to_the_key_that_uploaded_it() {
    let site = Site::with(|server, _| {
        let all = KeyConfig { scopes: vec![Scope::Voices, Scope::AllVoices], ..key("operator") };
        server.keys = vec![key("alice"), key("bob"), all];
    });
    let upload = async |name: &str, voice: &str| {
        let ask = Ask::form(
            VOICES,
            &[("name", "", voice.as_bytes()), ("consent", "", b"yes"), ("speaker_embedding", "", b"[0.5, 0.5]")],
        );
        let request = site.client.post(site.url(VOICES)).bearer_auth(secret(name));
        let response = request.header("content-type", "multipart/form-data; boundary=cut").body(ask.body).send().await;
        assert_eq!(response.unwrap().status(), 200);
    };
    let delete = async |name: &str, voice: &str| {
        ask(&site, name, Method::DELETE, &format!("{VOICES}/{voice}")).await.status().as_u16()
    };
    upload("alice", "hers").await;
    upload("bob", "his").await;
    assert_eq!(site.service.uploaded.lock().unwrap()[0].owner.as_deref(), Some("alice"));
    assert_eq!(delete("bob", "hers").await, 403);
    assert_eq!(delete("bob", "HERS").await, 403);
    assert_eq!(delete("alice", "his").await, 403);
    assert_eq!(site.service.uploaded.lock().unwrap().len(), 2);
    assert_eq!(delete("alice", "hers").await, 200);
    assert_eq!(delete("operator", "his").await, 200);
    // Of no key, as before there were any.
    upload("alice", "old").await;
    site.service.uploaded.lock().unwrap()[0].owner = None;
    assert_eq!(delete("bob", "old").await, 200);
}
