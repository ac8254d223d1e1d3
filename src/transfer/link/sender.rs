//! The task behind the sending half of an edge.

use super::channel::{Sink, Source};
use super::{ENVELOPE, LinkOptions};
use crate::payload::{Part, Payload};
use crate::reliable::{Action, LIMITS, Sender};
use crate::transport::{PayloadSender, TransportError};
use crate::wire::{Frame, WireError};
use omni_fault::{FaultEvent, FaultKind};
use omni_model::embeddings::Embeddings;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;
use tokio::sync::mpsc::{self, error::TrySendError};

/// How often the sender looks whether what it sent last has arrived, while nothing else makes it look.
const LOOK: Duration = Duration::from_millis(10);
/// What a frame has besides its data, at most: the envelope, the wire frame's own prefix and header, and what fills up its
/// parts.
const AROUND: usize = 4096;

pub(super) struct LinkSender {
    /// Not flume: this one can be closed by who reads it, who then gets all that was put before.
    queue: mpsc::Sender<Payload>,
    /// Taken off the queue and not acknowledged.
    kept: Arc<AtomicUsize>,
    limit: usize,
}

/// Makes the channel anew after it broke and gives the receiver its end of it; `None` if there can be no other.
pub(super) type Connect = Box<dyn Fn() -> Option<Sink> + Send>;

/// For both halves in one process: a channel by `make`, and what makes the next one.
pub(super) fn channels(
    make: impl Fn() -> Option<(Sink, Source)> + Send + 'static,
) -> (Connect, mpsc::UnboundedReceiver<Source>) {
    // Not flume: what waits in this queue is dropped with its receiver, and the sender learns that nobody reads.
    let (send, sources) = mpsc::unbounded_channel();
    let connect = Box::new(move || {
        let (sink, source) = make()?;
        send.send(source).ok()?;
        // If the receiver goes in just that moment, the queue may keep a source that nobody drops.
        (!send.is_closed()).then_some(sink)
    });
    (connect, sources)
}

pub(super) fn start(sink: Sink, connect: Connect, options: LinkOptions) -> LinkSender {
    let (send, recv) = mpsc::channel(options.capacity);
    let (kept, limit) = (Arc::new(AtomicUsize::new(0)), sink.limit());
    let outgoing = Outgoing { sink, connect, next: 0, put: 0, asked: 0, held_back: None, options };
    tokio::spawn(pump(recv, Sender::new(LIMITS), outgoing, Arc::clone(&kept)));
    LinkSender { queue: send, kept, limit }
}

impl PayloadSender for LinkSender {
    fn put(&self, payload: Payload) -> Result<(), TransportError> {
        let got = payload.bytes() + AROUND;
        if got > self.limit {
            return Err(TransportError::TooLarge { got, limit: self.limit });
        }
        self.queue.try_send(payload).map_err(|error| match error {
            TrySendError::Full(_) => TransportError::Full(self.waiting()),
            TrySendError::Closed(_) => TransportError::Closed,
        })
    }

    fn queued(&self) -> usize {
        self.waiting() + self.kept.load(Ordering::Relaxed)
    }
}

impl LinkSender {
    /// Payloads that nobody has taken off the queue.
    fn waiting(&self) -> usize {
        self.queue.max_capacity() - self.queue.capacity()
    }
}

/// Runs until nobody can put any more and all is acknowledged, or the channel breaks and there is no other.
async fn pump(
    mut queue: mpsc::Receiver<Payload>,
    mut sender: Sender<Payload>,
    mut outgoing: Outgoing,
    kept: Arc<AtomicUsize>,
) {
    let broken = loop {
        match turn(&mut queue, &mut sender, &mut outgoing, &kept).await {
            Ok(true) => {}
            Ok(false) => return,
            Err(error) if outgoing.reconnected() => {
                // What was on the channel is gone. The receiver hears that it broke, and whoever reads there goes down with
                // the embeddings that this was for.
                tracing::warn!(payloads = sender.unacknowledged(), %error, "an edge broke and is made anew");
                sender = Sender::new(LIMITS);
                kept.store(0, Ordering::Relaxed);
            }
            Err(error) => break error,
        }
    };
    // From here on nothing is taken on: each payload is either refused or among those that are reported.
    queue.close();
    let mut waiting: Vec<Payload> = sender.abandon().collect();
    while let Some(payload) = queue.recv().await {
        waiting.push(payload);
    }
    kept.store(0, Ordering::Relaxed);
    if !waiting.is_empty() {
        tracing::warn!(payloads = waiting.len(), error = %broken, "an edge broke");
    }
    for payload in waiting {
        outgoing.lost(&payload, &broken.to_string());
    }
}

/// Sends what is there to be sent and waits for news; `false` when there can be none.
async fn turn(
    queue: &mut mpsc::Receiver<Payload>,
    sender: &mut Sender<Payload>,
    outgoing: &mut Outgoing,
    kept: &AtomicUsize,
) -> Result<bool, TransportError> {
    outgoing.hear(sender);
    loop {
        while sender.has_room()
            && let Ok(payload) = queue.try_recv()
        {
            outgoing.take(payload, sender).await;
        }
        kept.store(sender.unacknowledged(), Ordering::Relaxed);
        match sender.action() {
            Some(Action::Send { seq, behind, item }) => {
                if seq < outgoing.next {
                    outgoing.options.metrics.repeated.increment(1);
                }
                outgoing.next = outgoing.next.max(seq + 1);
                outgoing.send(seq, behind, item).await?;
            }
            Some(Action::GiveUp(payload)) => {
                outgoing.lost(&payload, &format!("it did not get through in {} attempts", LIMITS.attempts));
            }
            None => break,
        }
    }
    let (idle, ended) = (sender.unacknowledged() == 0, queue.is_closed() && queue.is_empty());
    if idle && ended {
        return Ok(false);
    }
    tokio::select! {
        payload = queue.recv(), if sender.has_room() && !ended => {
            if let Some(payload) = payload {
                outgoing.take(payload, sender).await;
            }
        }
        rung = outgoing.sink.rung() => rung?,
        () = tokio::time::sleep(LOOK), if !idle => outgoing.look(sender),
    }
    Ok(true)
}

