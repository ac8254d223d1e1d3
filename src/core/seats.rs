//! Which replica of a stage has the sequence of which request.
//!
//! A sequence can go on in any replica: it is a function of its request, its seed and its journal. So a new one goes to
//! the replica that is the least full with it, and those of a replica that goes down go to the others at once. Replicas
//! may differ in how many places they have: nodes are of different sizes.
//!
//! A stage that works in step with the one before it may keep to pairs of replicas: what one talker makes in a step is one
//! batch for one vocoder then, and not a part of a batch for each.

use crate::ids::RequestId;
use crate::random::mix;
use std::cmp::Ordering;
use std::collections::BTreeMap;

/// One replica.
#[derive(Clone, Debug, Default)]
struct Replica {
    /// Sequences that it runs at the same time; none while it takes none.
    places: u32,
    taken: usize,
}

impl Replica {
    fn is_up(&self) -> bool {
        self.places > 0
    }

    /// Which of two has the smaller part of its places taken when it has one sequence more.
    fn cmp_with_one_more(&self, other: &Replica) -> Ordering {
        let part = |its: &Replica, of: &Replica| (its.taken as u128 + 1) * u128::from(of.places);
        part(self, other).cmp(&part(other, self))
    }
}

/// The seats of one stage.
#[derive(Clone, Debug, Default)]
pub struct Seats {
    replicas: Vec<Replica>,
    seats: BTreeMap<RequestId, usize>,
    /// Which of several replicas that are as full is taken: the first, or the first in an order of this number.
    order: Option<u64>,
}

impl Seats {
    /// Of a stage with so many replicas, none of which is up.
    pub fn new(replicas: usize) -> Seats {
        Seats { replicas: vec![Replica::default(); replicas], seats: BTreeMap::new(), order: None }
    }

    /// The same with an order of its own among replicas that are as full. Gateways share nodes and do not know of each
    /// other: in one order, each would begin with the same node. It is one order and no turns, because a conversation
    /// that comes back to its replica finds its prompt there.
    #[must_use]
    pub fn in_order_of(self, number: u64) -> Seats {
        Seats { order: Some(number), ..self }
    }

