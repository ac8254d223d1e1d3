//! Chat turns that carry sound, pictures and videos, against the real binary and the small Qwen3-Omni checkpoint.

use crate::support::http::{Ask, Reply};
use crate::support::omni::{Omni, Serving};
use crate::support::pictures::{bmp, gif, png_head, two_colours};
use crate::support::recording::{PCM, Wav, good};
use crate::support::wait;
use base64::Engine;
use base64::prelude::BASE64_STANDARD;
use serde_json::{Value, json};
use std::path::Path;

const CHAT: &str = "/v1/chat/completions";

pub(super) fn server(more: &str) -> Serving {
    let omni = Omni::new();
    let fixture = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures/qwen3_omni");
    let config = omni.file("config.toml", &format!("[model]\ncheckpoint = {fixture:?}\n{more}"));
    omni.arguments(&["run", &config, "--listen", "127.0.0.1:0"]).serve().ready()
}

fn data(kind: &str, file: &[u8]) -> String {
    format!("data:{kind};base64,{}", BASE64_STANDARD.encode(file))
}

fn image(file: &[u8]) -> Value {
    json!({"type": "image_url", "image_url": {"url": data("image/png", file)}})
}

pub(super) fn sound(file: &[u8]) -> Value {
    json!({"type": "input_audio", "input_audio": {"data": BASE64_STANDARD.encode(file), "format": "wav"}})
}

fn text(text: &str) -> Value {
    json!({"type": "text", "text": text})
}

fn ask(content: &Value, more: &Value) -> Ask {
    let mut body = json!({
        "messages": [{"role": "user", "content": content}], "seed": 7, "max_tokens": 6, "audio": {"max_new_tokens": 4},
    });
    body.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
    Ask::json(CHAT, &body)
}

fn answered(serving: &Serving, content: &Value, more: &Value) -> Value {
    let reply = ask(content, more).send(&serving.url);
    assert_eq!(reply.status, 200, "{}", reply.json());
    reply.json()
}

fn error(reply: &Reply) -> (u16, String, String) {
    let error = &reply.json()["error"];
    let word = |field: &str| error[field].as_str().unwrap_or_default().to_owned();
    (reply.status, word("param"), word("message"))
}

/// Of a counter, all series together.
pub(super) fn counted(serving: &Serving, name: &str) -> f64 {
    let text = String::from_utf8(Ask::new("GET", "/metrics", &[], "").send(&serving.url).body).unwrap();
    let of_name = |line: &&str| line.starts_with(name);
    text.lines().filter(of_name).map(|line| line.rsplit(' ').next().unwrap().parse::<f64>().unwrap()).sum()
}

/// Waits for a gauge: a client has its whole answer a moment before the server has forgotten the request.
fn becomes_nothing(serving: &Serving, name: &str) {
    wait::until(name, || counted(serving, name) == 0.0);
}

#[test]
fn sound_pictures_and_videos_are_answered_in_any_order_and_turn_and_a_seed_repeats_it() {
    let serving = server("");
    let frames = vec![data("image/bmp", &bmp(64, 64)); 3];
    let video = json!({"type": "video", "video": frames, "fps": 1.0});
    let animation = json!({"type": "video_url", "video_url": {"url": data("image/gif", &gif(6, 50))}});
    let speech = json!({"modalities": ["text", "audio"]});
    for content in [
        json!([image(&bmp(100, 60)), text("What is it?")]),
        json!([text("What is it?"), image(&bmp(100, 60))]),
        json!([sound(&good(1))]),
        json!([sound(&good(1)), text("or"), sound(&good(2)), sound(&PCM.with(&[0; 9_600]))]),
        json!([image(&bmp(64, 64)), sound(&good(1)), text("both"), image(&gif(2, 10))]),
        json!([video, text("What happens?")]),
        json!([animation, sound(&good(3))]),
    ] {
        let (first, second) = (answered(&serving, &content, &speech), answered(&serving, &content, &speech));
        let message = &first["choices"][0]["message"];
        assert!(message["audio"]["data"].as_str().unwrap().len() > 100, "{content}");
        assert_eq!(message["content"], second["choices"][0]["message"]["content"]);
        assert_eq!(message["audio"]["data"], second["choices"][0]["message"]["audio"]["data"], "{content}");
    }
    // In an earlier turn; another picture makes another conversation.
    let turns = |picture: &[u8]| {
        let messages = json!([
            {"role": "user", "content": [image(picture), text("What is it?")]},
            {"role": "assistant", "content": "A pattern."},
            {"role": "user", "content": "Sure?"},
        ]);
        answered(&serving, &json!("unused"), &json!({"messages": messages}))["usage"]["prompt_tokens"].clone()
    };
    assert!(turns(&bmp(64, 64)).as_u64() < turns(&bmp(256, 256)).as_u64());
}

