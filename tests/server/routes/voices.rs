//! `/v1/audio/voices`, and what speech requests say about voices.

use super::Site;
use omni_actors::engine::{TaskType, VoiceChoice, VoiceError, VoiceSource};
use reqwest::Response;
use serde_json::{Value, json};

const PATH: &str = "/v1/audio/voices";

/// A form as clients send it. A value with a file name is a file.
pub(super) fn form(parts: &[(&str, Option<&str>, &[u8])]) -> Vec<u8> {
    let mut body = Vec::new();
    for (name, file, value) in parts {
        let file = file.map_or(String::new(), |file| format!("; filename=\"{file}\"\r\nContent-Type: audio/wav"));
        let head = format!("--frontier\r\nContent-Disposition: form-data; name=\"{name}\"{file}\r\n\r\n");
        body.extend_from_slice(head.as_bytes());
        body.extend_from_slice(value);
        body.extend_from_slice(b"\r\n");
    }
    body.extend_from_slice(b"--frontier--\r\n");
    body
}

async fn upload(site: &Site, body: Vec<u8>) -> Response {
    let request = site.client.post(site.url(PATH)).header("content-type", "multipart/form-data; boundary=frontier");
    request.body(body).send().await.unwrap()
}

const GOOD: [(&str, Option<&str>, &[u8]); 5] = [
    ("audio_sample", Some("me.wav"), b"RIFF\r\n--front"),
    ("consent", None, b"recording-17"),
    ("name", None, b"Narrator"),
    ("ref_text", None, "Grüße.".as_bytes()),
    ("speaker_description", None, b"warm"),
];

#[tokio::test]
async fn a_voice_is_uploaded_listed_used_and_deleted() {
    let site = Site::new();
    let response = upload(&site, form(&GOOD)).await;
    assert_eq!(response.status(), 200);
    let described = json!({"name": "Narrator", "consent": "recording-17", "created_at": 1_738_660_000, "file_size": 13,
        "seconds": 1.5, "mime_type": "audio/wav", "ref_text": "Grüße.", "speaker_description": "warm"});
    assert_eq!(response.json::<Value>().await.unwrap(), json!({"success": true, "voice": described}));
    {
        let kept = site.service.uploaded.lock().unwrap();
        let VoiceSource::Recording { recording, .. } = &kept[0].source else { panic!("expected a recording") };
        assert_eq!(&*recording.audio, GOOD[0].2);
    }
    let list: Value = site.get(PATH).send().await.unwrap().json().await.unwrap();
    assert_eq!(list["names"], json!(["alto", "heart", "Narrator"]));
    assert_eq!(list["uploaded_voices"], json!([described]));
    let response =
        site.post("/v1/audio/speech", &json!({"input": "Hi", "voice": "narrator", "x_vector_only_mode": true}));
    let call = site.service.call().await;
    let expected = VoiceChoice::Named { name: "Narrator".to_owned(), x_vector_only: true };
    assert_eq!(call.speech().params.voice, expected);
    call.started().await;
    call.finish().await;
    response.await.unwrap();
    let deleted = site.client.delete(site.url(&format!("{PATH}/narrator"))).send().await.unwrap();
    assert_eq!(deleted.status(), 200);
    assert_eq!(deleted.json::<Value>().await.unwrap()["success"], true);
    let again = site.client.delete(site.url(&format!("{PATH}/narrator"))).send().await.unwrap();
    assert_eq!(again.status(), 404);
    assert_eq!(again.json::<Value>().await.unwrap()["error"]["code"], "voice_not_found");
}

#[tokio::test]
async fn an_embedding_is_a_voice_too() {
    let site = Site::new();
    let parts = [("name", None, b"a".as_slice()), ("consent", None, b"c"), ("speaker_embedding", None, b"[0.5, -1]")];
    assert_eq!(upload(&site, form(&parts)).await.status(), 200);
    let kept = site.service.uploaded.lock().unwrap();
    assert!(matches!(&kept[0].source, VoiceSource::Embedding(numbers) if **numbers == [0.5, -1.0]));
}

