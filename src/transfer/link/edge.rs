//! The two halves of an edge between threads that carries frames: the transports `wire` and `shm`.

use super::channel::{Sink, Source, queue};
use super::control::Control;
use super::frames::{FrameReader, FrameWriter, LinkError, Received, receive};
use super::outbox::{Outbox, outbox};
use crate::payload::Payload;
use crate::shm::{self, RingError};
use crate::transport::{Delivery, PayloadReceiver, PayloadSender, TransportError};
use bincode::{Decode, Encode};
use futures::future::BoxFuture;
use omni_core::ids::RequestId;
use std::io;
use std::sync::Arc;
use tokio::sync::Mutex;

/// Hears of a payload that could not be sent, and why.
pub type LostSink = Arc<dyn Fn(RequestId, String) + Send + Sync>;

/// How an edge carries frames.
#[derive(Clone)]
pub struct EdgeOptions {
    /// Payloads that may wait for the channel; the windows of all requests bound it.
    pub capacity: usize,
    /// Embeddings stay in the frame that they came in.
    pub zero_copy: bool,
    /// Hears of what could not be sent.
    pub lost: LostSink,
}

/// Both halves over a queue of buffers. Needs a tokio runtime.
pub fn over_queue(options: EdgeOptions) -> (impl PayloadSender + use<>, impl PayloadReceiver + use<>) {
    start(queue(), options)
}

/// Both halves over a shared-memory ring of `bytes`. Needs a tokio runtime.
///
/// # Errors
/// Those of [`shm::ring`].
pub fn over_ring(
    bytes: usize,
    options: EdgeOptions,
) -> io::Result<(impl PayloadSender + use<>, impl PayloadReceiver + use<>)> {
    let (producer, consumer) = shm::ring(bytes)?;
    Ok(start((producer.into(), consumer.into()), options))
}

fn start((sink, source): (Sink, Source), options: EdgeOptions) -> (SendingHalf, ReceivingHalf) {
    let EdgeOptions { capacity, zero_copy, lost } = options;
    let (out, waiting) = outbox(capacity);
    tokio::spawn(async move {
        let mut to = FrameWriter::new(sink, None).announcing();
        if let Err(error) = waiting.send_all(&mut to, |request, reason| lost(request, reason)).await {
            // The receiving half finds the link broken as well, and its stage goes down.
            tracing::debug!(%error, "an edge ended");
        }
    });
    (SendingHalf(out), ReceivingHalf(Mutex::new(FrameReader::new(source, None, zero_copy))))
}

/// An edge has no control messages.
#[derive(Debug)]
struct NoControl;

impl Encode for NoControl {
    fn encode<E: bincode::enc::Encoder>(&self, _: &mut E) -> Result<(), bincode::error::EncodeError> {
        Err(bincode::error::EncodeError::Other("an edge has no control messages"))
    }
}

impl<Context> Decode<Context> for NoControl {
    fn decode<D: bincode::de::Decoder<Context = Context>>(_: &mut D) -> Result<NoControl, bincode::error::DecodeError> {
        Err(bincode::error::DecodeError::Other("an edge has no control messages"))
    }
}

impl Control for NoControl {
    fn request(&self) -> Option<RequestId> {
        None
    }
}

struct SendingHalf(Outbox<NoControl>);

impl PayloadSender for SendingHalf {
    fn put(&self, payload: Payload) -> Result<(), TransportError> {
        self.0.put(payload)
    }
}

/// The lock is held while a receiver waits; giving up loses nothing.
struct ReceivingHalf(Mutex<FrameReader>);

impl PayloadReceiver for ReceivingHalf {
    fn get(&self) -> BoxFuture<'_, Result<Delivery, TransportError>> {
        Box::pin(async {
            let mut from = self.0.lock().await;
            loop {
                match receive::<NoControl>(&mut from).await {
                    Ok(Received::Delivery(delivery)) => return Ok(delivery),
                    Ok(Received::Control(_)) => {}
                    Err(LinkError::Ring(RingError::Closed)) => return Err(TransportError::Closed),
                    Err(error) => return Err(TransportError::Link(error.to_string())),
                }
            }
        })
    }
}
