//! Clients that break rules, meet limits, or leave.

use super::*;
use crate::support::engine::{idle, root};
use crate::support::wait::{self, PATIENCE};
use omni_actors::config::{KeyConfig, hash_key};
use omni_actors::model::checkpoint::Checkpoint;
use tokio_tungstenite::tungstenite::Error;
use tokio_tungstenite::tungstenite::client::IntoClientRequest;
use tokio_tungstenite::tungstenite::http::Response;

/// The status with which a session is refused.
async fn refused(site: &Site, query: &str, protocol: Option<&str>) -> u16 {
    refusal(site, query, protocol).await.status().as_u16()
}

/// The answer to a client that asks for a session.
async fn refusal(site: &Site, query: &str, protocol: Option<&str>) -> Response<Option<Vec<u8>>> {
    let mut request = format!("ws://{}/v1/realtime{query}", site.address).into_client_request().unwrap();
    if let Some(protocol) = protocol {
        request.headers_mut().insert("sec-websocket-protocol", protocol.parse().unwrap());
    }
    match connect_async(request).await {
        Ok((_, response)) => response,
        Err(Error::Http(response)) => *response,
        Err(other) => panic!("{other}"),
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn nonsense_is_answered_with_an_error_and_the_session_goes_on() {
    let site = site().await;
    let mut talk = Talk::new(&site).await;
    for text in ["{", "[]", "\"\"", "null", "{}", r#"{"type": 1}"#, r#"{"type": "x", "event_id": "e"}"#, "\u{0}"] {
        talk.socket.send(Message::text(text)).await.unwrap();
        let error = talk.until("error").await.pop().unwrap();
        assert!(error["error"]["message"].as_str().unwrap().len() > 10, "{text}: {error}");
    }
    talk.socket.send(Message::binary(vec![1, 2, 3])).await.unwrap();
    talk.until("error").await;
    let deep = format!("{}{}", "{\"a\":".repeat(90), "1}".repeat(90));
    talk.socket.send(Message::text(deep)).await.unwrap();
    talk.until("error").await;
    talk.say("Hello").await;
    assert!(!talk.answer("text").await.text().is_empty());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_flood_is_answered_in_order_and_bounded() {
    let site = site().await;
    let mut talk = Talk::new(&site).await;
    let (mut write, mut read) = talk.socket.split();
    let flood = tokio::spawn(async move {
        for number in 0..2_000 {
            let event = json!({"type": "conversation.item.retrieve", "event_id": format!("e{number}"), "item_id": "x"});
            write.send(Message::text(event.to_string())).await.unwrap();
        }
        write
    });
    for number in 0..2_000 {
        let message = timeout(PATIENCE, read.next()).await.unwrap().unwrap().unwrap();
        let event: Value = serde_json::from_str(message.to_text().unwrap()).unwrap();
        assert_eq!(event["error"]["event_id"], format!("e{number}"));
    }
    let write = flood.await.unwrap();
    talk = Talk { socket: read.reunite(write).unwrap() };
    talk.say("Hello").await;
    assert!(!talk.answer("text").await.text().is_empty());
}

#[tokio::test(flavor = "multi_thread")]
async fn what_waits_for_the_client_is_part_of_the_memory_for_all() {
    let site = with(|config| {
        (config.server.max_body_bytes, config.server.max_input_bytes) = (1 << 20, 2 << 20);
        config.server.realtime.prepare = false;
    })
    .await;
    let mut talk = Talk::new(&site).await;
    talk.append(&[0; 900_000]).await;
    talk.send(json!({"type": "input_audio_buffer.commit"})).await;
    let done = talk.until("conversation.item.done").await.pop().unwrap();
    let item_id = done["item"]["id"].clone();
    // Its samples are kept; with their base64 they are more than large buffers may have of 2 MiB.
    talk.send(json!({"type": "conversation.item.retrieve", "item_id": item_id})).await;
    let error = talk.until("error").await.pop().unwrap();
    assert_eq!(error["error"]["code"], "too_much_input");
    talk.send(json!({"type": "conversation.item.delete", "item_id": item_id})).await;
    talk.until("conversation.item.deleted").await;
    talk.append(&[0; 9_600]).await;
    talk.send(json!({"type": "input_audio_buffer.commit"})).await;
    let done = talk.until("conversation.item.done").await.pop().unwrap();
    talk.send(json!({"type": "conversation.item.retrieve", "item_id": done["item"]["id"]})).await;
    talk.until("conversation.item.retrieved").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_item_that_is_named_many_times_is_not_copied_beyond_the_limit_of_a_conversation() {
    let site = with(|config| config.limits.max_input_chars = 100).await;
    let mut talk = Talk::new(&site).await;
    let content = json!([{"type": "input_text", "text": "x".repeat(40)}]);
    let item = json!({"id": "a", "type": "message", "role": "user", "content": content});
    talk.send(json!({"type": "conversation.item.create", "item": item})).await;
    talk.until("conversation.item.done").await;
    let name = |times: usize| {
        let input = vec![json!({"type": "item_reference", "id": "a"}); times];
        let response = json!({"conversation": "none", "output_modalities": ["text"], "input": input});
        json!({"type": "response.create", "response": response})
    };
    talk.send(name(3)).await;
    let error = talk.until("error").await.pop().unwrap();
    assert_eq!(error["error"]["param"], "response.input");
    assert!(error["error"]["message"].as_str().unwrap().contains("100 characters"), "{error}");
    talk.send(name(2)).await;
    let done = talk.until("response.done").await.pop().unwrap();
    assert_ne!(done["response"]["status"], "failed", "{done}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_client_that_leaves_in_any_state_leaves_nothing() {
    let site = with(|config| config.server.realtime.max_sessions = 2).await;
    for state in 0..6 {
        // The place of the one before is free when the server has seen that it left.
        let socket = wait::answered(async || match connect_async(format!("ws://{}/v1/realtime", site.address)).await {
            Ok((socket, _)) => Ok(socket),
            Err(Error::Http(refused)) => Err(refused.status()),
            Err(other) => panic!("{other}"),
        })
        .await;
        let mut talk = Talk { socket };
        if state > 0 {
            talk.until("session.created").await;
        }
        if state > 1 {
            talk.append(&[0; 9_600]).await;
        }
        if state > 2 {
            talk.say("Tell me a story").await;
            talk.send(json!({"type": "response.create"})).await;
        }
        if state > 3 {
            talk.until("response.created").await;
        }
        if state > 4 {
            talk.until("response.output_audio.delta").await;
        }
        drop(talk);
    }
    idle(&site.engine).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn sessions_have_limits_on_their_number_and_time() {
    let site = with(|config| config.server.realtime.max_sessions = 1).await;
    let mut talk = Talk::bare(&site, "").await;
    talk.until("session.created").await;
    let full = refusal(&site, "", None).await;
    assert_eq!((full.status().as_u16(), full.headers()["retry-after"].to_str().unwrap()), (503, "5"));
    let site = with(|config| config.server.realtime.max_sessions = 0).await;
    let none = refusal(&site, "", None).await;
    assert_eq!((none.status().as_u16(), none.headers().get("retry-after")), (501, None), "to wait would not help");
    let site = with(|config| config.server.realtime.idle_timeout = Duration::from_secs(1)).await;
    let mut talk = Talk::bare(&site, "").await;
    let error = talk.until("error").await.pop().unwrap();
    assert_eq!(error["error"]["code"], "idle_timeout");
    assert!(talk.next().await.is_null());
    let site = with(|config| config.server.realtime.max_time = Duration::from_secs(1)).await;
    let mut talk = Talk::bare(&site, "").await;
    let error = talk.until("error").await.pop().unwrap();
    assert_eq!(error["error"]["code"], "session_expired");
}

#[tokio::test(flavor = "multi_thread")]
async fn names_seeds_and_models_that_are_wrong_open_no_session() {
    let site = site().await;
    assert_eq!(refused(&site, "?model=nobody", None).await, 404);
    assert_eq!(refused(&site, "?seed=-1", None).await, 400);
    assert_eq!(refused(&site, "?model=gpt-realtime&seed=1", None).await, 101);
    // A checkpoint that speaks and does not answer.
    let site = Site::of(&Checkpoint::open(&root().join("tests/fixtures/qwen3_tts/base")).unwrap(), |_| {}).await;
    assert_eq!(refused(&site, "", None).await, 400);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_browser_sends_its_key_as_a_protocol() {
    let site = with(|config| config.server.keys = vec![KeyConfig::new("a", hash_key("sesame"))]).await;
    assert_eq!(refused(&site, "", None).await, 401);
    assert_eq!(refused(&site, "", Some("realtime, openai-insecure-api-key.wrong")).await, 401);
    assert_eq!(refused(&site, "", Some("realtime, openai-insecure-api-key.sesame")).await, 101);
}
