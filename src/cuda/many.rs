//! Products of many rows on Hopper, whose kernels take rows with dealt inputs: `kernels/many_linear_90a.cu`.

use super::device::Gpu;
use super::error::CudaError;
use super::kernel::{Kernel, Shape, kernel_args};
use super::linear::{Args, Mode};
use super::moe;
use super::stream::Stream;
use super::tensor_map::TensorMap;

/// Rows of a tile.
pub(super) const TILES: [usize; 3] = [32, 64, 128];
/// Pairs of a row and an expert of a tile.
pub(super) const PAIRS: usize = 160;
/// Outputs of a tile.
const OUTPUTS: usize = 128;
const THREADS: u32 = 384;
/// Pieces of 64 inputs that are on their way, of `OUTPUTS` weights and so many rows; barriers; and the results of both
/// groups of warps.
const BYTES: fn(usize) -> usize = |rows| 1024 + 5 * ((OUTPUTS + rows) * 128 + 16) + 16 + 2 * rows * 144;

/// `ManyLinear` of the kernels.
#[derive(Clone, Copy)]
#[repr(C)]
struct LinearArgs {
    w: TensorMap,
    x: TensorMap,
    linear: Args,
    of_tile: i32,
    deals: i32,
}

/// `ManyExperts` of the kernels.
#[derive(Clone, Copy)]
#[repr(C)]
struct ExpertArgs {
    w: TensorMap,
    shared_w: TensorMap,
    experts: moe::Args,
}

/// Kernels of products, by mode, and the norm whose results they take.
pub(super) struct ManyLinear {
    pub norm: Kernel,
    kernels: [Kernel; 5],
    multiprocessors: usize,
}

impl ManyLinear {
    /// `None` on other GPUs.
    ///
    /// # Errors
    /// What the driver says.
    pub fn new(gpu: &Gpu) -> Result<Option<ManyLinear>, CudaError> {
        if !gpu.is_hopper() {
            return Ok(None);
        }
        // In the order of `Mode`.
        let kernels = [
            gpu.kernel("many_linear_store")?,
            gpu.kernel("many_linear_full")?,
            gpu.kernel("many_linear_add")?,
            gpu.kernel("many_linear_silu_mul")?,
            gpu.kernel("many_linear_silu")?,
        ];
        for kernel in &kernels {
            kernel.allow_shared(BYTES(TILES[2]))?;
        }
        let norm = gpu.kernel("rms_norm_dealt_bf16")?;
        Ok(Some(ManyLinear { norm, kernels, multiprocessors: gpu.multiprocessors() as usize }))
    }

    /// Queues a product of dealt rows in tiles of `of_tile`, one of [`TILES`]. `deals`: whether results in the engine's
    /// type are dealt, too.
    ///
    /// # Errors
    /// What the driver says.
    pub fn run(&self, stream: &Stream, mode: Mode, linear: Args, of_tile: usize, deals: bool) -> Result<(), CudaError> {
        let [rows, outputs, inputs] = [linear.rows, linear.outputs, linear.inputs].map(|count| count as usize);
        let args = LinearArgs {
            w: TensorMap::new(linear.w, outputs, inputs, OUTPUTS as u32)?,
            x: TensorMap::new(linear.x, rows, inputs, of_tile as u32)?,
            linear,
            of_tile: of_tile as i32,
            deals: i32::from(deals),
        };
        let tiles = outputs.div_ceil(OUTPUTS) * rows.div_ceil(of_tile);
        let shape = Shape::new(tiles.min(self.multiprocessors), THREADS).shared(BYTES(TILES[2])).overlapping();
        // SAFETY: the argument is `ManyLinear`; the layer lives as long as the engine that queues, and the caller gives
        // rows of the layer's sizes.
        unsafe { self.kernels[mode as usize].launch(stream, shape, kernel_args![args]) }
    }
}

/// Weights of experts: address, rows of all experts, and inputs.
#[derive(Clone, Copy)]
pub(super) struct ExpertWeights {
    pub address: u64,
    pub rows: usize,
    pub inputs: usize,
}

impl ExpertWeights {
    fn map(self) -> Result<TensorMap, CudaError> {
        TensorMap::new(self.address, self.rows, self.inputs, OUTPUTS as u32)
    }
}

/// Kernels of experts: gate and up, and down.
#[derive(Clone, Copy)]
pub(super) struct ManyExperts {
    kernels: [Kernel; 2],
    multiprocessors: usize,
}

impl ManyExperts {
    /// `None` on other GPUs.
    ///
    /// # Errors
    /// What the driver says.
    pub fn new(gpu: &Gpu) -> Result<Option<ManyExperts>, CudaError> {
        if !gpu.is_hopper() {
            return Ok(None);
        }
        let kernels = [gpu.kernel("many_gate_up")?, gpu.kernel("many_down")?];
        for kernel in &kernels {
            kernel.allow_shared(BYTES(PAIRS))?;
        }
        Ok(Some(ManyExperts { kernels, multiprocessors: gpu.multiprocessors() as usize }))
    }

    /// Queues gate and up, then down, of pairs that are sorted into groups of up to [`PAIRS`], for rows that are dealt.
    /// Each has the weights of all experts and those of the one that every row visits, if there is one.
    ///
    /// # Errors
    /// What the driver says.
    pub fn run(
        &self,
        stream: &Stream,
        experts: moe::Args,
        weights: [(ExpertWeights, Option<ExpertWeights>); 2],
    ) -> Result<(), CudaError> {
        for (kernel, (all, shared)) in self.kernels.iter().zip(weights) {
            // Without a shared expert nothing reads its map.
            let args = ExpertArgs { w: all.map()?, shared_w: shared.unwrap_or(all).map()?, experts };
            let shape = Shape::new(self.multiprocessors, THREADS).shared(BYTES(PAIRS)).overlapping();
            // SAFETY: the argument is `ManyExperts`; all addresses are of the layer's weights and of the engine's
            // buffers.
            unsafe { kernel.launch(stream, shape, kernel_args![args])? };
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tiles_fit_the_shared_memory_of_a_block() {
        assert_eq!(BYTES(128), 201_824, "as `Rows::BYTES`");
        assert_eq!(BYTES(PAIRS), 231_520, "as `Pairs::BYTES`");
        assert!(BYTES(PAIRS) <= 227 * 1024);
    }
}
