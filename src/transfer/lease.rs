//! Leases: proof that some output of a step is still in use.
//!
//! They keep the count that bounds and tests rely on, whatever the output is made of. The arenas of a device
//! (`src/cuda/copies/`) lend its memory, and do not lend it again while a slice of it is in use.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// Counts the leases of one stage. Clones share the count.
#[derive(Clone, Debug, Default)]
pub struct LeaseBook {
    counts: Arc<Counts>,
}

#[derive(Debug, Default)]
struct Counts {
    live: AtomicU64,
    bytes: AtomicU64,
}

impl LeaseBook {
    /// Takes out a lease on `bytes` bytes of output.
    pub fn lease(&self, bytes: usize) -> Lease {
        self.counts.live.fetch_add(1, Ordering::Relaxed);
        self.counts.bytes.fetch_add(bytes as u64, Ordering::Relaxed);
        Lease { counts: Arc::clone(&self.counts), bytes: bytes as u64 }
    }

    /// Leases not yet given back.
    pub fn live(&self) -> u64 {
        self.counts.live.load(Ordering::Relaxed)
    }

    /// Bytes under live leases.
    pub fn bytes(&self) -> u64 {
        self.counts.bytes.load(Ordering::Relaxed)
    }
}

/// Given back when dropped.
#[derive(Debug)]
pub struct Lease {
    counts: Arc<Counts>,
    bytes: u64,
}

impl Drop for Lease {
    fn drop(&mut self) {
        self.counts.live.fetch_sub(1, Ordering::Relaxed);
        self.counts.bytes.fetch_sub(self.bytes, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_lease_counts_until_it_is_dropped() {
        let book = LeaseBook::default();
        let (first, second) = (book.lease(10), book.lease(32));
        assert_eq!((book.live(), book.bytes()), (2, 42));
        drop(first);
        assert_eq!((book.live(), book.bytes()), (1, 32));
        drop(second);
        assert_eq!((book.live(), book.bytes()), (0, 0));
    }
}