#[test]
fn usage_counts_tokens_by_kind() {
    let serving = server("");
    let video = json!({"type": "video", "video": vec![data("image/bmp", &bmp(64, 64)); 4], "fps": 2.0});
    let content = json!([image(&bmp(128, 64)), sound(&good(1)), video, text("All?")]);
    let usage = answered(&serving, &content, &json!({}))["usage"].clone();
    let details = &usage["prompt_tokens_details"];
    assert_eq!((&details["image_tokens"], &details["audio_tokens"]), (&json!(8), &json!(13)), "{usage}");
    let video = details["video_tokens"].as_u64().unwrap();
    assert!(video >= 8, "two steps of at least four: {usage}");
    let sum = details["text_tokens"].as_u64().unwrap() + 8 + 13 + video;
    assert_eq!(usage["prompt_tokens"].as_u64(), Some(sum));
}

#[test]
fn a_checkpoint_tells_what_it_takes_and_text_alone_prepares_nothing() {
    let serving = server("");
    let models = Ask::new("GET", "/v1/models", &[], "").send(&serving.url).json();
    assert_eq!(models["data"][0]["input_modalities"], json!(["text", "audio", "image", "video"]));
    answered(&serving, &json!([text("Hello"), text(" there")]), &json!({}));
    assert_eq!(counted(&serving, "omni_media_total") + counted(&serving, "omni_decodes_total"), 0.0);
    // Decoded, whatever the rest of the server says of it.
    ask(&json!([image(&bmp(64, 64)), text("?")]), &json!({})).send(&serving.url);
    assert_eq!(counted(&serving, "omni_media_total{kind=\"image\",outcome=\"prepared\"}"), 1.0);
    assert_eq!(counted(&serving, "omni_decodes_total{kind=\"picture\",outcome=\"decoded\"}"), 1.0);
}

#[test]
fn a_model_that_lacks_a_sense_says_so_before_anything_is_read() {
    let picture = (json!({"type": "image_url", "image_url": {"url": "file:///etc/passwd"}}), "cannot see");
    let recording = (json!({"type": "audio_url", "audio_url": {"url": "http://127.0.0.1:1/a.wav"}}), "cannot hear");
    let refuses = |serving: &Serving, refused: &[&(Value, &str)]| {
        for (part, senses) in refused {
            let (status, param, message) = error(&ask(&json!([part]), &json!({})).send(&serving.url));
            assert_eq!((status, param.as_str()), (400, "messages[0].content[0]"));
            assert!(message.contains(senses), "{message}");
        }
        Ask::new("GET", "/v1/models", &[], "").send(&serving.url).json()["data"][0]["input_modalities"].clone()
    };
    let hearing = Omni::new().arguments(&["run", "--listen", "127.0.0.1:0"]).serve().ready();
    assert_eq!(refuses(&hearing, &[&picture]), json!(["text", "audio"]));
    // The same voice without its front end.
    let omni = Omni::new();
    let voice = Path::new(env!("CARGO_MANIFEST_DIR")).join("assets/voice/checkpoint");
    for file in std::fs::read_dir(&voice).unwrap().map(|entry| entry.unwrap().path()) {
        let name = file.file_name().unwrap();
        if name != "preprocessor_config.json" {
            std::os::unix::fs::symlink(&file, omni.path(name.to_str().unwrap())).unwrap();
        }
    }
    let set = format!("model.checkpoint={}", omni.path(""));
    let deaf = omni.arguments(&["run", "--listen", "127.0.0.1:0", "--set", &set]).serve().ready();
    assert_eq!(refuses(&deaf, &[&picture, &recording]), json!(["text"]));
}

