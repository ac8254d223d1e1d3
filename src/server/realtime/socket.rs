//! A session over a WebSocket. Sound is part of its events.

use super::link::{Farewell, Link, Message, News};
use crate::error::ApiError;
use crate::reader::Broken;
use crate::state::App;
use crate::ws_frames::{Incoming, Outgoing, Violation};
use crate::ws_protocol::close_code;
use crate::ws_socket::{Sender, Source, Unreadable};
use omni_config::format_duration;
use omni_realtime::PLAYED;
use std::sync::Arc;
use std::time::Duration;
use tokio::io::AsyncRead;
use tokio::sync::mpsc::OwnedPermit;
use tokio::time::{Interval, MissedTickBehavior, interval};
use tracing::debug;

/// Keeps proxies from closing a quiet connection.
const PING_EVERY: Duration = Duration::from_secs(20);
/// Pings without any sign of life after which the client counts as gone.
const MAX_UNANSWERED: u32 = 6;

/// See the module.
pub(super) struct Socket<'a, R> {
    app: Arc<App>,
    source: &'a mut Source<R>,
    out: Sender,
    permit: Option<OwnedPermit<Outgoing>>,
    pings: Interval,
    unanswered: u32,
}

impl<R: AsyncRead + Unpin> Socket<'_, R> {
    /// Reads from `source` and writes to `out`.
    pub fn new(app: Arc<App>, source: &mut Source<R>, out: Sender) -> Socket<'_, R> {
        let mut pings = interval(PING_EVERY);
        pings.set_missed_tick_behavior(MissedTickBehavior::Delay);
        pings.reset(); // the first tick of an interval is immediate
        Socket { app, source, out, permit: None, pings, unanswered: 0 }
    }

    /// What a message means; `None`: nothing for the session.
    fn came(&mut self, incoming: Result<Incoming, Unreadable>) -> Option<News> {
        self.unanswered = 0;
        Some(match incoming {
            Ok(Incoming::Text(text, held)) => News::Event(text, held),
            Ok(Incoming::Binary) => News::NotText,
            Ok(Incoming::Ping(payload)) => {
                self.out.pong(payload);
                return None;
            }
            Ok(Incoming::Pong) => return None,
            Ok(Incoming::Close) => News::Ends,
            Err(broken) => self.broken(broken),
        })
    }

    fn broken(&self, broken: Unreadable) -> News {
        debug!(error = %broken, "websocket reader ended");
        let (error, code, reason) = match broken {
            Broken::Gone => return News::Gone,
            Broken::Violation(Violation::Full) => {
                (Some(self.app.budget.exhausted()), close_code::AGAIN, "too much input")
            }
            Broken::Violation(Violation::TooLarge) => {
                let message = format!("a message was larger than {} bytes", self.app.max_body_bytes);
                (Some(ApiError::invalid("event", message)), close_code::SIZE, "message too large")
            }
            Broken::Slow => {
                let patience = format_duration(self.app.read_timeout);
                let message = format!("a message did not arrive within {patience} (server.read_timeout)");
                (Some(ApiError::invalid("event", message)), close_code::POLICY, "message too slow")
            }
            Broken::Violation(Violation::NotText) => (None, close_code::INVALID, "not UTF-8"),
            Broken::Violation(Violation::Protocol(what)) => (None, close_code::PROTOCOL, what),
        };
        let message = error.map(|error| Message { code: error.code, text: error.message });
        News::Broken(message, Farewell { code, reason })
    }

    /// Whether the client counts as gone.
    fn ping(&mut self) -> bool {
        if self.unanswered >= MAX_UNANSWERED {
            debug!("the client does not answer pings");
            return true;
        }
        // A full queue keeps the connection busy without a ping. It counts all the same: a client that reads nothing for
        // so long is gone.
        let _ = self.out.messages.try_send(Outgoing::Ping);
        self.unanswered += 1;
        false
    }
}

impl<R: AsyncRead + Unpin + Send> Link for Socket<'_, R> {
    async fn next(&mut self, reads: bool, waits: Option<usize>) -> News {
        loop {
            let messages = self.out.messages.clone();
            tokio::select! {
                incoming = self.source.next(), if reads => {
                    if let Some(news) = self.came(incoming) {
                        return news;
                    }
                }
                permit = messages.reserve_owned(), if waits.is_some() => match permit {
                    Ok(permit) => {
                        self.permit = Some(permit);
                        return News::Room;
                    }
                    Err(_) => return News::Gone,
                },
                _ = self.pings.tick() => if self.ping() {
                    return News::Gone;
                },
            }
        }
    }

    fn send(&mut self, message: String) {
        if let Some(permit) = self.permit.take() {
            permit.send(Outgoing::Text(message));
            self.unanswered = 0; // the writer took the message before: the client reads
        }
    }

    /// Never: a socket tells of no moment.
    fn play(&mut self, _: Option<&[i16; PLAYED]>, _: bool) {}

    async fn end(&mut self, messages: Vec<String>, farewell: Farewell) {
        self.permit = None;
        for message in messages {
            if self.out.messages.send(Outgoing::Text(message)).await.is_err() {
                return;
            }
        }
        // The session is over, whether the frame leaves or not.
        let _ = self.out.messages.send(Outgoing::Close(farewell.code, farewell.reason)).await;
    }
}
