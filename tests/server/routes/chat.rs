//! `POST /v1/chat/completions`.

use super::{Site, events, json};
use base64::Engine;
use base64::prelude::BASE64_STANDARD;
use omni_actors::engine::Output;
use serde_json::{Value, json};

const PATH: &str = "/v1/chat/completions";

fn ask(more: &Value) -> Value {
    let mut body = json!({"model": "team/test-voice", "messages": [{"role": "user", "content": "What is up?"}]});
    body.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
    body
}

#[tokio::test]
async fn text_is_the_default() {
    let site = Site::new();
    let response = site.post(PATH, &ask(&json!({"temperature": 0, "max_tokens": 9, "seed": 3})));
    let call = site.service.call().await;
    let request = call.chat();
    assert_eq!(request.output, Output::Text);
    assert_eq!((request.text.temperature, request.max_text_tokens, request.seed), (Some(0.0), Some(9), Some(3)));
    call.started().await;
    call.text_delta("The ").await;
    call.text_delta("sky.").await;
    call.finish().await;
    let answer: Value = response.await.unwrap().json().await.unwrap();
    assert_eq!(answer["object"], "chat.completion");
    assert_eq!(answer["model"], "team/test-voice");
    let choice = &answer["choices"][0];
    assert_eq!(choice["message"], json!({"role": "assistant", "content": "The sky.", "refusal": null}));
    assert_eq!(choice["finish_reason"], "stop");
    let usage = &answer["usage"];
    assert_eq!((&usage["prompt_tokens"], &usage["total_tokens"]), (&json!(5), &json!(10)));
}

#[tokio::test]
async fn an_answer_of_a_fixed_length_reaches_the_engine() {
    let site = Site::new();
    let fields = json!({"ignore_eos": true, "max_tokens": 9, "modalities": ["audio"], "audio": {"max_new_tokens": 4}});
    for (fields, fixed) in [(fields, true), (json!({}), false)] {
        let _response = site.post(PATH, &ask(&fields));
        assert_eq!(site.service.call().await.chat().ignore_eos, fixed);
    }
}

#[tokio::test]
async fn telephones_get_spoken_answers_too() {
    let site = Site::new();
    let audio = json!({"format": "mulaw"});
    let response = site.post(PATH, &ask(&json!({"modalities": ["text", "audio"], "audio": audio})));
    let call = site.service.call().await;
    call.started().await;
    call.audio(2400).await;
    call.finish().await;
    let response = response.await.unwrap();
    assert_eq!(response.headers()["x-sample-rate"], "8000");
    let answer: Value = response.json().await.unwrap();
    let file = BASE64_STANDARD.decode(answer["choices"][0]["message"]["audio"]["data"].as_str().unwrap()).unwrap();
    assert_eq!(file.len(), 800);
}

#[tokio::test]
async fn a_spoken_answer_has_a_wav_and_its_transcript() {
    let site = Site::new();
    let audio = json!({"voice": "alto", "format": "wav", "temperature": 0.7, "max_new_tokens": 40});
    let response = site.post(PATH, &ask(&json!({"modalities": ["text", "audio"], "audio": audio, "temperature": 0.2})));
    let call = site.service.call().await;
    let request = call.chat();
    assert_eq!((request.output, request.voice.as_deref()), (Output::TextAndAudio, Some("alto")));
    assert_eq!((request.text.temperature, request.speech.temperature), (Some(0.2), Some(0.7)));
    assert_eq!(request.max_frames.unwrap().0, 40);
    call.started().await;
    call.text_delta("Sky.").await;
    call.audio(10).await;
    call.finish().await;
    let answer: Value = response.await.unwrap().json().await.unwrap();
    let message = &answer["choices"][0]["message"];
    assert_eq!((&message["content"], &message["audio"]["transcript"]), (&json!("Sky."), &json!("Sky.")));
    assert!(message["audio"]["id"].as_str().unwrap().starts_with("audio-"));
    assert!(message["audio"]["expires_at"].is_u64());
    let file = BASE64_STANDARD.decode(message["audio"]["data"].as_str().unwrap()).unwrap();
    assert_eq!(hound::WavReader::new(file.as_slice()).unwrap().duration(), 10);
}

