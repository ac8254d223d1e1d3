//! What carries payloads over one edge: two traits, and the transport that passes handles.
//!
//! A sender never waits and a receiver is awaited. Three transports implement the traits: [`inproc`] passes the
//! handles, `wire` and `shm` ([`link`](super::link)) pass frames. Actors know the traits alone, so another transport,
//! such as an engine that routes between hosts, is a type with these two halves and a line where the engine builds its
//! edges. It has to
//!
//! - take a payload on without waiting, into a queue of bounded length that it empties itself ([`PayloadSender::put`]);
//! - hand payloads out in the order of `put`; where it can lose one, say behind them how far the sender has come
//!   ([`Delivery::Sent`]), so that the receiver notices that even the last one is missing;
//! - make bytes with [`wire::Frame`](super::wire::Frame) and payloads with [`wire::decode`](super::wire::decode), once
//!   for each hop.
//!
//! A transport repairs nothing. The inbound connector of a stage checks that every unit of a sequence comes once and in
//! order; when one is missing, the request ledger admits the sequence again with the input that its journal keeps. A
//! payload carries the attempt that it is meant for, so what is still on its way to an older attempt is recognized as
//! stale.

use super::payload::Payload;
use super::wire::WireError;
use flume::TrySendError;
use futures::future::BoxFuture;
use omni_core::ids::{Attempt, RequestId, Seq};

/// The sending half of an edge.
pub trait PayloadSender: Send + Sync {
    /// Puts a payload on its way. Does not wait: what the channel has no room for is queued, and the windows of the
    /// requests bound how much that is.
    ///
    /// # Errors
    /// See [`TransportError`]; the payload is lost then, and its request must be told.
    fn put(&self, payload: Payload) -> Result<(), TransportError>;
}

/// The receiving half of an edge.
pub trait PayloadReceiver: Send + Sync {
    /// What comes next, in the order of `put`. Dropping the future before it resolves loses nothing.
    ///
    /// # Errors
    /// See [`TransportError`]: the edge does not work any more.
    fn get(&self) -> BoxFuture<'_, Result<Delivery, TransportError>>;
}

/// What comes out of an edge.
#[derive(Debug)]
pub enum Delivery {
    /// A payload.
    Payload(Payload),
    /// A payload whose bytes changed on the way. Its header cannot be trusted: the gap that it leaves says whose it
    /// was.
    Broken(WireError),
    /// How far the sender has come with some sequences. Their payloads have been delivered before this, or are lost.
    Sent(Vec<Sent>),
}

/// How far a sender has come with the input of one sequence.
#[derive(Clone, Copy, Debug, PartialEq, Eq, bincode::Encode, bincode::Decode)]
pub struct Sent {
    /// Whose input it is.
    pub request: RequestId,
    /// The attempt that it is meant for.
    pub attempt: Attempt,
    /// Number of the unit behind the last one that was sent.
    pub next: Seq,
    /// Whether the end of the input was sent.
    pub ended: bool,
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
    /// The link between the two halves does not work any more.
    #[error("{0}")]
    Link(String),
}

/// Handles through a bounded channel, which loses nothing.
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
}

impl PayloadReceiver for Inproc<flume::Receiver<Payload>> {
    fn get(&self) -> BoxFuture<'_, Result<Delivery, TransportError>> {
        Box::pin(async { self.0.recv_async().await.map(Delivery::Payload).map_err(|_| TransportError::Closed) })
    }
}
