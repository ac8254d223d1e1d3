//! What a model is to hear and see.

use crate::support::http::Ask;
use crate::support::pictures::{bmp, gif};
use crate::support::recording::{PCM, data_url, hum};
use crate::support::tts;
use crate::{GROWTH, fuzz, memory, root};
use omni_actors::media::MediaLimits;
use omni_actors::media::hearing::samples;
use omni_actors::media::mel::{LogMel, MelConfig};
use omni_actors::media::picture::{Grey16, decode_animation, decode_picture};
use serde_json::json;

#[test]
fn sound_and_pictures_are_taken_or_refused_with_words() {
    let media = |name: &str| std::fs::read(root("tests/fixtures/qwen3_omni/frontend/media").join(name)).unwrap();
    let good =
        ["i_palette_trns_w96_h64.png", "i_rgba_w100_h70.png", "i_exif6_w120_h80.jpg", "a8k_pcm16_0p3s.wav"].map(media);
    let limits = MediaLimits { max_pixels: 100_000, max_seconds: 2.0, max_frames: 8, ..MediaLimits::default() };
    let mel = LogMel::new(MelConfig { rate: 16_000, window: 400, hop: 160, bands: 128 }).unwrap();
    let before = memory("self");
    fuzz("sound and pictures", 0.15, |dice| {
        let bytes = dice.damaged(&good[dice.0 as usize % good.len()]);
        match decode_picture(&bytes, &limits, Grey16::HighByte) {
            Ok(picture) => assert!(picture.size().height * picture.size().width <= 100_000),
            Err(error) => assert!(!error.to_string().is_empty()),
        }
        if let Err(error) = decode_animation(&bytes, 2.0, &limits, Ok) {
            assert!(!error.to_string().is_empty());
        }
        match samples(&bytes, &limits, mel.config()) {
            Ok(pcm) => assert!(pcm.len() <= 32_001 && pcm.iter().all(|sample| sample.is_finite())),
            Err(error) => assert!(!error.to_string().is_empty()),
        }
    });
    assert!(memory("self") < before + GROWTH, "it grows");
}

#[test]
fn parts_of_chat_messages_are_answered_or_refused_with_words() {
    let voices = tempfile::tempdir().unwrap();
    let more = "[limits]\nadmission = \"places\"\nmax_requests = 4\nrequest_timeout = \"20s\"\n[media]\nmax_seconds = 2\n\
        max_pixels = 100000\nmax_frames = 8\nffmpeg = \"\"\n[stages.encoder]\nplacement = \"thread\"\n";
    let server = tts::serve(&root("tests/fixtures/qwen3_omni"), voices.path(), more);
    let (picture, film) = (data_url(&bmp(64, 48)), data_url(&gif(4, 25)));
    let sound = data_url(&PCM.with(&hum(1, 8_000)));
    let base64 = sound.rsplit(',').next().unwrap();
    let parts = [
        json!({"type": "image_url", "image_url": {"url": picture, "detail": "low"}}),
        json!({"type": "input_audio", "input_audio": {"data": base64, "format": "wav"}}),
        json!({"type": "audio_url", "audio_url": {"url": sound}}),
        json!({"type": "video_url", "video_url": {"url": film}, "fps": 4.0}),
        json!({"type": "video", "video": [picture, picture, picture, picture], "fps": 2.0}),
    ];
    let turn = |parts: &[&serde_json::Value]| {
        let text = json!({"type": "text", "text": "What is this?"});
        let content: Vec<_> = parts.iter().copied().chain([&text]).collect();
        json!({"messages": [{"role": "user", "content": content}], "max_tokens": 2,
            "mm_processor_kwargs": {"use_audio_in_video": false}})
    };
    let chats = "/v1/chat/completions";
    let answered = |body: &serde_json::Value| {
        let reply = Ask::json(chats, body).send(&server.url);
        assert_eq!(reply.status, 200, "{}", String::from_utf8_lossy(&reply.body));
    };
    answered(&turn(&parts.each_ref()));
    let before = memory(&server.pid().to_string());
    fuzz("parts of chat messages", 0.15, |dice| {
        let (one, other) = (&parts[dice.roll(parts.len())], &parts[dice.roll(parts.len())]);
        let body = dice.damaged(turn(&[one, other]).to_string().as_bytes());
        let reply = Ask::text(chats, body).send(&server.url);
        assert!(reply.status != 500, "{}", String::from_utf8_lossy(&reply.body));
        if reply.status >= 400 {
            assert!(reply.json()["error"]["message"].is_string());
        }
    });
    assert!(memory(&server.pid().to_string()) < before + GROWTH, "it grows");
    answered(&turn(&parts.each_ref()));
    let metrics = Ask::new("GET", "/metrics", &[], "").send(&server.url);
    let text = String::from_utf8(metrics.body).unwrap();
    let restarts = |line: &str| line.starts_with("omni_stage_restarts_total") && !line.ends_with(" 0");
    assert!(!text.lines().any(restarts), "a stage died of it");
}
