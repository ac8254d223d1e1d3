//! Payloads as wire frames over one edge, reliably: the transports `wire` and `shm`.
//!
//! A task takes payloads off a bounded queue, encodes each straight into the memory of the channel and keeps it until it is
//! acknowledged ([`reliable`](super::reliable)). The receiving half checks, sorts and decodes. In front of each wire frame
//! lies an envelope of 16 bytes: the number of the frame (u64), how many before it are still kept (u32), CRC-32 of those
//! twelve (u32).
//!
//! The channel is a ring in shared memory, between threads or processes, or a queue of buffers inside one process. The
//! window of the edge's requests bounds the queue, the window of the reliable layer what is kept: neither half grows. Where
//! both halves are in one process, a channel that breaks is made anew: the receiver hears of it once and goes on with the
//! next one.

mod channel;
mod receiver;
mod sender;
#[cfg(test)]
mod tests;

use super::shm::{self, Consumer, Producer};
use super::transport::{PayloadReceiver, PayloadSender};
use channel::{Sink, Source};
use omni_core::ids::RequestId;
use omni_fault::FaultSite;
use omni_telemetry::RepairMetrics;
use std::io;
use std::sync::Arc;
use tokio::sync::mpsc;

/// Bytes in front of a wire frame. A multiple of what parts are aligned to.
const ENVELOPE: usize = 16;

/// Who is told of a payload that will not arrive.
pub type LostSink = Arc<dyn Fn(RequestId, String) + Send + Sync>;

/// How an edge carries frames.
#[derive(Clone)]
pub struct LinkOptions {
    /// Payloads that may wait for the channel; the windows of all requests bound it.
    pub capacity: usize,
    /// Embeddings stay in the frame that they came in.
    pub zero_copy: bool,
    /// What goes wrong on purpose, once for each frame that is put on the channel.
    pub fault: FaultSite,
    /// What is counted.
    pub metrics: RepairMetrics,
    /// Hears of what was given up.
    pub lost: LostSink,
}

/// Both halves over a queue of buffers. Needs a tokio runtime.
pub fn over_channel(options: LinkOptions) -> (impl PayloadSender + use<>, impl PayloadReceiver + use<>) {
    let (sink, source) = channel::queue();
    let (connect, sources) = sender::channels(|| Some(channel::queue()));
    let receiver = receiver::LinkReceiver::new(source, sources, options.zero_copy);
    (sender::start(sink, connect, options), receiver)
}

/// Both halves over a shared-memory ring of `bytes`. Needs a tokio runtime.
///
/// # Errors
/// Those of [`shm::ring`].
pub fn over_ring(
    bytes: usize,
    options: LinkOptions,
) -> io::Result<(impl PayloadSender + use<>, impl PayloadReceiver + use<>)> {
    let make = move || shm::ring(bytes).map(|(producer, consumer)| (Sink::Ring(producer), Source::Ring(consumer)));
    let (sink, source) = make()?;
    let (connect, sources) = sender::channels(move || make().ok());
    let receiver = receiver::LinkReceiver::new(source, sources, options.zero_copy);
    Ok((sender::start(sink, connect, options), receiver))
}

/// The sending half over a ring whose other end may be in another process. Needs a tokio runtime.
pub fn ring_sender(producer: Producer, options: LinkOptions) -> impl PayloadSender + use<> {
    sender::start(Sink::Ring(producer), Box::new(|| None), options)
}

/// The receiving half over a ring whose other end may be in another process.
pub fn ring_receiver(consumer: Consumer, zero_copy: bool) -> impl PayloadReceiver + use<> {
    receiver::LinkReceiver::new(Source::Ring(consumer), mpsc::unbounded_channel().1, zero_copy)
}
