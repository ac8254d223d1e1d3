//! Errors of the driver.

use cudarc::driver::DriverError;
use cudarc::driver::sys::CUresult;
use omni_model::budget::OverBudget;
use omni_model::{LoadError, ModelError};
use std::time::Duration;

/// A call of the CUDA driver that failed, or a GPU that cannot be used.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum CudaError {
    /// There is no driver, or no device of that number.
    #[error("no GPU: {0}")]
    Absent(String),
    /// The device has not enough memory.
    #[error(
        "{what} needs {wanted} MiB of GPU memory and {free} MiB are free; lower [device] kv_memory or limits.max_requests"
    )]
    OutOfMemory {
        /// What was being allocated.
        what: &'static str,
        /// MiB asked for.
        wanted: usize,
        /// MiB that the device has left.
        free: usize,
    },
    /// The budget of the process does not allow it.
    #[error(transparent)]
    OverBudget(#[from] OverBudget),
    /// A call failed. After most of these errors the context of the process cannot be used any more.
    #[error("{call}: {text}")]
    Call {
        /// The function of the driver.
        call: &'static str,
        /// Its answer.
        code: CUresult,
        /// What that means.
        text: String,
    },
    /// Blocks that wait for each other did not find each other in time.
    #[error(
        "a persistent kernel waited in vain for {} ms: something else holds a part of the GPU; its stage starts \
         again without it, and device.persistent_kernels = false keeps it off",
        limit.as_millis()
    )]
    Stalled {
        /// How long a launch may take.
        limit: Duration,
    },
    /// A kernel that the binary should hold is not in it.
    #[error("the binary holds no kernel {0}")]
    NoKernel(String),
}

/// Turns the answer of a driver call into a result that names it.
pub(super) fn check(call: &'static str, code: CUresult) -> Result<(), CudaError> {
    if code == CUresult::CUDA_SUCCESS {
        return Ok(());
    }
    let text = DriverError(code).error_string().ok().and_then(|text| text.to_str().ok().map(str::to_owned));
    Err(CudaError::Call { call, code, text: text.unwrap_or_else(|| format!("{code:?}")) })
}

impl From<CudaError> for ModelError {
    fn from(error: CudaError) -> ModelError {
        ModelError::Device(candle_core::Error::wrap(error))
    }
}

impl From<CudaError> for LoadError {
    fn from(error: CudaError) -> LoadError {
        LoadError::Device(candle_core::Error::wrap(error))
    }
}
