//! The edges of a simulation, and what is counted on them: how far each producer is ahead of its consumer.

use super::super::journal::Edge;
use omni_core::ids::{RequestId, Seq, StageName};
use omni_core::random::Random;
use omni_core::scheduler::Ack;
use omni_stage::{AckSink, RELEASED};
use omni_transfer::payload::Payload;
use omni_transfer::transport::{Delivery, PayloadSender, Sent, TransportError};
use omni_transfer::wire;
use std::collections::{HashMap, VecDeque};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

pub(super) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// What the ledger puts on the edges, for the world to carry on.
pub(super) type Outbox = Arc<Mutex<Vec<(StageName, Payload)>>>;

/// The sending end of the edge into a stage.
pub(super) struct Into {
    pub stage: StageName,
    pub outbox: Outbox,
}

impl PayloadSender for Into {
    fn put(&self, payload: Payload) -> Result<(), TransportError> {
        lock(&self.outbox).push((self.stage, payload));
        Ok(())
    }
}

/// Units made and taken over, by request and edge; what is wrong with them.
#[derive(Default)]
pub(super) struct Windows {
    counts: HashMap<(RequestId, usize), Count>,
    /// Of each request that has not ended.
    pub prompts: HashMap<RequestId, Prompts>,
    /// Requests of which more was taken over on an edge than was made.
    pub over: Vec<(RequestId, Edge, u32, u32)>,
    /// Requests that are ahead on an edge by more than their window: how far they are, and how far they may be.
    pub ahead: Vec<(RequestId, Edge, u32, u32)>,
    /// Requests whose consumer on an edge took over more after it had let its producer go.
    pub again: Vec<(RequestId, Edge)>,
}

/// What the prompts of a request make and use.
#[derive(Clone, Copy, Debug)]
pub(super) struct Prompts {
    /// Embeddings that the thinker's prompt alone sends.
    pub emits: u32,
    /// Embeddings that the talker's prompt is made of.
    pub uses: u32,
    /// Embeddings of media that the thinker's prompt is made of, and how many of them are known before.
    pub rows: u32,
    /// See `rows`.
    pub known: u32,
}

#[derive(Default)]
struct Count {
    made: u32,
    acked: u32,
    released: bool,
    /// The consumer said that it takes no more.
    let_go: bool,
}

impl Windows {
    fn made(&mut self, request: RequestId, edge: Edge, upto: u32, most: u32) {
        let Some(prompts) = self.prompts.get(&request) else { return };
        let frames = self.counts.get(&(request, Edge::Codes as usize)).map_or(0, |codes| codes.made);
        let count = self.counts.entry((request, edge as usize)).or_default();
        count.made = count.made.max(upto);
        let (mut used, mut most) = (count.acked, most);
        if edge == Edge::Media {
            most += prompts.rows;
        }
        if edge == Edge::Embeddings {
            most += prompts.emits;
            // A talker that dies may not have told what its frames were made of: its prompt for the first, and a unit
            // for each of the others.
            used = used.max(if frames > 0 { prompts.uses + frames - 1 } else { 0 }.min(count.made));
        }
        if !count.released && count.made > used + most {
            self.ahead.push((request, edge, count.made, used + most));
        }
    }

    /// A stage has made all of its output: it needs no more input, whether it told so or died before.
    fn ended(&mut self, request: RequestId, edge: Edge) {
        let before = match edge {
            Edge::Codes => Edge::Embeddings,
            Edge::Audio => Edge::Codes,
            Edge::Text | Edge::Features | Edge::Media | Edge::Embeddings | Edge::Tokens => return,
        };
        if self.prompts.contains_key(&request) {
            self.counts.entry((request, before as usize)).or_default().released = true;
        }
    }

    /// A client has heard so many more frames.
    pub fn heard(&mut self, request: RequestId, frames: u32) {
        let before = self.counts.get(&(request, Edge::Audio as usize)).map_or(0, |count| count.acked);
        self.acked(request, Edge::Audio, before + frames);
    }

    /// A consumer took all units before this one over.
    fn acked(&mut self, request: RequestId, edge: Edge, upto: u32) {
        let Some(Prompts { rows, known, .. }) = self.prompts.get(&request).copied() else { return };
        // The edge into a thinker is another one where its prompt has media.
        let edge = if edge == Edge::Text && rows > 0 { Edge::Media } else { edge };
        let count = self.counts.entry((request, edge as usize)).or_default();
        if upto == RELEASED {
            (count.released, count.let_go) = (true, true);
            return;
        }
        if count.let_go && matches!(edge, Edge::Embeddings | Edge::Codes) {
            self.again.push((request, edge));
        }
        count.acked = count.acked.max(upto);
        // What a client gives is not counted here.
        let made = if edge == Edge::Media { count.made.max(known) } else { count.made };
        if count.acked > made && edge != Edge::Text && edge != Edge::Features {
            self.over.push((request, edge, count.acked, count.made));
        }
    }

    /// The request has ended.
    pub fn forget(&mut self, request: RequestId) {
        self.counts.retain(|(of, _), _| *of != request);
        self.prompts.remove(&request);
    }
}

