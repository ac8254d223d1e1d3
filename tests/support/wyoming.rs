//! The Wyoming protocol as a client speaks it, written by hand.
#![allow(dead_code, reason = "each test binary uses its own part")]

use crate::support::wait::PATIENCE;
use serde_json::{Map, Value, json};
use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;

/// An event as the reference client writes it: data behind the line.
pub fn frame(kind: &str, data: &Value) -> Vec<u8> {
    let data = data.to_string();
    format!("{}\n{data}", json!({"type": kind, "version": "1.8.0", "data_length": data.len()})).into_bytes()
}

/// A client that waits.
pub struct Talk(BufReader<TcpStream>);

impl Talk {
    pub fn new(address: &str) -> Talk {
        let socket = TcpStream::connect(address).unwrap();
        socket.set_read_timeout(Some(PATIENCE)).unwrap();
        Talk(BufReader::new(socket))
    }

    pub fn send(&mut self, kind: &str, data: &Value) {
        self.0.get_mut().write_all(&frame(kind, data)).unwrap();
    }

    /// The type and the payload of the next event; `None` when the server has closed.
    pub fn event(&mut self) -> Option<(String, Vec<u8>)> {
        let mut line = String::new();
        if self.0.read_line(&mut line).unwrap() == 0 {
            return None;
        }
        let line: Map<String, Value> = serde_json::from_str(&line).unwrap();
        let mut read = |field: &str| {
            let mut bytes = vec![0; line.get(field).map_or(0, |length| length.as_u64().unwrap() as usize)];
            self.0.read_exact(&mut bytes).unwrap();
            bytes
        };
        let (_, payload) = (read("data_length"), read("payload_length"));
        Some((line["type"].as_str().unwrap().to_owned(), payload))
    }

    /// The payload of the next event, which must be this one.
    pub fn expect(&mut self, kind: &str) -> Vec<u8> {
        let (found, payload) = self.event().unwrap();
        assert_eq!(found, kind);
        payload
    }

    /// The samples up to the end of an answer.
    pub fn rest(&mut self) -> Vec<u8> {
        let mut samples = Vec::new();
        loop {
            match self.event().unwrap() {
                (kind, _) if kind == "audio-stop" => return samples,
                (kind, payload) if kind == "audio-chunk" => samples.extend(payload),
                (kind, _) => panic!("{kind} inside of an answer"),
            }
        }
    }
}
