//! Words in the memory of a ring, beside its frames: what one process writes there, the other can read when that process
//! has died, however it did.

use super::map::Map;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;

/// A few hundred words that both ends of a ring may read and write at any time. All 0 at first. They stay for as long
/// as either of the ends, or this, does.
#[derive(Clone, Debug)]
pub struct Notes(Arc<Map>);

impl Notes {
    pub(super) fn new(map: Arc<Map>) -> Notes {
        Notes(map)
    }

    /// The words.
    pub fn words(&self) -> &[AtomicU64] {
        self.0.notes()
    }
}
