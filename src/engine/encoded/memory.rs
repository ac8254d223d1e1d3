//! How much memory the media of all open requests may take together.

use crate::api::SubmitError;
use crate::media::SPARE;
use omni_config::format_bytes;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// See the module.
pub(crate) struct MediaMemory {
    most: u64,
    used: AtomicU64,
    /// Of requests that nobody waits for, so that no other request is refused for those.
    spare: Option<Arc<MediaMemory>>,
}

/// A request's part of it, given back when dropped.
pub(crate) struct MediaPermit {
    of: Arc<MediaMemory>,
    bytes: u64,
}

impl MediaMemory {
    /// So many bytes.
    pub fn new(most: u64) -> Arc<MediaMemory> {
        let all = |most, spare| Arc::new(MediaMemory { most, used: AtomicU64::new(0), spare });
        all(most, Some(all(most / SPARE as u64, None)))
    }

    /// [`MediaMemory::take`], for a request that nobody waits for: of memory that no other has.
    ///
    /// # Errors
    /// [`SubmitError::Busy`]
    pub fn take_aside(&self, bytes: u64) -> Result<MediaPermit, SubmitError> {
        let taken = self.spare.as_ref().and_then(|spare| spare.take(bytes).ok());
        taken.ok_or_else(|| SubmitError::Busy("there is no room for embeddings that nobody waits for".into()))
    }

    /// Memory for a request.
    ///
    /// # Errors
    /// [`SubmitError::Invalid`] for more than there is, [`SubmitError::Busy`] for more than is free now.
    pub fn take(self: &Arc<Self>, bytes: u64) -> Result<MediaPermit, SubmitError> {
        let most = self.most;
        if bytes > most {
            let message = format!(
                "the media of this request take {}, more than the {} of media.max_embeddings: send less or smaller media",
                format_bytes(bytes),
                format_bytes(most)
            );
            return Err(SubmitError::Invalid { param: "messages", message });
        }
        let fits = |used: u64| used.checked_add(bytes).filter(|sum| *sum <= most);
        match self.used.fetch_update(Ordering::Relaxed, Ordering::Relaxed, fits) {
            Ok(_) => Ok(MediaPermit { of: Arc::clone(self), bytes }),
            Err(_) => Err(SubmitError::Busy("the media of other requests take all memory there is for them".into())),
        }
    }
}

impl Drop for MediaPermit {
    fn drop(&mut self) {
        self.of.used.fetch_sub(self.bytes, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn requests_share_the_memory_and_give_it_back() {
        let memory = MediaMemory::new(1 << 20);
        let told = |bytes| memory.take(bytes).err().map(|error| error.to_string()).unwrap_or_default();
        assert!(told((1 << 20) + 1).contains("more than the 1.0 MiB of media.max_embeddings"), "{}", told(1 << 21));
        let first = memory.take(1 << 19).unwrap();
        let second = memory.take(1 << 19).unwrap();
        assert!(matches!(memory.take(1), Err(SubmitError::Busy(_))));
        drop(first);
        assert_eq!(told(1 << 19), "");
        let aside = memory.take_aside(1 << 18).unwrap();
        assert!(memory.take_aside(1).is_err(), "a quarter of it");
        drop(second);
        assert_eq!(told(1 << 20), "", "which is no part of it");
        drop(aside);
        assert!(memory.take_aside(1).is_ok());
    }
}
