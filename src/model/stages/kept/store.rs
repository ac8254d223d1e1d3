//! A bounded store of blocks that follow each other in chains, of which those that were used longest ago go first. Pure:
//! it knows keys and sizes, not what a block is.
//!
//! A block is of use only together with all blocks before it. So of blocks that were used in the same turn the deepest
//! goes first, and a block is taken in only behind one that is there.

use std::cmp::Reverse;
use std::collections::{BTreeSet, HashMap};

/// What a block is known by: a hash of all that it and the blocks before it were computed from.
pub(super) type Key = [u8; 32];

/// When a block was used last, how deep it is in its chain, and which it is: the least of a store goes first.
type Rank = (u64, Reverse<u32>, Key);

/// See the module.
#[derive(Debug)]
pub(super) struct Store<B> {
    most: usize,
    bytes: usize,
    blocks: HashMap<Key, Entry<B>>,
    order: BTreeSet<Rank>,
    turns: u64,
}

#[derive(Debug)]
struct Entry<B> {
    block: B,
    bytes: usize,
    depth: u32,
    used: u64,
}

impl<B> Store<B> {
    /// Room for so many bytes.
    pub fn new(most: usize) -> Store<B> {
        Store { most, bytes: 0, blocks: HashMap::new(), order: BTreeSet::new(), turns: 0 }
    }

    /// Bytes of all blocks.
    pub fn bytes(&self) -> usize {
        self.bytes
    }

    /// A turn behind all others.
    pub fn turn(&mut self) -> u64 {
        self.turns += 1;
        self.turns
    }

    /// A block, which is used in this turn.
    pub fn get(&mut self, key: &Key, turn: u64) -> Option<&B> {
        let entry = self.blocks.get_mut(key)?;
        if entry.used < turn {
            self.order.remove(&(entry.used, Reverse(entry.depth), *key));
            self.order.insert((turn, Reverse(entry.depth), *key));
            entry.used = turn;
        }
        Some(&entry.block)
    }

    /// Makes room for a new block of so many bytes at this depth, behind the block `before`, and hands what went to
    /// `gone`. `false`: it is not to be taken in, because there is no such block, or because it would take the place of
    /// what was used later.
    pub fn make_room(
        &mut self,
        before: Option<&Key>,
        (turn, depth): (u64, u32),
        bytes: usize,
        mut gone: impl FnMut(B),
    ) -> bool {
        if bytes > self.most || before.is_some_and(|before| self.get(before, turn).is_none()) {
            return false;
        }
        while self.bytes + bytes > self.most {
            let Some(least) = self.order.first().copied() else { return false };
            if (least.0, least.1) >= (turn, Reverse(depth)) {
                return false;
            }
            self.remove(&least.2).map(&mut gone);
        }
        true
    }

    /// Takes a block in that there is [room](Store::make_room) for.
    pub fn insert(&mut self, key: Key, block: B, (used, depth): (u64, u32), bytes: usize) {
        self.remove(&key);
        self.order.insert((used, Reverse(depth), key));
        self.bytes += bytes;
        self.blocks.insert(key, Entry { block, bytes, depth, used });
    }

    /// Takes a block out.
    pub fn remove(&mut self, key: &Key) -> Option<B> {
        let entry = self.blocks.remove(key)?;
        self.order.remove(&(entry.used, Reverse(entry.depth), *key));
        self.bytes -= entry.bytes;
        Some(entry.block)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const SIZE: usize = 10;

    /// Chain `chain`, block `depth`.
    fn key(chain: u8, depth: u32) -> Key {
        let mut key = [chain; 32];
        key[0] = depth as u8;
        key
    }

    /// Uses and extends a chain to `len` blocks in a turn of its own; how many of them are there at last.
    fn converse(store: &mut Store<()>, chain: u8, len: u32) -> usize {
        let turn = store.turn();
        for depth in 0..len {
            let before = depth.checked_sub(1).map(|before| key(chain, before));
            if store.get(&key(chain, depth), turn).is_none()
                && store.make_room(before.as_ref(), (turn, depth), SIZE, drop)
            {
                store.insert(key(chain, depth), (), (turn, depth), SIZE);
            }
        }
        there(store, chain, len)
    }

    fn there(store: &Store<()>, chain: u8, len: u32) -> usize {
        (0..len).take_while(|depth| store.blocks.contains_key(&key(chain, *depth))).count()
    }

    #[test]
    fn the_end_of_the_conversation_that_was_used_longest_ago_goes_first() {
        let mut store = Store::new(6 * SIZE);
        assert_eq!([converse(&mut store, 1, 3), converse(&mut store, 2, 3)], [3, 3]);
        assert_eq!(converse(&mut store, 1, 4), 4, "used again, and longer");
        assert_eq!((there(&store, 1, 4), there(&store, 2, 3)), (4, 2), "the last block of the other made room");
        assert_eq!(converse(&mut store, 3, 9), 6, "as much of a long one as there is room for");
        assert_eq!((there(&store, 1, 4), there(&store, 2, 3), store.bytes()), (0, 0, 6 * SIZE));
    }

    #[test]
    fn a_block_without_the_one_before_it_and_one_that_is_too_large_are_not_taken_in() {
        let mut store: Store<()> = Store::new(2 * SIZE);
        assert!(!store.make_room(Some(&key(1, 0)), (1, 1), SIZE, drop));
        assert!(!store.make_room(None, (1, 0), 2 * SIZE + 1, drop));
        assert!(store.make_room(None, (1, 0), 2 * SIZE, drop));
        assert!(!Store::<()>::new(0).make_room(None, (1, 0), 1, drop), "a store of nothing");
    }

    proptest! {
        #[test]
        fn bytes_are_bounded_and_counted_and_beginnings_stay(
            moves in prop::collection::vec((0u8..5, 1u32..9, any::<bool>()), 1..60), most in 0usize..12,
        ) {
            let mut store = Store::new(most * SIZE);
            for (chain, len, forget) in moves {
                if forget {
                    let mut forget = |depth| {
                        store.remove(&key(chain, depth));
                    };
                    (0..len).rev().for_each(&mut forget);
                    // What stood behind it is of no use any more.
                    (len..9).for_each(forget);
                } else {
                    let there = converse(&mut store, chain, len);
                    prop_assert_eq!(there, most.min(len as usize), "the latest goes before all others");
                }
                prop_assert!(store.bytes() <= most * SIZE);
                prop_assert_eq!(store.bytes(), store.blocks.len() * SIZE);
                prop_assert_eq!(store.order.len(), store.blocks.len());
                let beginnings: usize = (0..5).map(|chain| there(&store, chain, 9)).sum();
                prop_assert_eq!(beginnings, store.blocks.len(), "a block without the one before it");
            }
        }
    }
}
