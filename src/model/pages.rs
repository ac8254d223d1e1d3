//! The pages of a KV cache on a device and the sequences that hold them. Pure: numbers, no device.
//!
//! A page holds [`PAGE`] positions of a sequence over all layers. One that is complete can be *kept* under a key that
//! stands for everything in front of its end: sequences that begin alike use it together, and it stays when they have
//! ended. Kept pages that no sequence uses are *idle*; they are bounded in number, and the one that was used longest ago
//! goes first, also when a sequence wants a page and none is free. A page is of use only with all pages before it, so of
//! those that were used in the same turn the deepest goes first.
//!
//! Must never: give a page to a sequence that writes it while it is kept or another sequence uses it.

use std::cmp::Reverse;
use std::collections::{BTreeSet, HashMap};
use std::hash::Hash;

/// Positions of a page: `PAGE` of the kernels for attention.
pub const PAGE: usize = 16;

/// When a page was used last, how deep it is in its sequence, and which it is: the least idle one goes first.
type Rank<K> = (u64, Reverse<u32>, K);

/// The pages of one cache.
#[derive(Debug)]
pub struct Pages<K> {
    free: Vec<u32>,
    pages: Vec<Page<K>>,
    kept: HashMap<K, Kept>,
    idle: BTreeSet<Rank<K>>,
    most_idle: usize,
    turns: u64,
}

#[derive(Clone, Debug)]
struct Page<K> {
    /// Sequences that use it.
    users: u32,
    /// What it is kept under.
    key: Option<K>,
}

#[derive(Clone, Copy, Debug)]
struct Kept {
    page: u32,
    depth: u32,
    /// The turn in which it was used last.
    used: u64,
}

impl<K: Copy + Eq + Hash + Ord> Pages<K> {
    /// `count` pages, all free, of which at most so many are ever idle.
    pub fn new(count: u32, most_idle: usize) -> Pages<K> {
        Pages {
            free: (0..count).rev().collect(),
            pages: vec![Page { users: 0, key: None }; count as usize],
            kept: HashMap::new(),
            idle: BTreeSet::new(),
            most_idle,
            turns: 0,
        }
    }

    /// Pages in all.
    pub fn count(&self) -> usize {
        self.pages.len()
    }

    /// Kept pages that no sequence uses.
    pub fn idle(&self) -> usize {
        self.idle.len()
    }

    /// Pages that can be allocated now: free, or idle.
    pub fn available(&self) -> usize {
        self.free.len() + self.idle.len()
    }

    /// Pages that sequences use now.
    pub fn in_use(&self) -> usize {
        self.count() - self.available()
    }

    /// Whether the contents of a page are kept.
    #[cfg(test)]
    pub(crate) fn is_kept(&self, page: u32) -> bool {
        self.pages[page as usize].key.is_some()
    }

    /// A turn behind all others.
    pub fn turn(&mut self) -> u64 {
        self.turns += 1;
        self.turns
    }

    /// A page for one sequence, which may write it; `None` when all are in use.
    pub fn take(&mut self) -> Option<u32> {
        let page = self.free.pop().or_else(|| self.evict())?;
        self.pages[page as usize].users = 1;
        Some(page)
    }

    /// The page that is kept under a key, which the caller uses from now on, in this turn.
    pub fn share(&mut self, key: &K, turn: u64) -> Option<u32> {
        if !self.touch(key, turn) {
            return None;
        }
        let Kept { page, depth, used } = self.kept.get(key).copied()?;
        let users = &mut self.pages[page as usize].users;
        if *users == 0 {
            self.idle.remove(&(used, Reverse(depth), *key));
        }
        *users += 1;
        Some(page)
    }

    /// The page that is kept under a key.
    pub fn find(&self, key: &K) -> Option<u32> {
        self.kept.get(key).map(|kept| kept.page)
    }

    /// [`Pages::share`] of the longest known beginning of a prompt, in a turn of its own.
    pub fn share_all(&mut self, keys: &[K]) -> Vec<u32> {
        let turn = self.turn();
        keys.iter().map_while(|key| self.share(key, turn)).collect()
    }

    /// Marks what is kept under a key as used in this turn; `false` if nothing is.
    pub fn touch(&mut self, key: &K, turn: u64) -> bool {
        let Some(kept) = self.kept.get_mut(key) else { return false };
        if kept.used < turn {
            if self.idle.remove(&(kept.used, Reverse(kept.depth), *key)) {
                self.idle.insert((turn, Reverse(kept.depth), *key));
            }
            kept.used = turn;
        }
        true
    }

    /// Keeps the contents of a page in use, which no step writes any more, in this turn: page number `depth` of its
    /// sequence. Has no effect where a page is kept under this key already, or this page under another.
    pub fn keep(&mut self, key: K, page: u32, (turn, depth): (u64, u32)) {
        let own = &mut self.pages[page as usize];
        if own.users > 0 && own.key.is_none() && !self.kept.contains_key(&key) {
            own.key = Some(key);
            self.kept.insert(key, Kept { page, depth, used: turn });
        }
    }

    /// Finds nothing under a key from now on. Sequences that use its page go on with it.
    pub fn forget(&mut self, key: &K) {
        let Some(Kept { page, depth, used }) = self.kept.remove(key) else { return };
        let own = &mut self.pages[page as usize];
        own.key = None;
        if own.users == 0 {
            self.idle.remove(&(used, Reverse(depth), *key));
            self.free.push(page);
        }
    }

