//! Other names of the model and its voices, and the lists that clients choose from.

use super::Site;
use super::voices::form;
use omni_actors::config::{AliasesConfig, Config, KeyConfig, Scope, ServerConfig, hash_key};
use omni_actors::engine::VoiceChoice;
use omni_actors::server::ReloadError;
use reqwest::RequestBuilder;
use serde_json::{Value, json};

const SPEECH: &str = "/v1/audio/speech";

fn with_aliases(change: impl FnOnce(&mut AliasesConfig)) -> Site {
    Site::with(|server, _| change(&mut server.aliases))
}

/// Speaks, and tells which voice the engine was asked for.
async fn voice_of(site: &Site, body: &Value) -> VoiceChoice {
    let response = site.post(SPEECH, body);
    let call = site.service.call().await;
    call.started().await;
    call.audio(4).await;
    call.finish().await;
    assert_eq!(response.await.unwrap().status(), 200, "{body}");
    call.speech().params.voice.clone()
}

fn upload(name: &str) -> Vec<u8> {
    form(&[("audio_sample", Some("me.wav"), &[0; 64]), ("name", None, name.as_bytes()), ("consent", None, b"agreed")])
}

fn add_voice(site: &Site) -> RequestBuilder {
    let request = site.client.post(site.url("/v1/audio/voices"));
    request.header("content-type", "multipart/form-data; boundary=frontier")
}

fn named(name: &str) -> VoiceChoice {
    VoiceChoice::Named { name: name.to_owned(), x_vector_only: false }
}

async fn refusal(site: &Site, body: &Value) -> (u16, String) {
    let response = site.post(SPEECH, body).await.unwrap();
    let (status, body) = (response.status().as_u16(), response.json::<Value>().await.unwrap());
    (status, body["error"]["message"].as_str().unwrap().to_owned())
}

async fn get(site: &Site, path: &str) -> Value {
    let response = site.get(path).send().await.unwrap();
    assert_eq!(response.status(), 200, "{path}");
    response.json().await.unwrap()
}

#[tokio::test]
async fn openais_names_lead_to_what_is_served() {
    let site = Site::new();
    for (model, voice, served) in [
        ("tts-1", "alloy", "heart"),
        ("tts-1-hd-1106", "ash", "alto"),
        ("gpt-4o-mini-tts", "Ballad", "heart"),
        ("openai/gpt-4o-mini-tts-2025-12-15", "cedar", "heart"),
        ("team/test-voice", "marin", "alto"),
        ("tts-1", "alto", "alto"),
    ] {
        let body = json!({"model": model, "voice": voice, "input": "Hi"});
        assert_eq!(voice_of(&site, &body).await, named(served), "{body}");
    }
    let speaker = json!({"input": "Hi", "voice": {"id": "alloy"}});
    assert_eq!(voice_of(&site, &speaker).await, named("heart"));
}

#[tokio::test]
async fn a_chat_knows_them_too() {
    let site = Site::new();
    let body = json!({"model": "gpt-4o-audio-preview", "modalities": ["text", "audio"],
        "audio": {"voice": "ash", "format": "wav"}, "messages": [{"role": "user", "content": "Hi"}]});
    let response = site.post("/v1/chat/completions", &body);
    let call = site.service.call().await;
    assert_eq!(call.chat().voice.as_deref(), Some("alto"));
    call.started().await;
    call.finish().await;
    let answer: Value = response.await.unwrap().json().await.unwrap();
    assert_eq!(answer["model"], "team/test-voice");
}

#[tokio::test]
async fn they_can_be_turned_off_and_errors_list_what_is_served() {
    let site = with_aliases(|aliases| aliases.openai = false);
    let (status, message) = refusal(&site, &json!({"model": "tts-1", "input": "Hi"})).await;
    assert!(status == 404 && message.contains("this server has \"team/test-voice\""), "{message}");
    let (status, message) = refusal(&site, &json!({"voice": "alloy", "input": "Hi"})).await;
    assert!(status == 400 && message.contains("choose one of: alto, heart"), "{message}");
    assert_eq!(get(&site, "/v1/audio/voices").await["aliases"], json!({}));
    assert_eq!(site.get("/v1/models/tts-1").send().await.unwrap().status(), 404);
}