#[test]
fn bombs_and_broken_files_are_refused_by_place_and_the_server_goes_on() {
    let folder = tempfile::tempdir().unwrap();
    let allowed = folder.path();
    std::fs::write(allowed.join("a.bmp"), bmp(32, 32)).unwrap();
    let serving = server(&format!("[reference_audio]\nallowed_folders = [{allowed:?}]\n[media]\nmax_files = 3\n"));
    let jpeg = include_bytes!("../fixtures/pictures/grey_progressive.jpg");
    let lying = Wav { claims: Some(u32::MAX - 100), ..PCM }.with(&[0; 32_000]);
    let link = |kind: &str, url: &str| json!({"type": kind, kind: {"url": url}});
    let list = |frames: &[&str]| json!({"type": "video", "video": frames});
    let frame = data("image/bmp", &bmp(64, 64));
    for (part, says) in [
        (image(&png_head(60_000, 60_000)), ""),
        (image(&png_head(100, 100)), "cannot be decoded"),
        (image(&jpeg[..jpeg.len() / 3]), "cannot be decoded"),
        (image(&bmp(64, 64)[..2_000]), "cannot be decoded"),
        (image(b"<svg/>"), "not an image file"),
        (image(&bmp(1_000, 2)), "at most 200 times as long"),
        (link("video_url", &data("image/gif", &gif(100_000, 100))), "max_seconds"),
        (sound(&lying), ""),
        (sound(&good(1)[..100]), "cut short"),
        (sound(b"no sound"), "not an audio file"),
        (list(&[&frame, &frame, "data:image/png;base64,AAAA"]), "content[1].video[2]: this is not an image file"),
        (list(&[&frame, "data:image/png;base64,!!!!"]), "content[1].video[1]: is not base64"),
        (list(&[&frame, &data("image/bmp", &bmp(64, 640))]), "content[1]: frames = "),
        (link("image_url", "data:image/png;base64,!!!!"), "is not base64"),
        (link("image_url", "data:image/png,abcd"), "must be base64"),
        (link("image_url", "https://example.com/a.png"), "fetches nothing"),
        (link("image_url", "file:///etc/passwd"), "no such file in the folders"),
        (link("image_url", "ftp://example.com/a.png"), "neither base64 nor an address"),
        (link("video_url", &data("video/mp4", b"\0\0\0\x18ftypmp42 and no more")), ""),
    ] {
        let (status, param, message) = error(&ask(&json!([text("a"), part]), &json!({})).send(&serving.url));
        assert_eq!(status, 400, "{message}");
        assert!(param.starts_with("messages[0].content[1]") && message.starts_with(&param), "{param}: {message}");
        assert!(message.contains(says), "{says:?} is not in {message}");
    }
    let four = json!([image(&bmp(8, 8)), image(&bmp(8, 8)), image(&bmp(8, 8)), image(&bmp(8, 8))]);
    let (status, param, message) = error(&ask(&four, &json!({})).send(&serving.url));
    assert_eq!((status, param.as_str()), (400, "messages[0].content[3]"));
    assert!(message.contains("media.max_files"), "{message}");
    // A file in an allowed folder is read.
    let file = format!("file://{}", allowed.join("a.bmp").display());
    ask(&json!([link("image_url", &file)]), &json!({})).send(&serving.url);
    assert_eq!(counted(&serving, "omni_media_total{kind=\"image\",outcome=\"prepared\"}"), 1.0);
    becomes_nothing(&serving, "omni_media_bytes");
    answered(&serving, &json!("Still there?"), &json!({}));
}

#[test]
fn a_hundred_large_pictures_at_once_end_in_answers_or_clear_errors_within_the_memory() {
    const MOST: f64 = 128e6;
    let serving = server("[limits]\nmax_requests = 8\nadmission = \"places\"\n[media]\nmax_memory = 128000000\n");
    let picture = two_colours(2_016, 2_016);
    let mut picture = image(&picture);
    // Few tokens: what is large here is the file.
    picture["image_url"]["detail"] = json!("low");
    let body = ask(&json!([picture, text("What is it?")]), &json!({"max_tokens": 1}));
    let (tell, told) = std::sync::mpsc::channel();
    let answers: Vec<Reply> = std::thread::scope(|scope| {
        for _ in 0..100 {
            let (tell, body, url) = (tell.clone(), &body, &serving.url);
            scope.spawn(move || tell.send(body.send_and_wait(url)));
        }
        let next = |_| {
            let reply = told.recv().unwrap();
            assert!(counted(&serving, "omni_media_bytes") <= MOST);
            reply
        };
        (0..100).map(next).collect()
    });
    for reply in &answers {
        let known = [200, 400, 429, 503, 504].contains(&reply.status);
        assert!(known, "{}: {}", reply.status, reply.json());
    }
    assert!(counted(&serving, "omni_media_total{kind=\"image\",outcome=\"prepared\"}") >= 1.0);
    becomes_nothing(&serving, "omni_media_bytes");
    becomes_nothing(&serving, "omni_http_input_bytes");
    // One that reached its time limit may still hold its place.
    becomes_nothing(&serving, "omni_requests_in_flight");
    answered(&serving, &json!("Still there?"), &json!({}));
}
