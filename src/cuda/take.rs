//! Rows of a pass that what follows the pass goes on from.

use crate::kernel::{Kernel, Shape, kernel_args};
use crate::{CudaError, Gpu, Stream};

const THREADS: u32 = 256;

/// `TakeRowsArgs` of `kernels/token.cuh`.
#[derive(Clone, Copy)]
#[repr(C)]
struct TakeArgs {
    of: u64,
    x: u64,
    out: u64,
    width: i32,
    stride: i32,
}

/// Puts some rows of a residual stream one behind the other.
pub(crate) struct TakeRows {
    kernel: Kernel,
    width: usize,
}

/// A table of records on the device, each of which says which row of a pass it goes on from.
#[derive(Clone, Copy)]
pub(crate) struct Origins {
    /// Address of the first record's word.
    pub of: u64,
    /// Bytes from one record to the next.
    pub stride: usize,
}

impl TakeRows {
    /// For rows of `width` numbers.
    pub fn new(gpu: &Gpu, width: usize) -> Result<TakeRows, CudaError> {
        Ok(TakeRows { kernel: gpu.kernel("take_rows")?, width })
    }

    /// Queues the copy of `rows` rows of `x` to `out`, both f32.
    ///
    /// # Safety
    /// Words of the table are rows of `x`, whose memory, like that of the table and of `out`, lives until the stream has
    /// run the kernel.
    pub unsafe fn queue(
        &self,
        stream: &Stream,
        origins: Origins,
        (x, out): (u64, u64),
        rows: usize,
    ) -> Result<(), CudaError> {
        let (width, stride) = (self.width as i32, (origins.stride / size_of::<u32>()) as i32);
        let args = TakeArgs { of: origins.of, x, out, width, stride };
        // SAFETY: the argument is `TakeRowsArgs`; the rest is the caller's promise.
        unsafe { self.kernel.launch(stream, Shape::new(rows, THREADS), kernel_args![args]) }
    }
}
