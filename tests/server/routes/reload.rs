//! Another config while the server runs: it holds for what comes, and what has begun goes on.

use super::{Site, json};
use futures::{SinkExt, StreamExt};
use omni_actors::config::{Config, KeyConfig, Scope, ServerConfig, hash_key};
use serde_json::{Value, json};
use tokio_tungstenite::tungstenite::Message;
use tokio_tungstenite::tungstenite::client::IntoClientRequest;

fn key(name: &str) -> KeyConfig {
    KeyConfig::new(name, hash_key(&format!("sk-{name}")))
}

fn reload(site: &Site, change: impl FnOnce(&mut ServerConfig)) {
    let mut config = Config { server: site.config.clone(), ..Config::default() };
    change(&mut config.server);
    site.reloader.apply(&config).unwrap();
}

async fn models(site: &Site, name: &str) -> u16 {
    site.get("/v1/models").bearer_auth(format!("sk-{name}")).send().await.unwrap().status().as_u16()
}

#[tokio::test]
async fn keys_come_and_go_and_no_stream_is_cut() {
    let site = Site::with(|server, _| server.keys = vec![key("alice"), key("bob")]);
    let body = json!({"input": "Hi", "response_format": "pcm"});
    let request = site.client.post(site.url("/v1/audio/speech")).bearer_auth("sk-alice").json(&body);
    let response = tokio::spawn(async move { request.send().await.unwrap() });
    let call = site.service.call().await;
    call.started().await;
    call.audio(2).await;
    let response = response.await.unwrap();

    reload(&site, |server| server.keys = vec![key("bob"), key("carol")]);
    assert_eq!(
        [models(&site, "alice").await, models(&site, "bob").await, models(&site, "carol").await],
        [401, 200, 200]
    );
    call.audio(2).await;
    call.finish().await;
    assert_eq!(response.bytes().await.unwrap().len(), 8, "the stream of a removed key goes on to its end");

    // Its secret is another one from now on; its name and what it has used stay.
    reload(&site, |server| {
        server.keys = vec![KeyConfig { requests_per_minute: Some(3), ..KeyConfig::new("bob", hash_key("sk-new")) }];
    });
    assert_eq!([models(&site, "bob").await, models(&site, "new").await], [401, 200]);
    reload(&site, |server| {
        server.keys = vec![KeyConfig { requests_per_minute: Some(1), ..KeyConfig::new("bob", hash_key("sk-new")) }];
    });
    assert_eq!(models(&site, "new").await, 429);
    reload(&site, |server| {
        server.keys = vec![KeyConfig { scopes: vec![Scope::Metrics], ..KeyConfig::new("bob", hash_key("sk-new")) }];
    });
    let voices = site.get("/v1/audio/voices").bearer_auth("sk-new").send().await.unwrap();
    assert_eq!(voices.status(), 403);
}

#[tokio::test]
async fn a_session_of_a_removed_key_speaks_to_its_end_and_begins_nothing_more() {
    let site = Site::with(|server, _| server.keys = vec![key("alice")]);
    let mut request = format!("ws://{}/v1/audio/speech/stream", site.address).into_client_request().unwrap();
    request.headers_mut().insert("authorization", "Bearer sk-alice".parse().unwrap());
    let (mut socket, _) = tokio_tungstenite::connect_async(request).await.unwrap();
    let hear = async |socket: &mut tokio_tungstenite::WebSocketStream<_>, kind: &str| -> Value {
        loop {
            if let Message::Text(text) = socket.next().await.unwrap().unwrap() {
                let message = json(&text);
                if message["type"] == kind {
                    return message;
                }
            }
        }
    };
    let messages = [json!({"type": "input.text", "text": "Well."}), json!({"type": "input.done"})];
    for message in &messages {
        socket.send(Message::text(message.to_string())).await.unwrap();
    }
    let call = site.service.call().await;
    call.started().await;
    reload(&site, |server| server.keys = vec![key("bob")]);
    call.audio(2).await;
    call.finish().await;
    hear(&mut socket, "session.done").await;
    for message in &messages {
        socket.send(Message::text(message.to_string())).await.unwrap();
    }
    assert_eq!(hear(&mut socket, "error").await["code"], "invalid_api_key");
    assert_eq!(site.service.accepted(), 1);
}

#[tokio::test]
async fn names_and_origins_are_taken_over() {
    let site = Site::new();
    let live = async |name: &str, value: &str| site.get("/live").header(name, value).send().await.unwrap().status();
    assert_eq!(live("host", "voice.example").await, 421);
    assert_eq!(live("origin", "https://app.example").await, 403);
    reload(&site, |server| {
        server.access.hosts = vec!["voice.example".to_owned()];
        server.access.origins = vec!["https://app.example".to_owned()];
    });
    assert_eq!(live("host", "voice.example").await, 200);
    assert_eq!(live("origin", "https://app.example").await, 200);
}

#[tokio::test]
async fn a_config_that_opens_the_address_of_the_running_server_is_not_taken() {
    let site = Site::with(|server, _| {
        server.listen = ([0, 0, 0, 0], 0).into();
        server.keys = vec![key("alice")];
    });
    // By itself it is fine: it would listen on a loopback address.
    let server = ServerConfig { keys: Vec::new(), ..Config::default().server };
    let told = site.reloader.apply(&Config { server, ..Config::default() }).unwrap_err().to_string();
    assert!(told.contains("still listens at 0.0.0.0"), "{told}");
    let models = site.client.get(format!("http://127.0.0.1:{}/v1/models", site.address.port()));
    assert_eq!(models.send().await.unwrap().status(), 401);
}

#[tokio::test]
async fn limits_of_requests_change_and_those_of_stages_need_a_restart() {
    let site = Site::with(|_, limits| limits.max_input_chars = 10);
    let speech = || site.post("/v1/audio/speech", &json!({"input": "Eleven char", "response_format": "pcm"}));
    let refused = speech().await.unwrap();
    assert_eq!(refused.status(), 400);
    assert_eq!(refused.json::<Value>().await.unwrap()["error"]["code"], "text_too_long");
    let mut config = Config { server: site.config.clone(), ..Config::default() };
    (config.limits.max_input_chars, config.limits.max_requests) = (11, 99);
    site.reloader.apply(&config).unwrap();
    let answer = speech();
    let call = site.service.call().await;
    call.started().await;
    call.finish().await;
    assert_eq!(answer.await.unwrap().status(), 200);
    let told = site.service.limits.lock().unwrap().clone().unwrap();
    assert_eq!((told.max_input_chars, told.max_requests), (11, 4));
}