#[tokio::test]
async fn the_configs_names_go_before_openais_and_real_names_before_both() {
    let site = with_aliases(|aliases| {
        aliases.models = vec!["kokoro".to_owned()];
        aliases.voices = [("alloy", "alto"), ("af_heart", "heart")].map(|(a, b)| (a.to_owned(), b.to_owned())).into();
    });
    assert_eq!(voice_of(&site, &json!({"model": "kokoro", "voice": "AF_Heart", "input": "Hi"})).await, named("heart"));
    assert_eq!(voice_of(&site, &json!({"voice": "alloy", "input": "Hi"})).await, named("alto"));
    // Someone uploads a voice of that name.
    let form = upload("Alloy");
    let added = add_voice(&site).body(form).send().await.unwrap();
    assert_eq!(added.status(), 200);
    assert_eq!(voice_of(&site, &json!({"voice": "alloy", "input": "Hi"})).await, named("Alloy"));
    let voices = get(&site, "/v1/audio/voices").await;
    assert_eq!(voices["names"], json!(["alto", "heart", "Alloy", "af_heart"]));
    assert!(voices["aliases"].get("alloy").is_none());
}

#[tokio::test]
async fn lists_have_the_shapes_that_clients_read() {
    let site = with_aliases(|aliases| {
        aliases.models = vec!["kokoro".to_owned()];
        aliases.voices = [("narrator".to_owned(), "alto".to_owned())].into();
    });
    let voices = get(&site, "/v1/audio/voices").await;
    let own = json!([{"id": "alto", "name": "alto"}, {"id": "heart", "name": "heart"},
        {"id": "narrator", "name": "narrator (alto)"}]);
    assert_eq!((&voices["voices"], &voices["names"]), (&own, &json!(["alto", "heart", "narrator"])));
    assert_eq!((&voices["aliases"]["narrator"], &voices["aliases"]["alloy"]), (&json!("alto"), &json!("heart")));
    let legacy = get(&site, "/v1/audio/voices?legacy=true").await;
    assert_eq!(legacy["voices"], json!(["alto", "heart", "narrator"]));
    let all = get(&site, "/v1/audio/voices?aliases=1").await;
    assert_eq!(all["voices"].as_array().unwrap().len(), 3 + 13);
    assert_eq!(all["voices"][3], json!({"id": "alloy", "name": "alloy (heart)"}));

    let models = get(&site, "/v1/audio/models").await;
    let served = json!({"id": "team/test-voice", "name": "team/test-voice"});
    assert_eq!(models, json!({"models": [served, {"id": "kokoro", "name": "kokoro (team/test-voice)"}]}));
    let all = get(&site, "/v1/audio/models?aliases=true").await;
    assert!(all["models"].as_array().unwrap().iter().any(|model| model["id"] == "tts-1"));

    let models = get(&site, "/v1/models").await;
    let ids: Vec<&Value> = models["data"].as_array().unwrap().iter().map(|model| &model["id"]).collect();
    assert_eq!(ids, ["team/test-voice", "kokoro"]);
    let alias = get(&site, "/v1/models/gpt-4o-mini-tts").await;
    assert_eq!((&alias["id"], &alias["root"]), (&json!("gpt-4o-mini-tts"), &json!("team/test-voice")));
    assert!(get(&site, "/v1/models/test-voice").await.get("root").is_none());
    let listed = get(&site, "/v1/models?aliases=true").await;
    assert!(listed["data"].as_array().unwrap().iter().any(|model| model["id"] == "gpt-4o-mini-tts"));
}

const LISTS: [&str; 4] = ["/v1/models", "/v1/models/tts-1", "/v1/audio/models", "/v1/audio/voices"];

