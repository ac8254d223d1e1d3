//! What carries payloads over one edge.
//!
//! A sender never blocks and a receiver is awaited. Between the stages of one process there are two: `inproc` passes the
//! handles, `wire` passes frames. A transport between processes or hosts fits behind the same two traits.

use super::payload::Payload;
use super::wire::{self, WireError};
use bytes::Bytes;
use candle_core::Device;
use futures::future::BoxFuture;

/// The sending half of an edge.
pub trait PayloadSender: Send + Sync {
    /// Puts a payload on its way.
    ///
    /// # Errors
    /// See [`TransportError`]; the payload is lost then, and its request must be told.
    fn put(&self, payload: Payload) -> Result<(), TransportError>;

    /// Payloads on their way.
    fn queued(&self) -> usize;
}

/// The receiving half of an edge.
pub trait PayloadReceiver: Send + Sync {
    /// The next payload, in the order of `put`.
    fn get(&self) -> BoxFuture<'_, Result<Payload, TransportError>>;
}

/// An edge that could not do its work.
#[derive(Debug, thiserror::Error)]
pub enum TransportError {
    /// The windows of the requests bound what can be on its way; more means that a stage ran past its window.
    #[error("{0} payloads on their way, as many as the windows of all requests allow")]
    Full(usize),
    /// The other half is gone.
    #[error("the other end of the edge is closed")]
    Closed,
    /// The bytes were not a payload.
    #[error(transparent)]
    Wire(#[from] WireError),
}

/// Handles through a bounded channel.
pub fn inproc(capacity: usize) -> (impl PayloadSender + use<>, impl PayloadReceiver + use<>) {
    let (send, recv) = flume::bounded::<Payload>(capacity);
    (Inproc(send), Inproc(recv))
}

/// Frames through a bounded channel: every payload is encoded and decoded as if a process border lay between. Tensors
/// arrive on `device`.
pub fn over_wire(capacity: usize, device: Device) -> (impl PayloadSender + use<>, impl PayloadReceiver + use<>) {
    let (send, recv) = flume::bounded::<Bytes>(capacity);
    (Wire(send), WireReceiver { recv, device })
}

struct Inproc<T>(T);

impl PayloadSender for Inproc<flume::Sender<Payload>> {
    fn put(&self, payload: Payload) -> Result<(), TransportError> {
        self.0.try_send(payload).map_err(|error| refused(&error, self.0.len()))
    }

    fn queued(&self) -> usize {
        self.0.len()
    }
}

impl PayloadReceiver for Inproc<flume::Receiver<Payload>> {
    fn get(&self) -> BoxFuture<'_, Result<Payload, TransportError>> {
        Box::pin(async { self.0.recv_async().await.map_err(|_| TransportError::Closed) })
    }
}

struct Wire(flume::Sender<Bytes>);

impl PayloadSender for Wire {
    fn put(&self, payload: Payload) -> Result<(), TransportError> {
        let frame = wire::encode(&payload)?;
        self.0.try_send(frame).map_err(|error| refused(&error, self.0.len()))
    }

    fn queued(&self) -> usize {
        self.0.len()
    }
}

struct WireReceiver {
    recv: flume::Receiver<Bytes>,
    device: Device,
}

impl PayloadReceiver for WireReceiver {
    fn get(&self) -> BoxFuture<'_, Result<Payload, TransportError>> {
        Box::pin(async {
            let frame = self.recv.recv_async().await.map_err(|_| TransportError::Closed)?;
            Ok(wire::decode(&frame, &self.device)?)
        })
    }
}

fn refused<T>(error: &flume::TrySendError<T>, queued: usize) -> TransportError {
    match error {
        flume::TrySendError::Full(_) => TransportError::Full(queued),
        flume::TrySendError::Disconnected(_) => TransportError::Closed,
    }
}
