//! A client that lost its connection asks for the rest of its speech by the name of the answer alone.

use crate::e2e_http::{SPEECH, Site, decode};
use crate::support::engine::idle;
use reqwest::Response;
use serde_json::{Value, json};
use std::time::Duration;

fn speech(more: &Value) -> Value {
    let mut body = json!({"input": "One, two, three.", "max_new_tokens": 10, "response_format": "pcm"});
    body.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
    body
}

/// The path of an answer, if it has one.
fn path(answer: &Response) -> Option<String> {
    answer.headers().get("content-location").map(|path| path.to_str().unwrap().to_owned())
}

impl Site {
    async fn again(&self, path: &str, header: (&str, &str)) -> Response {
        self.client.get(format!("http://{}{path}", self.address)).header(header.0, header.1).send().await.unwrap()
    }

    /// Status and code of a refusal.
    async fn missing(&self, path: &str) -> (u16, String) {
        let response = self.again(path, ("accept", "*/*")).await;
        let status = response.status().as_u16();
        let error: Value = response.json().await.unwrap();
        (status, error["error"]["code"].as_str().unwrap().to_owned())
    }
}

const NOT_FOUND: (u16, &str) = (404, "answer_not_found");

#[tokio::test(flavor = "multi_thread")]
async fn the_rest_of_a_stream_comes_by_the_name_of_the_answer() {
    let site = Site::new(|_| {}).await;
    // No seed: the server draws one, and keeps it.
    let mut answer = site.post(SPEECH, &speech(&json!({"initial_codec_chunk_frames": 1}))).await;
    let path = path(&answer).unwrap();
    // Half of what comes first: on a busy machine that may be all there is.
    let mut heard = answer.chunk().await.unwrap().unwrap().to_vec();
    heard.truncate(heard.len() / 2);
    drop(answer);
    idle(&site.engine).await;

    let whole = site.again(&path, ("accept", "*/*")).await;
    assert_eq!(whole.headers()["content-location"], path.as_str());
    let whole = whole.bytes().await.unwrap();
    assert!(heard.len() < whole.len() && whole.starts_with(&heard));
    let rest = site.again(&path, ("range", &format!("bytes={}-", heard.len()))).await;
    assert_eq!(rest.status(), 206);
    heard.extend_from_slice(&rest.bytes().await.unwrap());
    assert!(heard == whole, "other samples");
    let beyond = site.again(&path, ("range", &format!("bytes={}-", heard.len()))).await;
    assert_eq!(beyond.status(), 416);
    idle(&site.engine).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn the_rest_of_events_comes_as_a_browser_asks_for_it() {
    let site = Site::new(|_| {}).await;
    let answer = site.post(SPEECH, &speech(&json!({"stream": true}))).await;
    let path = path(&answer).unwrap();
    let text = answer.text().await.unwrap();
    let audio = |text: &str| -> Vec<u8> {
        let data = text.lines().filter_map(|line| line.strip_prefix("data: "));
        let events = data.map(|data| serde_json::from_str::<Value>(data).unwrap());
        events.filter(|event| event["audio"].is_string()).flat_map(|event| decode(&event["audio"])).collect()
    };
    let file = audio(&text);
    let first = text.lines().find_map(|line| line.strip_prefix("id: ")).unwrap();
    let rest = site.again(&path, ("last-event-id", first)).await.text().await.unwrap();
    let came: usize = first.parse().unwrap();
    assert!(came > 0 && audio(&rest) == file[came..], "other samples");
    idle(&site.engine).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn what_is_not_kept_is_not_found() {
    let site = Site::new(|config| config.server.max_kept_bytes = 64 << 10).await;
    let answer = site.post(SPEECH, &speech(&json!({"max_new_tokens": 2}))).await;
    let kept = path(&answer).unwrap();
    let long = site.post(SPEECH, &speech(&json!({"user": "x".repeat(5000), "max_new_tokens": 2}))).await;
    assert_eq!((long.status().as_u16(), path(&long)), (200, None), "it is larger than its share");
    for unknown in ["/v1/audio/speech/r1", "/v1/audio/speech/a/b", &format!("/v1/audio/speech/{}", "0".repeat(32))] {
        let (status, code) = site.missing(unknown).await;
        assert_eq!((status, code.as_str()), NOT_FOUND, "{unknown}");
    }
    let other = Site::new(|config| config.server.answers_kept = Duration::ZERO).await;
    let (status, code) = other.missing(&kept).await;
    assert_eq!((status, code.as_str()), NOT_FOUND, "another server");
    let answer = other.post(SPEECH, &speech(&json!({"max_new_tokens": 2}))).await;
    assert_eq!((answer.status().as_u16(), path(&answer)), (200, None), "a server that keeps nothing");
}
