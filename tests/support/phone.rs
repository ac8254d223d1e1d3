//! A client of calls over WebRTC, made of str0m, over real sockets; and what it must hear.

#![allow(dead_code, reason = "each test binary uses its own part")]

use crate::support::wait::PATIENCE;
use omni_actors::webrtc::crypto::provider;
use omni_actors::webrtc::{BIT_RATE, FRAME, RATE};
use opus_rs::{Application, OpusEncoder};
use reqwest::Client;
use serde_json::{Value, json};
use std::time::Instant;
use tokio::net::UdpSocket;
use tokio::time::{sleep_until, timeout};

#[path = "../../src/webrtc/peer.rs"]
mod peer;
pub use peer::Peer;

/// The route of calls.
pub const CALLS: &str = "/v1/realtime/calls";

/// A client of a call.
pub struct Phone {
    pub peer: Peer,
    pub socket: UdpSocket,
    /// Of the call in the API.
    pub location: String,
    /// The server's port of calls.
    pub server: std::net::SocketAddr,
    seen: Vec<Value>,
}

impl Phone {
    /// A client that has not called yet.
    pub async fn offer() -> (Peer, UdpSocket, String) {
        let socket = UdpSocket::bind("127.0.0.1:0").await.unwrap();
        let (peer, offer) = Peer::new(provider(), socket.local_addr().unwrap(), Instant::now());
        (peer, socket, offer)
    }

    /// Posts an offer to a server, with these fields of the session.
    pub async fn call(url: &str, query: &str, session: Value) -> Phone {
        Phone::try_call(url, query, session, None).await.unwrap_or_else(|(status, error)| panic!("{status} {error}"))
    }

    /// The same with a key; the status and the error, where it is refused.
    pub async fn try_call(url: &str, query: &str, session: Value, key: Option<&str>) -> Result<Phone, (u16, Value)> {
        let (mut peer, socket, offer) = Phone::offer().await;
        let boundary = "xyz";
        let part = |name: &str, text: &str| {
            format!("--{boundary}\r\ncontent-disposition: form-data; name=\"{name}\"\r\n\r\n{text}\r\n")
        };
        let body = format!("{}{}--{boundary}--\r\n", part("sdp", &offer), part("session", &session.to_string()));
        let kind = format!("multipart/form-data; boundary={boundary}");
        // A connection of its own, which is over before the call is.
        let client = Client::builder().pool_max_idle_per_host(0).build().unwrap();
        let request = client.post(format!("{url}{CALLS}{query}")).header("content-type", kind);
        let request = key.into_iter().fold(request, |request, key| request.bearer_auth(key));
        let response = request.body(body).send().await.unwrap();
        let status = response.status().as_u16();
        if status != 201 {
            return Err((status, response.json::<Value>().await.unwrap()["error"].take()));
        }
        assert_eq!(response.headers()["content-type"], "application/sdp");
        let location = response.headers()["location"].to_str().unwrap().to_owned();
        let answer = response.text().await.unwrap();
        let candidate = answer.lines().find_map(|line| line.strip_prefix("a=candidate:")).unwrap();
        let words: Vec<&str> = candidate.split(' ').collect();
        let server = format!("{}:{}", words[4], words[5]).parse().unwrap();
        peer.accept(&answer);
        Ok(Phone { peer, socket, location, server, seen: Vec::new() })
    }

    /// One packet, or one moment for which the peer has asked.
    pub async fn turn(&mut self) {
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
    pub async fn until(&mut self, kind: &str) -> Vec<Value> {
        let wait = async {
            while self.seen.iter().all(|event| event["type"] != kind) {
                assert!(!self.peer.over, "over before {kind}: {:?}", self.seen);
                self.turn().await;
            }
        };
        timeout(PATIENCE, wait).await.unwrap_or_else(|_| panic!("no {kind}"));
        std::mem::take(&mut self.seen)
    }

    /// Goes on until the server has hung up.
    pub async fn over(&mut self) {
        let wait = async {
            while !self.peer.over {
                self.turn().await;
            }
        };
        timeout(PATIENCE, wait).await.expect("the call goes on");
    }

    /// Tells an event.
    pub fn send(&mut self, event: &Value) {
        self.peer.tell(&event.to_string());
    }

    /// Asks something in writing.
    pub fn ask(&mut self, text: &str) {
        let content = json!([{"type": "input_text", "text": text}]);
        let item = json!({"type": "message", "role": "user", "content": content});
        self.send(&json!({"type": "conversation.item.create", "item": item}));
        self.send(&json!({"type": "response.create"}));
    }
}

/// Writes the packets of a call as the server does.
struct Writer {
    encoder: OpusEncoder,
    /// The pieces that were said: numbers of those of the answer, or silence.
    said: Vec<Option<usize>>,
}

impl Writer {
    fn new() -> Writer {
        let mut encoder = OpusEncoder::new(RATE as i32, 1, Application::Audio).unwrap();
        encoder.bitrate_bps = BIT_RATE;
        Writer { encoder, said: Vec::new() }
    }

    fn packet(&mut self, pieces: &[[f32; FRAME]], piece: Option<usize>) -> Vec<u8> {
        let samples = piece.map_or([0.0; FRAME], |piece| pieces[piece]);
        let mut packet = vec![0; 1275];
        let length = self.encoder.encode(&samples, FRAME, &mut packet).unwrap();
        packet.truncate(length);
        self.said.push(piece);
        packet
    }

    /// Whether this is the packet of that piece, after those before. If not, nothing was said.
    fn says(&mut self, packet: &[u8], pieces: &[[f32; FRAME]], piece: Option<usize>) -> bool {
        let is = self.packet(pieces, piece) == packet;
        if !is {
            let (_, said) = self.said.split_last().unwrap();
            let mut again = Writer::new();
            for piece in said.iter().copied() {
                again.packet(pieces, piece);
            }
            *self = again;
        }
        is
    }
}

/// Holds the packets of a call to the samples of an answer: each packet is, byte for byte, the next 20 ms of it, or
/// silence because that was not made in time, and none of it is missing. Tells how many were silence.
pub fn is_played(packets: &[Vec<u8>], sent: &[i16]) -> usize {
    let pieces: Vec<[f32; FRAME]> = sent
        .chunks(FRAME)
        .map(|piece| std::array::from_fn(|at| f32::from(piece.get(at).copied().unwrap_or_default()) / 32768.0))
        .collect();
    let (mut writer, mut next, mut late) = (Writer::new(), 0, false);
    for (number, packet) in packets.iter().enumerate() {
        let piece = (next < pieces.len()).then_some(next);
        // What was late is rather late still.
        let tried = if late { [None, piece] } else { [piece, None] };
        let said = tried.into_iter().find(|piece| writer.says(packet, &pieces, *piece));
        let said = said.unwrap_or_else(|| panic!("packet {number} is neither piece {next} of the answer nor silence"));
        late = said.is_none();
        next += usize::from(said.is_some());
    }
    assert_eq!(next, pieces.len(), "pieces of the answer were played");
    packets.len() - next
}
