//! How calls end: with their server, with their key's share, by their client.

use super::{brief, by_address};
use crate::support::omni::{Omni, Serving};
use crate::support::phone::{Phone, is_played};
use omni_actors::config::hash_key;
use reqwest::Client;

/// A server in a process of its own, with these lines at the end of its config.
fn serving(more: &str) -> Serving {
    let omni = Omni::new();
    let config = format!(
        "[server]\nlisten = \"127.0.0.1:0\"\n[limits]\nadmission = \"places\"\n[model]\ncheckpoint = \
         \"{}/tests/fixtures/qwen3_omni\"\n[realtime.webrtc]\nlisten = \"127.0.0.1:0\"\n{more}",
        env!("CARGO_MANIFEST_DIR")
    );
    let config = omni.file("calls.toml", &config);
    omni.arguments(&["run", &config]).serve().ready()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_server_that_is_asked_to_stop_plays_the_answer_to_its_end_and_hangs_up() {
    const FRAMES: u32 = 30;
    let mut serving = serving("");
    let (_, sound) = by_address(serving.url.strip_prefix("http://").unwrap(), FRAMES).await;
    let mut phone = Phone::call(&serving.url, "?seed=11", brief(FRAMES)).await;
    phone.until("session.created").await;
    phone.ask("Tell me a story");
    phone.until("output_audio_buffer.started").await;
    serving.signal("TERM");
    phone.until("output_audio_buffer.stopped").await;
    phone.over().await;
    is_played(&phone.peer.packets, &sound);
    let code = tokio::task::spawn_blocking(move || serving.wait()).await.unwrap();
    assert_eq!(code, Some(0));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_key_has_so_many_calls_at_once_and_hangs_up_its_own_alone() {
    let hex = |key: &str| hash_key(key).iter().map(|byte| format!("{byte:02x}")).collect::<String>();
    let (one, other) = ("sk-one-4f1c2a7b9d", "sk-other-8e3d5b6a0c");
    let keys = format!(
        "[[keys]]\nname = \"one\"\nsha256 = \"{}\"\nmax_connections = 1\n[[keys]]\nname = \"other\"\nsha256 = \"{}\"\n",
        hex(one),
        hex(other)
    );
    let serving = serving(&keys);
    let call = |key: Option<&'static str>| Phone::try_call(&serving.url, "", brief(2), key);
    assert_eq!(call(None).await.err().unwrap().0, 401);
    assert_eq!(call(Some("sk-none-0000000000")).await.err().unwrap().0, 401);
    let mut phone = call(Some(one)).await.ok().unwrap();
    phone.until("session.created").await;
    let (status, error) = call(Some(one)).await.err().unwrap();
    assert!(status == 429 && error["message"].as_str().unwrap().contains("\"one\""), "{status} {error}");
    let mut others = call(Some(other)).await.ok().unwrap();
    others.until("session.created").await;
    let hang_up = async |key: &str| {
        let url = format!("{}{}/hangup", serving.url, phone.location);
        Client::new().post(url).bearer_auth(key).send().await.unwrap().status()
    };
    assert_eq!(hang_up(other).await, 404);
    // The limit is of connections, and this is one.
    assert_eq!(hang_up(one).await, 429);
    phone.peer.hang_up();
    let wait = async {
        while let Err((status, _)) = call(Some(one)).await {
            assert_eq!(status, 429);
            let _ = tokio::time::timeout(std::time::Duration::from_millis(5), phone.turn()).await;
        }
    };
    tokio::time::timeout(crate::support::wait::PATIENCE, wait).await.expect("the place of the call stays taken");
    // The other's goes on.
    others.ask("Hello");
    others.until("response.done").await;
}