    /// A replica takes sequences from now on and has places for so many, at least one; those that it had before are lost.
    pub fn up(&mut self, replica: usize, places: u32) {
        self.down(replica);
        if let Some(replica) = self.replicas.get_mut(replica) {
            replica.places = places.max(1);
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
        self.replicas.iter().any(Replica::is_up)
    }

    /// The replica that has the sequence of a request.
    pub fn of(&self, request: RequestId) -> Option<usize> {
        self.seats.get(&request).copied()
    }

    /// How many sequences a replica has; `None` while it takes none.
    pub fn taken(&self, replica: usize) -> Option<usize> {
        self.replicas.get(replica).filter(|replica| replica.is_up()).map(|replica| replica.taken)
    }

    /// How many places a replica has; none while it takes no sequences.
    pub fn places(&self, replica: usize) -> u32 {
        self.replicas.get(replica).map_or(0, |replica| replica.places)
    }

    /// Gives a request a seat: the one that it has, or one with the replica that is the least full with it. `None` while no
    /// replica is up.
    pub fn take(&mut self, request: RequestId) -> Option<usize> {
        self.take_beside(request, None)
    }

    /// The same, but with the replica `beside` if that is up, however full it is.
    pub fn take_beside(&mut self, request: RequestId, beside: Option<usize>) -> Option<usize> {
        if let Some(seat) = self.of(request) {
            return Some(seat);
        }
        let beside = beside.filter(|number| self.replicas.get(*number).is_some_and(Replica::is_up));
        let seat = beside.or_else(|| self.least_full())?;
        self.seats.insert(request, seat);
        self.replicas[seat].taken += 1;
        Some(seat)
    }

    /// The replica with the smallest part of its places taken when it has one sequence more.
    fn least_full(&self) -> Option<usize> {
        let up = self.replicas.iter().enumerate().filter(|(_, replica)| replica.is_up());
        let rank = |number: usize| self.order.map_or(number as u64, |order| mix(order, number as u64));
        let least = up.min_by(|(number, replica), (other_number, other)| {
            replica.cmp_with_one_more(other).then_with(|| rank(*number).cmp(&rank(*other_number)))
        });
        least.map(|(number, _)| number)
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
        seats.up(0, 4);
        seats.up(1, 4);
        let taken: Vec<_> = (1..=4).filter_map(|request| seats.take(RequestId(request))).collect();
        assert_eq!(taken, [0, 1, 0, 1]);
        assert_eq!(seats.take(RequestId(1)), Some(0), "it stays where it is");
        assert_eq!(seats.down(0), [RequestId(1), RequestId(3)]);
        assert_eq!((seats.of(RequestId(1)), seats.take(RequestId(1))), (None, Some(1)));
        seats.up(0, 4);
        assert_eq!(seats.take(RequestId(3)), Some(0));
        seats.leave(RequestId(1));
        assert_eq!(seats.of(RequestId(1)), None);
    }

    #[test]
    fn pairs_are_kept_while_both_of_a_pair_are_up() {
        let mut seats = Seats::new(2);
        (0..2).for_each(|replica| seats.up(replica, 1));
        let beside = |seats: &mut Seats, request, number| seats.take_beside(RequestId(request), Some(number));
        assert_eq!([1, 2].map(|request| beside(&mut seats, request, 1)), [Some(1); 2], "however full it is");
        assert_eq!(beside(&mut seats, 1, 0), Some(1), "it stays where it is");
        assert_eq!(seats.take(RequestId(3)), Some(0), "who has nobody beside it goes where there are fewest");
        assert_eq!(seats.down(1), [RequestId(1), RequestId(2)]);
        assert_eq!([(1, 1), (2, 7)].map(|(request, number)| beside(&mut seats, request, number)), [Some(0); 2]);
    }

    #[test]
    fn gateways_begin_with_different_replicas_and_each_with_the_same_one_again() {
        let first = |order: u64| {
            let mut seats = Seats::new(8).in_order_of(order);
            (0..4).for_each(|replica| seats.up(replica, 8));
            let first = seats.take(RequestId(1));
            seats.leave(RequestId(1));
            assert_eq!(seats.take(RequestId(2)), first);
            first
        };
        let firsts: std::collections::BTreeSet<_> = (0..32).map(first).collect();
        assert_eq!(firsts.into_iter().flatten().collect::<Vec<_>>(), [0, 1, 2, 3]);
    }

    #[test]
    fn a_replica_with_three_times_the_places_has_three_times_the_sequences() {
        let mut seats = Seats::new(3);
        seats.up(0, 8);
        seats.up(1, 24);
        let taken: Vec<_> = (0..16).filter_map(|request| seats.take(RequestId(request))).collect();
        assert_eq!((seats.taken(0), seats.taken(1)), (Some(4), Some(12)), "{taken:?}");
        assert_eq!(taken[..4], [1, 1, 0, 1]);
        // One more that joins empty is filled before the others get any.
        seats.up(2, 8);
        assert_eq!((16..20).filter_map(|request| seats.take(RequestId(request))).collect::<Vec<_>>(), [2; 4]);
        // One that has no place, by its own word, is used all the same where it is the only one.
        let mut seats = Seats::new(1);
        seats.up(0, 0);
        assert_eq!((seats.take(RequestId(1)), seats.take(RequestId(2))), (Some(0), Some(0)));
    }

    proptest! {
        #[test]
        fn every_seat_is_with_a_replica_that_is_up_and_the_counts_are_right(
            places in proptest::array::uniform3(1..6u32),
            moves in proptest::collection::vec((0..6u8, 0..3usize, 0..12u64), 1..200),
        ) {
            let mut seats = Seats::new(3);
            for (kind, replica, request) in moves {
                match kind {
                    0 => seats.up(replica, places[replica]),
                    1 => _ = seats.down(replica),
                    2 => seats.leave(RequestId(request)),
                    _ => {
                        let before = seats.of(RequestId(request));
                        let beside = (kind == 5).then_some(replica);
                        let seat = seats.take_beside(RequestId(request), beside);
                        prop_assert!(before.is_none() || before == seat, "it was moved without need");
                        prop_assert_eq!(seat.is_some(), seats.is_up());
                        let over = |replica: &Replica| replica.taken > replica.places as usize;
                        let has_room = |replica: &Replica| replica.taken < replica.places as usize;
                        if let (None, Some(seat)) = (before, seat) {
                            let waits = over(&seats.replicas[seat]) && seats.replicas.iter().any(has_room);
                            prop_assert!(beside == Some(seat) || !waits, "it waits, and another one has a place");
                        }
                    }
                }
                for (number, replica) in seats.replicas.iter().enumerate() {
                    let has = seats.seats.values().filter(|seat| **seat == number).count();
                    prop_assert_eq!(has, replica.taken);
                    prop_assert!(replica.is_up() || has == 0);
                }
            }
        }
    }
}
