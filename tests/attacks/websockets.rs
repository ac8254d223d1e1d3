//! WebSockets whose clients send much, keep much, or read nothing.

use crate::support::attack::{Attacked, frame};
use crate::support::http::Ask;
use base64::Engine as _;
use base64::prelude::BASE64_STANDARD;
use serde_json::json;
use std::io::{ErrorKind, Read, Write};
use std::net::TcpStream;
use std::time::Duration;

const TEXT: u8 = 0x81;

/// Sends as much of this as the server takes.
fn send(socket: &mut TcpStream, bytes: &[u8]) {
    // A server that has seen enough closes the connection.
    let _ = socket.write_all(bytes);
}

/// Reads until a text has come or the server has closed.
fn hears(socket: &mut TcpStream, text: &str) -> bool {
    let (mut heard, mut piece) = (Vec::new(), [0; 4096]);
    while let Ok(count @ 1..) = socket.read(&mut piece) {
        heard.extend_from_slice(&piece[..count]);
        if heard.windows(text.len()).any(|window| window == text.as_bytes()) {
            return true;
        }
    }
    false
}

#[test]
fn recordings_that_sessions_keep_are_counted() {
    let attacked = Attacked::base("");
    let recording = BASE64_STANDARD.encode(vec![7; 10_000_000]);
    let config = frame(TEXT, json!({"type": "session.config", "ref_audio": recording}).to_string().as_bytes());
    let mut sockets: Vec<TcpStream> = (0..60).map(|_| attacked.websocket()).collect();
    std::thread::scope(|scope| {
        for part in sockets.chunks_mut(15) {
            scope.spawn(|| part.iter_mut().for_each(|socket| send(socket, &config)));
        }
        attacked.neighbour_is_served();
    });
    // As many as fit are kept; the others were told.
    attacked.waits_for("omni_http_input_bytes", |bytes| (20e6..64e6).contains(&bytes));
    attacked.neighbour_is_served();
    attacked.memory_within(256 << 20);
    drop(sockets);
    attacked.is_as_before();
}

#[test]
fn a_model_that_cannot_clone_keeps_no_recording() {
    let attacked = Attacked::embedded("");
    let config = json!({"type": "session.config", "ref_audio": "UklGRg=="}).to_string();
    let mut socket = attacked.websocket();
    send(&mut socket, &frame(TEXT, config.as_bytes()));
    assert!(hears(&mut socket, "needs a Qwen3-TTS Base checkpoint"));
    drop(socket);
    attacked.is_as_before();
}

#[test]
fn buffers_for_large_messages_are_given_back() {
    let attacked = Attacked::embedded("");
    let message = frame(TEXT, json!({"type": "nonsense", "pad": "x".repeat(15 << 20)}).to_string().as_bytes());
    let sockets: Vec<TcpStream> = (0..100)
        .map(|number| {
            let mut socket = attacked.websocket();
            send(&mut socket, &message);
            assert!(hears(&mut socket, "send one of"), "socket {number}");
            socket
        })
        .collect();
    attacked.neighbour_is_served();
    attacked.waits_for("omni_http_input_bytes", |bytes| bytes == 0.0);
    attacked.memory_within(192 << 20);
    drop(sockets);
    attacked.is_as_before();
}

#[test]
fn messages_that_do_not_end_are_ended() {
    let attacked = Attacked::embedded("[server]\nread_timeout = \"3s\"\n");
    let mut unfinished: Vec<TcpStream> = (0..5).map(|_| attacked.websocket()).collect();
    let begun = [frame(0x01, &[b'x'; 15 << 20]), frame(0x00, b"")].concat();
    for socket in &mut unfinished {
        send(socket, &begun);
    }
    // One that goes on and on with nothing.
    let mut empty = attacked.websocket();
    send(&mut empty, &frame(0x01, b"x"));
    empty.set_write_timeout(Some(Duration::from_millis(100))).unwrap();
    let nothing = frame(0x00, b"").repeat(100_000);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            loop {
                match empty.write_all(&nothing) {
                    Err(error) if error.kind() != ErrorKind::WouldBlock => break,
                    _ => {}
                }
            }
        });
        attacked.neighbour_is_served();
    });
    // The server has closed it; so it does with the others.
    for socket in &mut unfinished {
        while matches!(socket.read(&mut [0; 4096]), Ok(1..)) {}
    }
    attacked.memory_within(192 << 20);
    attacked.is_as_before();
}

#[test]
fn answers_that_are_not_read_do_not_pile_up() {
    let attacked = Attacked::embedded("");
    std::thread::scope(|scope| {
        // Pings whose pongs are not read.
        scope.spawn(|| {
            let mut socket = attacked.websocket();
            let pings = frame(0x89, &[7; 125]).repeat(8000);
            (0..200).for_each(|_| send(&mut socket, &pings));
        });
        // Names of commits that come back.
        for _ in 0..25 {
            scope.spawn(|| {
                let mut socket = attacked.websocket();
                socket.set_write_timeout(Some(Duration::from_secs(2))).unwrap();
                let commit = |id: &str| json!({"type": "input.commit", "commit_id": id}).to_string();
                for id in ["x".repeat(4 << 20), "y".repeat(250)] {
                    (0..8).for_each(|_| send(&mut socket, &frame(TEXT, commit(&id).as_bytes())));
                }
            });
        }
        attacked.neighbour_is_served();
    });
    attacked.memory_within(128 << 20);
    attacked.is_as_before();
}

#[test]
fn newcomers_take_the_places_of_silent_connections() {
    let attacked = Attacked::embedded("");
    let silent: Vec<TcpStream> = (0..150).map(|_| attacked.websocket()).collect();
    let idle: Vec<TcpStream> = (0..150).map(|_| attacked.connect()).collect();
    attacked.neighbour_is_served();
    assert!(attacked.metric("omni_http_evicted_total") > 0.0);
    drop((silent, idle));
    attacked.is_as_before();
}

#[test]
fn a_full_server_says_that_it_lives() {
    let attacked = Attacked::embedded("[server]\nmax_connections = 2\n");
    // Requests that are being received are no idle connections.
    let head = "POST /v1/audio/speech HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nContent-Length: 9\r\n\r\n{";
    let begun = |_| {
        let mut socket = attacked.connect();
        socket.write_all(head.as_bytes()).unwrap();
        socket
    };
    let models = Ask::new("GET", "/v1/models", &[], "");
    let mut sockets: Vec<TcpStream> = (0..2).map(begun).collect();
    // Where the server had not read a head yet, its connection was idle and gave up its place.
    while models.try_send(attacked.url()).is_none_or(|reply| reply.status != 503) {
        sockets.clear();
        sockets.extend((0..2).map(begun));
    }
    for path in ["/live", "/ready"] {
        assert_eq!(Ask::new("GET", path, &[], "").send(attacked.url()).status, 200, "{path}");
    }
    drop(sockets);
    attacked.is_as_before();
}
