//! The sending side of a link: what waits, and the task that sends it.

use super::control::{Control, append};
use super::frames::{FrameWriter, LinkError};
use crate::payload::{Header, Part, Payload};
use crate::transport::{Sent, TransportError};
use omni_core::ids::{RequestId, Seq};
use omni_model::embeddings::Embeddings;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

/// Sequences whose positions are announced in one frame, however busy the link is.
const ANNOUNCED: usize = 64;

enum Item<C> {
    Control(C),
    Payload(Payload),
    Last,
}

/// What waits to be sent in one direction. Putting something in does not wait. Clones put into the same outbox.
pub struct Outbox<C> {
    items: flume::Sender<Item<C>>,
    payloads: Arc<AtomicUsize>,
    capacity: usize,
}

impl<C> Clone for Outbox<C> {
    fn clone(&self) -> Outbox<C> {
        Outbox { items: self.items.clone(), payloads: Arc::clone(&self.payloads), capacity: self.capacity }
    }
}

/// The other end of an [`Outbox`].
pub struct Queue<C> {
    items: flume::Receiver<Item<C>>,
    payloads: Arc<AtomicUsize>,
}

/// A queue for at most `capacity` payloads; the windows of the requests bound how many there can be. Control messages
/// are small and are not counted.
pub fn outbox<C: Control>(capacity: usize) -> (Outbox<C>, Queue<C>) {
    let (send, items) = flume::unbounded();
    let payloads = Arc::new(AtomicUsize::new(0));
    (Outbox { items: send, payloads: Arc::clone(&payloads), capacity }, Queue { items, payloads })
}

impl<C: Control> Outbox<C> {
    /// Sends a control message. False if the link is gone.
    pub fn tell(&self, message: C) -> bool {
        self.items.send(Item::Control(message)).is_ok()
    }

    /// Sends a payload.
    ///
    /// # Errors
    /// [`TransportError::Full`] and [`TransportError::Closed`].
    pub fn put(&self, payload: Payload) -> Result<(), TransportError> {
        if self.payloads.fetch_add(1, Ordering::Relaxed) >= self.capacity {
            self.payloads.fetch_sub(1, Ordering::Relaxed);
            // What waited for a link that has gone was dropped uncounted, so a full outbox may be one that has no reader.
            let gone = self.items.is_disconnected();
            return Err(if gone { TransportError::Closed } else { TransportError::Full(self.capacity) });
        }
        self.items.send(Item::Payload(payload)).map_err(|_| TransportError::Closed)
    }

    /// Ends the link once everything that was put in before has been sent.
    pub fn finish(&self) {
        let _ = self.items.send(Item::Last);
    }

    /// Payloads that wait.
    pub fn waiting(&self) -> usize {
        self.payloads.load(Ordering::Relaxed)
    }
}

impl<C: Control> Queue<C> {
    /// Sends until the outbox is finished or dropped. What cannot be sent is reported to `lost`, with its request and
    /// the reason.
    ///
    /// # Errors
    /// [`LinkError`] when the link is gone.
    pub async fn send_all(self, to: &mut FrameWriter, lost: impl Fn(RequestId, String)) -> Result<(), LinkError> {
        let (mut batch, mut message, mut sent) = (Vec::new(), Vec::new(), Vec::new());
        while let Ok(first) = self.items.recv_async().await {
            let mut next = Some(first);
            while let Some(item) = next.take().or_else(|| self.items.try_recv().ok()) {
                let (request, outcome) = match item {
                    Item::Last => {
                        to.send_batch(&mut batch).await?;
                        return to.announce(&mut sent).await;
                    }
                    Item::Control(control) => {
                        message.clear();
                        let encoded = append(&control, &mut message).map_err(LinkError::from);
                        (control.request(), encoded.and(to.add(&message, &mut batch).await))
                    }
                    Item::Payload(payload) => {
                        to.send_batch(&mut batch).await?;
                        self.payloads.fetch_sub(1, Ordering::Relaxed);
                        let header = payload.header;
                        let outcome = send(payload, to).await;
                        if outcome.is_ok() {
                            note(&mut sent, &header);
                        }
                        (Some(header.request), outcome)
                    }
                };
                match (request, outcome) {
                    (_, Ok(())) => {}
                    (Some(request), Err(error)) if error.spares_others() => lost(request, error.advice()),
                    (None, Err(error)) if error.spares_others() => tracing::warn!(%error, "a message was not sent"),
                    (_, Err(error)) => return Err(error),
                }
                if sent.len() >= ANNOUNCED {
                    to.announce(&mut sent).await?;
                }
            }
            to.send_batch(&mut batch).await?;
            to.announce(&mut sent).await?;
        }
        Ok(())
    }
}

/// Sends a payload, its embeddings in the host's memory.
async fn send(mut payload: Payload, to: &mut FrameWriter) -> Result<(), LinkError> {
    for part in &mut payload.parts {
        if let Part::Embeddings(embeddings @ Embeddings::Device(_)) = part {
            *embeddings = embeddings.clone().fetched().await?;
        }
    }
    to.send_payload(&payload).await
}

/// The latest position of each sequence since the last announcement.
fn note(sent: &mut Vec<Sent>, header: &Header) {
    let Header { request, attempt, seq, units, end, .. } = *header;
    let now = Sent { request, attempt, next: Seq(seq.0 + units), ended: end.is_some() };
    match sent.iter_mut().find(|sent| (sent.request, sent.attempt) == (request, attempt)) {
        Some(before) => *before = now,
        None => sent.push(now),
    }
}