#[tokio::test]
async fn lists_are_open_without_a_key_only_where_the_config_says_so() {
    let keyed = |open| {
        Site::with(|server, _| {
            let counter = KeyConfig::new("counter", hash_key("sk-counter"));
            let counter = KeyConfig { scopes: vec![Scope::Metrics], ..counter };
            server.keys = vec![KeyConfig::new("alice", hash_key("sk-alice")), counter];
            server.access.open_lists = open;
        })
    };
    let (closed, open) = (keyed(false), keyed(true));
    for path in LISTS {
        assert_eq!(closed.get(path).send().await.unwrap().status(), 401, "{path}");
        assert_eq!(closed.get(path).bearer_auth("sk-alice").send().await.unwrap().status(), 200, "{path}");
        for request in [open.get(path), open.get(path).bearer_auth("sk-alice"), open.get(path).bearer_auth("sk-bob")] {
            assert_eq!(request.send().await.unwrap().status(), 200, "{path}");
        }
    }
    // Nothing else is, and a list tells names only.
    let form = upload("Mine");
    assert_eq!(add_voice(&open).send().await.unwrap().status(), 401);
    assert_eq!(add_voice(&open).bearer_auth("sk-alice").body(form).send().await.unwrap().status(), 200);
    assert_eq!(open.post(SPEECH, &json!({"input": "Hi"})).await.unwrap().status(), 401);
    for path in ["/metrics", "/openapi.json", "/v1/audio/voices/Mine"] {
        assert_eq!(open.get(path).send().await.unwrap().status(), 401, "{path}");
    }
    let voices = get(&open, "/v1/audio/voices").await;
    assert_eq!((&voices["names"], &voices["uploaded_voices"]), (&json!(["alto", "heart", "Mine"]), &json!([])));
    let known = open.get("/v1/audio/voices").bearer_auth("sk-alice").send().await.unwrap();
    assert_eq!(known.json::<Value>().await.unwrap()["uploaded_voices"][0]["consent"], "agreed");
    // A key that is not for voices is told what everyone is.
    let other = open.get("/v1/audio/voices").bearer_auth("sk-counter").send().await.unwrap();
    assert_eq!(other.json::<Value>().await.unwrap(), voices);
    assert_eq!(closed.get("/v1/audio/voices").bearer_auth("sk-counter").send().await.unwrap().status(), 403);
}

#[tokio::test]
async fn aliases_change_while_the_server_runs_and_wrong_ones_change_nothing() {
    let site = Site::new();
    // The server knows what it serves once it answers.
    get(&site, "/v1/models").await;
    let reload = |change: &dyn Fn(&mut ServerConfig)| {
        let mut config = Config { server: site.config.clone(), ..Config::default() };
        change(&mut config.server);
        site.reloader.apply(&config)
    };
    reload(&|server| server.aliases.voices = [("narrator".to_owned(), "alto".to_owned())].into()).unwrap();
    let body = json!({"voice": "narrator", "input": "Hi"});
    assert_eq!(voice_of(&site, &body).await, named("alto"));
    let wrong = reload(&|server| server.aliases.voices = [("narrator".to_owned(), "bob".to_owned())].into());
    assert!(matches!(&wrong, Err(ReloadError::Alias(error)) if error.key == "aliases.voices.narrator"), "{wrong:?}");
    assert_eq!(voice_of(&site, &body).await, named("alto"));
}

/// Fields and headers of clients that mean nothing here.
#[tokio::test]
async fn what_clients_send_besides_is_harmless() {
    let site = Site::new();
    let body = json!({"model": "tts-1", "voice": "alloy", "input": "Hi", "response_format": "mp3", "speed": 1,
        "user": "someone", "metadata": {}, "volume_multiplier": 1.0, "lang_code": null, "return_download_link": false,
        "normalization_options": {"normalize": true}, "provider": {"order": ["a"]}, "download_format": "mp3"});
    let request = site.client.post(site.url(SPEECH)).json(&body);
    let request = request
        .header("x-openwebui-user-name", "someone")
        .header("x-stainless-lang", "js")
        .header("openai-beta", "assistants=v2")
        .header("accept", "application/octet-stream");
    let response = tokio::spawn(request.send());
    let call = site.service.call().await;
    call.started().await;
    call.audio(4).await;
    call.finish().await;
    let response = response.await.unwrap().unwrap();
    assert_eq!(
        (response.status().as_u16(), &response.headers()["content-type"]),
        (200, &"audio/mpeg".parse().unwrap())
    );
    assert_eq!(
        response.headers()["x-ignored-fields"],
        "download_format, lang_code, normalization_options, provider, return_download_link, volume_multiplier"
    );
}
