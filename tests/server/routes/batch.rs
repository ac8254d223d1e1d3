//! `POST /v1/audio/speech/batch`.

use super::Site;
use base64::Engine;
use base64::prelude::BASE64_STANDARD;
use omni_actors::engine::{LaterReason, SubmitError, VoiceChoice};
use serde_json::{Value, json};
use std::time::Duration;

const PATH: &str = "/v1/audio/speech/batch";

/// Answers the next request with some samples; what it was.
async fn speak(site: &Site, samples: usize) -> (String, Option<String>) {
    let call = site.service.call().await;
    let asked = (call.text().await, call.speech().params.voice.name().map(str::to_owned));
    call.started().await;
    call.audio(samples).await;
    call.finish().await;
    asked
}

#[tokio::test]
async fn each_item_says_what_differs_from_the_batch() {
    let site = Site::new();
    let body = json!({
        "items": [
            {"input": "One.", "voice": null},
            {"input": "Two.", "voice": "heart", "response_format": "flac", "speed": 0.5},
            {"input": "Three.", "max_new_tokens": 7}
        ],
        "voice": "Alto", "response_format": "wav", "language": "English", "seed": 3
    });
    let response = site.post(PATH, &body);
    assert_eq!(speak(&site, 100).await, ("One.".to_owned(), Some("alto".to_owned())));
    assert_eq!(speak(&site, 200).await, ("Two.".to_owned(), Some("heart".to_owned())));
    let call = site.service.call().await;
    let params = &call.speech().params;
    assert_eq!((params.voice.name(), params.max_frames.map(|frames| frames.0)), (Some("alto"), Some(7)));
    assert_eq!((params.language.as_deref(), params.seed), (Some("English"), Some(3)));
    call.started().await;
    call.audio(300).await;
    call.finish().await;
    let response = response.await.unwrap();
    assert_eq!(response.status(), 200);
    let answer: Value = response.json().await.unwrap();
    assert_eq!((&answer["total"], &answer["succeeded"], &answer["failed"]), (&json!(3), &json!(3), &json!(0)));
    assert!(answer["id"].as_str().unwrap().starts_with("speech-batch-"));
    for (index, (media_type, magic, length)) in
        [("audio/wav", b"RIFF", 44 + 200), ("audio/flac", b"fLaC", 0), ("audio/wav", b"RIFF", 44 + 600)]
            .iter()
            .enumerate()
    {
        let result = &answer["results"][index];
        assert_eq!((&result["index"], &result["status"]), (&json!(index), &json!("success")));
        assert_eq!(result["media_type"], *media_type);
        assert_eq!(result["usage"]["input_token_details"], json!({"text_tokens": 5, "audio_tokens": 0}));
        let file = BASE64_STANDARD.decode(result["audio_data"].as_str().unwrap()).unwrap();
        assert_eq!(&file[..4], *magic);
        assert!(*length == 0 || file.len() == *length, "{} bytes", file.len());
    }
}

#[tokio::test]
async fn an_item_that_fails_fails_alone() {
    let site = Site::new();
    let body = json!({"items": [{"input": " "}, {"input": "Two.", "voice": "nobody"}, {"input": "Three."}, {"input": "Four."}]});
    let response = site.post(PATH, &body);
    let call = site.service.call().await;
    assert_eq!(call.text().await, "Three.");
    call.started().await;
    call.fail().await;
    speak(&site, 10).await;
    let answer: Value = response.await.unwrap().json().await.unwrap();
    assert_eq!((&answer["succeeded"], &answer["failed"]), (&json!(1), &json!(3)));
    let error = |index: usize| {
        let result = &answer["results"][index];
        assert_eq!(result["status"], "error");
        (
            result["code"].as_str().unwrap().to_owned(),
            result["param"].clone(),
            result["error"].as_str().unwrap().len() > 10,
        )
    };
    assert_eq!(error(0), ("invalid_value".to_owned(), json!("input"), true));
    assert_eq!(error(1), ("invalid_value".to_owned(), json!("voice"), true));
    assert_eq!(error(2), ("stage_failed".to_owned(), Value::Null, true));
    assert_eq!(answer["results"][3]["status"], "success");
}

