//! Models, voices, health, readiness, metrics, the page.

use super::Site;
use serde_json::{Value, json};
use std::sync::atomic::Ordering;

#[tokio::test]
async fn models_and_voices_are_listed() {
    let site = Site::new();
    let models: Value = site.get("/v1/models").send().await.unwrap().json().await.unwrap();
    assert_eq!(models["object"], "list");
    assert_eq!(models["data"][0]["id"], "team/test-voice");
    let model: Value = site.get("/v1/models/team/test-voice").send().await.unwrap().json().await.unwrap();
    assert_eq!(model, models["data"][0]);
    let voices: Value = site.get("/v1/audio/voices").send().await.unwrap().json().await.unwrap();
    assert_eq!(voices["aliases"].as_object().unwrap().len(), 13);
    let voices = without_aliases(voices);
    let expected = json!({"voices": [{"id": "alto", "name": "alto"}, {"id": "heart", "name": "heart"}],
        "names": ["alto", "heart"], "has_more": false, "last_id": "heart", "uploaded_voices": [], "default": "heart",
        "sample_rate": 24000, "task_type": null, "languages": null, "instructions": false});
    assert_eq!(voices, expected);
}

fn without_aliases(mut voices: Value) -> Value {
    voices.as_object_mut().unwrap().remove("aliases");
    voices
}

#[tokio::test]
async fn health_stays_green_while_readiness_turns_red() {
    let site = Site::new();
    assert_eq!(site.get("/ready").send().await.unwrap().status(), 200);
    site.service.ready.store(false, Ordering::SeqCst);
    let ready = site.get("/ready").send().await.unwrap();
    assert_eq!(ready.status(), 503);
    assert!(ready.headers().contains_key("retry-after"));
    let health = site.get("/health").send().await.unwrap();
    assert_eq!(health.status(), 200);
    let health: Value = health.json().await.unwrap();
    assert_eq!(health["ready"], false);
    let stages: Vec<&str> = health["stages"].as_array().unwrap().iter().map(|s| s["name"].as_str().unwrap()).collect();
    assert_eq!(stages, ["thinker", "talker", "vocoder"]);
    assert_eq!(health["stages"][0]["state"], "running");
    assert_eq!((&health["stages"][0]["node"], &health["stages"][1]["node"]), (&Value::Null, &json!("near")));
    let offered = json!([{"name": "talker", "used": false, "reason": "it is old"}]);
    assert_eq!(health["nodes"], json!([{"name": "far", "stages": offered}]));
}

#[tokio::test]
async fn responses_are_counted_by_route_and_status() {
    let site = Site::new();
    site.get("/v1/audio/voices").send().await.unwrap();
    site.get("/v1/models/team/test-voice").send().await.unwrap();
    let page = site.get("/metrics").send().await.unwrap();
    assert!(page.headers()["content-type"].to_str().unwrap().starts_with("text/plain; version=0.0.4"));
    let page = page.text().await.unwrap();
    let counted =
        |route: &str| page.contains(&format!("omni_http_responses_total{{route=\"{route}\",status=\"200\"}}"));
    assert!(counted("/v1/audio/voices") && counted("/v1/models/{id}"), "{page}");
}

#[tokio::test]
async fn the_page_loads_nothing_from_elsewhere() {
    let site = Site::new();
    let response = site.get("/").send().await.unwrap();
    assert!(response.headers()["content-type"].to_str().unwrap().starts_with("text/html"));
    let policy = response.headers()["content-security-policy"].to_str().unwrap().to_owned();
    assert!(policy.contains("default-src 'none'") && policy.contains("connect-src 'self'"));
    let page = response.text().await.unwrap();
    for outside in ["src=\"http", "href=\"http", "url(http", "@import", "import("] {
        assert!(!page.contains(outside), "{outside}");
    }
}
