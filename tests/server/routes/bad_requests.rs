//! Every mistake gets its own clear answer in OpenAI's shape, and none reaches the engine.

use super::Site;
use reqwest::{Method, Response};
use serde_json::{Value, json};

const SPEECH: &str = "/v1/audio/speech";
const CHAT: &str = "/v1/chat/completions";

/// Status, `param`, a part of the message.
type Expected = (u16, Option<&'static str>, &'static str);

async fn check(what: &str, response: Response, (status, param, message): Expected) {
    assert_eq!(response.status(), status, "{what}");
    assert!(response.headers()["content-type"].to_str().unwrap().starts_with("application/json"), "{what}");
    let body: Value = response.json().await.unwrap();
    let error = &body["error"];
    assert_eq!(error["param"].as_str(), param, "{what}: {body}");
    assert!(error["message"].as_str().unwrap().contains(message), "{what}: {body}");
    assert_eq!(error["type"], "invalid_request_error", "{what}");
    assert!(!error["code"].as_str().unwrap().is_empty(), "{what}");
    assert!(body.to_string().len() < 1000, "{what}: the answer repeats what was sent");
}

#[tokio::test]
async fn speech_fields() {
    let site = Site::new();
    let long = "x".repeat(1001);
    let cases: Vec<(Value, Expected)> = vec![
        (json!({}), (400, Some("input"), "input is missing")),
        (json!({"input": null}), (400, Some("input"), "input is missing")),
        (json!({"input": 7}), (400, Some("input"), "expected a string, found a number")),
        (json!({"input": " \n"}), (400, Some("input"), "nothing to speak")),
        (json!({"input": long}), (400, Some("input"), "1001 characters are more than the limit of 1000")),
        (json!({"input": "x", "model": "whisper-1"}), (404, Some("model"), "team/test-voice")),
        (json!({"input": "x", "model": 1}), (400, Some("model"), "expected a string")),
        (json!({"input": "x", "voice": "bob"}), (400, Some("voice"), "choose one of: alto, heart")),
        (json!({"input": "x", "voice": ["alto"]}), (400, Some("voice"), "found an array")),
        (
            json!({"input": "x", "response_format": "aac"}),
            (400, Some("response_format"), "\"wav\", \"pcm\", \"flac\", \"mp3\", \"opus\""),
        ),
        (json!({"input": "x", "response_format": 1}), (400, Some("response_format"), "expected a string")),
        (json!({"input": "x", "speed": 0.2}), (400, Some("speed"), "not between 0.25 and 4")),
        (json!({"input": "x", "speed": 4.1}), (400, Some("speed"), "not between 0.25 and 4")),
        (json!({"input": "x", "speed": "fast"}), (400, Some("speed"), "expected a number, found a string")),
        (json!({"input": "x", "stream": "yes"}), (400, Some("stream"), "true or false")),
        (json!({"input": "x", "stream_format": "chunks"}), (400, Some("stream_format"), "\"sse\" or \"audio\"")),
        (
            json!({"input": "x", "stream": false, "stream_format": "sse"}),
            (400, Some("stream_format"), "stream is false"),
        ),
        (json!({"input": "x", "seed": 1.5}), (400, Some("seed"), "whole number")),
        (json!({"input": "x", "temperature": 2.5}), (400, Some("temperature"), "not between 0 and 2")),
        (json!({"input": "x", "temperature": -1}), (400, Some("temperature"), "not between")),
        (json!({"input": "x", "top_p": 0}), (400, Some("top_p"), "would keep no token")),
        (json!({"input": "x", "top_k": -2}), (400, Some("top_k"), "not between -1")),
        (json!({"input": "x", "repetition_penalty": 0}), (400, Some("repetition_penalty"), "not between")),
        (json!({"input": "x", "max_new_tokens": 0}), (400, Some("max_new_tokens"), "not between 1")),
        (json!({"input": "x", "max_new_tokens": 1.5}), (400, Some("max_new_tokens"), "whole number")),
        (
            json!({"input": "x", "initial_codec_chunk_frames": -1}),
            (400, Some("initial_codec_chunk_frames"), "not between"),
        ),
        (json!({"input": "x", "ignore_eos": true}), (400, Some("ignore_eos"), "needs max_new_tokens")),
        (json!({"input": "x", "instructions": 5}), (400, Some("instructions"), "expected a string")),
        (json!({"input": "x", "instructions": long}), (400, Some("instructions"), "1001 characters")),
        (json!({"input": "x", "language": ["English"]}), (400, Some("language"), "expected a string")),
        (json!({"input": "x", "non_streaming_mode": "no"}), (400, Some("non_streaming_mode"), "true or false")),
        (json!({"input": "x", "x_vector_only_mode": 1}), (400, Some("x_vector_only_mode"), "true or false")),
        (json!({"input": "x", "task_type": "Sing"}), (400, Some("task_type"), "choose CustomVoice")),
        (json!({"input": "x", "task_type": 3}), (400, Some("task_type"), "expected a string")),
        (json!({"input": "x", "voice": {"name": "alto"}}), (400, Some("voice"), "\"id\"")),
        (json!({"input": "x", "voice": "v".repeat(50_000)}), (400, Some("voice"), "there is no voice")),
        (json!({"input": "x", "speaker": "bob"}), (400, Some("voice"), "choose one of")),
        (json!({"input": "x", "ref_audio": 5}), (400, Some("ref_audio"), "expected a string")),
        (json!({"input": "x", "ref_audio": ""}), (400, Some("ref_audio"), "is empty")),
        (json!({"input": "x", "ref_audio": ["UklG", "UklG"]}), (400, Some("ref_audio"), "one recording")),
        (json!({"input": "x", "ref_audio": "UklG*"}), (400, Some("ref_audio"), "not base64, or was cut off")),
        (json!({"input": "x", "ref_audio": "data:audio/wav,RIFF"}), (400, Some("ref_audio"), "must be base64")),
        (json!({"input": "x", "ref_audio": "http://example.com/a"}), (400, Some("ref_audio"), "fetches nothing")),
        (json!({"input": "x", "ref_audio": "https://[::1]/a"}), (400, Some("ref_audio"), "fetches nothing")),
        (json!({"input": "x", "ref_audio": "file:///etc/passwd"}), (400, Some("ref_audio"), "reads no files")),
        (json!({"input": "x", "ref_audio": "gopher://a/b"}), (400, Some("ref_audio"), "neither base64 nor")),
        (json!({"input": "x", "ref_text": "hello"}), (400, Some("ref_text"), "transcript of ref_audio")),
        (json!({"input": "x", "speaker_embedding": "1,2"}), (400, Some("speaker_embedding"), "list of numbers")),
        (json!({"input": "x", "speaker_embedding": []}), (400, Some("speaker_embedding"), "0 numbers")),
        (json!({"input": "x", "speaker_embedding": [1, null]}), (400, Some("speaker_embedding"), "number 1 is null")),
        (json!({"input": "x", "speaker_embedding": [1e300]}), (400, Some("speaker_embedding"), "too large")),
        (json!({"input": "x", "speaker_embedding": [[1.0]]}), (400, Some("speaker_embedding"), "is an array")),
        (
            json!({"input": "x", "speaker_embedding": [1.0], "ref_audio": "UklG"}),
            (400, Some("speaker_embedding"), "together with ref_audio"),
        ),
        (json!({"input": "x", "sample_rate": 11025}), (400, Some("sample_rate"), "22050, 24000, 44100 or 48000")),
        (json!({"input": "x", "sample_rate": "16000"}), (400, Some("sample_rate"), "expected a whole number")),
        (
            json!({"input": "x", "sample_rate": 22050, "response_format": "opus"}),
            (400, Some("sample_rate"), "ask for 8000, 16000, 24000 or 48000"),
        ),
        (json!({"input": "x", "encoding": "g729"}), (400, Some("encoding"), "\"pcm16\", \"mulaw\" or \"alaw\"")),
        (
            json!({"input": "x", "encoding": "mulaw", "response_format": "flac"}),
            (400, Some("encoding"), "is for \"wav\", not for \"flac\""),
        ),
        (json!({"input": "x", "loudness": 0}), (400, Some("loudness"), "not between -40 and -8")),
        (json!({"input": "x", "loudness": -16, "stream": true}), (400, Some("loudness"), "comes whole")),
        (json!({"input": "x", "loudness": -16, "stream_format": "audio"}), (400, Some("loudness"), "comes whole")),
        (json!({"input": "x", "word_timestamps": true}), (400, Some("word_timestamps"), "not supported")),
    ];
    for (body, expected) in cases {
        let response = site.post(SPEECH, &body).await.unwrap();
        check(&body.to_string().chars().take(200).collect::<String>(), response, expected).await;
    }
    assert_eq!(site.service.accepted(), 0);
}

