//! Frames of a link: how control messages, payloads and announcements become frames, and frames become those again.

use super::channel::{Sink, Source};
use super::control::{Control, Malformed, append, take};
use crate::payload::Payload;
use crate::shm::{PushError, RingError};
use crate::transport::{Delivery, Sent};
use crate::wire::{self, WireError};
use bytes::Bytes;
use omni_model::ModelError;
use omni_telemetry::LinkMetrics;

/// How a frame of control messages begins; one of a payload begins as wire frames do.
pub(super) const CONTROL: [u8; 4] = *b"OMNC";
/// How an announcement begins.
pub(super) const SENT: [u8; 4] = *b"OMNS";
/// Messages that wait together are sent together, up to about this many bytes: half of the smallest ring.
const BATCH: usize = 32 << 10;

/// A link that does not work any more.
#[derive(Debug, thiserror::Error)]
pub enum LinkError {
    /// The receiving end is closed or corrupt.
    #[error("link: {0}")]
    Ring(#[from] RingError),
    /// The sending end is closed or corrupt, or takes no such frame.
    #[error("link: {0}")]
    Push(#[from] PushError),
    /// A control message that the other side cannot have sent.
    #[error("link: {0}")]
    Malformed(#[from] Malformed),
    /// A frame that is not a payload, or a payload that fits no frame.
    #[error("link: {0}")]
    Wire(#[from] WireError),
    /// Embeddings that cannot be brought to the host.
    #[error("link: {0}")]
    Embeddings(#[from] ModelError),
}

impl LinkError {
    /// Whether the link works for everything but what it was asked to carry.
    pub(super) fn spares_others(&self) -> bool {
        matches!(
            self,
            LinkError::Push(PushError::TooLarge { .. })
                | LinkError::Malformed(_)
                | LinkError::Wire(_)
                | LinkError::Embeddings(_)
        )
    }

    pub(super) fn advice(&self) -> String {
        match self {
            LinkError::Push(PushError::TooLarge { .. }) => format!("{self}; raise transfer.shm_bytes"),
            _ => self.to_string(),
        }
    }
}

/// What came in one frame.
#[derive(Debug)]
pub enum Received<C> {
    /// Control messages, in order.
    Control(Vec<C>),
    /// What an edge delivers.
    Delivery(Delivery),
}

/// Waits for the next frame.
///
/// # Errors
/// [`LinkError`]; never panics, whatever the bytes.
pub async fn receive<C: Control>(from: &mut FrameReader) -> Result<Received<C>, LinkError> {
    decode(from.next().await?, from.zero_copy)
}

pub(super) fn decode<C: Control>(frame: Bytes, zero_copy: bool) -> Result<Received<C>, LinkError> {
    if let Some(messages) = frame.strip_prefix(&CONTROL) {
        return Ok(Received::Control(list(messages)?));
    }
    if let Some(mut sent) = frame.strip_prefix(&SENT) {
        return Ok(Received::Delivery(Delivery::Sent(take(&mut sent)?)));
    }
    match wire::decode(&frame, zero_copy) {
        Ok(payload) => Ok(Received::Delivery(Delivery::Payload(payload))),
        // What does not even begin like a payload may have been a control message, which cannot be done without.
        Err(error @ WireError::Foreign(_)) => Err(error.into()),
        Err(error) => Ok(Received::Delivery(Delivery::Broken(error))),
    }
}

fn list<C: Control>(mut messages: &[u8]) -> Result<Vec<C>, Malformed> {
    let mut list = Vec::new();
    while !messages.is_empty() {
        list.push(take(&mut messages)?);
    }
    Ok(list)
}

/// Sends frames.
#[derive(Debug)]
pub struct FrameWriter {
    sink: Sink,
    metrics: Option<LinkMetrics>,
    announces: bool,
}

impl FrameWriter {
    /// Over a channel; frames are counted where there are metrics.
    pub fn new(sink: impl Into<Sink>, metrics: Option<LinkMetrics>) -> FrameWriter {
        FrameWriter { sink: sink.into(), metrics, announces: false }
    }

    /// The same, announcing how far it has come with each sequence ([`Delivery::Sent`]) when there is nothing more to
    /// send.
    #[must_use]
    pub fn announcing(self) -> FrameWriter {
        FrameWriter { announces: true, ..self }
    }

    /// Sends a frame of these bytes, when there is room for it.
    ///
    /// # Errors
    /// [`LinkError::Push`].
    pub async fn send(&mut self, frame: &[u8]) -> Result<(), LinkError> {
        let copy = |place: &mut [u8]| {
            place.copy_from_slice(frame);
            Ok(())
        };
        self.put(frame.len(), copy).await
    }

    /// Writes a payload's wire frame where the other side will read it.
    pub(super) async fn send_payload(&mut self, payload: &Payload) -> Result<(), LinkError> {
        let frame = wire::Frame::new(payload)?;
        self.put(frame.len(), |place| frame.write(place)).await
    }

    /// Adds a control message to those that are sent together.
    pub(super) async fn add(&mut self, message: &[u8], batch: &mut Vec<u8>) -> Result<(), LinkError> {
        if batch.len() + message.len() > BATCH {
            self.send_batch(batch).await?;
        }
        if batch.is_empty() {
            batch.extend_from_slice(&CONTROL);
        }
        batch.extend_from_slice(message);
        // A message that is longer than that goes alone, and alone it fails.
        if batch.len() > BATCH { self.send_batch(batch).await } else { Ok(()) }
    }

    pub(super) async fn send_batch(&mut self, batch: &mut Vec<u8>) -> Result<(), LinkError> {
        let sent = if batch.is_empty() { Ok(()) } else { self.send(batch).await };
        batch.clear();
        sent
    }

    pub(super) async fn announce(&mut self, sent: &mut Vec<Sent>) -> Result<(), LinkError> {
        let sent = std::mem::take(sent);
        if !self.announces || sent.is_empty() {
            return Ok(());
        }
        let mut frame = SENT.to_vec();
        append(&sent, &mut frame)?;
        self.send(&frame).await
    }

    async fn put(
        &mut self,
        len: usize,
        write: impl FnOnce(&mut [u8]) -> Result<(), WireError> + Send,
    ) -> Result<(), LinkError> {
        self.sink.put(len, write).await?;
        if let Some(metrics) = &self.metrics {
            metrics.passed(len);
        }
        Ok(())
    }
}

/// Receives frames.
#[derive(Debug)]
pub struct FrameReader {
    source: Source,
    metrics: Option<LinkMetrics>,
    zero_copy: bool,
}

impl FrameReader {
    /// Over a channel; frames are counted where there are metrics. With `zero_copy`, what is decoded from a frame stays
    /// where the frame is.
    pub fn new(source: impl Into<Source>, metrics: Option<LinkMetrics>, zero_copy: bool) -> FrameReader {
        FrameReader { source: source.into(), metrics, zero_copy }
    }

    /// The same with another choice.
    #[must_use]
    pub fn zero_copy(self, zero_copy: bool) -> FrameReader {
        FrameReader { zero_copy, ..self }
    }

    /// The next frame. Dropping the future before it resolves loses nothing.
    ///
    /// # Errors
    /// [`LinkError::Ring`] when the other side sends no more.
    pub async fn next(&mut self) -> Result<Bytes, LinkError> {
        let frame = self.source.next(self.zero_copy).await?;
        if let Some(metrics) = &self.metrics {
            metrics.passed(frame.len());
        }
        Ok(frame)
    }
}
