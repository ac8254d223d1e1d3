//! Tensor maps: how the copy engine of Hopper finds the tiles of a matrix.

use super::error::{CudaError, check};
use cudarc::driver::sys;

/// Numbers of a row of a box: with 128 bytes, the widest whose rows are shuffled against conflicts of banks.
const COLUMNS: u32 = 64;

/// Boxes of 64 columns of a matrix `[rows, columns]` of bf16: `TensorMap` of `kernels/wgmma.cuh`.
#[derive(Clone, Copy)]
#[repr(transparent)]
pub(super) struct TensorMap(sys::CUtensorMap);

impl TensorMap {
    /// For boxes of `box_rows` rows, at most 256. The address and the bytes of a row are multiples of 16. Makes no call to
    /// the device.
    ///
    /// # Errors
    /// What the driver says.
    pub fn new(address: u64, rows: usize, columns: usize, box_rows: u32) -> Result<TensorMap, CudaError> {
        let mut map = sys::CUtensorMap { opaque: [0; 16] };
        let (sizes, strides) = ([columns as u64, rows as u64], [columns as u64 * 2]);
        let (boxes, steps) = ([COLUMNS, box_rows], [1, 1]);
        // SAFETY: all pointers are to locals of the sizes that two dimensions need; the address is only written down.
        check("cuTensorMapEncodeTiled", unsafe {
            sys::cuTensorMapEncodeTiled(
                &mut map,
                sys::CUtensorMapDataType::CU_TENSOR_MAP_DATA_TYPE_BFLOAT16,
                2,
                address as *mut std::ffi::c_void,
                sizes.as_ptr(),
                strides.as_ptr(),
                boxes.as_ptr(),
                steps.as_ptr(),
                sys::CUtensorMapInterleave::CU_TENSOR_MAP_INTERLEAVE_NONE,
                sys::CUtensorMapSwizzle::CU_TENSOR_MAP_SWIZZLE_128B,
                sys::CUtensorMapL2promotion::CU_TENSOR_MAP_L2_PROMOTION_L2_256B,
                sys::CUtensorMapFloatOOBfill::CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE,
            )
        })?;
        Ok(TensorMap(map))
    }
}