/// As the load generator of vllm-omni asks and reads.
#[tokio::test]
async fn without_audio_a_stream_tells_text_and_audio_apart_by_modality() {
    let site = Site::new();
    let more = json!({"modalities": ["text", "audio"], "stream": true, "max_tokens": 9, "temperature": 0.0,
        "stream_options": {"include_usage": true, "continuous_usage_stats": true}});
    let response = site.post(PATH, &ask(&more));
    let call = site.service.call().await;
    assert_eq!((call.chat().output, call.chat().voice.as_deref()), (Output::TextAndAudio, None));
    call.started().await;
    call.text_delta("Sky.").await;
    call.audio(10).await;
    call.audio(20).await;
    call.finish().await;
    let events = events(response.await.unwrap()).await;
    let chunks: Vec<Value> = events[..events.len() - 1].iter().map(|event| json(event)).collect();
    let of = |modality: &str| -> Vec<String> {
        let chunks = chunks.iter().filter(|chunk| chunk["modality"] == modality);
        let contents = chunks.filter_map(|chunk| chunk["choices"][0]["delta"]["content"].as_str());
        contents.filter(|content| !content.is_empty()).map(str::to_owned).collect()
    };
    assert_eq!(of("text"), ["Sky."]);
    let lengths = of("audio").into_iter().map(|content| {
        let file = BASE64_STANDARD.decode(content).unwrap();
        let reader = hound::WavReader::new(file.as_slice()).unwrap();
        (reader.spec().sample_rate, reader.duration())
    });
    assert_eq!(lengths.collect::<Vec<_>>(), [(24_000, 10), (24_000, 20)]);
    assert!(chunks.iter().all(|chunk| chunk["choices"][0]["delta"]["audio"].is_null()));
    let reasons: Vec<&Value> = chunks.iter().map(|chunk| &chunk["choices"][0]["finish_reason"]).collect();
    assert_eq!(reasons[reasons.len() - 2], "stop");
    assert_eq!(
        (&chunks.last().unwrap()["usage"]["total_tokens"], events.last().unwrap().as_str()),
        (&json!(10), "[DONE]")
    );
}

#[tokio::test]
async fn a_stream_is_role_pieces_reason_usage_done() {
    let site = Site::new();
    let more = json!({"modalities": ["text", "audio"], "audio": {"voice": "alto", "format": "pcm16"}, "stream": true,
        "stream_options": {"include_usage": true}});
    let response = site.post(PATH, &ask(&more));
    let call = site.service.call().await;
    call.started().await;
    call.text_delta("Sky.").await;
    call.audio(1).await;
    call.finish().await;
    let events = events(response.await.unwrap()).await;
    assert_eq!(events.last().unwrap(), "[DONE]");
    let chunks: Vec<Value> = events[..events.len() - 1].iter().map(|event| json(event)).collect();
    assert!(chunks.iter().all(|chunk| chunk["object"] == "chat.completion.chunk" && chunk["id"] == chunks[0]["id"]));
    let deltas: Vec<&Value> = chunks.iter().map(|chunk| &chunk["choices"][0]["delta"]).collect();
    assert_eq!(deltas[0]["role"], "assistant");
    assert_eq!((&deltas[1]["content"], &deltas[1]["audio"]["transcript"]), (&json!("Sky."), &json!("Sky.")));
    assert_eq!(deltas[2]["audio"]["data"], BASE64_STANDARD.encode(16384i16.to_le_bytes()));
    assert_eq!(deltas[2]["audio"]["id"], deltas[1]["audio"]["id"]);
    assert!(deltas[3]["audio"]["expires_at"].is_u64());
    assert_eq!(chunks[4]["choices"][0]["finish_reason"], "stop");
    assert_eq!(chunks[4]["usage"], Value::Null);
    assert_eq!(chunks[5]["choices"], json!([]));
    assert_eq!(chunks[5]["usage"]["completion_tokens_details"]["audio_tokens"], 2);
    assert_eq!(chunks.len(), 6);
}

#[tokio::test]
async fn a_text_stream_says_nothing_of_audio_usage_or_modality() {
    let site = Site::new();
    let response = site.post(PATH, &ask(&json!({"stream": true})));
    let call = site.service.call().await;
    call.started().await;
    call.text_delta("Sky.").await;
    call.finish().await;
    let events = events(response.await.unwrap()).await;
    assert_eq!(events.len(), 4);
    for word in ["audio", "usage", "modality"] {
        assert!(events.iter().all(|event| !event.contains(word)), "{word}: {events:?}");
    }
}

#[tokio::test]
async fn a_failure_half_way_is_an_error_event_without_done() {
    let site = Site::new();
    let response = site.post(PATH, &ask(&json!({"stream": true})));
    let call = site.service.call().await;
    call.started().await;
    call.text_delta("Sky").await;
    call.fail().await;
    let events = events(response.await.unwrap()).await;
    assert_eq!(json(events.last().unwrap())["error"]["code"], "stage_failed");
    assert_eq!(events.len(), 3);
}

#[tokio::test]
async fn a_client_that_leaves_aborts_its_request() {
    let site = Site::new();
    let response = site.post(PATH, &ask(&json!({})));
    let call = site.service.call().await;
    call.started().await;
    response.abort();
    call.dropped.await.unwrap();
    let response = site.post(PATH, &ask(&json!({"stream": true})));
    let call = site.service.call().await;
    call.started().await;
    call.text_delta("Sky").await;
    drop(response.await.unwrap());
    call.dropped.await.unwrap();
}
