//! Order on an edge: every payload of a request exactly once, in order, or the request fails clearly.

use crate::ids::{Generation, RequestId, Seq};
use std::collections::HashMap;

/// What to do with a payload that arrived.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Arrival {
    /// Take it.
    Next,
    /// Seen before, or from a stage that has been restarted since, or of a request that is gone: drop it.
    Stale,
    /// One or more before it are missing: the request cannot go on.
    Gap {
        /// The one that should have come.
        expected: Seq,
    },
}

/// The receiving end's memory of an edge.
#[derive(Debug, Default)]
pub struct SequenceCheck {
    generation: Generation,
    next: HashMap<RequestId, Seq>,
}

impl SequenceCheck {
    /// A request that may use the edge from now on.
    pub fn open(&mut self, request: RequestId) {
        self.next.insert(request, Seq(0));
    }

    /// A request that is gone.
    pub fn close(&mut self, request: RequestId) {
        self.next.remove(&request);
    }

    /// The sending stage was restarted: payloads of older generations are void.
    pub fn sender_restarted(&mut self, generation: Generation) {
        self.generation = self.generation.max(generation);
    }

    /// Judges a payload.
    pub fn arrived(&mut self, request: RequestId, generation: Generation, seq: Seq) -> Arrival {
        if generation < self.generation {
            return Arrival::Stale;
        }
        let Some(next) = self.next.get_mut(&request) else { return Arrival::Stale };
        match seq.cmp(next) {
            std::cmp::Ordering::Less => Arrival::Stale,
            std::cmp::Ordering::Greater => Arrival::Gap { expected: *next },
            std::cmp::Ordering::Equal => {
                next.0 += 1;
                Arrival::Next
            }
        }
    }

    /// Requests that may use the edge.
    pub fn open_requests(&self) -> usize {
        self.next.len()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const REQUEST: RequestId = RequestId(1);
    const NOW: Generation = Generation(2);

    fn check() -> SequenceCheck {
        let mut check = SequenceCheck::default();
        check.sender_restarted(NOW);
        check.open(REQUEST);
        check
    }

    #[test]
    fn each_payload_is_taken_once_and_in_order() {
        let mut check = check();
        let seen: Vec<_> = [0, 1, 1, 0, 2].map(|seq| check.arrived(REQUEST, NOW, Seq(seq))).into();
        assert_eq!(seen, [Arrival::Next, Arrival::Next, Arrival::Stale, Arrival::Stale, Arrival::Next]);
    }

    #[test]
    fn a_missing_payload_is_noticed() {
        let mut check = check();
        assert_eq!(check.arrived(REQUEST, NOW, Seq(1)), Arrival::Gap { expected: Seq(0) });
    }

    #[test]
    fn messages_of_a_dead_generation_and_of_dead_requests_are_dropped() {
        let mut check = check();
        assert_eq!(check.arrived(REQUEST, Generation(1), Seq(0)), Arrival::Stale);
        assert_eq!(check.arrived(RequestId(9), NOW, Seq(0)), Arrival::Stale);
        check.close(REQUEST);
        assert_eq!(check.arrived(REQUEST, NOW, Seq(0)), Arrival::Stale);
    }
}
