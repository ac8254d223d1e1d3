//! Order on an edge: every unit of a request exactly once, in order, or the request fails clearly.
//!
//! A payload carries the position of its first unit, so packing the units of several steps into one payload changes
//! nothing, and a stage that starts again can tell where it goes on.

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

/// The receiving end's memory of an edge. Once a payload of a generation has come, older ones are void: the sender was
/// restarted in between.
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

    /// Judges a payload of `units` units, the first of which is number `seq`.
    pub fn arrived(&mut self, request: RequestId, generation: Generation, seq: Seq, units: u32) -> Arrival {
        if generation < self.generation {
            return Arrival::Stale;
        }
        self.generation = generation;
        let Some(next) = self.next.get_mut(&request) else { return Arrival::Stale };
        match seq.cmp(next) {
            std::cmp::Ordering::Less => Arrival::Stale,
            std::cmp::Ordering::Greater => Arrival::Gap { expected: *next },
            std::cmp::Ordering::Equal => {
                next.0 += units;
                Arrival::Next
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const REQUEST: RequestId = RequestId(1);
    const NOW: Generation = Generation(2);

    fn check() -> SequenceCheck {
        let mut check = SequenceCheck::default();
        check.open(RequestId(2));
        check.arrived(RequestId(2), NOW, Seq(0), 1);
        check.open(REQUEST);
        check
    }

    #[test]
    fn each_unit_is_taken_once_and_in_order() {
        let mut check = check();
        let seen: Vec<_> = [(0, 3), (3, 1), (3, 1), (0, 3), (4, 2)]
            .map(|(seq, units)| check.arrived(REQUEST, NOW, Seq(seq), units))
            .into();
        assert_eq!(seen, [Arrival::Next, Arrival::Next, Arrival::Stale, Arrival::Stale, Arrival::Next]);
    }

    #[test]
    fn missing_units_are_noticed() {
        let mut check = check();
        assert_eq!(check.arrived(REQUEST, NOW, Seq(1), 1), Arrival::Gap { expected: Seq(0) });
    }

    #[test]
    fn messages_of_a_dead_generation_and_of_dead_requests_are_dropped() {
        let mut check = check();
        assert_eq!(check.arrived(REQUEST, Generation(1), Seq(0), 1), Arrival::Stale);
        assert_eq!(check.arrived(RequestId(9), NOW, Seq(0), 1), Arrival::Stale);
        check.close(REQUEST);
        assert_eq!(check.arrived(REQUEST, NOW, Seq(0), 1), Arrival::Stale);
    }
}
