//! Calls over WebRTC: a client made of str0m, over real sockets.

use super::*;
use crate::support::engine::{idle, voice};
use crate::support::phone::{CALLS, Phone, is_played};
use crate::support::wait;
use std::net::SocketAddr;
use std::time::Instant;

mod bounds;
mod endings;

fn calls(config: &mut Config) {
    config.server.realtime.webrtc.listen = Some(SocketAddr::from(([127, 0, 0, 1], 0)));
}

/// Settings under which turns are the client's, and answers short.
pub fn brief(tokens: u32) -> Value {
    json!({"type": "realtime", "max_output_tokens": tokens, "audio": {"input": {"turn_detection": null}}})
}

fn wave(pcm: &[u8]) -> Vec<i16> {
    pcm.chunks_exact(2).map(|pair| i16::from_le_bytes([pair[0], pair[1]])).collect()
}

/// What the same question is answered with over a WebSocket.
async fn by_socket(site: &Site, tokens: u32) -> (String, Vec<i16>) {
    by_address(&site.address.to_string(), tokens).await
}

async fn by_address(address: &str, tokens: u32) -> (String, Vec<i16>) {
    let mut talk = Talk::at(address, "?seed=11").await;
    talk.update(json!({"max_output_tokens": tokens})).await;
    talk.say("Tell me a story").await;
    let answer = talk.answer("audio").await;
    (answer.text(), wave(&answer.sound()))
}

