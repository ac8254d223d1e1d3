//! Kept pages in the memory of the host, where they outlast their pages on the device. Pure: it owns which slot of that
//! memory holds what, and knows neither memory.
//!
//! A page is copied out when a sequence that used it has ended, so a page that leaves the device costs nothing then, and
//! one that a sequence finds here is copied back into a page of the device. A slot keeps its copy: a conversation that
//! goes on copies out only what is new of it.

use super::store::{Key, Store};

/// A copy between a page of the device and a slot of the host's memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HostCopy {
    /// The page.
    pub page: u32,
    /// The slot.
    pub slot: u32,
}

/// See the module.
pub(super) struct HostPages {
    store: Store<u32>,
    free: Vec<u32>,
}

impl HostPages {
    /// So many slots.
    pub fn new(slots: u32) -> HostPages {
        HostPages { store: Store::new(slots as usize), free: (0..slots).rev().collect() }
    }

    /// Slots that hold a page.
    pub fn len(&self) -> usize {
        self.store.bytes()
    }

    /// The slot of a page, which is used in this turn.
    pub fn find(&mut self, key: &Key, turn: u64) -> Option<u32> {
        self.store.get(key, turn).copied()
    }

    /// A slot for a page that has none, behind the page `before`; `None` where all others were used later.
    pub fn put(&mut self, before: Option<&Key>, key: Key, at: (u64, u32)) -> Option<u32> {
        let HostPages { store, free } = self;
        if !store.make_room(before, at, 1, |slot| free.push(slot)) {
            return None;
        }
        let slot = free.pop()?;
        store.insert(key, slot, at, 1);
        Some(slot)
    }

    /// Finds nothing under a key from now on.
    pub fn forget(&mut self, key: &Key) {
        self.free.extend(self.store.remove(key));
    }
}
