//! What frames go through: a ring in shared memory, or a queue of buffers inside one process.

use crate::shm::{Consumer, Producer, PushError, RingError};
use crate::wire::WireError;
use bytes::Bytes;

/// Frames in a queue of buffers: enough to keep both sides busy, few enough that back-pressure shows in the outbox.
const FRAMES: usize = 512;

/// The end that frames are put into.
#[derive(Debug)]
pub enum Sink {
    /// Shared memory.
    Ring(Producer),
    /// Buffers.
    Queue(flume::Sender<Bytes>),
}

/// The end that frames come out of.
#[derive(Debug)]
pub enum Source {
    /// Shared memory.
    Ring(Consumer),
    /// Buffers.
    Queue(flume::Receiver<Bytes>),
}

/// A queue of buffers.
pub fn queue() -> (Sink, Source) {
    let (send, recv) = flume::bounded(FRAMES);
    (Sink::Queue(send), Source::Queue(recv))
}

impl From<Producer> for Sink {
    fn from(producer: Producer) -> Sink {
        Sink::Ring(producer)
    }
}

impl From<Consumer> for Source {
    fn from(consumer: Consumer) -> Source {
        Source::Ring(consumer)
    }
}

impl Sink {
    /// Puts a frame of `len` bytes, written in place, as soon as there is room.
    pub(super) async fn put(
        &mut self,
        len: usize,
        write: impl FnOnce(&mut [u8]) -> Result<(), WireError> + Send,
    ) -> Result<(), super::LinkError> {
        match self {
            Sink::Ring(producer) => {
                producer.wait_for_room(len).await?;
                let mut place = producer.reserve(len)?;
                write(&mut place)?;
                place.commit();
            }
            Sink::Queue(frames) => {
                let mut frame = vec![0; len];
                write(&mut frame)?;
                frames.send_async(frame.into()).await.map_err(|_| PushError::Closed)?;
            }
        }
        Ok(())
    }
}

impl Source {
    /// The next frame. With `stays` it may stay in the ring, which has no other memory: frames are copied out of a ring
    /// that is more than half full, so that a frame in use for long never stops those behind it.
    pub(super) async fn next(&mut self, stays: bool) -> Result<Bytes, RingError> {
        match self {
            Source::Ring(consumer) => {
                let chunk = consumer.pop().await?;
                let stays = stays && consumer.held() <= consumer.capacity() / 2;
                Ok(if stays { chunk.into_bytes() } else { Bytes::copy_from_slice(&chunk) })
            }
            Source::Queue(frames) => frames.recv_async().await.map_err(|_| RingError::Closed),
        }
    }
}
