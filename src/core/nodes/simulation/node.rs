//! A node: gives shares of itself to gateways, and makes units of the sequences that they admit.

use super::gateway::{Payload, unit};
use crate::ids::{Attempt, RequestId, Seq, StageName};
use crate::nodes::Shares;
use crate::sequence::{Arrival, SequenceCheck};
use std::collections::{BTreeMap, VecDeque};
use std::time::Duration;

/// A link's number; none is used twice.
pub(super) type LinkId = u64;

/// What a gateway says on a link.
#[derive(Clone, Debug)]
pub(super) enum ToNode {
    /// A sequence of so many units, from the one on that is missing, with the input that there is.
    Admit { request: RequestId, attempt: Attempt, seed: u64, from: u32, units: u32, input: u32 },
    /// A unit of input, for this attempt.
    Input { request: RequestId, attempt: Attempt, seq: u32 },
    /// The sequence is not needed any more.
    Abort { request: RequestId },
}

pub(super) struct Node {
    /// Each start of it joins as another one.
    pub session: u32,
    pub is_up: bool,
    pub stalled_until: Duration,
    pub shares: Shares,
    pub links: BTreeMap<LinkId, Link>,
}

/// The node's end of a link.
pub(super) struct Link {
    pub gateway: usize,
    /// Of the gateway.
    pub life: u32,
    pub stage: StageName,
    pub heard: Duration,
    slots: usize,
    edge: SequenceCheck,
    sequences: BTreeMap<RequestId, Sequence>,
    waiting: VecDeque<(RequestId, Sequence)>,
}

struct Sequence {
    attempt: Attempt,
    seed: u64,
    next: u32,
    units: u32,
    input: u32,
    /// It will make a unit at a moment that is settled.
    is_due: bool,
}

impl Node {
    pub fn new(shares: usize) -> Node {
        Node {
            session: 0,
            is_up: true,
            stalled_until: Duration::ZERO,
            shares: Shares::new(shares),
            links: BTreeMap::new(),
        }
    }

    /// Ends; what comes back has another name.
    pub fn ends(&mut self, shares: usize) {
        *self = Node { session: self.session + 1, is_up: false, ..Node::new(shares) };
    }

    pub fn open(&mut self, id: LinkId, gateway: usize, life: u32, stage: StageName, slots: usize, now: Duration) {
        let (sequences, waiting) = (BTreeMap::new(), VecDeque::new());
        let edge = SequenceCheck::default();
        self.links.insert(id, Link { gateway, life, stage, heard: now, slots, edge, sequences, waiting });
    }

    /// Closes a link, with what it has.
    pub fn close(&mut self, id: LinkId) {
        if let Some(link) = self.links.remove(&id) {
            self.shares.give_back(&super::gateway::name(link.gateway, link.life), link.stage);
        }
    }

    /// Sequences here.
    pub fn sequences(&self) -> usize {
        self.links.values().map(|link| link.sequences.len() + link.waiting.len()).sum()
    }
}

impl Link {
    /// Takes a word; the sequences that make a unit soon because of it.
    ///
    /// # Errors
    /// Input is missing, which a link never loses.
    pub fn hears(&mut self, word: ToNode) -> Result<Vec<(RequestId, Attempt)>, String> {
        match word {
            ToNode::Admit { request, attempt, seed, from, units, input } => {
                self.remove(request);
                self.edge.open(request, attempt, Seq(input));
                self.waiting.push_back((request, Sequence { attempt, seed, next: from, units, input, is_due: false }));
            }
            ToNode::Input { request, attempt, seq } => match self.edge.arrived(request, attempt, Seq(seq), 1, false) {
                Arrival::Next => {
                    let waits = self.waiting.iter_mut().find(|(of, _)| *of == request).map(|(_, waits)| waits);
                    if let Some(its) = self.sequences.get_mut(&request).or(waits) {
                        its.input += 1;
                    }
                }
                Arrival::Stale => {}
                Arrival::Gap { expected } => {
                    return Err(format!(
                        "{} {request} {attempt}: input {seq} came where {expected} was due",
                        self.stage
                    ));
                }
            },
            ToNode::Abort { request } => self.remove(request),
        }
        Ok(self.turn())
    }

    fn remove(&mut self, request: RequestId) {
        self.edge.close(request);
        self.sequences.remove(&request);
        self.waiting.retain(|(waits, _)| *waits != request);
    }

    /// Sequences that can make a unit and have none on its way.
    fn turn(&mut self) -> Vec<(RequestId, Attempt)> {
        while self.sequences.len() < self.slots {
            let Some((request, sequence)) = self.waiting.pop_front() else { break };
            self.sequences.insert(request, sequence);
        }
        let idle = self.sequences.iter_mut().filter(|(_, its)| !its.is_due && its.next < its.input);
        idle.map(|(request, its)| {
            its.is_due = true;
            (*request, its.attempt)
        })
        .collect()
    }

    /// Makes the next unit of a sequence, if it is still that attempt; and the sequences that make one next.
    pub fn makes(&mut self, request: RequestId, attempt: Attempt) -> Option<(Payload, Vec<(RequestId, Attempt)>)> {
        let stage = self.stage;
        let its = self.sequences.get_mut(&request).filter(|its| its.attempt == attempt)?;
        its.is_due = false;
        let (seq, end) = (its.next, its.next + 1 == its.units);
        its.next += 1;
        let payload = Payload { stage, request, seq, value: unit(its.seed, stage, seq), end };
        if end {
            self.remove(request);
        }
        Some((payload, self.turn()))
    }
}
