//! Embeddings of media that were encoded before: of sound window by window, of pictures and videos whole. They are known
//! by what the tower was given, so all conversations share them, a clip that goes on has the windows that it had, and
//! they outlive the encoder.

use crate::recent::Recent;
use omni_media::medium::MediaHash;
use omni_telemetry::MediaMetrics;
use omni_transfer::payload::Part;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// The embeddings of a part, in pieces: how many, and they.
pub(crate) type Cached = Arc<[(u32, Part)]>;

/// See the module.
pub(crate) struct MediaCache(Mutex<Recent<Cached>>);

impl MediaCache {
    /// Of at most so many bytes of embeddings; 0 keeps none.
    pub fn new(most: usize) -> Arc<MediaCache> {
        Arc::new(MediaCache(Mutex::new(Recent::new(most))))
    }

    /// The embeddings of a part, if they are here.
    pub fn get(&self, key: &MediaHash) -> Option<Cached> {
        let rows = self.lock().get(key);
        MediaMetrics::looked_up(rows.is_some());
        rows
    }

    /// Keeps the embeddings of a part.
    pub fn insert(&self, key: MediaHash, rows: Vec<(u32, Part)>) {
        let bytes = rows.iter().map(|(_, part)| part.bytes()).sum();
        let mut recent = self.lock();
        recent.insert(key, rows.into(), bytes);
        MediaMetrics::cached(recent.bytes());
    }

    fn lock(&self) -> MutexGuard<'_, Recent<Cached>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