#[tokio::test]
async fn bad_uploads_are_told_apart() {
    let site = Site::new();
    let without = |name: &str| GOOD.into_iter().filter(|part| part.0 != name).collect::<Vec<_>>();
    let with = |part: (&'static str, Option<&'static str>, &'static [u8])| {
        without(part.0).into_iter().chain([part]).collect::<Vec<_>>()
    };
    let long: &[u8] = Box::leak(vec![b'x'; 40_000].into_boxed_slice());
    for (parts, param, told) in [
        (without("name"), "name", "name is missing"),
        (without("consent"), "consent", "consent is missing"),
        (with(("consent", None, b"  ")), "consent", "consent is missing"),
        (without("audio_sample"), "audio_sample", "audio_sample is missing"),
        (with(("name", None, long)), "name", "longer than 32768 bytes"),
        (with(("name", None, b"\xff\xfe")), "name", "not UTF-8"),
        (GOOD.into_iter().chain([GOOD[2]]).collect(), "name", "is there twice"),
        (GOOD.into_iter().chain([GOOD[0]]).collect(), "audio_sample", "is there twice"),
        (with(("speaker_embedding", None, b"[1]")), "speaker_embedding", "together with audio_sample"),
    ] {
        let response = upload(&site, form(&parts)).await;
        assert_eq!(response.status(), 400, "{told}");
        let error: Value = response.json().await.unwrap();
        assert_eq!(error["error"]["param"], param, "{error}");
        assert!(error["error"]["message"].as_str().unwrap().contains(told), "{error}");
    }
    for body in
        [b"".to_vec(), b"no form".to_vec(), form(&GOOD)[..60].to_vec(), form(&[("x", None, b"y".as_slice()); 17])]
    {
        let response = upload(&site, body).await;
        assert_eq!(response.status(), 400);
        assert_eq!(response.json::<Value>().await.unwrap()["error"]["code"], "invalid_form");
    }
    let json = site.post(PATH, &json!({"name": "a"})).await.unwrap();
    assert_eq!(json.status(), 415);
    let huge = form(&[("audio_sample", Some("a.wav"), &[0; 70_000])]);
    assert_eq!(upload(&site, huge).await.status(), 413);
    assert!(site.service.uploaded.lock().unwrap().is_empty());
}

#[tokio::test]
async fn a_form_counts_twice_while_it_is_read() {
    let site = Site::with(|server, _| (server.max_body_bytes, server.max_input_bytes) = (4096, 6000));
    for (size, status) in [(3500, 503), (2000, 200)] {
        let sound = vec![0; size];
        let parts = [GOOD[1], GOOD[2], ("audio_sample", Some("me.wav"), sound.as_slice())];
        let response = upload(&site, form(&parts)).await;
        assert_eq!(response.status(), status, "{size} bytes");
        let answer: Value = response.json().await.unwrap();
        assert!(status == 200 || answer["error"]["code"] == "too_much_input", "{answer}");
    }
}

#[tokio::test]
async fn what_the_engine_refuses_has_its_own_status() {
    let site = Site::new();
    let audio = VoiceError::Invalid { param: "ref_audio", message: "this is a zip, not an audio file".to_owned() };
    for (error, status, code, param) in [
        (audio, 400, "invalid_value", json!("audio_sample")),
        (VoiceError::Exists("Narrator".to_owned()), 409, "voice_exists", json!("name")),
        (VoiceError::TooMany(3), 409, "too_many_voices", Value::Null),
        (VoiceError::Busy, 429, "rate_limit_exceeded", Value::Null),
        (VoiceError::Storage("the disk is full".to_owned()), 507, "storage_failed", Value::Null),
    ] {
        site.service.voice_refusals.lock().unwrap().push_back(error);
        let response = upload(&site, form(&GOOD)).await;
        assert_eq!(response.status(), status);
        let error: Value = response.json().await.unwrap();
        assert_eq!((&error["error"]["code"], &error["error"]["param"]), (&json!(code), &param));
    }
}

#[tokio::test]
async fn pages_of_other_origins_add_and_delete_nothing() {
    let site = Site::new();
    let request = site.client.post(site.url(PATH)).header("content-type", "multipart/form-data; boundary=frontier");
    let response = request.header("origin", "http://elsewhere.example").body(form(&GOOD)).send().await.unwrap();
    assert_eq!(response.status(), 403);
    let request = site.client.delete(site.url(&format!("{PATH}/a"))).header("origin", "http://elsewhere.example");
    assert_eq!(request.send().await.unwrap().status(), 403);
    let built_in = site.client.delete(site.url(&format!("{PATH}/Heart"))).send().await.unwrap();
    assert_eq!(built_in.status(), 400);
    assert!(built_in.text().await.unwrap().contains("belongs to the model"));
}

