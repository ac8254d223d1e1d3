//! Which replica of a stage has the sequence of which request.
//!
//! A sequence can go on in any replica: it is a function of its request, its seed and its journal. So a new one goes to
//! the replica that has the fewest, and those of a replica that goes down go to the others at once.

use crate::ids::RequestId;
use crate::random::mix;
use std::collections::BTreeMap;

/// One replica.
#[derive(Clone, Debug, Default)]
struct Replica {
    /// It takes sequences.
    is_up: bool,
    taken: usize,
}

/// The seats of one stage.
#[derive(Clone, Debug, Default)]
pub struct Seats {
    replicas: Vec<Replica>,
    seats: BTreeMap<RequestId, usize>,
    /// Which of several replicas with as few sequences is taken: the first, or the first in an order of this number.
    order: Option<u64>,
}

impl Seats {
    /// Of a stage with so many replicas, none of which is up.
    pub fn new(replicas: usize) -> Seats {
        Seats { replicas: vec![Replica::default(); replicas], seats: BTreeMap::new(), order: None }
    }

    /// The same with an order of its own among replicas that have as few. Gateways share nodes and do not know of each
    /// other: in one order, each would begin with the same node. It is one order and no turns, because a conversation
    /// that comes back to its replica finds its prompt there.
    #[must_use]
    pub fn in_order_of(self, number: u64) -> Seats {
        Seats { order: Some(number), ..self }
    }

    /// A replica takes sequences from now on; those that it had before are lost.
    pub fn up(&mut self, replica: usize) {
        self.down(replica);
        if let Some(replica) = self.replicas.get_mut(replica) {
            replica.is_up = true;
        }
    }

    /// A replica takes no sequences any more. Whose it had.
    pub fn down(&mut self, replica: usize) -> Vec<RequestId> {
        let Some(down) = self.replicas.get_mut(replica) else { return Vec::new() };
        *down = Replica::default();
        let lost: Vec<_> = self.seats.iter().filter(|(_, seat)| **seat == replica).map(|(id, _)| *id).collect();
        lost.iter().for_each(|request| _ = self.seats.remove(request));
        lost
    }

    /// Whether any replica takes sequences.
    pub fn is_up(&self) -> bool {
        self.replicas.iter().any(|replica| replica.is_up)
    }

    /// The replica that has the sequence of a request.
    pub fn of(&self, request: RequestId) -> Option<usize> {
        self.seats.get(&request).copied()
    }

    /// How many sequences a replica has; `None` while it takes none.
    pub fn taken(&self, replica: usize) -> Option<usize> {
        self.replicas.get(replica).filter(|replica| replica.is_up).map(|replica| replica.taken)
    }

    /// Gives a request a seat: the one that it has, or one with the replica that has the fewest sequences. `None` while no
    /// replica is up.
    pub fn take(&mut self, request: RequestId) -> Option<usize> {
        if let Some(seat) = self.of(request) {
            return Some(seat);
        }
        let up = self.replicas.iter().enumerate().filter(|(_, replica)| replica.is_up);
        let place = |number: usize| self.order.map_or(number as u64, |order| mix(order, number as u64));
        let (least, _) = up.min_by_key(|(number, replica)| (replica.taken, place(*number)))?;
        self.seats.insert(request, least);
        self.replicas[least].taken += 1;
        Some(least)
    }

    /// The request needs its seat no more.
    pub fn leave(&mut self, request: RequestId) {
        if let Some(seat) = self.seats.remove(&request)
            && let Some(replica) = self.replicas.get_mut(seat)
        {
            replica.taken = replica.taken.saturating_sub(1);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn new_sequences_go_where_there_are_fewest_and_lost_ones_to_those_that_are_left() {
        let mut seats = Seats::new(2);
        assert_eq!(seats.take(RequestId(1)), None, "no replica is up");
        seats.up(0);
        seats.up(1);
        let taken: Vec<_> = (1..=4).filter_map(|request| seats.take(RequestId(request))).collect();
        assert_eq!(taken, [0, 1, 0, 1]);
        assert_eq!(seats.take(RequestId(1)), Some(0), "it stays where it is");
        assert_eq!(seats.down(0), [RequestId(1), RequestId(3)]);
        assert_eq!((seats.of(RequestId(1)), seats.take(RequestId(1))), (None, Some(1)));
        seats.up(0);
        assert_eq!(seats.take(RequestId(3)), Some(0));
        seats.leave(RequestId(1));
        assert_eq!(seats.of(RequestId(1)), None);
    }

    #[test]
    fn gateways_begin_with_different_replicas_and_each_with_the_same_one_again() {
        let first = |order: u64| {
            let mut seats = Seats::new(8).in_order_of(order);
            (0..4).for_each(|replica| seats.up(replica));
            let first = seats.take(RequestId(1));
            seats.leave(RequestId(1));
            assert_eq!(seats.take(RequestId(2)), first);
            first
        };
        let firsts: std::collections::BTreeSet<_> = (0..32).map(first).collect();
        assert_eq!(firsts.into_iter().flatten().collect::<Vec<_>>(), [0, 1, 2, 3]);
    }

    proptest! {
        #[test]
        fn every_seat_is_with_a_replica_that_is_up_and_the_counts_are_right(
            moves in proptest::collection::vec((0..5u8, 0..3usize, 0..12u64), 1..200),
        ) {
            let mut seats = Seats::new(3);
            for (kind, replica, request) in moves {
                match kind {
                    0 => seats.up(replica),
                    1 => _ = seats.down(replica),
                    2 => seats.leave(RequestId(request)),
                    _ => {
                        let before = seats.of(RequestId(request));
                        let seat = seats.take(RequestId(request));
                        prop_assert!(before.is_none() || before == seat, "it was moved without need");
                        prop_assert_eq!(seat.is_some(), seats.is_up());
                    }
                }
                for (number, replica) in seats.replicas.iter().enumerate() {
                    let has = seats.seats.values().filter(|seat| **seat == number).count();
                    prop_assert_eq!(has, replica.taken);
                    prop_assert!(replica.is_up || has == 0);
                }
            }
        }
    }
}
