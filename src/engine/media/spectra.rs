//! Spectra of the speech of sessions, kept in blocks between requests: a turn that is spoken is heard window by window,
//! and each turn is heard again for all that follow.

use crate::recent::Recent;
use omni_media::medium::MediaHash;
use omni_media::spectrum::Block;
use omni_media::speech::Blocks;
use omni_telemetry::MediaMetrics;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// Memory of a block besides its numbers: its key, twice, and the nodes of the store.
const OVERHEAD: usize = 256;

/// See the module.
pub(super) struct Spectra(Mutex<Recent<Arc<Block>>>);

impl Spectra {
    /// Of at most so many bytes; 0 keeps none.
    pub fn new(most: usize) -> Spectra {
        Spectra(Mutex::new(Recent::new(most)))
    }

    #[cfg(test)]
    pub fn bytes(&self) -> usize {
        self.lock().bytes()
    }

    fn lock(&self) -> MutexGuard<'_, Recent<Arc<Block>>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Blocks for Spectra {
    fn get(&self, key: &MediaHash) -> Option<Arc<Block>> {
        let block = self.lock().get(key);
        MediaMetrics::spectrum_looked_up(block.is_some());
        block
    }

    fn keep(&self, key: MediaHash, block: &Arc<Block>) {
        let mut recent = self.lock();
        recent.insert(key, Arc::clone(block), block.bytes() + OVERHEAD);
        MediaMetrics::spectra_kept(recent.bytes());
    }
}
