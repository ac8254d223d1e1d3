//! A connection that is kept open: for what has to be asked while no new one can be made.

use crate::support::http::Reply;
use crate::support::wait::PATIENCE;
use serde_json::Value;
use std::io::{Read, Write};
use std::net::TcpStream;

pub struct Kept {
    socket: TcpStream,
    host: String,
}

impl Kept {
    pub fn new(url: &str) -> Kept {
        let host = url.strip_prefix("http://").unwrap().to_owned();
        let socket = TcpStream::connect(&host).unwrap();
        socket.set_read_timeout(Some(PATIENCE)).unwrap();
        Kept { socket, host }
    }

    /// `None` once the server has closed the connection.
    pub fn get(&mut self, path: &str) -> Option<Reply> {
        self.send("GET", path, "")?;
        self.reply()
    }

    pub fn json(&mut self, path: &str) -> Value {
        self.get(path).expect("the connection is open").json()
    }

    /// Sends a request and does not wait for its answer.
    pub fn send(&mut self, method: &str, path: &str, body: &str) -> Option<()> {
        let head = format!(
            "{method} {path} HTTP/1.1\r\nHost: {}\r\nContent-Type: application/json\r\nContent-Length: {}\r\n\r\n{body}",
            self.host,
            body.len()
        );
        self.socket.write_all(head.as_bytes()).ok()
    }

    /// Whether the first byte of the answer has come; waits for it.
    pub fn has_begun(&mut self) -> bool {
        matches!(self.socket.peek(&mut [0]), Ok(1))
    }

    /// Reads what comes until the connection breaks, in the middle of a chunked answer: the part of its body.
    pub fn cut(mut self) -> Vec<u8> {
        let mut bytes = Vec::new();
        // What came before a connection broke is there.
        let _ = self.socket.read_to_end(&mut bytes);
        Reply::cut(&bytes)
    }

    /// Reads one answer, whole.
    pub fn reply(&mut self) -> Option<Reply> {
        let mut bytes = Vec::new();
        let mut piece = [0; 1 << 16];
        loop {
            let count = self.socket.read(&mut piece).ok().filter(|count| *count > 0)?;
            bytes.extend_from_slice(&piece[..count]);
            if let Some(reply) = Reply::read(&bytes) {
                return Some(reply);
            }
        }
    }
}
