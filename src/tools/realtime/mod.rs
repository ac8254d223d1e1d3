//! One session of `WS /v1/realtime` as its client has it: events out, events in. It knows nothing of what they mean. `bench`
//! and `chaos` talk through it, over a real socket to any server that has OpenAI's protocol.

mod speech;

use futures::{Sink, StreamExt};
use reqwest::{Client, StatusCode, Upgraded, Url};
use serde_json::Value;
pub(crate) use speech::speech;
use std::future::poll_fn;
use std::pin::Pin;
use std::task::Poll;
use std::time::Duration;
use tokio_tungstenite::WebSocketStream;
use tokio_tungstenite::tungstenite::protocol::{Role, WebSocketConfig};
use tokio_tungstenite::tungstenite::{Error, Message};

/// How long a server gets to take a connection.
const CONNECTING: Duration = Duration::from_secs(20);
/// Bytes that may wait for a server that does not read: half a minute of sound.
const MAX_WAITING: usize = 4 << 20;
/// Longest message that is read: an item with a minute of sound has 4 MB.
const MAX_MESSAGE: usize = 16 << 20;

/// See the module. Dropping it ends the connection.
pub(crate) struct Session {
    socket: WebSocketStream<Upgraded>,
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
        let limits = WebSocketConfig::default()
            .max_message_size(Some(MAX_MESSAGE))
            .max_frame_size(Some(MAX_MESSAGE))
            .max_write_buffer_size(MAX_WAITING);
        let socket = WebSocketStream::from_raw_socket(socket, Role::Client, Some(limits)).await;
        Ok(Session { socket })
    }

    /// Sends an event while [`Session::next`] is awaited.
    ///
    /// # Errors
    /// The server has read nothing for too long, or is gone.
    pub fn send(&mut self, event: &Value) -> Result<(), String> {
        match Pin::new(&mut self.socket).start_send(Message::text(event.to_string())) {
            Ok(()) => Ok(()),
            Err(Error::WriteBufferFull(_)) => Err("the server reads nothing".to_owned()),
            Err(_) => Err("connection broke".to_owned()),
        }
    }

    /// The next event. It may be dropped and called again.
    ///
    /// # Errors
    /// How the connection ended, or what was no event.
    pub async fn next(&mut self) -> Result<Value, String> {
        loop {
            let message = poll_fn(|context| {
                let written = Pin::new(&mut self.socket).poll_flush(context);
                match (self.socket.poll_next_unpin(context), written) {
                    (Poll::Pending, Poll::Ready(Err(error))) => Poll::Ready(Some(Err(error))),
                    // What has come counts, also where nothing can be written any more.
                    (read, _) => read,
                }
            });
            match message.await {
                Some(Ok(Message::Text(text))) => {
                    return serde_json::from_str(&text).map_err(|_| "an event of the server is not JSON".to_owned());
                }
                Some(Ok(Message::Close(Some(why)))) if !why.reason.is_empty() => {
                    return Err(format!("the server has closed: {}", why.reason));
                }
                Some(Ok(Message::Close(_))) => return Err("the server has closed".to_owned()),
                Some(Ok(Message::Binary(_))) => return Err("the server sent what is no event".to_owned()),
                Some(Ok(_)) => {}
                Some(Err(Error::Capacity(_))) => return Err("a message of the server is too long".to_owned()),
                Some(Err(_)) | None => return Err("connection broke".to_owned()),
            }
        }
    }
}