/// The way out of a stage, counted.
pub(super) struct Counted {
    pub to: Arc<dyn PayloadSender>,
    pub windows: Arc<Mutex<Windows>>,
    /// Units that may be ahead.
    pub most: u32,
}

impl PayloadSender for Counted {
    fn put(&self, payload: Payload) -> Result<(), TransportError> {
        let header = payload.header;
        let edge = Edge::of(header.kind);
        if edge != Edge::Tokens {
            let mut windows = lock(&self.windows);
            windows.made(header.request, edge, header.seq.0 + header.units, self.most);
            if header.end.is_some() {
                windows.ended(header.request, edge);
            }
        }
        self.to.put(payload)
    }
}

/// Acknowledgements of a stage, counted.
pub(super) struct CountedAcks {
    pub to: Arc<dyn AckSink>,
    pub windows: Arc<Mutex<Windows>>,
    pub edge: Edge,
}

impl AckSink for CountedAcks {
    fn acked(&self, acks: &[Ack]) {
        let mut windows = lock(&self.windows);
        acks.iter().for_each(|ack| windows.acked(ack.request, self.edge, ack.upto));
        drop(windows);
        self.to.acked(acks);
    }
}

/// What happens to the next payload of an edge.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Trouble {
    Lost,
    Doubled,
    Overtaken,
    Damaged,
}

/// The edge into a stage: what is on its way.
pub(super) struct Wire {
    pub frames: bool,
    way: VecDeque<(Duration, Delivery)>,
    last: Duration,
    troubles: VecDeque<Trouble>,
    held_back: Option<Payload>,
    /// Faults that struck, by request.
    pub struck: HashMap<RequestId, u32>,
}

impl Wire {
    pub fn new(frames: bool) -> Wire {
        let (way, troubles) = (VecDeque::new(), VecDeque::new());
        Wire { frames, way, last: Duration::ZERO, troubles, held_back: None, struck: HashMap::new() }
    }

    /// A payload is put on the edge; returns when it arrives.
    pub fn put(&mut self, payload: Payload, now: Duration, random: &mut Random) -> Duration {
        self.last = self.last.max(now + random.micros(300));
        let header = payload.header;
        self.way.push_back((self.last, Delivery::Payload(payload)));
        if self.frames {
            let next = Seq(header.seq.0 + header.units);
            let sent = Sent { request: header.request, attempt: header.attempt, next, ended: header.end.is_some() };
            self.way.push_back((self.last, Delivery::Sent(vec![sent])));
        }
        self.last
    }

    /// All that is on its way comes so much later.
    pub fn delay(&mut self, pause: Duration) -> Duration {
        self.way.iter_mut().for_each(|(at, _)| *at += pause);
        self.last += pause;
        self.last
    }

    pub fn trouble(&mut self, trouble: Trouble, times: u32) {
        self.troubles.extend((0..times).map(|_| trouble));
    }

    /// What is on its way is gone.
    pub fn cut(&mut self) {
        self.way.clear();
        self.held_back = None;
    }

    pub fn is_empty(&self) -> bool {
        self.way.is_empty()
    }

    /// When the next delivery arrives.
    pub fn next(&self) -> Option<Duration> {
        self.way.front().map(|(at, _)| *at)
    }

    /// What arrives now, after what happened to it.
    pub fn take(&mut self, now: Duration) -> Vec<Delivery> {
        if self.way.front().is_none_or(|(at, _)| *at > now) {
            return Vec::new();
        }
        let Some((_, delivery)) = self.way.pop_front() else { return Vec::new() };
        let Delivery::Payload(payload) = delivery else { return vec![delivery] };
        let overtaken = self.held_back.take();
        let mut arrived = Vec::new();
        let trouble = self.troubles.pop_front();
        if trouble.is_some() {
            *self.struck.entry(payload.header.request).or_default() += 1;
        }
        match trouble {
            None => arrived.push(Delivery::Payload(payload)),
            Some(Trouble::Lost) => {}
            Some(Trouble::Doubled) => {
                let twin = Payload { header: payload.header, parts: payload.parts.clone(), leases: Vec::new() };
                arrived.extend([payload, twin].map(Delivery::Payload));
            }
            Some(Trouble::Overtaken) => self.held_back = Some(payload.detached()),
            Some(Trouble::Damaged) => arrived.extend(damaged(&payload)),
        }
        arrived.extend(overtaken.map(Delivery::Payload));
        arrived
    }

    /// Gives back what the stage does not take now.
    pub fn give_back(&mut self, now: Duration, deliveries: Vec<Delivery>) {
        deliveries.into_iter().rev().for_each(|delivery| self.way.push_front((now, delivery)));
    }
}

/// A payload whose bits change on the way, as the receiver sees it.
fn damaged(payload: &Payload) -> Option<Delivery> {
    let mut frame = Vec::from(wire::encode(payload).ok()?);
    let at = (payload.header.seq.0 as usize * 37 + payload.header.units as usize * 5) % frame.len();
    frame[at] ^= 0x55;
    Some(match wire::decode(&frame.into(), false) {
        Ok(payload) => Delivery::Payload(payload),
        Err(error) => Delivery::Broken(error),
    })
}