    /// Releases a sequence's use of a page.
    pub fn give_back(&mut self, page: u32) {
        let own = &mut self.pages[page as usize];
        debug_assert!(own.users > 0, "page {page} was given back before");
        own.users = own.users.saturating_sub(1);
        if own.users > 0 {
            return;
        }
        match own.key.and_then(|key| Some((key, self.kept.get(&key)?))) {
            Some((key, kept)) => {
                self.idle.insert((kept.used, Reverse(kept.depth), key));
                if self.idle.len() > self.most_idle
                    && let Some(page) = self.evict()
                {
                    self.free.push(page);
                }
            }
            None => self.free.push(page),
        }
    }

    /// The idle page that goes first; it is neither kept nor free then.
    fn evict(&mut self) -> Option<u32> {
        let (_, _, key) = self.idle.pop_first()?;
        let page = self.kept.remove(&key)?.page;
        self.pages[page as usize].key = None;
        Some(page)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// A page of a sequence that has ended.
    fn idle(pages: &mut Pages<u8>, key: u8, depth: u32) -> u32 {
        let (page, turn) = (pages.take().unwrap(), pages.turn());
        pages.keep(key, page, (turn, depth));
        pages.give_back(page);
        page
    }

    #[test]
    fn a_kept_page_is_shared_by_everybody_who_begins_alike() {
        let mut pages = Pages::new(4, 4);
        let first = [pages.take().unwrap(), pages.take().unwrap()];
        pages.keep(1, first[0], (1, 0));
        pages.keep(2, first[1], (1, 1));
        assert_eq!(pages.share_all(&[1, 2, 3]), first);
        assert_eq!(pages.share_all(&[2]), [first[1]]);
        assert_eq!(pages.share_all(&[3, 1]), [0; 0]);
        assert_eq!((pages.in_use(), pages.idle()), (2, 0), "used three times, and twice");
    }

    #[test]
    fn the_idle_page_that_was_used_longest_ago_goes_when_pages_run_out() {
        let mut pages = Pages::new(2, 2);
        let [a, b] = [1, 2].map(|key| idle(&mut pages, key, 0));
        assert_eq!(pages.share_all(&[1]), [a]);
        pages.give_back(a);
        assert_eq!(pages.take(), Some(b));
        assert_eq!(pages.share_all(&[2]), [0; 0]);
        assert_eq!(pages.share_all(&[1]), [a]);
        assert_eq!(pages.take(), None, "a page in use cannot be taken");
    }

    #[test]
    fn of_one_turn_the_deepest_goes_first_and_no_more_are_idle_than_may_be() {
        let mut pages = Pages::new(8, 3);
        let held: Vec<u32> = (0..5).map(|_| pages.take().unwrap()).collect();
        for (depth, page) in held.iter().enumerate() {
            pages.keep(depth as u8, *page, (1, depth as u32));
        }
        held.into_iter().for_each(|page| pages.give_back(page));
        assert_eq!(pages.share_all(&[0, 1, 2, 3]).len(), 3, "the two deepest have gone");
        assert_eq!((pages.in_use(), pages.available()), (3, 5));
        let mut none = Pages::new(2, 0);
        idle(&mut none, 1, 0);
        assert_eq!((none.idle(), none.share_all(&[1])), (0, Vec::new()), "none may be idle");
    }

    #[test]
    fn what_is_forgotten_is_found_no_more_and_goes_on_for_those_who_use_it() {
        let mut pages = Pages::new(2, 2);
        let page = idle(&mut pages, 1, 0);
        assert_eq!(pages.share_all(&[1]), [page]);
        pages.forget(&1);
        assert_eq!((pages.share_all(&[1]), pages.in_use()), (Vec::new(), 1));
        pages.give_back(page);
        assert_eq!((pages.idle(), pages.available()), (0, 2));
        idle(&mut pages, 2, 0);
        pages.forget(&2);
        assert_eq!((pages.idle(), pages.available()), (0, 2), "one that was idle is free");
    }

    proptest! {
        #[test]
        fn no_page_is_lost_or_given_twice_and_what_is_used_stays(
            moves in prop::collection::vec((0u8..6, 0u8..6), 0..200), most in 0usize..10,
        ) {
            let mut pages = Pages::new(8, most);
            // The pages of sequences, and whether each is the only one that may write it.
            let mut held: Vec<u32> = Vec::new();
            for (what, n) in moves {
                match what {
                    0 => {
                        let available = pages.available();
                        let taken = pages.take();
                        prop_assert!(taken.is_none_or(|page| !held.contains(&page)), "given while it is used");
                        prop_assert_eq!(taken.is_some(), available > 0, "what is idle goes before none is given");
                        held.extend(taken);
                    }
                    1 if !held.is_empty() => pages.give_back(held.remove(n as usize % held.len())),
                    2 if !held.is_empty() => {
                        let turn = pages.turn();
                        pages.keep(n, held[n as usize % held.len()], (turn, u32::from(n)));
                    }
                    3 => pages.forget(&n),
                    4 => {
                        let turn = pages.turn();
                        pages.touch(&n, turn);
                    }
                    _ => held.extend(pages.share_all(&[n])),
                }
                let distinct: std::collections::HashSet<u32> = held.iter().copied().collect();
                prop_assert_eq!(pages.in_use(), distinct.len());
                prop_assert_eq!(pages.available() + pages.in_use(), pages.count());
                prop_assert!(pages.idle() <= most);
                prop_assert!(pages.free.iter().all(|page| !distinct.contains(page)));
                for (key, kept) in &pages.kept {
                    prop_assert_eq!(pages.pages[kept.page as usize].key, Some(*key));
                    let idle = pages.idle.contains(&(kept.used, Reverse(kept.depth), *key));
                    prop_assert_eq!(idle, !distinct.contains(&kept.page));
                }
            }
        }
    }
}