#[tokio::test]
async fn every_way_to_ask_for_a_voice_reaches_the_engine() {
    let site = Site::new();
    for (body, voice, task) in [
        (json!({"voice": "ALTO"}), VoiceChoice::named(Some("alto".to_owned())), None),
        (json!({"speaker": "alto"}), VoiceChoice::named(Some("alto".to_owned())), None),
        (json!({"voice": {"id": "alto"}}), VoiceChoice::named(Some("alto".to_owned())), None),
        (json!({"voice": "", "task_type": ""}), VoiceChoice::Default, None),
        (json!({"voice": "Vivian", "task_type": "VoiceDesign"}), VoiceChoice::Default, Some(TaskType::VoiceDesign)),
        (
            json!({"speaker_embedding": [0.25, 1], "voice": "Vivian", "task_type": "base"}),
            VoiceChoice::Embedding(vec![0.25, 1.0].into()),
            Some(TaskType::Base),
        ),
    ] {
        let mut request = body.clone();
        request["input"] = json!("Hi");
        let response = site.post("/v1/audio/speech", &request);
        let call = site.service.call().await;
        assert_eq!((&call.speech().params.voice, call.speech().params.task), (&voice, task), "{body}");
        call.started().await;
        call.finish().await;
        assert_eq!(response.await.unwrap().status(), 200);
    }
    let body = json!({"input": "Hi", "language": "German", "instructions": "Whisper.", "non_streaming_mode": true,
        "ref_audio": ["UklGRg"], "ref_text": "Hello.", "voice": "Vivian", "initial_codec_chunk_frames": 0});
    let _response = site.post("/v1/audio/speech", &body);
    let call = site.service.call().await;
    let params = &call.speech().params;
    assert_eq!((params.language.as_deref(), params.instructions.as_deref()), (Some("German"), Some("Whisper.")));
    assert_eq!((params.non_streaming, params.initial_chunk_frames), (Some(true), None));
    let VoiceChoice::Clone(recording) = &params.voice else { panic!("expected a clone") };
    assert_eq!((&*recording.audio, recording.text.as_deref()), (b"RIFF".as_slice(), Some("Hello.")));
}

#[tokio::test]
async fn the_list_comes_in_pages() {
    let site = Site::new();
    for name in ["anna", "Bert"] {
        let mut parts = GOOD;
        parts[2].2 = name.as_bytes();
        assert_eq!(upload(&site, form(&parts)).await.status(), 200);
    }
    let mut found = Vec::new();
    let mut after = String::new();
    loop {
        let page: Value = site.get(&format!("{PATH}?limit=3{after}")).send().await.unwrap().json().await.unwrap();
        let names = page["names"].as_array().unwrap().clone();
        let uploaded = page["uploaded_voices"].as_array().unwrap().len();
        assert_eq!((names.len(), uploaded), if page["has_more"] == json!(true) { (3, 1) } else { (1, 1) });
        assert_eq!(page["last_id"], names[names.len() - 1]);
        found.extend(names);
        if page["has_more"] == json!(false) {
            break;
        }
        after = format!("&after={}", page["last_id"].as_str().unwrap());
    }
    assert_eq!(found, ["alto", "heart", "anna", "Bert"]);
    let whole: Value = site.get(PATH).send().await.unwrap().json().await.unwrap();
    assert_eq!((&whole["names"], &whole["has_more"]), (&json!(found), &json!(false)));
    for limit in ["0", "1001", "x", "-1"] {
        let refused = site.get(&format!("{PATH}?limit={limit}")).send().await.unwrap();
        assert_eq!(refused.status(), 400);
        let error = refused.json::<Value>().await.unwrap()["error"].take();
        assert_eq!((&error["code"], &error["param"]), (&json!("invalid_value"), &json!("limit")), "{error}");
        assert!(error["message"].as_str().unwrap().contains("from 1 to 1000"), "{error}");
    }
}
