//! Many large pictures at once: they end in answers or in errors that say why, and memory stays within its limits.

use crate::support::attack::Attacked;
use crate::support::http::{Ask, Reply};
use crate::support::pictures::two_colours;
use base64::Engine;
use base64::prelude::BASE64_STANDARD;
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::io::Read;
use std::time::Instant;

/// A number that the environment gives.
fn given(name: &str, usual: usize) -> usize {
    std::env::var(name).map_or(usual, |value| value.parse().unwrap())
}

/// `OMNI_PICTURES=100 OMNI_PICTURE_SIDE=2048 cargo test --test attacks pictures -- --nocapture` is the experiment with 100
/// pictures of 4 megapixels, with the limits of the config as they are where none is set here.
#[test]
fn many_large_pictures_at_once_end_in_answers_or_clear_errors() {
    let (count, side) = (given("OMNI_PICTURES", 20), given("OMNI_PICTURE_SIDE", 768) as u32);
    let usual = std::env::var("OMNI_PICTURES").is_err();
    // Five of them, decoded.
    let attacked =
        Attacked::omni(if usual { "[media]\nmax_memory = 16777216\nmax_seen_pixels = 1048576\n" } else { "" });
    let begun = Instant::now();
    let told = std::thread::scope(|scope| {
        let server = &attacked;
        let clients: Vec<_> = (0..count).map(|number| scope.spawn(move || asked(server, number, side))).collect();
        clients.into_iter().map(|client| client.join().unwrap()).collect::<Vec<_>>()
    });
    let mut counts: BTreeMap<String, usize> = BTreeMap::new();
    told.iter().for_each(|told| *counts.entry(told.clone()).or_default() += 1);
    println!("{count} pictures of {side} x {side} in {:.1} s: {counts:?}", begun.elapsed().as_secs_f64());
    if usual {
        assert!(counts.get("200").is_some_and(|answered| *answered >= 4), "{counts:?}");
        attacked.memory_within(160 << 20);
    }
    attacked.is_as_before();
    for gauge in ["omni_media_bytes", "omni_media_waiting"] {
        attacked.waits_for(gauge, |value| value == 0.0);
    }
}

/// What a client was told: the status, and the code of the error.
fn asked(attacked: &Attacked, number: usize, side: u32) -> String {
    let mut file = two_colours(side, side);
    // No two are the same.
    file.iter_mut().skip(62).step_by(61).for_each(|byte| *byte ^= number as u8);
    let url = format!("data:image/bmp;base64,{}", BASE64_STANDARD.encode(&file));
    let content = json!([{"type": "image_url", "image_url": {"url": url}}, {"type": "text", "text": "What is it?"}]);
    let body = json!({"messages": [{"role": "user", "content": content}], "max_tokens": 4, "seed": 1});
    let mut ask = Ask::json("/v1/chat/completions", &body);
    ask.headers.push("Connection: close".into());
    let mut socket = attacked.begin(&ask);
    // The server's own limits end it.
    socket.set_read_timeout(None).unwrap();
    let mut bytes = Vec::new();
    let _ = socket.read_to_end(&mut bytes);
    let reply = Reply::read(&bytes).unwrap_or_else(|| panic!("no answer to picture {number}"));
    if reply.status == 200 {
        assert!(reply.json()["usage"]["prompt_tokens_details"]["image_tokens"].as_u64() > Some(500));
        return "200".to_owned();
    }
    let error: Value = reply.json()["error"].clone();
    let word = |field: &str| error[field].as_str().unwrap_or_default().to_owned();
    assert!([429, 503, 504].contains(&reply.status) && !word("code").is_empty(), "{} {error}", reply.status);
    assert!(word("message").len() > 10, "{error}");
    // What took longer than the server's limit may take as long again.
    assert!(reply.status == 504 || reply.header("retry-after").is_some(), "{} {error}", reply.status);
    format!("{} {}", reply.status, word("code"))
}