#[tokio::test]
async fn a_full_server_is_waited_for_and_an_item_that_waits_is_charged_once() {
    let site = Site::new();
    let retry_after = Duration::from_millis(1);
    let full = SubmitError::Full { limit: 4, retry_after };
    let later = |reason| SubmitError::Later { reason, retry_after };
    // One that was over its rate has not been charged.
    let over = later(LaterReason::OwnRate(9));
    for (refusals, charged) in
        [(vec![full, over.clone()], true), (vec![over], false), (vec![later(LaterReason::Share)], true)]
    {
        refusals.into_iter().for_each(|refusal| site.service.refuse_next(refusal));
        let response = site.post(PATH, &json!({"items": [{"input": "One."}]}));
        let call = site.service.call().await;
        assert_eq!(call.speech().params.options.charged, charged);
        call.started().await;
        call.audio(10).await;
        call.finish().await;
        let answer: Value = response.await.unwrap().json().await.unwrap();
        assert_eq!(answer["succeeded"], 1);
    }
}

#[tokio::test]
async fn a_server_that_takes_nothing_says_so_as_a_status() {
    let site = Site::new();
    for _ in 0..2 {
        site.service.refuse_next(SubmitError::NotReady("the talker is starting".to_owned()));
    }
    let response = site.post(PATH, &json!({"items": [{"input": "One."}, {"input": "Two."}]})).await.unwrap();
    assert_eq!(response.status(), 503);
    assert!(response.headers().contains_key("retry-after"));
}

#[tokio::test]
async fn a_recording_of_the_batch_is_that_of_every_item() {
    let site = Site::new();
    let body = json!({
        "items": [{"input": "One."}, {"input": "Two.", "x_vector_only_mode": true}],
        "task_type": "Base", "voice": "vivian", "ref_audio": "data:audio/wav;base64,UklGRg==", "ref_text": "Hello."
    });
    let response = site.post(PATH, &body);
    let mut heard = Vec::new();
    for x_vector_only in [false, true] {
        let call = site.service.call().await;
        let VoiceChoice::Clone(recording) = &call.speech().params.voice else { panic!("expected a clone") };
        assert_eq!((&*recording.audio, recording.text.as_deref()), (b"RIFF".as_slice(), Some("Hello.")));
        assert_eq!(recording.x_vector_only, x_vector_only);
        heard.push(recording.audio.clone());
        call.started().await;
        call.finish().await;
    }
    assert!(std::sync::Arc::ptr_eq(&heard[0], &heard[1]), "decoded once");
    assert_eq!(response.await.unwrap().status(), 200);
}

#[tokio::test]
async fn malformed_batches_are_refused_whole() {
    let site = Site::new();
    let many: Vec<Value> = (0..33).map(|_| json!({"input": "x"})).collect();
    for (body, param, told) in [
        (json!({}), "items", "items is missing"),
        (json!({"items": {}}), "items", "expected an array, found an object"),
        (json!({"items": []}), "items", "0 entries; expected 1 to 32"),
        (json!({"items": many}), "items", "33 entries; expected 1 to 32"),
        (json!({"items": [{"input": "x"}, "x"]}), "items[1]", "expected an object, found a string"),
        (json!({"items": [{"input": "x"}], "stream": true}), "stream", "answered whole"),
        (json!({"items": [{"input": "x"}], "model": 5}), "model", "expected a string"),
    ] {
        let response = site.post(PATH, &body).await.unwrap();
        assert_eq!(response.status(), 400, "{body}");
        let error: Value = response.json().await.unwrap();
        assert_eq!(error["error"]["param"], param, "{body}");
        assert!(error["error"]["message"].as_str().unwrap().contains(told), "{error}");
    }
    let unknown = site.post(PATH, &json!({"items": [{"input": "x"}], "model": "whisper-1"})).await.unwrap();
    assert_eq!(unknown.status(), 404);
    assert_eq!(site.service.accepted(), 0);
}
