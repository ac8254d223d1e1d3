//! Which parts of an arena are free: it takes the first free range that fits and merges neighbouring free ranges.

use std::collections::BTreeMap;
use std::ops::Range;

/// Free ranges by where they begin.
#[derive(Debug)]
pub(super) struct Ranges {
    free: BTreeMap<usize, usize>,
}

impl Ranges {
    /// All of `0..len` is free.
    pub fn new(len: usize) -> Ranges {
        Ranges { free: BTreeMap::from([(0, len)]) }
    }

    /// A range of `len`, at least 1; `None` if there is none.
    pub fn take(&mut self, len: usize) -> Option<Range<usize>> {
        let (start, have) =
            self.free.iter().map(|(start, have)| (*start, *have)).find(|(_, have)| *have >= len.max(1))?;
        self.free.remove(&start);
        if have > len {
            self.free.insert(start + len, have - len);
        }
        Some(start..start + len)
    }

    /// Takes back what was taken.
    pub fn give_back(&mut self, range: Range<usize>) {
        let (mut start, mut len) = (range.start, range.len());
        if let Some(behind) = self.free.remove(&range.end) {
            len += behind;
        }
        if let Some((before, have)) = self.free.range(..start).next_back().map(|(before, have)| (*before, *have))
            && before + have == start
        {
            self.free.remove(&before);
            (start, len) = (before, have + len);
        }
        self.free.insert(start, len);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn what_is_lent_never_overlaps_and_all_comes_back(steps in proptest::collection::vec((1..20usize, any::<bool>(), any::<usize>()), 1..200)) {
            let mut ranges = Ranges::new(100);
            let mut lent: Vec<Range<usize>> = Vec::new();
            for (len, give, which) in steps {
                if give && !lent.is_empty() {
                    ranges.give_back(lent.swap_remove(which % lent.len()));
                } else if let Some(range) = ranges.take(len) {
                    prop_assert!(range.end <= 100 && range.len() == len);
                    prop_assert!(lent.iter().all(|other| other.end <= range.start || range.end <= other.start));
                    lent.push(range);
                }
            }
            lent.into_iter().for_each(|range| ranges.give_back(range));
            prop_assert_eq!(ranges.take(100), Some(0..100));
        }
    }
}
