//! Embeddings of media that were encoded before: of sound window by window, of pictures and videos whole. They are known
//! by what the tower was given, so all conversations share them, a clip that goes on has the windows that it had, and
//! they outlive the encoder. What was used longest ago makes room for what is new.

use omni_media::medium::MediaHash;
use omni_telemetry::MediaMetrics;
use omni_transfer::payload::Part;
use std::collections::{BTreeMap, HashMap};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// The embeddings of a part, in pieces: how many, and they.
pub(crate) type Cached = Arc<[(u32, Part)]>;

/// See the module.
pub(crate) struct MediaCache {
    most: usize,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    entries: HashMap<MediaHash, Entry>,
    /// By when they were used last.
    order: BTreeMap<u64, MediaHash>,
    bytes: usize,
    /// Counts uses.
    now: u64,
}

struct Entry {
    rows: Cached,
    bytes: usize,
    used: u64,
}

impl MediaCache {
    /// Of at most so many bytes of embeddings; 0 keeps none.
    pub fn new(most: usize) -> Arc<MediaCache> {
        Arc::new(MediaCache { most, state: Mutex::default() })
    }

    /// The embeddings of a part, if they are here.
    pub fn get(&self, key: &MediaHash) -> Option<Cached> {
        let mut state = self.lock();
        let State { entries, order, now, .. } = &mut *state;
        *now += 1;
        let rows = entries.get_mut(key).map(|entry| {
            order.remove(&std::mem::replace(&mut entry.used, *now));
            order.insert(*now, *key);
            Arc::clone(&entry.rows)
        });
        MediaMetrics::looked_up(rows.is_some());
        rows
    }

    /// Keeps the embeddings of a part.
    pub fn insert(&self, key: MediaHash, rows: Vec<(u32, Part)>) {
        let bytes: usize = rows.iter().map(|(_, part)| part.bytes()).sum();
        if bytes > self.most {
            return;
        }
        let mut state = self.lock();
        state.now += 1;
        let used = state.now;
        state.bytes += bytes;
        if let Some(old) = state.entries.insert(key, Entry { rows: rows.into(), bytes, used }) {
            state.order.remove(&old.used);
            state.bytes -= old.bytes;
        }
        state.order.insert(used, key);
        while state.bytes > self.most {
            let Some((_, oldest)) = state.order.pop_first() else { break };
            let Some(gone) = state.entries.remove(&oldest) else { break };
            state.bytes -= gone.bytes;
        }
        MediaMetrics::cached(state.bytes);
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rows(bytes: usize) -> Vec<(u32, Part)> {
        vec![(1, Part::F32(vec![0.5; bytes / 4]))]
    }

    #[test]
    fn what_was_used_longest_ago_makes_room() {
        let cache = MediaCache::new(100);
        let has = |key: u8| cache.get(&[key; 32]).is_some();
        (0..3).for_each(|key| cache.insert([key; 32], rows(32)));
        assert!(has(0) && has(1) && has(2));
        assert!(has(0), "used last");
        cache.insert([3; 32], rows(32));
        assert_eq!([0, 1, 2, 3].map(has), [true, false, true, true]);
        cache.insert([4; 32], rows(96));
        assert_eq!([0, 1, 2, 3, 4].map(has), [false, false, false, false, true]);
    }

    #[test]
    fn what_is_larger_than_all_of_it_is_not_kept_and_what_comes_twice_counts_once() {
        let cache = MediaCache::new(100);
        cache.insert([1; 32], rows(104));
        assert!(cache.get(&[1; 32]).is_none());
        (0..9).for_each(|_| cache.insert([2; 32], rows(64)));
        cache.insert([3; 32], rows(36));
        assert!(cache.get(&[2; 32]).is_some() && cache.get(&[3; 32]).is_some());
    }
}
