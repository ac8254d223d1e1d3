//! The half that sorts, drops what came twice, and asks for what is missing.

use super::Limits;
use std::cmp::Ordering;
use std::collections::{BTreeMap, VecDeque};

/// Puts frames in order.
#[derive(Debug)]
pub struct Receiver<T> {
    limits: Limits,
    expected: u64,
    early: BTreeMap<u64, T>,
    ready: VecDeque<T>,
    /// The gap that was last asked for.
    asked: Option<u64>,
}

/// What a frame turned out to be.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Arrival {
    /// Nothing is missing before it.
    InOrder,
    /// Something is missing before it; kept until that has come.
    Early,
    /// Seen before.
    Repeated,
    /// No frame that can have been sent.
    Impossible,
}

impl<T> Receiver<T> {
    /// Nothing received yet.
    pub fn new(limits: Limits) -> Receiver<T> {
        Receiver { limits, expected: 0, early: BTreeMap::new(), ready: VecDeque::new(), asked: None }
    }

    /// Frame `seq` has come from a sender that keeps the `behind` frames before it: says what it is, before anything is done
    /// with it. Older ones that are missing were given up and are not waited for any more.
    pub fn announced(&mut self, seq: u64, behind: u32) -> Arrival {
        let Some(base) = seq.checked_sub(behind.into()).filter(|_| behind < self.limits.window) else {
            return Arrival::Impossible;
        };
        if base > self.expected {
            while let Some(entry) = self.early.first_entry().filter(|entry| *entry.key() < base) {
                self.ready.push_back(entry.remove());
            }
            self.expected = base;
            self.in_order();
        }
        self.judge(seq)
    }

    /// An announced frame is whole.
    pub fn arrived(&mut self, seq: u64, item: T) -> Arrival {
        let what = self.judge(seq);
        if matches!(what, Arrival::InOrder | Arrival::Early) {
            self.early.insert(seq, item);
            self.in_order();
        }
        what
    }

    /// Whether to ask the sender for what is expected next, because something after it has come or a frame came damaged
    /// (`damaged`). True once for each gap: if that is lost too, the sender finds out.
    pub fn ask(&mut self, damaged: bool) -> bool {
        let missing = damaged || !self.early.is_empty();
        let ask = missing && self.asked != Some(self.expected);
        if ask {
            self.asked = Some(self.expected);
        }
        ask
    }

    /// The frame that is expected next: all before it have come or were given up.
    pub fn expected(&self) -> u64 {
        self.expected
    }

    /// The next frame in order.
    pub fn take(&mut self) -> Option<T> {
        self.ready.pop_front()
    }

    fn judge(&self, seq: u64) -> Arrival {
        match seq.cmp(&self.expected) {
            Ordering::Less => Arrival::Repeated,
            Ordering::Equal => Arrival::InOrder,
            Ordering::Greater if self.early.contains_key(&seq) => Arrival::Repeated,
            // What was announced is less than a window ahead.
            Ordering::Greater if seq - self.expected >= u64::from(self.limits.window) => Arrival::Impossible,
            Ordering::Greater => Arrival::Early,
        }
    }

    fn in_order(&mut self) {
        while let Some(item) = self.early.remove(&self.expected) {
            self.ready.push_back(item);
            self.expected += 1;
        }
    }
}