#[tokio::test]
async fn chat_fields() {
    let site = Site::new();
    let user = json!([{"role": "user", "content": "Hi"}]);
    let with = |field: &str, value: Value| json!({"messages": user, field: value});
    let said = |message: Value| json!({"messages": [message]});
    let cases: Vec<(Value, Expected)> = vec![
        (json!({}), (400, Some("messages"), "messages is missing")),
        (json!({"messages": "Hi"}), (400, Some("messages"), "expected an array")),
        (json!({"messages": []}), (400, Some("messages"), "at least one")),
        (said(json!("Hi")), (400, Some("messages[0]"), "expected an object")),
        (said(json!({"content": "Hi"})), (400, Some("messages[0].role"), "found nothing")),
        (said(json!({"role": "tool", "content": "Hi"})), (400, Some("messages[0].role"), "\"tool\" is not supported")),
        (said(json!({"role": "user"})), (400, Some("messages[0].content"), "found nothing")),
        (said(json!({"role": "user", "content": ""})), (400, Some("messages[0].content"), "is empty")),
        (said(json!({"role": "assistant", "content": "Hi"})), (400, Some("messages"), "must be the user's")),
        (
            said(json!({"role": "user", "content": [{"type": "image_url"}]})),
            (400, Some("messages[0].content[0].image_url"), "base64, a data URL or an address"),
        ),
        (
            said(json!({"role": "user", "content": [{"type": "text"}]})),
            (400, Some("messages[0].content[0].text"), "must be a string"),
        ),
        (
            said(json!({"role": "assistant", "audio": {"id": "audio-1"}})),
            (400, Some("messages[0].audio"), "transcript"),
        ),
        (said(json!({"role": "user", "content": "x".repeat(1001)})), (400, Some("messages"), "limit of 1000")),
        (with("modalities", json!(["video"])), (400, Some("modalities"), "\"video\" is unknown")),
        (with("modalities", json!([])), (400, Some("modalities"), "must name")),
        (with("modalities", json!("audio")), (400, Some("modalities"), "expected an array")),
        (with("audio", json!("alto")), (400, Some("audio"), "expected an object")),
        (with("audio", json!({"voice": "bob"})), (400, Some("audio.voice"), "choose one of: alto, heart")),
        (with("audio", json!({"format": "aac"})), (400, Some("audio.format"), "not supported")),
        (
            json!({"messages": user, "stream": true, "audio": {"format": "wav"}}),
            (400, Some("audio.format"), "\"pcm16\" only"),
        ),
        (with("n", json!(2)), (400, Some("n"), "only 1 answer")),
        (with("ignore_eos", json!(true)), (400, Some("ignore_eos"), "needs max_tokens")),
        (with("ignore_eos", json!("yes")), (400, Some("ignore_eos"), "true or false")),
        (
            json!({"messages": user, "ignore_eos": true, "max_tokens": 3, "modalities": ["text", "audio"]}),
            (400, Some("ignore_eos"), "needs audio.max_new_tokens"),
        ),
        (with("stop", json!(["."])), (400, Some("stop"), "not supported")),
        (with("tools", json!([{}])), (400, Some("tools"), "not supported")),
        (with("logprobs", json!(true)), (400, Some("logprobs"), "not supported")),
        (with("stream_options", json!({"include_usage": true})), (400, Some("stream_options"), "together with")),
        (with("response_format", json!({"type": "json_object"})), (400, Some("response_format.type"), "only \"text\"")),
        (with("max_tokens", json!(0)), (400, Some("max_tokens"), "not between 1")),
        (with("presence_penalty", json!(3)), (400, Some("presence_penalty"), "not between -2 and 2")),
        (with("model", json!("gpt-4o")), (404, Some("model"), "does not exist")),
    ];
    for (body, expected) in cases {
        let response = site.post(CHAT, &body).await.unwrap();
        check(&body.to_string(), response, expected).await;
    }
    assert_eq!(site.service.accepted(), 0);
}

