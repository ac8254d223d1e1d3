//! Calls over WebRTC: a client made of str0m, over real sockets.

use super::*;
use crate::support::engine::{idle, voice};
use omni_actors::webrtc::crypto::provider;
use std::net::SocketAddr;
use std::time::Instant;
use tokio::net::UdpSocket;
use tokio::time::sleep_until;

#[path = "../../../src/webrtc/peer.rs"]
mod peer;
use peer::Peer;

const CALLS: &str = "/v1/realtime/calls";

fn calls(config: &mut Config) {
    config.server.realtime.webrtc.listen = Some(SocketAddr::from(([127, 0, 0, 1], 0)));
}

/// A client of a call.
struct Phone {
    peer: Peer,
    socket: UdpSocket,
    location: String,
    seen: Vec<Value>,
}

impl Phone {
    async fn offer() -> (Peer, UdpSocket, String) {
        let socket = UdpSocket::bind("127.0.0.1:0").await.unwrap();
        let (peer, offer) = Peer::new(provider(), socket.local_addr().unwrap(), Instant::now());
        (peer, socket, offer)
    }

    /// Posts an offer with these fields of the session.
    async fn call(site: &Site, query: &str, session: Value) -> Phone {
        let (mut peer, socket, offer) = Phone::offer().await;
        let boundary = "xyz";
        let part = |name: &str, text: &str| {
            format!("--{boundary}\r\ncontent-disposition: form-data; name=\"{name}\"\r\n\r\n{text}\r\n")
        };
        let body = format!("{}{}--{boundary}--\r\n", part("sdp", &offer), part("session", &session.to_string()));
        let request = site.client.post(format!("http://{}{CALLS}{query}", site.address));
        let kind = format!("multipart/form-data; boundary={boundary}");
        let response = request.header("content-type", kind).body(body).send().await.unwrap();
        assert_eq!(response.status(), 201);
        assert_eq!(response.headers()["content-type"], "application/sdp");
        let location = response.headers()["location"].to_str().unwrap().to_owned();
        peer.accept(&response.text().await.unwrap());
        Phone { peer, socket, location, seen: Vec::new() }
    }

    /// One packet, or one moment for which the peer has asked.
    async fn turn(&mut self) {
        let mut packet = [0; 2048];
        let until = self.peer.pass(Instant::now());
        while let Some((to, packet)) = self.peer.out.pop_front() {
            self.socket.send_to(&packet, to).await.unwrap();
        }
        tokio::select! {
            received = self.socket.recv_from(&mut packet) => {
                let (length, from) = received.unwrap();
                self.peer.receive(from, &packet[..length], Instant::now());
            }
            () = sleep_until(until.into()) => {}
        }
        for event in std::mem::take(&mut self.peer.told) {
            self.seen.push(serde_json::from_str(&event).unwrap());
        }
    }

    /// Goes on until an event of this type has come, and gives all that came.
    async fn until(&mut self, kind: &str) -> Vec<Value> {
        let wait = async {
            while self.seen.iter().all(|event| event["type"] != kind) {
                assert!(!self.peer.over, "over before {kind}: {:?}", self.seen);
                self.turn().await;
            }
        };
        timeout(PATIENCE, wait).await.unwrap_or_else(|_| panic!("no {kind}"));
        std::mem::take(&mut self.seen)
    }

    async fn over(&mut self) {
        let wait = async {
            while !self.peer.over {
                self.turn().await;
            }
        };
        timeout(PATIENCE, wait).await.expect("the call goes on");
    }

    fn send(&mut self, event: &Value) {
        self.peer.tell(&event.to_string());
    }

    fn ask(&mut self, text: &str) {
        let content = json!([{"type": "input_text", "text": text}]);
        let item = json!({"type": "message", "role": "user", "content": content});
        self.send(&json!({"type": "conversation.item.create", "item": item}));
        self.send(&json!({"type": "response.create"}));
    }
}

/// Settings under which turns are the client's, and answers short.
fn brief(tokens: u32) -> Value {
    json!({"type": "realtime", "max_output_tokens": tokens, "audio": {"input": {"turn_detection": null}}})
}

