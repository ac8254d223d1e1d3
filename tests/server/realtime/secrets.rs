//! Client secrets: keys for a short time that open sessions, for browsers.

use super::*;
use omni_actors::config::{KeyConfig, Scope, hash_key};
use tokio_tungstenite::tungstenite::client::IntoClientRequest;

const ROUTE: &str = "/v1/realtime/client_secrets";

/// The status and the object of an answer to `body`.
async fn ask(site: &Site, key: Option<&str>, body: &Value) -> (u16, Value) {
    let request = reqwest::Client::new().post(format!("http://{}{ROUTE}", site.address)).json(body);
    let request = if let Some(key) = key { request.bearer_auth(key) } else { request };
    let response = request.send().await.unwrap();
    (response.status().as_u16(), response.json().await.unwrap())
}

/// A session that a browser opens with a secret, or the status with which it is refused.
async fn open(site: &Site, secret: &str) -> Result<Talk, u16> {
    let mut request = format!("ws://{}/v1/realtime", site.address).into_client_request().unwrap();
    let protocol = format!("realtime, openai-insecure-api-key.{secret}");
    request.headers_mut().insert("sec-websocket-protocol", protocol.parse().unwrap());
    match connect_async(request).await {
        Ok((socket, _)) => Ok(Talk { socket }),
        Err(tokio_tungstenite::tungstenite::Error::Http(response)) => Err(response.status().as_u16()),
        Err(other) => panic!("{other}"),
    }
}

/// A site with a key for chats and one for speech alone.
async fn locked() -> Site {
    with(|config| {
        let key = |name: &str, scope| KeyConfig { scopes: vec![scope], ..KeyConfig::new(name, hash_key(name)) };
        config.server.keys = vec![key("chatter", Scope::Chat), key("speaker", Scope::Speak)];
    })
    .await
}

#[tokio::test(flavor = "multi_thread")]
async fn a_secret_opens_the_session_that_it_was_made_with() {
    let site = locked().await;
    let session = json!({
        "type": "realtime", "model": "gpt-realtime", "instructions": "Be brief.", "output_modalities": ["text"],
        "max_output_tokens": TOKENS, "seed": 7,
    });
    let body = json!({"expires_after": {"anchor": "created_at", "seconds": 120}, "session": session});
    let (status, made) = ask(&site, Some("chatter"), &body).await;
    assert_eq!(status, 200, "{made}");
    let secret = made["value"].as_str().unwrap();
    assert!(secret.starts_with("ek_") && secret.len() == 35, "{secret}");
    assert_eq!(made["session"]["instructions"], "Be brief.");
    // Twice: it is for a time, not for a use.
    let mut texts = Vec::new();
    for _ in 0..2 {
        let mut talk = open(&site, secret).await.ok().unwrap();
        let created = talk.next().await;
        assert_eq!((&created["type"], &created["event_id"]), (&json!("session.created"), &json!("event_1")));
        assert_eq!(
            (&created["session"]["instructions"], &created["session"]["seed"]),
            (&json!("Be brief."), &json!(7))
        );
        talk.say("Hello").await;
        texts.push(talk.answer("text").await.text());
    }
    assert!(texts[0] == texts[1] && !texts[0].is_empty(), "the seed is the session's");
    // It opens nothing else.
    let url = |path: &str| format!("http://{}{path}", site.address);
    for path in ["/v1/models", "/metrics", "/v1/audio/voices"] {
        let response = reqwest::Client::new().get(url(path)).bearer_auth(secret).send().await.unwrap();
        assert_eq!(response.status(), 401, "{path}");
        assert!(
            response.text().await.unwrap().contains("WS /v1/realtime and POST /v1/realtime/calls, and nothing else")
        );
    }
    assert_eq!(ask(&site, Some(secret), &json!({})).await.0, 401);
}

#[tokio::test(flavor = "multi_thread")]
async fn who_may_not_chat_gets_no_secret_and_a_guess_opens_nothing() {
    let site = locked().await;
    assert_eq!(ask(&site, None, &json!({})).await.0, 401);
    let (status, error) = ask(&site, Some("speaker"), &json!({})).await;
    assert_eq!((status, &error["error"]["code"]), (403, &json!("insufficient_scope")));
    for guess in ["ek_", "ek_00000000000000000000000000000000", "chatter2"] {
        assert_eq!(open(&site, guess).await.err(), Some(401), "{guess}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn what_a_secret_cannot_have_is_told() {
    let site = site().await;
    for (body, param) in [
        (json!({"expires_after": 5}), "expires_after"),
        (json!({"expires_after": {"seconds": 9}}), "expires_after"),
        (json!({"expires_after": {"seconds": 7201}}), "expires_after"),
        (json!({"expires_after": {"anchor": "never"}}), "expires_after"),
        (json!({"session": []}), "session"),
        (json!({"session": {"type": "transcription"}}), "session.type"),
        (json!({"session": {"audio": {"output": {"voice": "nobody"}}}}), "session.audio.output.voice"),
        (json!({"session": {"metadata": "x".repeat(20_000)}}), "session"),
    ] {
        let (status, error) = ask(&site, None, &body).await;
        assert_eq!(status, 400, "{error}");
        let told = error["error"]["param"].as_str().unwrap_or_default();
        assert!(told == param || param.ends_with(told) && !told.is_empty(), "{param}: {error}");
    }
    let (status, error) = ask(&site, None, &json!({"session": {"model": "someone"}})).await;
    assert_eq!((status, &error["error"]["code"]), (404, &json!("model_not_found")));
    let (status, made) = ask(&site, None, &json!({})).await;
    assert_eq!((status, &made["session"]["type"]), (200, &json!("realtime")));
    assert!(open(&site, made["value"].as_str().unwrap()).await.is_ok());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_key_with_all_of_its_secrets_is_told_when_one_expires() {
    const LIFE: u64 = 7200;
    let site = locked().await;
    let body = json!({"expires_after": {"anchor": "created_at", "seconds": LIFE}});
    let make = || {
        let request = site.client.post(format!("http://{}{ROUTE}", site.address)).json(&body);
        async { request.bearer_auth("chatter").send().await.unwrap() }
    };
    for number in 0..512 {
        assert_eq!(make().await.status(), 200, "{number}");
    }
    let refused = make().await;
    assert_eq!(refused.status(), 429);
    let wait: u64 = refused.headers()["retry-after"].to_str().unwrap().parse().unwrap();
    let error: Value = refused.json().await.unwrap();
    assert_eq!(error["error"]["code"], "too_many_client_secrets");
    assert!((1..=LIFE).contains(&wait), "{wait}");
    let message = error["error"]["message"].as_str().unwrap();
    assert!(message.contains(&format!("try again in {wait} s")), "{message}");
}
