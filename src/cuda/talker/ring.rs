//! Page-locked memory of steps: lent to a step at its launch, returned when its outcome was read or given up.

use crate::{CudaError, Event, Gpu, Pinned};
use omni_model::no_block;
use std::sync::{Arc, Mutex, PoisonError};

/// Input and output of one step, and the events at its begin and end.
pub(crate) struct Lease {
    pub input: Pinned<u8>,
    pub out: Pinned<u32>,
    pub begin: Event,
    pub end: Event,
}

/// Free leases. One more is made when all are in use.
pub(crate) struct Ring {
    gpu: Gpu,
    input: usize,
    out: usize,
    free: Mutex<Vec<Lease>>,
}

impl Ring {
    /// With `leases` of so many bytes of input and words of output to begin with.
    pub fn new(gpu: &Gpu, leases: usize, input: usize, out: usize) -> Result<Arc<Ring>, CudaError> {
        let ring = Ring { gpu: gpu.clone(), input, out, free: Mutex::default() };
        let made = (0..leases).map(|_| ring.make(input)).collect::<Result<Vec<_>, _>>()?;
        *ring.free.lock().unwrap_or_else(PoisonError::into_inner) = made;
        Ok(Arc::new(ring))
    }

    /// A lease with at least so many bytes of input.
    pub fn lease(&self, input: usize) -> Result<Lease, CudaError> {
        let mut free = self.free.lock().unwrap_or_else(PoisonError::into_inner);
        // The step before may not have been waited for, and still run. An event that was never recorded has passed.
        let idle = |lease: &Lease| lease.end.passed().unwrap_or(false);
        match free.iter().rposition(|lease| lease.input.len() >= input && idle(lease)) {
            Some(at) => Ok(free.swap_remove(at)),
            None => self.make(input.next_power_of_two()),
        }
    }

    /// Takes a lease back whose step nobody reads any more.
    pub fn give_back(&self, lease: Lease) {
        self.free.lock().unwrap_or_else(PoisonError::into_inner).push(lease);
    }

    fn make(&self, input: usize) -> Result<Lease, CudaError> {
        let _excused = no_block::allow("all leases are out, or one is too small: the ring grows to what is needed");
        let gpu = &self.gpu;
        Ok(Lease {
            input: gpu.pinned(input.max(self.input))?,
            out: gpu.pinned(self.out)?,
            begin: Event::new(gpu)?,
            end: Event::new(gpu)?,
        })
    }
}