/// How alike two sounds are, from -1 to 1, where the second begins best in the first.
fn likeness(heard: &[i16], sent: &[i16]) -> f64 {
    let wave = |samples: &[i16]| samples.iter().map(|sample| f64::from(*sample)).collect::<Vec<_>>();
    let (heard, sent) = (wave(heard), wave(sent));
    let energy = |wave: &[f64]| wave.iter().map(|sample| sample * sample).sum::<f64>().sqrt();
    let at = |lag: usize| {
        let part = &heard[lag..(lag + sent.len()).min(heard.len())];
        let product: f64 = part.iter().zip(&sent).map(|(a, b)| a * b).sum();
        product / (energy(part) * energy(&sent[..part.len()])).max(1.0)
    };
    (0..2400.min(heard.len() / 4)).map(at).fold(-1.0, f64::max)
}

fn wave(pcm: &[u8]) -> Vec<i16> {
    pcm.chunks_exact(2).map(|pair| i16::from_le_bytes([pair[0], pair[1]])).collect()
}

/// What the same question is answered with over a WebSocket.
async fn by_socket(site: &Site, tokens: u32) -> (String, Vec<i16>) {
    let mut talk = Talk::of(site, "?seed=11").await;
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
        let mut phone = Phone::call(&site, "?seed=11", brief(FRAMES)).await;
        assert_eq!(phone.until("session.created").await[0]["type"], "session.created");
        phone.ask("Tell me a story");
        let events = phone.until("output_audio_buffer.stopped").await;
        assert_eq!(transcript(&events), text);
        let at = |kind: &str| events.iter().position(|event| event["type"] == kind).unwrap_or_else(|| panic!("{kind}"));
        assert!(at("response.created") < at("output_audio_buffer.started"));
        assert!(events.iter().all(|event| event["type"] != "response.output_audio.delta"));
        // Opus is not exact; noise of a net with random weights is what it keeps least of.
        let alike = likeness(&phone.peer.heard, &sound);
        assert!(alike > 0.7, "{alike} of {} samples, {} heard", sound.len(), phone.peer.heard.len());
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
    let mut phone = Phone::call(&site, "?seed=5", session).await;
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
    let mut phone = Phone::call(&site, "", brief(TOKENS)).await;
    phone.until("session.created").await;
    let (_, _, offer) = Phone::offer().await;
    let post = |path: String, body: String| {
        let request = site.client.post(format!("http://{}{path}", site.address));
        async move { request.header("content-type", "application/sdp").body(body).send().await.unwrap() }
    };
    assert_eq!(post(CALLS.to_owned(), offer.clone()).await.status(), 503);
    assert_eq!(post(format!("{CALLS}/rtc_0/hangup"), String::new()).await.status(), 404);
    assert_eq!(post(format!("{}/hangup", phone.location), String::new()).await.status(), 200);
    phone.over().await;
    let wait = async {
        while post(CALLS.to_owned(), offer.clone()).await.status() != 201 {
            tokio::task::yield_now().await;
        }
    };
    timeout(PATIENCE, wait).await.expect("no room");
}

#[tokio::test(flavor = "multi_thread")]
async fn what_is_no_call_is_told_why() {
    let site = with(|config| {
        calls(config);
        config.server.realtime.webrtc.max_sdp_bytes = 9000;
    })
    .await;
    let without = super::site().await;
    let (_, _, offer) = Phone::offer().await;
    let huge = format!("{offer}{}", "a=x\r\n".repeat(2000));
    for (site, kind, body, status, says) in [
        (&without, "application/sdp", offer.clone(), 501, "realtime.webrtc.listen"),
        (&site, "application/json", offer.clone(), 415, "application/sdp"),
        (&site, "application/sdp", "v=0".to_owned(), 400, "no SDP offer"),
        (&site, "application/sdp", huge, 400, "realtime.webrtc.max_sdp_bytes"),
    ] {
        let request = site.client.post(format!("http://{}{CALLS}", site.address));
        let response = request.header("content-type", kind).body(body).send().await.unwrap();
        assert_eq!(response.status(), status, "{says}");
        let answer: Value = response.json().await.unwrap();
        assert!(answer["error"]["message"].as_str().unwrap().contains(says), "{answer}");
    }
}
