//! Copies from host to device that begin as soon as input arrives.

use crate::{Buffer, CudaError, Event, Gpu, Pinned, Priority, Stream};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

/// Copies input to the device ahead of the step that uses it, on a stream of its own. Used by one thread.
pub struct Prefetch {
    stream: Stream,
    bytes: usize,
    free: Arc<Mutex<Vec<Slot>>>,
}

/// Input on its way to the device. Dropping it frees its memory.
pub struct Prefetched {
    slot: Option<Slot>,
    len: usize,
    home: Arc<Mutex<Vec<Slot>>>,
}

struct Slot {
    staging: Pinned<u8>,
    device: Buffer<u8>,
    begun: Event,
    arrived: Event,
}

impl Prefetch {
    /// With room for `most` inputs of up to `bytes` bytes each.
    ///
    /// # Errors
    /// When device or host have no room.
    pub fn new(gpu: &Gpu, most: usize, bytes: usize) -> Result<Prefetch, CudaError> {
        let stream = gpu.stream(Priority::High)?;
        let slot = || {
            let device = gpu.alloc("input on its way", bytes)?;
            Ok(Slot {
                staging: gpu.pinned_for_upload(bytes)?,
                device,
                begun: Event::new(gpu)?,
                arrived: Event::new(gpu)?,
            })
        };
        let free = (0..most).map(|_| slot()).collect::<Result<Vec<_>, CudaError>>()?;
        Ok(Prefetch { stream, bytes, free: Arc::new(Mutex::new(free)) })
    }

    /// Begins to copy; `None` if it is too large or too many copies are under way; the step then copies it.
    ///
    /// # Errors
    /// What the driver says.
    pub fn begin(&self, input: &[u8]) -> Result<Option<Prefetched>, CudaError> {
        if input.len() > self.bytes {
            return Ok(None);
        }
        let slot = {
            let mut free = self.free.lock().unwrap_or_else(PoisonError::into_inner);
            // The copy of unused input may still be under way. An event that was never recorded has passed.
            let idle = free.iter().position(|slot| slot.arrived.passed().unwrap_or(false));
            idle.map(|at| free.swap_remove(at))
        };
        let Some(slot) = slot else { return Ok(None) };
        slot.staging.set(0, input);
        let len = input.len();
        slot.begun.record(&self.stream)?;
        slot.device.upload_async(&self.stream, 0, &slot.staging, 0, len)?;
        slot.arrived.record(&self.stream)?;
        Ok(Some(Prefetched { slot: Some(slot), len, home: Arc::clone(&self.free) }))
    }
}

impl Prefetched {
    fn slot(&self) -> &Slot {
        match &self.slot {
            Some(slot) => slot,
            None => unreachable!("the slot is taken when this is dropped"),
        }
    }

    /// Where it is on the device.
    pub fn device(&self) -> &Buffer<u8> {
        &self.slot().device
    }

    /// Its size.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Nothing.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// How long the copy took; known when it is over.
    pub fn took(&self) -> Option<Duration> {
        self.slot().arrived.since(&self.slot().begun).ok()
    }

    /// The event behind the copy.
    pub fn arrived(&self) -> &Event {
        &self.slot().arrived
    }
}

impl Drop for Prefetched {
    fn drop(&mut self) {
        self.home.lock().unwrap_or_else(PoisonError::into_inner).extend(self.slot.take());
    }
}
