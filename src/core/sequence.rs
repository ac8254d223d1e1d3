//! Order on an edge: every unit of a request exactly once, in order, or the request fails clearly.
//!
//! A payload carries the position of its first unit, so packing the units of several steps into one payload changes
//! nothing, and a stage that starts again can tell where it goes on. A sender that may lose its last payload says how
//! far it has come ([`SequenceCheck::sent`]), so a loss behind which nothing follows is noticed as well.

use crate::ids::{Attempt, RequestId, Seq};
use std::cmp::Ordering;
use std::collections::HashMap;

/// What to do with a payload that arrived.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Arrival {
    /// Take it.
    Next,
    /// Seen before, or meant for an earlier sequence of the request, or of a request that is gone: drop it.
    Stale,
    /// One or more before it are missing: the sequence cannot go on.
    Gap {
        /// The one that should have come.
        expected: Seq,
    },
}

/// The receiving end's memory of an edge. Each sequence takes what is meant for it, from the unit on that it began
/// with.
#[derive(Debug, Default)]
pub struct SequenceCheck {
    positions: HashMap<RequestId, Position>,
}

#[derive(Debug)]
struct Position {
    attempt: Attempt,
    next: Seq,
    /// The end of the input has come.
    ended: bool,
}

impl SequenceCheck {
    /// A request whose sequence may use the edge from now on, `from` this unit.
    pub fn open(&mut self, request: RequestId, attempt: Attempt, from: Seq) {
        self.positions.insert(request, Position { attempt, next: from, ended: false });
    }

    /// A request that is gone.
    pub fn close(&mut self, request: RequestId) {
        self.positions.remove(&request);
    }

    /// Judges a payload of `units` units, the first of which is number `seq`; `end`: the input ends with it.
    pub fn arrived(&mut self, request: RequestId, attempt: Attempt, seq: Seq, units: u32, end: bool) -> Arrival {
        let Some(position) = self.position(request, attempt) else { return Arrival::Stale };
        match seq.cmp(&position.next) {
            Ordering::Less => Arrival::Stale,
            Ordering::Greater => Arrival::Gap { expected: position.next },
            // An end without units may come twice.
            Ordering::Equal if position.ended => Arrival::Stale,
            Ordering::Equal => {
                position.next.0 += units;
                position.ended = end;
                Arrival::Next
            }
        }
    }

    /// The sender has sent everything before unit `next`, and the end of the input if `ended`: the unit that should
    /// have come if something of that is missing.
    pub fn sent(&mut self, request: RequestId, attempt: Attempt, next: Seq, ended: bool) -> Option<Seq> {
        let position = self.position(request, attempt)?;
        (next > position.next || (ended && !position.ended)).then_some(position.next)
    }

    /// Requests whose sequences may use the edge.
    pub fn open_positions(&self) -> usize {
        self.positions.len()
    }

    fn position(&mut self, request: RequestId, attempt: Attempt) -> Option<&mut Position> {
        self.positions.get_mut(&request).filter(|position| position.attempt == attempt)
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
            .map(|(seq, units)| check.arrived(REQUEST, NOW, Seq(seq), units, false))
            .into();
        assert_eq!(seen, [Arrival::Next, Arrival::Next, Arrival::Stale, Arrival::Stale, Arrival::Next]);
    }

    #[test]
    fn missing_units_are_noticed() {
        let mut check = check();
        assert_eq!(check.arrived(REQUEST, NOW, Seq(1), 1, false), Arrival::Gap { expected: Seq(0) });
    }

    #[test]
    fn a_loss_behind_which_nothing_follows_is_noticed() {
        let mut check = check();
        check.arrived(REQUEST, NOW, Seq(0), 2, false);
        assert_eq!(check.sent(REQUEST, NOW, Seq(2), false), None, "all of it came");
        assert_eq!(check.sent(REQUEST, NOW, Seq(3), false), Some(Seq(2)), "the last unit is missing");
        assert_eq!(check.sent(REQUEST, NOW, Seq(2), true), Some(Seq(2)), "the end is missing, which may have no units");
        assert_eq!(check.sent(REQUEST, Attempt(1), Seq(9), true), None, "it was for the sequence before");
        assert_eq!(check.arrived(REQUEST, NOW, Seq(2), 0, true), Arrival::Next);
        assert_eq!(check.arrived(REQUEST, NOW, Seq(2), 0, true), Arrival::Stale, "the end came twice");
        assert_eq!(check.sent(REQUEST, NOW, Seq(2), true), None);
    }

    #[test]
    fn a_sequence_that_goes_on_takes_what_is_meant_for_it_from_where_it_goes_on() {
        let mut check = check();
        assert_eq!(check.arrived(REQUEST, NOW, Seq(0), 3, false), Arrival::Next);
        check.open(REQUEST, Attempt(3), Seq(2));
        assert_eq!(check.arrived(REQUEST, NOW, Seq(3), 1, false), Arrival::Stale, "it was for the sequence before");
        assert_eq!(check.arrived(REQUEST, Attempt(3), Seq(2), 2, false), Arrival::Next);
    }

    #[test]
    fn what_is_for_sequences_that_are_gone_is_dropped() {
        let mut check = check();
        assert_eq!(check.arrived(REQUEST, Attempt(1), Seq(0), 1, false), Arrival::Stale);
        assert_eq!(check.arrived(RequestId(9), NOW, Seq(0), 1, false), Arrival::Stale);
        check.close(REQUEST);
        assert_eq!(check.arrived(REQUEST, NOW, Seq(0), 1, false), Arrival::Stale);
    }
}
