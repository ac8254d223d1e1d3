//! Tensor maps: how the copy engine of Hopper finds the tiles of a matrix.

use super::error::{CudaError, check};
use cudarc::driver::sys;

/// Numbers of a row of a box: with 128 bytes, the widest whose rows are shuffled against conflicts of banks.
const COLUMNS: u32 = 64;
/// Numbers of a row of a wide box: the most.
const WIDE: u32 = 256;

/// Boxes of a matrix of bf16: `TensorMap` of `kernels/wgmma.cuh`, `WeightMap` of `kernels/boxes.cuh`.
#[derive(Clone, Copy)]
#[repr(transparent)]
pub(super) struct TensorMap(sys::CUtensorMap);

/// Parts that the inputs of a product are summed in, as `kernels/common.cuh` has them, and outputs of a box of weights.
const PARTS: usize = 8;
const BOX_OUTPUTS: u32 = 8;

impl TensorMap {
    /// For boxes of `box_rows` rows of 64 numbers, at most 256, of a matrix `[rows, columns]`. The address and the bytes
    /// of a row are multiples of 16. Makes no call to the device.
    ///
    /// # Errors
    /// What the driver says.
    pub fn new(address: u64, rows: usize, columns: usize, box_rows: u32) -> Result<TensorMap, CudaError> {
        use sys::CUtensorMapL2promotion::CU_TENSOR_MAP_L2_PROMOTION_L2_256B;
        let (sizes, strides) = ([columns as u64, rows as u64], [columns as u64 * 2]);
        encode(address, sizes, &strides, [COLUMNS, box_rows], CU_TENSOR_MAP_L2_PROMOTION_L2_256B)
    }

    /// The same for boxes with rows of 256 numbers, which are not shuffled: of these the memory gives more in a second.
    ///
    /// # Errors
    /// What the driver says.
    pub fn wide(address: u64, rows: usize, columns: usize, box_rows: u32) -> Result<TensorMap, CudaError> {
        use sys::CUtensorMapL2promotion::CU_TENSOR_MAP_L2_PROMOTION_L2_256B;
        let (sizes, strides) = ([columns as u64, rows as u64], [columns as u64 * 2]);
        encode(address, sizes, &strides, [WIDE, box_rows], CU_TENSOR_MAP_L2_PROMOTION_L2_256B)
    }

    /// For boxes `[PARTS, BOX_OUTPUTS, 64]` of weights `[outputs, inputs]`, whose parts' inputs lie one behind the other.
    /// Makes no call to the device.
    ///
    /// # Errors
    /// What the driver says.
    pub fn of_parts(address: u64, outputs: usize, inputs: usize) -> Result<TensorMap, CudaError> {
        // Wider, it would read what others ask for much later: 3 us of a layer's 26.
        use sys::CUtensorMapL2promotion::CU_TENSOR_MAP_L2_PROMOTION_L2_128B;
        let part = (inputs / PARTS) as u64;
        let (sizes, strides) = ([part, outputs as u64, PARTS as u64], [inputs as u64 * 2, part * 2]);
        encode(address, sizes, &strides, [COLUMNS, BOX_OUTPUTS, PARTS as u32], CU_TENSOR_MAP_L2_PROMOTION_L2_128B)
    }

    /// Its bytes, as kernels read them.
    pub fn words(&self) -> [u64; 16] {
        self.0.opaque
    }
}

/// `strides`: bytes from one to the next, of each dimension but the first.
fn encode<const N: usize>(
    address: u64,
    sizes: [u64; N],
    strides: &[u64],
    boxes: [u32; N],
    promotion: sys::CUtensorMapL2promotion,
) -> Result<TensorMap, CudaError> {
    assert_eq!(strides.len(), N - 1);
    let shuffled = match boxes[0] {
        COLUMNS => sys::CUtensorMapSwizzle::CU_TENSOR_MAP_SWIZZLE_128B,
        _ => sys::CUtensorMapSwizzle::CU_TENSOR_MAP_SWIZZLE_NONE,
    };
    let mut map = sys::CUtensorMap { opaque: [0; 16] };
    let steps = [1; N];
    // SAFETY: all pointers are to arrays of the sizes that N dimensions need; the address is only written down.
    check("cuTensorMapEncodeTiled", unsafe {
        sys::cuTensorMapEncodeTiled(
            &mut map,
            sys::CUtensorMapDataType::CU_TENSOR_MAP_DATA_TYPE_BFLOAT16,
            N as u32,
            address as *mut std::ffi::c_void,
            sizes.as_ptr(),
            strides.as_ptr(),
            boxes.as_ptr(),
            steps.as_ptr(),
            sys::CUtensorMapInterleave::CU_TENSOR_MAP_INTERLEAVE_NONE,
            shuffled,
            promotion,
            sys::CUtensorMapFloatOOBfill::CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE,
        )
    })?;
    Ok(TensorMap(map))
}
