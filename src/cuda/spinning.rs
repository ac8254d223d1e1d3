//! Launches whose blocks wait for each other: all of them must be on the device at once, so a GPU has one owner of such
//! launches in a process. Processes take turns; where they do not, under MPS, there is none.

use crate::Gpu;
use std::sync::atomic::{AtomicBool, Ordering};

/// Devices that a driver shows at most.
const DEVICES: usize = 64;
static TAKEN: [AtomicBool; DEVICES] = [const { AtomicBool::new(false) }; DEVICES];

/// The right to launch blocks that wait for each other on a GPU. Its owner keeps it until the last of its launches has
/// ended; dropping it gives it back.
pub(crate) struct Spinning {
    index: usize,
}

impl Spinning {
    /// Takes it.
    ///
    /// # Errors
    /// Why it cannot be had, in words.
    pub fn begin(gpu: &Gpu) -> Result<Spinning, &'static str> {
        if gpu.is_shared() {
            return Err("under MPS other programs may keep a part of the GPU from a persistent one");
        }
        if gpu.spinning_is_forbidden() {
            return Err("a persistent one has waited in vain on this GPU");
        }
        take(gpu.index()).ok_or("this GPU has a persistent one already")
    }
}

fn take(index: usize) -> Option<Spinning> {
    let free = TAKEN.get(index)?.compare_exchange(false, true, Ordering::AcqRel, Ordering::Acquire);
    free.is_ok().then_some(Spinning { index })
}

impl Drop for Spinning {
    fn drop(&mut self) {
        TAKEN[self.index].store(false, Ordering::Release);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_gpu_has_one_owner_at_a_time() {
        let last = DEVICES - 1;
        let owner = take(last);
        assert!(owner.is_some() && take(last).is_none() && take(last - 1).is_some());
        drop(owner);
        assert!(take(last).is_some());
        assert!(take(DEVICES).is_none());
    }
}
