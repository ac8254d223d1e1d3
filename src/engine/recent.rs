//! What was used lately, bounded in bytes: what was used longest ago makes room for what is new.

use std::collections::{BTreeMap, HashMap};

/// What a value is known by: a hash of all that it was computed from.
pub(crate) type Key = [u8; 32];

/// See the module.
pub(crate) struct Recent<V> {
    most: usize,
    entries: HashMap<Key, Entry<V>>,
    /// By when they were used last.
    order: BTreeMap<u64, Key>,
    bytes: usize,
    /// Counts uses.
    now: u64,
}

struct Entry<V> {
    value: V,
    bytes: usize,
    used: u64,
}

impl<V: Clone> Recent<V> {
    /// Of at most so many bytes; 0 keeps nothing.
    pub fn new(most: usize) -> Recent<V> {
        Recent { most, entries: HashMap::new(), order: BTreeMap::new(), bytes: 0, now: 0 }
    }

    /// Bytes that are kept.
    pub fn bytes(&self) -> usize {
        self.bytes
    }

    /// A value, if it is here; it is used now.
    pub fn get(&mut self, key: &Key) -> Option<V> {
        let Recent { entries, order, now, .. } = self;
        *now += 1;
        entries.get_mut(key).map(|entry| {
            order.remove(&std::mem::replace(&mut entry.used, *now));
            order.insert(*now, *key);
            entry.value.clone()
        })
    }

    /// Keeps a value of so many bytes; one that is larger than all there is room for is not kept.
    pub fn insert(&mut self, key: Key, value: V, bytes: usize) {
        if bytes > self.most {
            return;
        }
        self.now += 1;
        let used = self.now;
        self.bytes += bytes;
        if let Some(old) = self.entries.insert(key, Entry { value, bytes, used }) {
            self.order.remove(&old.used);
            self.bytes -= old.bytes;
        }
        self.order.insert(used, key);
        while self.bytes > self.most {
            let Some((_, oldest)) = self.order.pop_first() else { break };
            let Some(gone) = self.entries.remove(&oldest) else { break };
            self.bytes -= gone.bytes;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_used_longest_ago_makes_room() {
        let mut recent = Recent::new(100);
        let has = |recent: &mut Recent<()>, keys: &[u8]| {
            keys.iter().map(|key| recent.get(&[*key; 32]).is_some()).collect::<Vec<_>>()
        };
        (0..3).for_each(|key| recent.insert([key; 32], (), 32));
        assert_eq!(has(&mut recent, &[1, 2, 0]), [true, true, true]);
        recent.insert([3; 32], (), 32);
        assert_eq!(has(&mut recent, &[0, 1, 2, 3]), [true, false, true, true]);
        recent.insert([4; 32], (), 96);
        assert_eq!(has(&mut recent, &[0, 1, 2, 3, 4]), [false, false, false, false, true]);
        assert_eq!(recent.bytes(), 96);
    }

    #[test]
    fn what_is_larger_than_all_of_it_is_not_kept_and_what_comes_twice_counts_once() {
        let mut recent = Recent::new(100);
        recent.insert([1; 32], (), 104);
        assert!(recent.get(&[1; 32]).is_none());
        (0..9).for_each(|_| recent.insert([2; 32], (), 64));
        recent.insert([3; 32], (), 36);
        assert!(recent.get(&[2; 32]).is_some() && recent.get(&[3; 32]).is_some());
    }
}
