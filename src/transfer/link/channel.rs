//! What frames go through: a shared-memory ring, or a queue of buffers that behaves like one.

use crate::reliable::LIMITS;
use crate::shm::{Consumer, Feedback, Producer, PushError, RingError};
use crate::transport::TransportError;
use crate::wire::WireError;
use bytes::Bytes;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use tokio::sync::Notify;

/// The end that frames are put into.
pub(super) enum Sink {
    Ring(Producer),
    Queue { frames: flume::Sender<Bytes>, back: Arc<Back> },
}

/// The end that they come out of.
pub(super) enum Source {
    Ring(Consumer),
    Queue { frames: flume::Receiver<Bytes>, back: Arc<Back> },
}

/// What a queue carries backwards.
#[derive(Debug, Default)]
pub(super) struct Back {
    expected: AtomicU64,
    seen: AtomicU64,
    asked: AtomicU32,
    gone: AtomicBool,
    bell: Notify,
}

pub(super) fn queue() -> (Sink, Source) {
    // Everything that may be unacknowledged, and its repetitions.
    let (send, recv) = flume::bounded(LIMITS.window as usize * 2);
    let back = Arc::new(Back::default());
    (Sink::Queue { frames: send, back: Arc::clone(&back) }, Source::Queue { frames: recv, back })
}

impl Sink {
    /// Largest frame.
    pub fn limit(&self) -> usize {
        match self {
            Sink::Ring(producer) => producer.limit(),
            Sink::Queue { .. } => usize::MAX,
        }
    }

    /// Puts a frame of `len` bytes, written in place, as soon as there is room.
    pub async fn put(
        &mut self,
        len: usize,
        write: impl FnOnce(&mut [u8]) -> Result<(), WireError> + Send,
    ) -> Result<(), TransportError> {
        match self {
            Sink::Ring(producer) => {
                producer.wait_for_room(len).await.map_err(broken)?;
                let mut place = producer.reserve(len).map_err(broken)?;
                write(&mut place)?;
                place.commit();
            }
            Sink::Queue { frames, .. } => {
                let mut frame = vec![0; len];
                write(&mut frame)?;
                frames.send_async(frame.into()).await.map_err(|_| TransportError::Closed)?;
            }
        }
        Ok(())
    }

    pub fn feedback(&self) -> Feedback {
        match self {
            Sink::Ring(producer) => producer.feedback(),
            Sink::Queue { back, .. } => {
                // First what is written last.
                let (asked, seen) = (back.asked.load(Ordering::Acquire), back.seen.load(Ordering::Acquire));
                Feedback { expected: back.expected.load(Ordering::Acquire), seen, asked }
            }
        }
    }

    /// Waits until the other end asks for something, or is gone.
    pub async fn rung(&self) -> Result<(), TransportError> {
        match self {
            Sink::Ring(producer) => {
                producer.rung().await.map_err(|error| TransportError::Ring(error.to_string()))?;
                if producer.closed() {
                    return Err(TransportError::Closed);
                }
            }
            Sink::Queue { back, .. } => {
                back.bell.notified().await;
                if back.gone.load(Ordering::Acquire) {
                    return Err(TransportError::Closed);
                }
            }
        }
        Ok(())
    }
}

impl Source {
    /// The next frame, and whether there is little room behind it. May be given up at any time.
    pub async fn next(&mut self) -> Result<(Bytes, bool), TransportError> {
        match self {
            Source::Ring(consumer) => {
                let chunk = consumer.pop().await.map_err(|error| match error {
                    RingError::Closed => TransportError::Closed,
                    other => TransportError::Ring(other.to_string()),
                })?;
                let crowded = consumer.held() > consumer.capacity() / 2;
                Ok((chunk.into_bytes(), crowded))
            }
            Source::Queue { frames, .. } => {
                let frame = frames.recv_async().await.map_err(|_| TransportError::Closed)?;
                Ok((frame, false))
            }
        }
    }

    pub fn acknowledge(&self, expected: u64, seen: u64) {
        match self {
            Source::Ring(consumer) => consumer.acknowledge(expected, seen),
            Source::Queue { back, .. } => {
                back.expected.store(expected, Ordering::Release);
                // Last: who sees that a frame has been dealt with sees what became of it.
                back.seen.store(seen, Ordering::Release);
            }
        }
    }

    pub fn ask_again(&self) {
        match self {
            Source::Ring(consumer) => consumer.ask_again(),
            Source::Queue { back, .. } => {
                back.asked.fetch_add(1, Ordering::Release);
                back.bell.notify_one();
            }
        }
    }
}

impl Drop for Source {
    fn drop(&mut self) {
        if let Source::Queue { back, .. } = self {
            back.gone.store(true, Ordering::Release);
            back.bell.notify_one();
        }
    }
}

fn broken(error: PushError) -> TransportError {
    match error {
        PushError::Closed => TransportError::Closed,
        PushError::TooLarge { got, limit } => TransportError::TooLarge { got, limit },
        other => TransportError::Ring(other.to_string()),
    }
}