fn transcript(events: &[Value]) -> String {
    let deltas = events.iter().filter(|event| event["type"] == "response.output_audio_transcript.delta");
    deltas.map(|event| event["delta"].as_str().unwrap()).collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_call_hears_what_a_socket_is_sent_whatever_stage_dies() {
    const FRAMES: u32 = 14;
    let site = with(calls).await;
    let (text, sound) = by_socket(&site, FRAMES).await;
    for fault in [None, Some(FaultKind::Panic)] {
        let site = with(|config| {
            calls(config);
            let rule = |kind| FaultRule::new(StageName::Talker, FaultPoint::Runner, kind).nth(6);
            config.faults = fault.map(rule).into_iter().collect();
        })
        .await;
        let mut phone = Phone::call(&site.url(), "?seed=11", brief(FRAMES)).await;
        assert_eq!(phone.until("session.created").await[0]["type"], "session.created");
        phone.ask("Tell me a story");
        let events = phone.until("output_audio_buffer.stopped").await;
        assert_eq!(transcript(&events), text);
        let at = |kind: &str| events.iter().position(|event| event["type"] == kind).unwrap_or_else(|| panic!("{kind}"));
        assert!(at("response.created") < at("output_audio_buffer.started"));
        assert!(events.iter().all(|event| event["type"] != "response.output_audio.delta"));
        let silent = is_played(&phone.peer.packets, &sound);
        println!("{} packets, {silent} of them silence", phone.peer.packets.len());
        drop(phone);
        idle(&site.engine).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn who_speaks_into_a_call_is_heard_and_cuts_the_answer_where_it_was() {
    let speaker = Site::of(&voice(), |_| {}).await;
    let body = json!({"input": "Good morning. Could you tell me the time?", "seed": 3, "response_format": "pcm"});
    let speech = wave(&speaker.bytes("/v1/audio/speech", &body).await);
    let site = with(calls).await;
    let session = json!({
        "type": "realtime", "max_output_tokens": 60,
        "audio": {"input": {"turn_detection": {"type": "server_vad", "silence_duration_ms": 400}}},
    });
    let mut phone = Phone::call(&site.url(), "?seed=5", session).await;
    phone.until("session.created").await;
    phone.ask("Tell me a story");
    phone.until("output_audio_buffer.started").await;
    for piece in speech.chunks_exact(480) {
        phone.peer.say(piece, Instant::now());
        let next = tokio::time::Instant::now() + Duration::from_millis(20);
        while timeout(next - tokio::time::Instant::now(), phone.turn()).await.is_ok() {}
    }
    // The microphone goes silent, which the server fills in.
    let mut events = phone.until("input_audio_buffer.committed").await;
    if events.iter().all(|event| event["type"] != "response.created") {
        events.extend(phone.until("response.created").await);
    }
    let find = |kind: &str| events.iter().find(|event| event["type"] == kind).unwrap_or_else(|| panic!("{kind}"));
    assert_eq!(find("output_audio_buffer.cleared")["response_id"], "resp_1");
    let heard = find("conversation.item.truncated")["audio_end_ms"].as_u64().unwrap();
    assert!(heard > 0 && heard < 60 * 80, "{heard}");
    assert_eq!(find("response.created")["response"]["id"], "resp_2");
    drop(phone);
}

#[tokio::test(flavor = "multi_thread")]
async fn calls_are_hung_up_by_their_owner_alone_and_then_make_room() {
    let site = with(|config| {
        calls(config);
        config.server.realtime.webrtc.max_calls = 1;
    })
    .await;
    let mut phone = Phone::call(&site.url(), "", brief(TOKENS)).await;
    phone.until("session.created").await;
    let (_, _, offer) = Phone::offer().await;
    let post = |path: String, body: String| {
        let request = site.client.post(format!("http://{}{path}", site.address));
        async move { request.header("content-type", "application/sdp").body(body).send().await.unwrap() }
    };
    let full = post(CALLS.to_owned(), offer.clone()).await;
    assert_eq!((full.status().as_u16(), full.headers()["retry-after"].to_str().unwrap()), (503, "5"));
    assert_eq!(post(format!("{CALLS}/rtc_0/hangup"), String::new()).await.status(), 404);
    assert_eq!(post(format!("{}/hangup", phone.location), String::new()).await.status(), 200);
    phone.over().await;
    wait::answered(async || match post(CALLS.to_owned(), offer.clone()).await.status().as_u16() {
        201 => Ok(()),
        other => Err(other),
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn what_is_no_call_is_told_why() {
    let site = with(|config| {
        calls(config);
        config.server.realtime.webrtc.max_sdp_bytes = 9000;
        (config.server.max_body_bytes, config.server.max_input_bytes) = (1 << 20, 1 << 20);
    })
    .await;
    let without = super::site().await;
    let (_, _, offer) = Phone::offer().await;
    let huge = format!("{offer}{}", "a=x\r\n".repeat(2000));
    let part = |name: &str, value: &str| {
        format!("--cut\r\nContent-Disposition: form-data; name=\"{name}\"\r\n\r\n{value}\r\n")
    };
    let form = "multipart/form-data; boundary=cut";
    let ended = |parts: String| parts + "--cut--\r\n";
    // A hundred times as large in memory.
    let swells = |objects| format!("{{\"instructions\":[{}0]}}", "{\"\":0},".repeat(objects));
    for (site, kind, body, status, says) in [
        (&without, "application/sdp", offer.clone(), 501, "realtime.webrtc.listen"),
        (&site, "application/json", offer.clone(), 415, "application/sdp"),
        (&site, "application/sdp", "v=0".to_owned(), 400, "no SDP offer"),
        (&site, "application/sdp", huge, 400, "realtime.webrtc.max_sdp_bytes"),
        (&site, form, ended(part("session", "{}")), 400, "no such field"),
        (&site, form, ended(part("session", "[]") + &part("sdp", &offer)), 400, "expected a JSON object"),
        (&site, form, ended(part("session", &swells(2_000)) + &part("sdp", &offer)), 503, "server.max_input_bytes"),
        (&site, form, ended(part("session", &swells(90_000))), 400, "server.max_json_values"),
        (&site, form, ended(part("other", "").repeat(17)), 400, "too many parts"),
    ] {
        let request = site.client.post(format!("http://{}{CALLS}", site.address));
        let response = request.header("content-type", kind).body(body).send().await.unwrap();
        assert_eq!(response.status(), status, "{says}");
        let answer: Value = response.json().await.unwrap();
        assert!(answer["error"]["message"].as_str().unwrap().contains(says), "{answer}");
    }
}
