//! The link between parent and child: a ring in shared memory for each direction. What is said in one direction is queued in
//! one [`Outbox`] and arrives in that order: control messages, those that wait together in one frame, and payloads, each as
//! a [wire frame](wire).

use super::message::{self, Control, Malformed};
use bytes::Bytes;
use omni_core::ids::RequestId;
use omni_telemetry::LinkMetrics;
use omni_transfer::payload::Payload;
use omni_transfer::shm::{Consumer, Producer, PushError, RingError};
use omni_transfer::transport::TransportError;
use omni_transfer::wire::{self, WireError};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

/// How a frame of control messages begins; one of a payload begins as wire frames do.
const CONTROL: [u8; 4] = *b"OMNC";
/// Messages that wait together are sent together, up to about this many bytes: half of the smallest ring.
const BATCH: usize = 32 << 10;

/// A link that does not work any more.
#[derive(Debug, thiserror::Error)]
pub enum LinkError {
    /// The ring says no.
    #[error("link: {0}")]
    Ring(#[from] RingError),
    /// The ring takes no more.
    #[error("link: {0}")]
    Push(#[from] PushError),
    /// Not what the other side says.
    #[error("link: {0}")]
    Malformed(#[from] Malformed),
    /// Not a payload.
    #[error("link: {0}")]
    Wire(#[from] WireError),
}

enum Item<C> {
    Control(C),
    Payload(Payload),
    Last,
}

/// What waits to be sent in one direction. Whoever puts something in does not wait. Clones put into the same.
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

/// A queue for at most `capacity` payloads; the windows of the requests bound how many there can be. Control messages are
/// small and are not counted.
pub fn outbox<C: Control>(capacity: usize) -> (Outbox<C>, Queue<C>) {
    #[expect(clippy::disallowed_methods, reason = "the windows of the requests bound the payloads")]
    let (send, items) = flume::unbounded();
    let payloads = Arc::new(AtomicUsize::new(0));
    (Outbox { items: send, payloads: Arc::clone(&payloads), capacity }, Queue { items, payloads })
}

impl<C: Control> Outbox<C> {
    /// Says something. False if nobody will hear it.
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
            return Err(TransportError::Full(self.capacity));
        }
        self.items.send(Item::Payload(payload)).map_err(|_| TransportError::Closed)
    }

    /// Nothing that is put in after this is sent.
    pub fn finish(&self) {
        let _ = self.items.send(Item::Last);
    }

    /// Payloads that wait.
    pub fn waiting(&self) -> usize {
        self.payloads.load(Ordering::Relaxed)
    }
}

impl<C: Control> Queue<C> {
    /// Sends until the outbox is finished. What cannot be sent is told to `lost`, by request, with the reason.
    ///
    /// # Errors
    /// [`LinkError`] when the link is gone.
    pub async fn send_all(self, to: &mut FrameWriter, lost: impl Fn(RequestId, String)) -> Result<(), LinkError> {
        let (mut batch, mut message) = (Vec::new(), Vec::new());
        while let Ok(first) = self.items.recv_async().await {
            let mut next = Some(first);
            while let Some(item) = next.take().or_else(|| self.items.try_recv().ok()) {
                let (request, sent) = match item {
                    Item::Last => return to.send_batch(&mut batch).await,
                    Item::Control(control) => {
                        message.clear();
                        let encoded = message::append(&control, &mut message).map_err(LinkError::from);
                        (control.request(), encoded.and(to.add(&message, &mut batch).await))
                    }
                    Item::Payload(payload) => {
                        to.send_batch(&mut batch).await?;
                        self.payloads.fetch_sub(1, Ordering::Relaxed);
                        (Some(payload.header.request), to.send_payload(&payload).await)
                    }
                };
                match (request, sent) {
                    (_, Ok(())) => {}
                    (Some(request), Err(error)) if error.spares_others() => lost(request, error.advice()),
                    (None, Err(error)) if error.spares_others() => tracing::warn!(%error, "a message was not sent"),
                    (_, Err(error)) => return Err(error),
                }
            }
            to.send_batch(&mut batch).await?;
        }
        Ok(())
    }
}

impl LinkError {
    /// Whether the link works for everything but what it was asked to carry.
    fn spares_others(&self) -> bool {
        matches!(self, LinkError::Push(PushError::TooLarge { .. }) | LinkError::Malformed(_) | LinkError::Wire(_))
    }

    fn advice(&self) -> String {
        match self {
            LinkError::Push(PushError::TooLarge { .. }) => format!("{self}; raise transfer.shm_bytes"),
            _ => self.to_string(),
        }
    }
}

/// What came in one frame.
pub enum Received<C> {
    /// Messages, in order.
    Control(Vec<C>),
    /// A payload.
    Payload(Payload),
}

/// Waits for the next frame.
///
/// # Errors
/// [`LinkError`]; never panics, whatever the bytes.
pub async fn receive<C: Control>(from: &mut FrameReader) -> Result<Received<C>, LinkError> {
    decode(from.next().await?)
}

fn decode<C: Control>(frame: Bytes) -> Result<Received<C>, LinkError> {
    match frame.strip_prefix(&CONTROL) {
        Some(mut messages) => {
            let mut list = Vec::new();
            while !messages.is_empty() {
                list.push(message::take(&mut messages)?);
            }
            Ok(Received::Control(list))
        }
        None => Ok(Received::Payload(wire::decode(&frame, true)?)),
    }
}

/// Sends frames.
pub struct FrameWriter {
    ring: Producer,
    metrics: Option<LinkMetrics>,
}

impl FrameWriter {
    /// Over a ring; frames are counted where there are metrics.
    pub fn new(ring: Producer, metrics: Option<LinkMetrics>) -> FrameWriter {
        FrameWriter { ring, metrics }
    }

    /// Sends a frame, when there is room for it.
    ///
    /// # Errors
    /// [`LinkError::Push`].
    pub async fn send(&mut self, frame: &[u8]) -> Result<(), LinkError> {
        self.ring.push(&[frame]).await?;
        if let Some(metrics) = &self.metrics {
            metrics.passed(frame.len());
        }
        Ok(())
    }

    /// Writes a payload's wire frame where the other side will read it.
    async fn send_payload(&mut self, payload: &Payload) -> Result<(), LinkError> {
        let frame = wire::Frame::new(payload)?;
        self.ring.wait_for_room(frame.len()).await?;
        let mut place = self.ring.reserve(frame.len())?;
        frame.write(&mut place)?;
        place.commit();
        if let Some(metrics) = &self.metrics {
            metrics.passed(frame.len());
        }
        Ok(())
    }

    async fn add(&mut self, message: &[u8], batch: &mut Vec<u8>) -> Result<(), LinkError> {
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

    async fn send_batch(&mut self, batch: &mut Vec<u8>) -> Result<(), LinkError> {
        let sent = if batch.is_empty() { Ok(()) } else { self.send(batch).await };
        batch.clear();
        sent
    }
}

/// Receives frames.
pub struct FrameReader {
    ring: Consumer,
    metrics: Option<LinkMetrics>,
    zero_copy: bool,
}

impl FrameReader {
    /// Over a ring; frames are counted where there are metrics. With `zero_copy`, what is decoded from a frame stays where
    /// the frame is.
    pub fn new(ring: Consumer, metrics: Option<LinkMetrics>, zero_copy: bool) -> FrameReader {
        FrameReader { ring, metrics, zero_copy }
    }

    /// The same with another choice.
    #[must_use]
    pub fn zero_copy(self, zero_copy: bool) -> FrameReader {
        FrameReader { zero_copy, ..self }
    }

    /// The next frame.
    ///
    /// # Errors
    /// [`LinkError::Ring`] when nobody sends any more.
    pub async fn next(&mut self) -> Result<Bytes, LinkError> {
        let frame = self.ring.pop().await?;
        if let Some(metrics) = &self.metrics {
            metrics.passed(frame.len());
        }
        // Whoever waits with what he holds must not stop the others: half of the ring is never his.
        let stays = self.zero_copy && self.ring.held() <= self.ring.capacity() / 2;
        Ok(if stays { frame.into_bytes() } else { Bytes::copy_from_slice(&frame) })
    }
}

#[cfg(test)]
mod tests {
    use super::super::message::ToStage;
    use super::*;
    use crate::{Admission, Outputs, Resume};
    use omni_core::ids::{Attempt, Generation, Seq};
    use omni_core::scheduler::{Pace, SequenceParams};
    use omni_model::stage::{SequenceSpec, VocoderSpec};
    use omni_transfer::payload::{Header, Kind, Part};
    use omni_transfer::shm::ring;
    use proptest::prelude::*;
    use std::sync::Mutex;
    use std::time::Duration;

    /// An admission with so many codes.
    fn admission(request: u64, codes: usize) -> ToStage {
        let params =
            SequenceParams { prompt: 0, prompt_input: 0, prompt_emits: 0, pace: Pace::Free, lead: Duration::ZERO };
        let spec = SequenceSpec::Vocoder(VocoderSpec { context: Some(vec![7; codes].into()), goes_on: false });
        let deliver = Outputs { tokens: false, speech: true };
        ToStage::Admit(Box::new(Admission {
            request: RequestId(request),
            params,
            spec,
            deliver,
            from: Resume::default(),
        }))
    }

    fn payload(request: u64, codes: usize) -> Payload {
        let (request, generation, units) = (RequestId(request), Generation(1), codes as u32);
        let header = Header {
            request,
            generation,
            attempt: Attempt(0),
            seq: Seq(0),
            kind: Kind::Codes,
            units,
            end: None,
            sent: 0,
        };
        Payload { header, parts: vec![Part::U32(vec![7; codes])], leases: Vec::new() }
    }

    fn said(received: Received<ToStage>) -> Vec<String> {
        match received {
            Received::Payload(payload) => vec![format!("payload {}", payload.header.request)],
            Received::Control(words) => {
                words.into_iter().map(|word| format!("word {}", word.request().unwrap_or_default())).collect()
            }
        }
    }

    /// What arrives of what `say` puts in, what is told as lost, and in how many frames.
    async fn over(bytes: usize, say: impl FnOnce(&Outbox<ToStage>)) -> (Vec<String>, Vec<(RequestId, String)>, usize) {
        let (producer, consumer) = ring(bytes).unwrap();
        let (out, queue) = outbox(1000);
        say(&out);
        out.finish();
        let sending = tokio::spawn(async move {
            let lost = Mutex::new(Vec::new());
            let mut to = FrameWriter::new(producer, None);
            queue.send_all(&mut to, |request, reason| lost.lock().unwrap().push((request, reason))).await.unwrap();
            lost.into_inner().unwrap()
        });
        let (mut from, mut heard, mut frames) = (FrameReader::new(consumer, None, true), Vec::new(), 0);
        while let Ok(received) = receive(&mut from).await {
            heard.extend(said(received));
            frames += 1;
        }
        (heard, sending.await.unwrap(), frames)
    }

    #[tokio::test]
    async fn an_admission_is_never_overtaken_by_its_payloads() {
        let (heard, lost, _) = over(1 << 16, |out| {
            for request in 0..200 {
                assert!(out.tell(admission(request, 100)));
                out.put(payload(request, 300)).unwrap();
                out.tell(ToStage::Acked(RequestId(request), 1));
            }
        })
        .await;
        let expected: Vec<String> =
            (0..200).flat_map(|n| [format!("word r{n}"), format!("payload r{n}"), format!("word r{n}")]).collect();
        assert_eq!((heard, lost), (expected, Vec::new()));
    }

    #[tokio::test]
    async fn words_that_wait_together_share_a_frame() {
        let (heard, _, frames) =
            over(1 << 16, |out| (0..1000).for_each(|n| _ = out.tell(ToStage::Acked(RequestId(n), 1)))).await;
        assert_eq!((heard.len(), frames), (1000, 1));
    }

    #[tokio::test]
    async fn what_fits_no_ring_is_told_and_the_rest_arrives() {
        let (heard, lost, _) = over(1 << 16, |out| {
            out.tell(ToStage::Abort(RequestId(1)));
            out.tell(admission(2, 100_000));
            out.put(payload(3, 100_000)).unwrap();
            out.tell(ToStage::Abort(RequestId(4)));
        })
        .await;
        assert_eq!(heard, ["word r1", "word r4"]);
        assert_eq!(lost.iter().map(|(request, _)| request.0).collect::<Vec<_>>(), [2, 3]);
        assert!(lost.iter().all(|(_, why)| why.ends_with("raise transfer.shm_bytes")), "{lost:?}");
    }

    #[test]
    fn no_more_payloads_wait_than_windows_allow() {
        let (out, _queue) = outbox::<ToStage>(2);
        assert!(out.put(payload(1, 1)).is_ok() && out.put(payload(1, 1)).is_ok());
        assert!(matches!(out.put(payload(1, 1)), Err(TransportError::Full(2))));
        assert_eq!(out.waiting(), 2);
    }

    proptest! {
        #[test]
        fn hostile_words_are_an_error_and_never_a_panic(bytes in proptest::collection::vec(any::<u8>(), 0..200), flip in any::<(usize, u8)>()) {
            let _ = decode::<ToStage>([CONTROL.as_slice(), &bytes].concat().into());
            let mut good = CONTROL.to_vec();
            message::append(&admission(5, 20), &mut good).unwrap();
            let at = flip.0 % good.len();
            good[at] ^= flip.1;
            let _ = decode::<ToStage>(good.into());
        }
    }
}
