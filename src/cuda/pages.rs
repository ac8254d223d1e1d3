//! The pages of a KV cache and the sequences that hold them. Pure: numbers, no device.
//!
//! A page holds 16 positions of one sequence over all layers. Pages that hold the beginning of a prompt can be shared:
//! a key identifies such a page by everything in front of its end. It stays when its sequences end; when pages run out,
//! the one unused for longest goes first.

use std::collections::HashMap;

/// Identifies the contents of a page of a prompt and of all pages before it: equal keys, equal contents.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct PageKey(pub [u8; 16]);

/// The pages of one cache.
#[derive(Debug)]
pub struct Pages {
    free: Vec<u32>,
    /// Sequences that use a page; kept pages that no sequence uses have 0.
    users: Vec<u32>,
    kept: HashMap<PageKey, Kept>,
    key_of: HashMap<u32, PageKey>,
    turn: u64,
}

#[derive(Debug)]
struct Kept {
    page: u32,
    /// When it was used last.
    used: u64,
}

impl Pages {
    /// `count` pages, all free.
    pub fn new(count: u32) -> Pages {
        Pages {
            free: (0..count).rev().collect(),
            users: vec![0; count as usize],
            kept: HashMap::new(),
            key_of: HashMap::new(),
            turn: 0,
        }
    }

    /// Pages in all.
    pub fn count(&self) -> usize {
        self.users.len()
    }

    /// Pages that can be allocated now: free, or kept and unused.
    pub fn available(&self) -> usize {
        self.free.len() + self.kept.values().filter(|kept| self.users[kept.page as usize] == 0).count()
    }

    /// Pages that sequences use now.
    pub fn in_use(&self) -> usize {
        self.users.iter().filter(|users| **users > 0).count()
    }

    /// A page for one sequence; `None` when all are in use.
    pub fn take(&mut self) -> Option<u32> {
        let page = self.free.pop().or_else(|| self.evict())?;
        self.users[page as usize] = 1;
        Some(page)
    }

    /// The pages that hold the longest known beginning of a prompt; the caller uses them from now on.
    pub fn shared(&mut self, keys: &[PageKey]) -> Vec<u32> {
        self.turn += 1;
        let mut pages = Vec::new();
        for key in keys {
            let Some(kept) = self.kept.get_mut(key) else { break };
            kept.used = self.turn;
            self.users[kept.page as usize] += 1;
            pages.push(kept.page);
        }
        pages
    }

    /// Registers the contents of a page in use, so that others can share it. Has no effect if a page with this key is
    /// kept already.
    pub fn keep(&mut self, key: PageKey, page: u32) {
        if !self.kept.contains_key(&key) && !self.key_of.contains_key(&page) {
            self.turn += 1;
            self.kept.insert(key, Kept { page, used: self.turn });
            self.key_of.insert(page, key);
        }
    }

    /// Releases a sequence's use of a page.
    pub fn give_back(&mut self, page: u32) {
        let users = &mut self.users[page as usize];
        *users = users.saturating_sub(1);
        if *users == 0 && !self.key_of.contains_key(&page) {
            self.free.push(page);
        }
    }

    /// The kept page that was unused for longest.
    fn evict(&mut self) -> Option<u32> {
        let unused = self.kept.iter().filter(|(_, kept)| self.users[kept.page as usize] == 0);
        let (key, page) = unused.min_by_key(|(_, kept)| kept.used).map(|(key, kept)| (*key, kept.page))?;
        self.kept.remove(&key);
        self.key_of.remove(&page);
        Some(page)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn key(n: u8) -> PageKey {
        PageKey([n; 16])
    }

    #[test]
    fn a_kept_page_is_shared_by_everybody_who_begins_alike() {
        let mut pages = Pages::new(4);
        let first = [pages.take().unwrap(), pages.take().unwrap()];
        pages.keep(key(1), first[0]);
        pages.keep(key(2), first[1]);
        assert_eq!(pages.shared(&[key(1), key(2), key(3)]), first);
        assert_eq!(pages.shared(&[key(2)]), [first[1]]);
        assert_eq!(pages.shared(&[key(3), key(1)]), [0; 0]);
    }

    #[test]
    fn the_kept_page_not_used_for_longest_goes_when_pages_run_out() {
        let mut pages = Pages::new(2);
        let [a, b] = [1, 2].map(|n| {
            let page = pages.take().unwrap();
            pages.keep(key(n), page);
            pages.give_back(page);
            page
        });
        assert_eq!(pages.shared(&[key(1)]), [a]);
        pages.give_back(a);
        assert_eq!(pages.take(), Some(b));
        assert_eq!(pages.shared(&[key(2)]), [0; 0]);
        assert_eq!(pages.shared(&[key(1)]), [a]);
        assert_eq!(pages.take(), None, "a page in use cannot be taken");
    }

    proptest! {
        #[test]
        fn no_page_is_lost_or_given_twice(moves in prop::collection::vec((0u8..4, 0u8..6), 0..200)) {
            let mut pages = Pages::new(8);
            let mut held: Vec<u32> = Vec::new();
            for (what, n) in moves {
                match what {
                    0 => held.extend(pages.take()),
                    1 if !held.is_empty() => pages.give_back(held.remove(n as usize % held.len())),
                    2 if !held.is_empty() => pages.keep(key(n), held[n as usize % held.len()]),
                    _ => held.extend(pages.shared(&[key(n)])),
                }
                let mut distinct = held.clone();
                distinct.sort_unstable();
                distinct.dedup();
                prop_assert_eq!(pages.in_use(), distinct.len());
                prop_assert_eq!(pages.available() + pages.in_use(), pages.count());
            }
        }
    }
}
