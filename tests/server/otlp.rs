//! Spans of requests reach a collector of OpenTelemetry, below the span of the client; a collector that is gone costs
//! spans alone.

use crate::support::http::Ask;
use crate::support::omni::{Omni, Serving};
use crate::support::wait::PATIENCE;
use serde_json::{Value, json};
use std::io::{Read, Write};
use std::net::TcpListener;
use std::time::Instant;

const TRACE: &str = "4bf92f3577b34da6a3ce929d0e0e4736";

fn server(endpoint: &str) -> Serving {
    let config = format!(
        "[model]\ncheckpoint = \"{}/tests/fixtures/qwen3_omni\"\n[telemetry]\notlp_endpoint = \"{endpoint}\"\n",
        env!("CARGO_MANIFEST_DIR")
    );
    let omni = Omni::new();
    let config = omni.file("otlp.toml", &config);
    omni.arguments(&["run", &config, "--listen", "127.0.0.1:0"]).serve().ready()
}

/// Speaks as a part of a trace; the engine's name of the request.
fn speak(serving: &Serving, flags: &str) -> String {
    let mut ask =
        Ask::json("/v1/audio/speech", &json!({"input": "one two", "max_new_tokens": 3, "ignore_eos": true, "seed": 1}));
    ask.headers.push(format!("traceparent: 00-{TRACE}-00f067aa0ba902b7-{flags}"));
    let reply = ask.send(&serving.url);
    assert_eq!(reply.status, 200);
    reply.header("x-request-id").unwrap().to_owned()
}

/// The body of the next request to a collector.
fn posted(listener: &TcpListener) -> Value {
    let (mut socket, _) = listener.accept().unwrap();
    socket.set_read_timeout(Some(PATIENCE)).unwrap();
    let mut bytes = Vec::new();
    let (head, length) = loop {
        let mut piece = [0; 4096];
        let count = socket.read(&mut piece).unwrap();
        assert!(count > 0, "the request broke off");
        bytes.extend_from_slice(&piece[..count]);
        if let Some(end) = bytes.windows(4).position(|four| four == b"\r\n\r\n") {
            let head = String::from_utf8_lossy(&bytes[..end]).to_lowercase();
            let length = head.lines().find_map(|line| line.strip_prefix("content-length: ")).unwrap();
            break (end + 4, length.parse::<usize>().unwrap());
        }
    };
    assert!(bytes.starts_with(b"POST /v1/traces HTTP/1.1\r\n"), "{}", String::from_utf8_lossy(&bytes[..head]));
    let mut body = bytes.split_off(head);
    let had = body.len();
    body.resize(length, 0);
    socket.read_exact(&mut body[had..]).unwrap();
    socket.write_all(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n{}").unwrap();
    serde_json::from_slice(&body).unwrap()
}

fn metric(serving: &Serving, line: &str) -> u64 {
    let page = String::from_utf8(Ask::new("GET", "/metrics", &[], "").send(&serving.url).body).unwrap();
    page.lines().find_map(|found| found.strip_prefix(line)?.trim().parse().ok()).unwrap_or(0)
}

#[test]
fn a_request_becomes_spans_below_that_of_its_client() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let serving = server(&format!("http://{}/v1/traces", listener.local_addr().unwrap()));
    // Its client wants no spans of it.
    speak(&serving, "00");
    let request = speak(&serving, "01");
    let document = posted(&listener);
    let spans = document["resourceSpans"][0]["scopeSpans"][0]["spans"].as_array().unwrap();
    let of = |name: &str| spans.iter().filter(|span| span["name"] == name).collect::<Vec<_>>();
    let [root] = of("speech")[..] else { panic!("{document}") };
    assert_eq!((&root["traceId"], &root["parentSpanId"]), (&json!(TRACE), &json!("00f067aa0ba902b7")));
    let attributes = root["attributes"].to_string();
    assert!(attributes.contains(&format!("\"{request}\"")) && attributes.contains("\"finished\""), "{attributes}");
    // What it waited for before its first chunk depends on which stage was the quickest.
    assert_eq!(of("chunks").len(), 1, "{document}");
    let below: Vec<_> = spans.iter().filter(|span| span["spanId"] != root["spanId"]).collect();
    for span in &below {
        assert_eq!((&span["traceId"], &span["parentSpanId"]), (&root["traceId"], &root["spanId"]));
    }
    assert!(!document.to_string().contains("one two"), "what a client said is in no span");
    let begun = Instant::now();
    while metric(&serving, "omni_trace_spans_total{outcome=\"exported\"}") < spans.len() as u64 {
        assert!(begun.elapsed() < PATIENCE);
    }
}

#[test]
fn a_collector_that_is_gone_costs_spans_alone() {
    let gone = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    let serving = server(&format!("http://{gone}/v1/traces"));
    speak(&serving, "01");
    let begun = Instant::now();
    while metric(&serving, "omni_trace_spans_total{outcome=\"dropped\"}") == 0 {
        assert!(begun.elapsed() < PATIENCE);
    }
    speak(&serving, "01");
    serving.signal("TERM");
    assert_eq!(serving.exit_code(), Some(0));
}
