//! A server whose stage is given up ends by itself: with a code of its own, a last line that says why, and after what
//! the other stages could still finish.

use crate::support::http::Ask;
use crate::support::omni::{Omni, Serving};
use crate::support::wait::PATIENCE;
use serde_json::json;
use std::io::{Read, Write};
use std::net::TcpStream;

/// A server whose talker fails with every request.
fn serving(log: &str) -> Serving {
    let omni = Omni::new();
    let config = "[server]\nlisten = \"127.0.0.1:0\"\ndrain_grace = \"30s\"\n[supervision]\nbackoff = \"1ms\"\n\
                  max_restarts = 2\n[model]\ncheckpoint = \"tests/fixtures/qwen3_omni\"\n\
                  [[faults]]\nstage = \"talker\"\npoint = \"runner\"\nkind = \"panic\"\ntimes = \"all\"\n\
                  [[faults]]\npoint = \"client\"\nkind = \"slow\"\ndelay = \"5ms\"\ntimes = \"all\"\n";
    let config = config.replace("tests/fixtures", concat!(env!("CARGO_MANIFEST_DIR"), "/tests/fixtures"));
    let (config, log) = (omni.file("config.toml", &config), omni.path(log));
    omni.args(["run", &config]).log_to(&log).serve().ready()
}

/// Asks, and returns when the first event of the answer has come.
fn begun(url: &str, path: &str, body: &str) -> (TcpStream, String) {
    let host = url.strip_prefix("http://").unwrap();
    let mut socket = TcpStream::connect(host).unwrap();
    socket.set_read_timeout(Some(PATIENCE)).unwrap();
    let head =
        format!("POST {path} HTTP/1.1\r\nHost: {host}\r\nConnection: close\r\nContent-Type: application/json\r\n");
    socket.write_all(format!("{head}Content-Length: {}\r\n\r\n{body}", body.len()).as_bytes()).unwrap();
    let (mut answer, mut piece) = (Vec::new(), [0; 4096]);
    while !answer.windows(5).any(|five| five == b"data:") {
        let read = socket.read(&mut piece).unwrap();
        assert!(read > 0, "{}", String::from_utf8_lossy(&answer));
        answer.extend_from_slice(&piece[..read]);
    }
    (socket, String::from_utf8(answer).unwrap())
}

#[test]
fn a_server_that_gives_up_a_stage_finishes_what_others_can_and_ends_with_the_reason() {
    let serving = serving("log.txt");
    let url = serving.url.clone();
    // The thinker alone answers this, for some time: a token every few milliseconds.
    let text = json!({"messages": [{"role": "user", "content": "tell me"}], "modalities": ["text"], "seed": 1,
        "max_tokens": 200, "stream": true});
    let (mut answering, mut answer) = begun(&url, "/v1/chat/completions", &text.to_string());
    let mut codes = Vec::new();
    for number in 0..3 {
        let body = json!({"input": format!("number {number}"), "max_new_tokens": 8, "ignore_eos": true});
        let Some(reply) = Ask::json("/v1/audio/speech", &body).try_send(&url) else { break };
        codes.push((reply.status, reply.json()["error"]["code"].as_str().unwrap_or_default().to_owned()));
    }
    // Each request is found guilty, until there are more of them than restarts are allowed.
    assert!(codes.len() >= 2 && codes[..2].iter().all(|code| *code == (500, "stage_crashed".into())), "{codes:?}");
    answering.read_to_string(&mut answer).unwrap();
    assert!(answer.contains("[DONE]"), "what others could finish was cut off: {answer}");
    let (code, log) = serving.log();
    assert_eq!(code, Some(3), "{log}");
    let last = log.lines().rfind(|line| !line.trim().is_empty()).unwrap_or_default();
    assert!(
        last.contains("the talker stage failed too often") && last.contains("injected fault"),
        "{last}\n---\n{log}"
    );
}
