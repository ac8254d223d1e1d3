//! One session of `WS /v1/realtime` as its client has it: events out, events in. It knows nothing of what they mean. `bench`
//! and `chaos` talk through it, over a real socket to any server that has OpenAI's protocol.

mod frames;
mod speech;

use frames::{Decoder, Incoming};
use reqwest::{Client, StatusCode, Upgraded, Url};
use serde_json::Value;
pub(crate) use speech::speech;
use std::time::Duration;
use tokio::io::{AsyncReadExt, AsyncWriteExt, ReadHalf, WriteHalf};

/// How long a server gets to take a connection.
const CONNECTING: Duration = Duration::from_secs(20);
/// Bytes that may wait for a server that does not read: half a minute of sound.
const MAX_WAITING: usize = 4 << 20;

/// See the module. Dropping it ends the connection.
pub(crate) struct Session {
    from: ReadHalf<Upgraded>,
    to: WriteHalf<Upgraded>,
    decoder: Decoder,
    /// Bytes that are to be written; [`Session::next`] writes them.
    waiting: Vec<u8>,
    masks: u32,
}

impl Session {
    /// Opens a session of the server at `base`, with or without `/v1`.
    ///
    /// # Errors
    /// Why there is none, such as `503 64 sessions are open already`.
    pub async fn open(base: &str, query: &[(&str, String)]) -> Result<Session, String> {
        let base = base.trim_end_matches('/').trim_end_matches("/v1");
        let url = Url::parse_with_params(&format!("{base}/v1/realtime"), query)
            .map_err(|_| format!("{base} is no address: write it as http://HOST:PORT"))?;
        let http = Client::builder().no_proxy().tcp_nodelay(true).build().map_err(|error| error.to_string())?;
        let asked = http
            .get(url)
            .header("connection", "upgrade")
            .header("upgrade", "websocket")
            .header("sec-websocket-version", "13")
            // The key protects caches between the two, of which there are none.
            .header("sec-websocket-key", "b21uaS1hY3RvcnMgYmVuYw==")
            .send();
        let answer = tokio::time::timeout(CONNECTING, asked).await.map_err(|_| "could not connect: timed out")?;
        let answer = answer.map_err(|_| "could not connect")?;
        if answer.status() != StatusCode::SWITCHING_PROTOCOLS {
            let status = answer.status().as_u16();
            let told: Value = answer.json().await.unwrap_or_default();
            let message = told["error"]["message"].as_str().unwrap_or("no session was opened");
            return Err(format!("{status} {message}"));
        }
        let socket = answer.upgrade().await.map_err(|_| "could not connect")?;
        let (from, to) = tokio::io::split(socket);
        Ok(Session { from, to, decoder: Decoder::default(), waiting: Vec::new(), masks: 0 })
    }

    /// Sends an event while [`Session::next`] is awaited.
    ///
    /// # Errors
    /// The server has read nothing for too long.
    pub fn send(&mut self, event: &Value) -> Result<(), String> {
        let mask = self.mask();
        self.waiting.extend(frames::text(&event.to_string(), mask));
        if self.waiting.len() > MAX_WAITING {
            return Err("the server reads nothing".to_owned());
        }
        Ok(())
    }

    /// The next event. It may be dropped and called again.
    ///
    /// # Errors
    /// How the connection ended, or what was no event.
    pub async fn next(&mut self) -> Result<Value, String> {
        let mut buffer = [0; 16 << 10];
        loop {
            while let Some(message) = self.decoder.next()? {
                match message {
                    Incoming::Text(text) => {
                        return serde_json::from_str(&text)
                            .map_err(|_| "an event of the server is not JSON".to_owned());
                    }
                    Incoming::Ping(payload) => {
                        let mask = self.mask();
                        self.waiting.extend(frames::pong(&payload, mask));
                    }
                    Incoming::Close(reason) if reason.is_empty() => return Err("the server has closed".to_owned()),
                    Incoming::Close(reason) => return Err(format!("the server has closed: {reason}")),
                }
            }
            // Neither loses a byte when the other comes first.
            tokio::select! {
                read = self.from.read(&mut buffer) => match read {
                    Ok(0) | Err(_) => return Err("connection broke".to_owned()),
                    Ok(bytes) => self.decoder.push(&buffer[..bytes]),
                },
                written = self.to.write(&self.waiting), if !self.waiting.is_empty() => match written {
                    Ok(0) | Err(_) => return Err("connection broke".to_owned()),
                    Ok(bytes) => _ = self.waiting.drain(..bytes),
                },
            }
        }
    }

    /// Masks need not be secret here: nothing between the two takes them for something else.
    fn mask(&mut self) -> [u8; 4] {
        self.masks = self.masks.wrapping_add(0x9E37_79B9);
        self.masks.to_be_bytes()
    }
}
