//! Order on an edge: every unit of a request exactly once, in order, or the request fails clearly.
//!
//! A payload carries the position of its first unit, so packing the units of several steps into one payload changes
//! nothing, and a stage that starts again can tell where it goes on.

use crate::ids::{Attempt, RequestId, Seq};
use std::collections::HashMap;

/// What to do with a payload that arrived.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Arrival {
    /// Take it.
    Next,
    /// Seen before, or meant for an earlier sequence of the request, or of a request that is gone: drop it.
    Stale,
    /// One or more before it are missing: the request cannot go on.
    Gap {
        /// The one that should have come.
        expected: Seq,
    },
}

/// The receiving end's memory of an edge. Each sequence takes what is meant for it, from the unit on that it began with.
#[derive(Debug, Default)]
pub struct SequenceCheck {
    next: HashMap<RequestId, (Attempt, Seq)>,
}

impl SequenceCheck {
    /// A request whose sequence may use the edge from now on, `from` this unit.
    pub fn open(&mut self, request: RequestId, attempt: Attempt, from: Seq) {
        self.next.insert(request, (attempt, from));
    }

    /// A request that is gone.
    pub fn close(&mut self, request: RequestId) {
        self.next.remove(&request);
    }

    /// Judges a payload of `units` units, the first of which is number `seq`.
    pub fn arrived(&mut self, request: RequestId, attempt: Attempt, seq: Seq, units: u32) -> Arrival {
        let Some((_, next)) = self.next.get_mut(&request).filter(|(sequence, _)| *sequence == attempt) else {
            return Arrival::Stale;
        };
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
    const NOW: Attempt = Attempt(2);

    fn check() -> SequenceCheck {
        let mut check = SequenceCheck::default();
        check.open(REQUEST, NOW, Seq(0));
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
    fn a_sequence_that_goes_on_takes_what_is_meant_for_it_from_where_it_goes_on() {
        let mut check = check();
        assert_eq!(check.arrived(REQUEST, NOW, Seq(0), 3), Arrival::Next);
        check.open(REQUEST, Attempt(3), Seq(2));
        assert_eq!(check.arrived(REQUEST, NOW, Seq(3), 1), Arrival::Stale, "it was for the sequence before");
        assert_eq!(check.arrived(REQUEST, Attempt(3), Seq(2), 2), Arrival::Next);
    }

    #[test]
    fn what_is_for_sequences_that_are_gone_is_dropped() {
        let mut check = check();
        assert_eq!(check.arrived(REQUEST, Attempt(1), Seq(0), 1), Arrival::Stale);
        assert_eq!(check.arrived(RequestId(9), NOW, Seq(0), 1), Arrival::Stale);
        check.close(REQUEST);
        assert_eq!(check.arrived(REQUEST, NOW, Seq(0), 1), Arrival::Stale);
    }
}
