//! An HTTP client that sends exactly the bytes it is given, and a reader of what comes back.
#![allow(dead_code, reason = "each test binary uses its own part")]

use crate::support::wait::PATIENCE;
use serde_json::Value;
use std::io::{Read, Write};
use std::net::TcpStream;
use std::time::Duration;

/// A request.
#[derive(Clone)]
pub struct Ask {
    pub method: &'static str,
    pub path: String,
    /// As they are sent, without `Host`, `Connection` and `Content-Length`.
    pub headers: Vec<String>,
    pub body: Vec<u8>,
    /// Instead of the length of `body`.
    pub length: Option<&'static str>,
}

impl Ask {
    pub fn new(method: &'static str, path: &str, headers: &[&str], body: impl Into<Vec<u8>>) -> Ask {
        let headers = headers.iter().map(|&header| header.to_owned()).collect();
        Ask { method, path: path.to_owned(), headers, body: body.into(), length: None }
    }

    pub fn json(path: &str, body: &Value) -> Ask {
        Ask::text(path, body.to_string())
    }

    /// What claims to be JSON.
    pub fn text(path: &str, body: impl Into<Vec<u8>>) -> Ask {
        Ask::new("POST", path, &["Content-Type: application/json"], body)
    }

    /// A form: names, headers behind the name, contents.
    pub fn form(path: &str, parts: &[(&str, &str, &[u8])]) -> Ask {
        let mut body = Vec::new();
        for (name, more, content) in parts {
            body.extend_from_slice(
                format!("--cut\r\nContent-Disposition: form-data; name=\"{name}\"{more}\r\n\r\n").as_bytes(),
            );
            body.extend_from_slice(content);
            body.extend_from_slice(b"\r\n");
        }
        body.extend_from_slice(b"--cut--\r\n");
        Ask::new("POST", path, &["Content-Type: multipart/form-data; boundary=cut"], body)
    }

    /// Sends it over a connection of its own and reads to the end.
    pub fn send(&self, url: &str) -> Reply {
        self.try_send(url).unwrap_or_else(|| panic!("{} {}: no answer", self.method, self.path))
    }

    /// The same with a server that may be killed meanwhile.
    pub fn try_send(&self, url: &str) -> Option<Reply> {
        Reply::read(&self.bytes(url)?)
    }

    /// The same where the server's own limits end it, however slow the machine is.
    pub fn send_and_wait(&self, url: &str) -> Reply {
        let bytes = self.bytes_within(url, None).expect("no server listens");
        Reply::read(&bytes).unwrap_or_else(|| panic!("{} {}: the answer was cut", self.method, self.path))
    }

    /// All that comes back; `None` if no server listens.
    pub fn bytes(&self, url: &str) -> Option<Vec<u8>> {
        self.bytes_within(url, Some(PATIENCE))
    }

    fn bytes_within(&self, url: &str, patience: Option<Duration>) -> Option<Vec<u8>> {
        let host = url.strip_prefix("http://").unwrap();
        let mut socket = TcpStream::connect(host).ok()?;
        socket.set_read_timeout(patience).unwrap();
        socket.set_write_timeout(patience).unwrap();
        let length = self.length.map_or_else(|| self.body.len().to_string(), str::to_owned);
        let mut head = format!("{} {} HTTP/1.1\r\nHost: {host}\r\nConnection: close\r\n", self.method, self.path);
        self.headers.iter().for_each(|header| head.push_str(&format!("{header}\r\n")));
        head.push_str(&format!("Content-Length: {length}\r\n\r\n"));
        // A server that has seen enough may stop reading; what it says counts.
        let _ = socket.write_all(head.as_bytes()).and_then(|()| socket.write_all(&self.body));
        if self.length.is_some() {
            // The body that was promised never comes.
            let _ = socket.shutdown(std::net::Shutdown::Write);
        }
        let mut bytes = Vec::new();
        // What came before a connection broke may be all.
        let _ = socket.read_to_end(&mut bytes);
        Some(bytes)
    }
}

/// What `/health` tells of a stage.
pub fn stage_of<'a>(health: &'a Value, name: &str) -> &'a Value {
    let stages = health["stages"].as_array().unwrap();
    stages.iter().find(|stage| stage["name"] == name).unwrap_or_else(|| panic!("no {name}: {health}"))
}

/// A response.
pub struct Reply {
    pub status: u16,
    head: String,
    pub body: Vec<u8>,
}

impl Reply {
    /// `None` if it was cut.
    pub fn read(bytes: &[u8]) -> Option<Reply> {
        let end = bytes.windows(4).position(|four| four == b"\r\n\r\n")?;
        let head = String::from_utf8(bytes[..end].to_vec()).unwrap().to_ascii_lowercase();
        let status = head.split(' ').nth(1)?.parse().unwrap();
        let body = &bytes[end + 4..];
        let header = |name: &str| head.lines().find_map(|line| line.strip_prefix(name));
        let body = match header("content-length: ") {
            Some(length) => body.get(..length.parse().unwrap())?.to_vec(),
            None if header("transfer-encoding: ").is_some() => match dechunk(body) {
                (whole, true) => whole,
                (_, false) => return None,
            },
            None => body.to_vec(),
        };
        Some(Reply { status, head, body })
    }

    /// What came of the chunked body of an answer that was cut.
    pub fn cut(bytes: &[u8]) -> Vec<u8> {
        let end = bytes.windows(4).position(|four| four == b"\r\n\r\n").expect("the head came");
        let (part, whole) = dechunk(&bytes[end + 4..]);
        assert!(!whole, "the answer was not cut");
        part
    }

    /// A header, its name in lower case.
    pub fn header(&self, name: &str) -> Option<&str> {
        self.head.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(": "))
    }

    pub fn json(&self) -> Value {
        serde_json::from_slice(&self.body)
            .unwrap_or_else(|_| panic!("not JSON: {}", String::from_utf8_lossy(&self.body)))
    }
}

/// The content of a chunked body, as far as it came, and whether that is all of it.
fn dechunk(mut body: &[u8]) -> (Vec<u8>, bool) {
    let mut content = Vec::new();
    while let Some(line) = body.windows(2).position(|two| two == b"\r\n") {
        let size = usize::from_str_radix(std::str::from_utf8(&body[..line]).unwrap(), 16).unwrap();
        if size == 0 {
            return (content, true);
        }
        body = &body[line + 2..];
        content.extend_from_slice(&body[..size.min(body.len())]);
        body = body.get(size + 2..).unwrap_or_default();
    }
    (content, false)
}
