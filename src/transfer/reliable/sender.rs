//! The half that numbers, keeps and repeats.

use super::Limits;
use std::collections::VecDeque;

/// Keeps frames until they are acknowledged.
#[derive(Debug)]
pub struct Sender<T> {
    limits: Limits,
    /// Number of the first frame in `kept`.
    base: u64,
    kept: VecDeque<T>,
    /// The next frame that has never been sent.
    unsent: u64,
    /// How often the frame at `base` has been sent.
    attempts: u32,
    /// The frame at `base` is to be sent again.
    again: bool,
}

/// What to do next.
#[derive(Debug, PartialEq, Eq)]
pub enum Action<'a, T> {
    /// Put this frame on the channel.
    Send {
        /// Its number.
        seq: u64,
        /// How many frames back the oldest is that can still be repeated.
        behind: u32,
        /// What it is.
        item: &'a T,
    },
    /// This could not be delivered.
    GiveUp(T),
}

impl<T> Sender<T> {
    /// Nothing sent yet.
    pub fn new(limits: Limits) -> Sender<T> {
        Sender { limits, base: 0, kept: VecDeque::new(), unsent: 0, attempts: 0, again: false }
    }

    /// Whether another frame may be pushed now.
    pub fn has_room(&self) -> bool {
        self.kept.len() < self.limits.window as usize
    }

    /// Takes a frame on. One without room is taken as well: it is for the caller to wait.
    pub fn push(&mut self, item: T) {
        self.kept.push_back(item);
    }

    /// Frames that are not acknowledged.
    pub fn unacknowledged(&self) -> usize {
        self.kept.len()
    }

    /// The receiver expects frame `next`. A number that cannot be is ignored.
    pub fn acknowledged(&mut self, next: u64) {
        if next <= self.base || next > self.unsent {
            return;
        }
        self.kept.drain(..(next - self.base) as usize);
        self.base = next;
        // Whatever comes first now has been sent once or not at all.
        self.attempts = u32::from(self.base < self.unsent);
        self.again = false;
    }

    /// The oldest frame has to be sent again, because the receiver asks for it or because the channel is empty and it has
    /// not been acknowledged.
    pub fn missed(&mut self) {
        self.again = self.base < self.unsent;
    }

    /// What to do next; `None`: wait.
    pub fn action(&mut self) -> Option<Action<'_, T>> {
        if self.again && self.attempts >= self.limits.attempts {
            self.again = false;
            let item = self.kept.pop_front()?;
            self.base += 1;
            self.attempts = u32::from(self.base < self.unsent);
            return Some(Action::GiveUp(item));
        }
        let seq = if self.again { self.base } else { self.unsent };
        let item = self.kept.get((seq - self.base) as usize)?;
        if seq == self.base {
            self.attempts += 1;
        }
        self.again = false;
        self.unsent = self.unsent.max(seq + 1);
        Some(Action::Send { seq, behind: (seq - self.base) as u32, item })
    }

    /// Whatever has not been acknowledged, when the channel is gone.
    pub fn abandon(&mut self) -> impl Iterator<Item = T> + '_ {
        self.base = self.unsent;
        self.kept.drain(..)
    }
}