/// The way onto the channel.
struct Outgoing {
    sink: Sink,
    connect: Connect,
    /// The first number that has never been sent.
    next: u64,
    /// Frames put on the channel.
    put: u64,
    /// How often the receiver had asked when last heard.
    asked: u32,
    /// A frame that a fault lets the next one overtake.
    held_back: Option<Vec<u8>>,
    options: LinkOptions,
}

impl Outgoing {
    /// Whether there is another channel, on which everything begins again.
    fn reconnected(&mut self) -> bool {
        let Some(sink) = (self.connect)() else { return false };
        self.sink = sink;
        (self.next, self.put, self.asked, self.held_back) = (0, 0, 0, None);
        true
    }

    /// What the receiver says.
    fn hear(&mut self, sender: &mut Sender<Payload>) {
        let feedback = self.sink.feedback();
        sender.acknowledged(feedback.expected);
        if feedback.asked != self.asked {
            self.asked = feedback.asked;
            sender.missed();
        }
    }

    /// Nothing has been heard for a while: if the receiver has dealt with all that is on the channel, what it has not
    /// acknowledged was lost.
    fn look(&mut self, sender: &mut Sender<Payload>) {
        if self.sink.feedback().seen >= self.put {
            self.hear(sender);
            sender.missed();
        }
    }

    /// Takes a payload on, its embeddings in the host's memory. One that cannot be sent is lost at once.
    async fn take(&mut self, mut payload: Payload, sender: &mut Sender<Payload>) {
        for part in &mut payload.parts {
            if let Part::Embeddings(embeddings @ Embeddings::Device(_)) = part {
                match embeddings.clone().fetched().await {
                    Ok(here) => *embeddings = here,
                    Err(error) => return self.lost(&payload, &error.to_string()),
                }
            }
        }
        let limit = self.sink.limit();
        match Frame::new(&payload).map(|frame| ENVELOPE + frame.len()) {
            Ok(len) if len <= limit => sender.push(payload),
            Ok(got) => self.lost(&payload, &TransportError::TooLarge { got, limit }.to_string()),
            Err(error) => self.lost(&payload, &error.to_string()),
        }
    }

    fn lost(&self, payload: &Payload, why: &str) {
        self.options.metrics.lost.increment(1);
        let header = &payload.header;
        let reason = format!("the {} from {} on could not be sent: {why}", header.kind.as_str(), header.seq);
        (self.options.lost)(header.request, reason);
    }

    async fn send(&mut self, seq: u64, behind: u32, payload: &Payload) -> Result<(), TransportError> {
        let frame = Frame::new(payload)?;
        let len = ENVELOPE + frame.len();
        let write = |place: &mut [u8]| {
            let (envelope, rest) = place.split_at_mut(ENVELOPE);
            envelope.copy_from_slice(&sealed(seq, behind));
            frame.write(rest)
        };
        let header = &payload.header;
        match self.options.fault.occurs(|| [FaultEvent::units(header.request, header.seq, header.end.is_some())]) {
            None => self.put(len, write).await?,
            Some(hit) => {
                let mut bytes = vec![0; len];
                write(&mut bytes)?;
                self.harm(hit.kind, bytes).await?;
            }
        }
        Ok(())
    }

    async fn harm(&mut self, kind: FaultKind, mut frame: Vec<u8>) -> Result<(), TransportError> {
        match kind {
            FaultKind::Drop => return Ok(()),
            FaultKind::Reorder if self.held_back.is_none() => {
                self.held_back = Some(frame);
                return Ok(());
            }
            FaultKind::Delay(pause) => tokio::time::sleep(pause).await,
            FaultKind::Duplicate => self.put_bytes(&frame).await?,
            FaultKind::Corrupt => {
                // Somewhere else each time, and the same in each run.
                let at = self.put as usize * 37 % frame.len();
                frame[at] ^= 0x55;
            }
            FaultKind::Cut => return Err(TransportError::Closed),
            // The rest is not for edges: the config refuses it.
            _ => {}
        }
        self.put_bytes(&frame).await
    }

    async fn put_bytes(&mut self, frame: &[u8]) -> Result<(), TransportError> {
        let copy = |place: &mut [u8]| {
            place.copy_from_slice(frame);
            Ok(())
        };
        self.put(frame.len(), copy).await
    }

    async fn put(
        &mut self,
        len: usize,
        write: impl FnOnce(&mut [u8]) -> Result<(), WireError> + Send,
    ) -> Result<(), TransportError> {
        self.sink.put(len, write).await?;
        self.put += 1;
        if let Some(overtaken) = self.held_back.take() {
            let copy = |place: &mut [u8]| {
                place.copy_from_slice(&overtaken);
                Ok(())
            };
            self.sink.put(overtaken.len(), copy).await?;
            self.put += 1;
        }
        Ok(())
    }
}

/// The envelope of a frame.
fn sealed(seq: u64, behind: u32) -> [u8; ENVELOPE] {
    let mut envelope = [0; ENVELOPE];
    envelope[..8].copy_from_slice(&seq.to_le_bytes());
    envelope[8..12].copy_from_slice(&behind.to_le_bytes());
    let checksum = crc32fast::hash(&envelope[..12]);
    envelope[12..].copy_from_slice(&checksum.to_le_bytes());
    envelope
}
