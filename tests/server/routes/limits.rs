//! Admission, time, connections, and the end.

use super::{Site, json};
use omni_actors::config::{KeyConfig, hash_key};
use omni_actors::engine::SubmitError;
use serde_json::{Value, json};
use std::time::Duration;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

const SPEECH: &str = "/v1/audio/speech";

#[tokio::test]
async fn a_full_server_answers_429_with_a_time() {
    let site = Site::new();
    site.service.refuse_next(SubmitError::Full { limit: 4, retry_after: Duration::from_secs(3) });
    let response = site.post(SPEECH, &json!({"input": "Hi"})).await.unwrap();
    assert_eq!(response.status(), 429);
    assert_eq!(response.headers()["retry-after"], "3");
    let body: Value = response.json().await.unwrap();
    assert_eq!(body["error"]["code"], "rate_limit_exceeded");
}

#[tokio::test]
async fn a_server_that_cannot_serve_answers_503_with_a_time() {
    let site = Site::new();
    for (error, code) in [
        (SubmitError::NotReady("the talker stage is starting".to_owned()), "not_ready"),
        (SubmitError::ShuttingDown, "shutting_down"),
    ] {
        site.service.refuse_next(error);
        let body = json!({"messages": [{"role": "user", "content": "Hi"}]});
        let response = site.post("/v1/chat/completions", &body).await.unwrap();
        assert_eq!(response.status(), 503);
        assert!(response.headers().contains_key("retry-after"));
        let body: Value = response.json().await.unwrap();
        assert_eq!((&body["error"]["code"], &body["error"]["type"]), (&json!(code), &json!("server_error")));
    }
}

/// Sends raw bytes and returns all that comes back.
async fn exchange(site: &Site, bytes: &[u8]) -> String {
    let mut socket = TcpStream::connect(site.address).await.unwrap();
    socket.write_all(bytes).await.unwrap();
    let mut answer = String::new();
    socket.read_to_string(&mut answer).await.unwrap();
    answer
}

#[tokio::test]
async fn a_body_that_does_not_arrive_is_408() {
    let site = Site::with(|server, _| server.read_timeout = Duration::from_millis(200));
    let head = "POST /v1/audio/speech HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nContent-Length: 99\r\n\r\n{";
    let answer = exchange(&site, head.as_bytes()).await;
    assert!(answer.starts_with("HTTP/1.1 408 "), "{answer}");
    assert!(answer.contains("did not arrive within 0.2 s"), "{answer}");
}

#[tokio::test]
async fn a_client_that_is_refused_while_it_sends_gets_to_see_why() {
    const LENGTH: usize = 2 << 20;
    let site = Site::with(|server, _| server.keys = vec![KeyConfig::new("alice", hash_key("sk-alice"))]);
    let head = |key: &str, more: &str| {
        format!(
            "POST {SPEECH} HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer {key}\r\n{more}\
             Connection: close\r\nContent-Length: {LENGTH}\r\n\r\n"
        )
    };
    for (key, more, status) in
        [("sk-bob", "", 401), ("sk-alice", "Origin: https://other.example\r\n", 403), ("sk-alice", "", 415)]
    {
        let request = [head(key, more).into_bytes(), vec![b' '; LENGTH]].concat();
        let answer = exchange(&site, &request).await;
        assert!(answer.starts_with(&format!("HTTP/1.1 {status} ")), "{answer}");
    }
    // One that asks before it sends is told at once, and does not send.
    let answer = exchange(&site, head("sk-bob", "Expect: 100-continue\r\n").as_bytes()).await;
    assert!(answer.starts_with("HTTP/1.1 401 "), "{answer}");
}

#[tokio::test]
async fn headers_that_do_not_arrive_close_the_connection() {
    let site = Site::with(|server, _| server.read_timeout = Duration::from_millis(200));
    let answer = exchange(&site, b"GET /health HTTP/1.1\r\nHost:").await;
    assert!(answer.is_empty() || answer.starts_with("HTTP/1.1 408"), "{answer}");
}

#[tokio::test]
async fn one_connection_too_many_is_told_so() {
    let site = Site::with(|server, _| server.max_connections = 1);
    // A request under way: an idle connection would give up its place.
    let response = site.post(SPEECH, &json!({"input": "Hi"}));
    let call = site.service.call().await;
    let answer = exchange(&site, b"GET /health HTTP/1.1\r\nHost: localhost\r\n\r\n").await;
    assert!(answer.starts_with("HTTP/1.1 503 "), "{answer}");
    let body = answer.split("\r\n\r\n").nth(1).unwrap();
    assert_eq!(json(body)["error"]["code"], "too_many_connections");
    for probe in ["/live", "/ready"] {
        let answer = exchange(&site, format!("GET {probe} HTTP/1.1\r\nHost: localhost\r\n\r\n").as_bytes()).await;
        assert!(answer.starts_with("HTTP/1.1 200 "), "{answer}");
    }
    // The place is free again when the first is over; retry until the server has noticed.
    drop(call);
    assert_eq!(response.await.unwrap().status(), 500);
    let request = b"GET /health HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n";
    while !exchange(&site, request).await.starts_with("HTTP/1.1 200") {}
}

#[tokio::test]
async fn running_answers_finish_after_the_shutdown_signal() {
    let mut site = Site::new();
    let response = site.post(SPEECH, &json!({"input": "Hi", "response_format": "pcm"}));
    let call = site.service.call().await;
    call.started().await;
    call.audio(2).await;
    let response = response.await.unwrap();
    drop(site.shutdown.take());
    call.audio(2).await;
    call.finish().await;
    assert_eq!(response.bytes().await.unwrap().len(), 8);
    site.serving.await.unwrap();
}

#[tokio::test]
async fn a_connection_that_never_ends_does_not_hold_the_exit_up() {
    let mut site = Site::new();
    let response = site.post(SPEECH, &json!({"input": "Hi", "response_format": "pcm"}));
    let call = site.service.call().await;
    call.started().await;
    call.audio(2).await;
    let _response = response.await.unwrap();
    drop(site.shutdown.take());
    site.serving.await.unwrap();
    call.dropped.await.unwrap();
}
