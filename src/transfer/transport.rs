//! What carries payloads over one edge: two traits, and the transport that passes handles.
//!
//! A sender never blocks and a receiver is awaited. Three transports implement them: [`inproc`] passes the handles, `wire`
//! and `shm` ([`link`](super::link)) pass wire frames. Actors know the traits alone, so another one, such as an engine that
//! routes between hosts, is a type with these two halves and a line where the engine builds its edges. It has to
//!
//! - take a payload on without waiting, into a queue of bounded length that it empties itself ([`PayloadSender::put`]);
//! - hand out payloads in the order of `put`, each once, or report the request of each that it could not deliver;
//! - make bytes with [`wire::Frame`](super::wire::Frame) and payloads with [`wire::decode`](super::wire::decode), once for
//!   each hop: embeddings come in the precision that they were computed in, and what the consumer's device needs is its affair.
//!
//! An engine that is reliable itself needs nothing of [`reliable`](super::reliable). Requests, windows and generations are
//! in the payload's header: whoever restarts on either side starts with an empty queue, and what was on its way is
//! recognized as stale.

use super::payload::Payload;
use super::wire::WireError;
use flume::TrySendError;
use futures::future::BoxFuture;

/// The sending half of an edge.
pub trait PayloadSender: Send + Sync {
    /// Puts a payload on its way. Does not wait: what the channel has no room for is queued, and the windows of the requests
    /// bound how much that is.
    ///
    /// # Errors
    /// See [`TransportError`]; the payload is lost then, and its request must be told.
    fn put(&self, payload: Payload) -> Result<(), TransportError>;

    /// Payloads on their way.
    fn queued(&self) -> usize;
}

/// The receiving half of an edge.
pub trait PayloadReceiver: Send + Sync {
    /// The next payload, in the order of `put`. Giving the future up loses nothing.
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
    /// The channel will never take it.
    #[error("a payload of {got} bytes does not fit into the ring of {limit}: raise transfer.shm_bytes")]
    TooLarge {
        /// Bytes of the frame.
        got: usize,
        /// Most that the ring takes.
        limit: usize,
    },
    /// The shared memory cannot be used any more.
    #[error("shared memory: {0}")]
    Ring(String),
    /// The bytes were not a payload.
    #[error(transparent)]
    Wire(#[from] WireError),
}

/// Handles through a bounded channel.
pub fn inproc(capacity: usize) -> (impl PayloadSender + use<>, impl PayloadReceiver + use<>) {
    let (send, recv) = flume::bounded::<Payload>(capacity);
    (Inproc(send), Inproc(recv))
}

struct Inproc<T>(T);

impl PayloadSender for Inproc<flume::Sender<Payload>> {
    fn put(&self, payload: Payload) -> Result<(), TransportError> {
        self.0.try_send(payload).map_err(|error| match error {
            TrySendError::Full(_) => TransportError::Full(self.0.len()),
            TrySendError::Disconnected(_) => TransportError::Closed,
        })
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
