//! The two ends of a WebSocket: one reads messages, one writes them. Neither keeps more than one message, and pings to
//! which the client does not read the answers are not answered.

use super::reader::{Broken, Reader};
use super::ws_frames::{Decoder, Outgoing, Violation};
use tokio::io::{AsyncWrite, AsyncWriteExt};
use tokio::sync::mpsc;

/// Messages on their way to the socket.
const QUEUE: usize = 2;
/// Payloads up to here leave in one write with their head.
const SMALL: usize = 16 << 10;

/// The reading end.
pub(super) type Source<R> = Reader<R, Decoder>;
/// Why it ended.
pub(super) type Unreadable = Broken<Violation>;

/// The queue to a client.
#[derive(Clone)]
pub(super) struct Sender {
    /// Messages. A full queue stops what makes them.
    pub messages: mpsc::Sender<Outgoing>,
    pongs: mpsc::Sender<Outgoing>,
}

impl Sender {
    /// Answers a ping, unless the answer to an earlier one has not left yet.
    pub fn pong(&self, payload: Vec<u8>) {
        // RFC 6455 allows to answer the latest ping alone; a client that reads nothing misses nothing.
        let _ = self.pongs.try_send(Outgoing::Pong(payload));
    }
}

/// The other end of the queue, which writes.
pub(super) struct Writer {
    messages: mpsc::Receiver<Outgoing>,
    pongs: mpsc::Receiver<Outgoing>,
}

/// A queue and its writer.
pub(super) fn queue() -> (Sender, Writer) {
    let (messages, queued) = mpsc::channel(QUEUE);
    let (pongs, waiting) = mpsc::channel(1);
    (Sender { messages, pongs }, Writer { messages: queued, pongs: waiting })
}

impl Writer {
    /// Ends when the queue is closed and empty, after a close, or when the socket fails.
    pub async fn run(mut self, mut socket: impl AsyncWrite + Unpin) {
        loop {
            let message = tokio::select! {
                Some(pong) = self.pongs.recv() => pong,
                message = self.messages.recv() => match message {
                    Some(message) => message,
                    None => break,
                },
            };
            let last = matches!(message, Outgoing::Close(..));
            if write(&mut socket, message).await.is_err() {
                return;
            }
            if last {
                break;
            }
        }
        // The peer may be gone already.
        let _ = socket.shutdown().await;
    }
}

async fn write(socket: &mut (impl AsyncWrite + Unpin), message: Outgoing) -> std::io::Result<()> {
    let (mut head, payload) = message.frame();
    if payload.len() <= SMALL {
        head.extend_from_slice(&payload);
        socket.write_all(&head).await?;
    } else {
        socket.write_all(&head).await?;
        socket.write_all(&payload).await?;
    }
    socket.flush().await
}

#[cfg(test)]
mod tests {
    use super::super::budget::{Budget, Held, What};
    use super::super::ws_frames::Incoming;
    use super::*;
    use metrics::Gauge;
    use std::time::Duration;
    use tokio::io::{AsyncReadExt, DuplexStream, duplex};
    use tokio::time::Instant;

    const PATIENCE: Duration = Duration::from_secs(10);

    fn reader(socket: DuplexStream) -> Source<DuplexStream> {
        let budget = Budget::new(What::Input, 1 << 20, Gauge::noop());
        Reader::new(socket, Decoder::new(1000, Held::nothing(&budget)), PATIENCE)
    }

    #[tokio::test(start_paused = true)]
    async fn silence_between_messages_is_fine_and_inside_of_one_it_is_not() {
        let (mut client, server) = duplex(64);
        let mut reader = reader(server);
        tokio::spawn(async move {
            for _ in 0..2 {
                tokio::time::sleep(20 * PATIENCE).await;
                client.write_all(&[0x81, 0x82, 0, 0, 0, 0, b'h']).await.unwrap();
                tokio::time::sleep(PATIENCE / 2).await;
                client.write_all(b"i").await.unwrap();
            }
            client.write_all(&[0x01, 0x82, 0, 0, 0, 0, b'h']).await.unwrap();
            tokio::time::sleep(20 * PATIENCE).await;
        });
        for _ in 0..2 {
            assert!(matches!(reader.next().await, Ok(Incoming::Text(text, _)) if text == "hi"));
        }
        let begun = Instant::now();
        assert_eq!(reader.next().await.err(), Some(Broken::Slow));
        assert_eq!(begun.elapsed(), PATIENCE);
    }

    #[tokio::test(start_paused = true)]
    async fn frames_without_anything_in_them_do_not_make_a_message_last() {
        let (mut client, server) = duplex(64);
        let mut reader = reader(server);
        let client = tokio::spawn(async move {
            client.write_all(&[0x01, 0x80, 0, 0, 0, 0]).await?;
            loop {
                client.write_all(&[0x00, 0x80, 0, 0, 0, 0, 0x89, 0x80, 0, 0, 0, 0]).await?;
                tokio::time::sleep(Duration::from_millis(100)).await;
            }
            #[expect(unreachable_code, reason = "says what `?` returns")]
            std::io::Result::Ok(())
        });
        let mut pings = 0;
        let broken = loop {
            match reader.next().await {
                Ok(Incoming::Ping(_)) => pings += 1,
                Ok(other) => panic!("{other:?}"),
                Err(broken) => break broken,
            }
        };
        assert_eq!((broken, (99..=101).contains(&pings)), (Broken::Slow, true), "{pings} pings");
        drop(reader);
        assert!(client.await.unwrap().is_err());
    }

    #[tokio::test(start_paused = true)]
    async fn pings_are_answered_and_answers_that_are_not_read_do_not_pile_up() {
        let (mut client, server) = duplex(8);
        let (sender, writer) = queue();
        let writing = tokio::spawn(writer.run(server));
        for number in 0..1000 {
            sender.pong(vec![number as u8]);
            tokio::task::yield_now().await;
        }
        sender.messages.send(Outgoing::Close(1000, "")).await.unwrap();
        let mut bytes = Vec::new();
        client.read_to_end(&mut bytes).await.unwrap();
        writing.await.unwrap();
        assert_eq!(bytes[..3], [0x8a, 1, 0]);
        assert!(bytes.ends_with(&[0x88, 2, 3, 232]));
        assert!(bytes.len() < 40, "{} bytes", bytes.len());
    }
}
