//! Names of requests, and errors of every layer.

use super::Site;
use reqwest::Method;
use serde_json::{Value, json};

#[tokio::test]
async fn every_answer_has_a_name_the_clients_if_it_gave_one() {
    let site = Site::new();
    let named = site.get("/live").header("x-request-id", "call-7/a").send().await.unwrap();
    assert_eq!(named.headers()["x-request-id"], "call-7/a");
    let mut names = Vec::new();
    for (path, given) in [("/live", None), ("/nowhere", None), ("/v1/models", Some("not; plain")), ("/live", Some(""))]
    {
        let request = given.into_iter().fold(site.get(path), |request, id| request.header("x-request-id", id));
        let response = request.send().await.unwrap();
        names.push(response.headers()["x-request-id"].to_str().unwrap().to_owned());
    }
    assert!(names.iter().all(|name| !name.is_empty() && *name != "not; plain"), "{names:?}");
    names.dedup();
    assert_eq!(names.len(), 4, "no two answers have one name");

    // That of an answer that speaks is the engine's, unless the client has one.
    for given in [None, Some("mine")] {
        let request = site.client.post(site.url("/v1/audio/speech")).json(&json!({"input": "Hi"}));
        let request = given.into_iter().fold(request, |request, id| request.header("x-request-id", id));
        let response = tokio::spawn(async move { request.send().await.unwrap() });
        let call = site.service.call().await;
        call.started().await;
        call.audio(2).await;
        call.finish().await;
        assert_eq!(response.await.unwrap().headers()["x-request-id"], given.unwrap_or("r7"));
    }
}

#[tokio::test]
async fn the_names_that_orchestrators_know_are_there_too() {
    let site = Site::new();
    for (path, other) in [("/livez", "/live"), ("/readyz", "/ready")] {
        let [one, two] = [path, other].map(|path| site.get(path).send());
        let (one, two) = (one.await.unwrap(), two.await.unwrap());
        assert_eq!(one.status(), two.status());
        assert_eq!(one.text().await.unwrap(), two.text().await.unwrap());
    }
}

#[tokio::test]
async fn errors_of_every_layer_have_one_form() {
    let site = Site::new();
    for (method, path, status, code) in [
        (Method::GET, "/nowhere", 404, "not_found"),
        (Method::GET, "/v1/audio/speech", 405, "method_not_allowed"),
        (Method::POST, "/live", 405, "method_not_allowed"),
        (Method::GET, "/v1/models/%ff", 400, "invalid_value"),
        (Method::POST, "/v1/audio/speech", 415, "unsupported_media_type"),
    ] {
        let response = site.client.request(method, site.url(path)).send().await.unwrap();
        assert_eq!(response.status(), status, "{path}");
        assert_eq!(response.headers()["content-type"], "application/json", "{path}");
        let body: Value = response.json().await.unwrap();
        assert_eq!(body["error"]["code"], code, "{path}");
    }
}

#[tokio::test]
async fn a_handler_that_panics_answers_500_and_the_server_goes_on() {
    let site = Site::new();
    site.service.panic_next();
    let response = site.post("/v1/audio/speech", &json!({"input": "Hi"})).await.unwrap();
    assert_eq!(response.status(), 500);
    let body: Value = response.json().await.unwrap();
    assert_eq!(body["error"]["code"], "internal_error");
    assert_eq!(site.get("/live").send().await.unwrap().status(), 200);
}
