//! Servers of the small Qwen3-TTS checkpoints. Their speech is noise and does not end by itself: ask for a few frames.
#![allow(dead_code, reason = "each test binary uses its own part")]

use super::http::Ask;
use super::omni::{Omni, Serving};
use serde_json::Value;
use std::path::{Path, PathBuf};

pub const SPEECH: &str = "/v1/audio/speech";
pub const VOICES: &str = "/v1/audio/voices";

/// `base` or `custom_voice`.
pub fn fixture(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures/qwen3_tts").join(name)
}

/// A server that is ready, with more lines in its config.
pub fn serve(checkpoint: &Path, voices: &Path, more: &str) -> Serving {
    let omni = Omni::new();
    let config = format!(
        "[server]\nlisten = \"127.0.0.1:0\"\n[model]\ncheckpoint = {checkpoint:?}\n[voices]\ndirectory = {voices:?}\n{more}"
    );
    let config = omni.file("config.toml", &config);
    omni.args(["run", &config]).serve().ready()
}

/// The bytes of an answer that must be fine.
pub fn speaks(url: &str, body: &Value) -> Vec<u8> {
    let reply = Ask::json(SPEECH, body).send(url);
    assert_eq!(reply.status, 200, "{}", String::from_utf8_lossy(&reply.body));
    assert!(reply.body.len() > 44, "nothing was said");
    reply.body
}
