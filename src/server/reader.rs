//! Reads what a client sends, message by message, within limits on size and time. What a message is, a decoder knows.

use std::time::Duration;
use tokio::io::{AsyncRead, AsyncReadExt};
use tokio::time::{Instant, timeout, timeout_at};

/// Bytes that are read at once.
const READ_BUFFER: usize = 16 << 10;
/// How long a client that is busy sending is read after the last message, so that it gets to see it.
const LINGER: Duration = Duration::from_secs(1);
/// Bytes that are read and dropped at most.
const MOST: usize = 16 << 20;

/// Makes messages of bytes.
pub(super) trait Decode {
    /// What is whole.
    type Message;
    /// Bytes that are no message, or too many of them.
    type Violation;

    /// Takes bytes from `input` until a message is whole, or all of them. It is not called again after an error.
    fn decode(&mut self, input: &mut &[u8]) -> Result<Option<Self::Message>, Self::Violation>;

    /// Whether a message has begun.
    fn is_inside(&self) -> bool;
}

/// Why nothing more comes from a client.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub(super) enum Broken<V> {
    #[error("the connection ended")]
    Gone,
    /// A message has begun and did not come to its end in time.
    #[error("a message did not arrive in time")]
    Slow,
    #[error("{0}")]
    Violation(V),
}

/// Reads what a client sends.
pub(super) struct Reader<R, D> {
    socket: R,
    buffer: Box<[u8]>,
    /// Where in the buffer the bytes are that have not been decoded.
    at: usize,
    end: usize,
    decoder: D,
    /// How long a message may take to arrive.
    patience: Duration,
    /// When the one that is not complete began.
    begun: Option<Instant>,
}

impl<R: AsyncRead + Unpin, D: Decode> Reader<R, D> {
    /// For messages that arrive within `patience`.
    pub fn new(socket: R, decoder: D, patience: Duration) -> Reader<R, D> {
        let buffer = vec![0; READ_BUFFER].into_boxed_slice();
        Reader { socket, buffer, at: 0, end: 0, decoder, patience, begun: None }
    }

    /// The next message. It may be dropped and called again; not after an error.
    pub async fn next(&mut self) -> Result<D::Message, Broken<D::Violation>> {
        loop {
            let mut input = &self.buffer[self.at..self.end];
            let decoded = self.decoder.decode(&mut input);
            self.at = self.end - input.len();
            if !self.decoder.is_inside() {
                self.begun = None;
            }
            if let Some(whole) = decoded.map_err(Broken::Violation)? {
                return Ok(whole);
            }
            let read = self.socket.read(&mut self.buffer);
            let count = if self.decoder.is_inside() {
                let until = *self.begun.get_or_insert_with(Instant::now) + self.patience;
                // A client whose bytes are always there would never be waited for.
                if Instant::now() >= until {
                    return Err(Broken::Slow);
                }
                timeout_at(until, read).await.map_err(|_| Broken::Slow)?
            } else {
                read.await
            };
            match count {
                Ok(count @ 1..) => (self.at, self.end) = (0, count),
                Ok(0) | Err(_) => return Err(Broken::Gone),
            }
        }
    }

    /// Reads and drops what still comes, for a while.
    pub async fn linger(mut self) {
        // It is the client's loss.
        let _ = timeout(LINGER, drain(&mut self.socket)).await;
    }
}

/// Reads and drops what a client still sends, until it ends or [`MOST`] bytes have come: a socket that is closed with
/// unread bytes is reset, and the client may never see the last answer.
pub(super) async fn drain(socket: &mut (impl AsyncRead + Unpin)) {
    let mut piece = [0; 4096];
    let mut left = MOST;
    while let Ok(count @ 1..) = socket.read(&mut piece).await
        && left > count
    {
        left -= count;
    }
}
