//! The receiving half of an edge: checks, sorts, decodes.

use super::ENVELOPE;
use super::channel::Source;
use crate::payload::Payload;
use crate::reliable::{Arrival, LIMITS, Receiver};
use crate::transport::{PayloadReceiver, TransportError};
use crate::wire;
use bytes::Bytes;
use futures::future::BoxFuture;
use tokio::sync::{Mutex, mpsc};

pub(super) struct LinkReceiver {
    /// Whoever awaits the next payload holds it; giving up loses nothing.
    incoming: Mutex<Incoming>,
}

struct Incoming {
    /// The channels that follow one that broke. Dropped before the one that is there: then there can be no other.
    sources: mpsc::UnboundedReceiver<Source>,
    /// `None` after it broke.
    source: Option<Source>,
    order: Receiver<Payload>,
    /// Frames taken off the channel and dealt with.
    seen: u64,
    zero_copy: bool,
}

impl LinkReceiver {
    pub fn new(source: Source, sources: mpsc::UnboundedReceiver<Source>, zero_copy: bool) -> LinkReceiver {
        let (source, order) = (Some(source), Receiver::new(LIMITS));
        LinkReceiver { incoming: Mutex::new(Incoming { sources, source, order, seen: 0, zero_copy }) }
    }
}

impl PayloadReceiver for LinkReceiver {
    fn get(&self) -> BoxFuture<'_, Result<Payload, TransportError>> {
        Box::pin(async {
            let mut incoming = self.incoming.lock().await;
            loop {
                if let Some(payload) = incoming.order.take() {
                    return Ok(payload);
                }
                let Some(source) = &mut incoming.source else {
                    let next = incoming.sources.recv().await.ok_or(TransportError::Closed)?;
                    (incoming.source, incoming.order, incoming.seen) = (Some(next), Receiver::new(LIMITS), 0);
                    continue;
                };
                match source.next().await {
                    Ok((frame, crowded)) => incoming.deal_with(&frame, crowded),
                    // Whoever reads must know that something is missing; whoever reads next begins anew.
                    Err(error) => {
                        incoming.source = None;
                        return Err(error);
                    }
                }
            }
        })
    }
}

impl Incoming {
    fn deal_with(&mut self, frame: &Bytes, crowded: bool) {
        let whole = self.accept(frame, crowded);
        self.seen += 1;
        let ask = self.order.ask(!whole);
        if let Some(source) = &self.source {
            source.acknowledge(self.order.expected(), self.seen);
            if ask {
                source.ask_again();
            }
        }
    }

    /// Whether the frame is as it was sent.
    fn accept(&mut self, frame: &Bytes, crowded: bool) -> bool {
        let Some((seq, behind)) = opened(frame) else { return false };
        let in_order = match self.order.announced(seq, behind) {
            Arrival::InOrder => true,
            Arrival::Early => false,
            Arrival::Repeated => return true,
            Arrival::Impossible => return false,
        };
        // What stays in the frame keeps the channel's memory. What is early would keep it until the gap before it is closed,
        // for which there must be room; and where there is little, nothing may stay.
        let zero_copy = self.zero_copy && in_order && !crowded;
        match wire::decode(&frame.slice(ENVELOPE..), zero_copy) {
            Ok(payload) => {
                self.order.arrived(seq, payload);
                true
            }
            Err(error) => {
                tracing::debug!(seq, %error, "a frame came damaged");
                false
            }
        }
    }
}

/// Number and reach of a frame; `None` for a damaged envelope.
fn opened(frame: &[u8]) -> Option<(u64, u32)> {
    let (envelope, _) = frame.split_first_chunk::<ENVELOPE>()?;
    let (fields, checksum) = envelope.split_first_chunk::<12>()?;
    if crc32fast::hash(fields).to_le_bytes()[..] != *checksum {
        return None;
    }
    let (seq, behind) = fields.split_first_chunk::<8>()?;
    Some((u64::from_le_bytes(*seq), u32::from_le_bytes(behind.try_into().ok()?)))
}
