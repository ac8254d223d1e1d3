//! Page-locked memory for launches: lent to a step and returned when its outcome was read.

use super::workspace::{HEAD, ROW_WORDS};
use super::{CudaVocoder, Limits};
use crate::{CudaError, Event, Gpu, Pinned};
use omni_model::no_block;
use std::sync::{Arc, Mutex, PoisonError};

/// Input and output of one launch.
pub(super) struct Lease {
    pub input: Pinned<u32>,
    pub samples: Pinned<f32>,
}

/// Begin and end of a step on the device.
pub(super) struct Span {
    pub begin: Event,
    pub end: Event,
}

/// Free leases and events. More are made when all are in use.
pub(super) struct Pool {
    gpu: Gpu,
    input: usize,
    samples: usize,
    free: Mutex<(Vec<Lease>, Vec<Span>)>,
}

impl Pool {
    /// With so many leases to begin with.
    pub fn new(net: &CudaVocoder, leases: usize) -> Result<Arc<Pool>, CudaError> {
        let Limits { batch, frames, .. } = net.limits;
        let pool = Pool {
            gpu: net.gpu.clone(),
            input: HEAD + batch * ROW_WORDS + frames * net.config.num_quantizers,
            samples: HEAD + frames * net.config.samples_per_frame(),
            free: Mutex::default(),
        };
        let made = (0..leases).map(|_| Ok((pool.make()?, pool.span()?))).collect::<Result<Vec<_>, CudaError>>()?;
        *pool.free.lock().unwrap_or_else(PoisonError::into_inner) = made.into_iter().unzip();
        Ok(Arc::new(pool))
    }

    pub fn lease(&self) -> Result<Lease, CudaError> {
        let free = self.free.lock().unwrap_or_else(PoisonError::into_inner).0.pop();
        free.map_or_else(|| self.make(), Ok)
    }

    pub fn span(&self) -> Result<Span, CudaError> {
        let free = self.free.lock().unwrap_or_else(PoisonError::into_inner).1.pop();
        match free {
            Some(span) => Ok(span),
            None => Ok(Span { begin: Event::new(&self.gpu)?, end: Event::new(&self.gpu)? }),
        }
    }

    pub fn give_back(&self, leases: impl IntoIterator<Item = Lease>, span: Span) {
        let mut free = self.free.lock().unwrap_or_else(PoisonError::into_inner);
        free.0.extend(leases);
        free.1.push(span);
    }

    fn make(&self) -> Result<Lease, CudaError> {
        let _excused = no_block::allow("all leases are out: the pool grows to what is needed");
        Ok(Lease { input: self.gpu.pinned(self.input)?, samples: self.gpu.pinned(self.samples)? })
    }
}