#[tokio::test]
async fn bodies_that_are_not_json_objects() {
    let site = Site::new();
    let send = |content_type: Option<&str>, body: &str| {
        let request = site.client.post(site.url(SPEECH)).body(body.to_owned());
        match content_type {
            Some(content_type) => request.header("content-type", content_type),
            None => request,
        }
        .send()
    };
    let json = Some("application/json");
    check("empty", send(json, "").await.unwrap(), (400, None, "body is empty")).await;
    check("cut", send(json, "{\"input\": ").await.unwrap(), (400, None, "not valid JSON")).await;
    check("list", send(json, "[1]").await.unwrap(), (400, None, "expected a JSON object, found an array")).await;
    check("no type", send(None, "{}").await.unwrap(), (415, None, "Content-Type: application/json")).await;
    check("form", send(Some("text/plain"), "{}").await.unwrap(), (415, None, "\"text/plain\" is not supported")).await;
    let large = format!("{{\"input\": \"{}\"}}", "x".repeat(64 << 10));
    check("large", send(json, &large).await.unwrap(), (413, None, "larger than 65536 bytes")).await;
    let huge = "x".repeat(4 << 20);
    check("huge", send(json, &huge).await.unwrap(), (413, None, "larger than 65536 bytes")).await;
}

#[tokio::test]
async fn wrong_places_and_methods() {
    let site = Site::new();
    let send = |method: Method, path: &str| site.client.request(method, site.url(path)).send();
    check("path", send(Method::GET, "/v1/nothing").await.unwrap(), (404, None, "nothing at /v1/nothing")).await;
    check("model", send(Method::GET, "/v1/models/gpt-4").await.unwrap(), (404, Some("model"), "does not exist")).await;
    let response = send(Method::GET, SPEECH).await.unwrap();
    assert_eq!(response.headers()["allow"], "POST");
    check("method", response, (405, None, "does not take GET")).await;
    check("method", send(Method::DELETE, "/health").await.unwrap(), (405, None, "does not take DELETE")).await;
    let response = send(Method::GET, "/v1/audio/speech/stream").await.unwrap();
    check("no upgrade", response, (426, None, "speaks WebSocket")).await;
    let options = send(Method::OPTIONS, SPEECH).await.unwrap();
    assert_eq!(options.status(), 204);
    assert!(!options.headers().contains_key("access-control-allow-origin"));
}
