//! Products of many rows on Hopper: the tile that suits their sizes, and the tensor maps of its copies.

use super::products::{Args, Mode};
use crate::kernel::kernel_args;
use crate::tensor_map::TensorMap;
use crate::{CudaError, Gpu, Kernel, Shape, Stream};

/// A tile of `kernels/tower_linear_90a.cu`: rows, outputs, and pieces of 64 inputs that are on their way.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Tile {
    rows: usize,
    outputs: usize,
    stages: usize,
}

/// 128 rows by 256 outputs, one block to a multiprocessor.
const LARGE: Tile = Tile { rows: 128, outputs: 256, stages: 4 };
/// 128 by 128, two blocks.
const MIDDLE: Tile = Tile { rows: 128, outputs: 128, stages: 3 };
/// The same, one block, which copies further ahead.
const ALONE: Tile = Tile { rows: 128, outputs: 128, stages: 6 };
/// 64 by 128, two blocks.
const SMALL: Tile = Tile { rows: 64, outputs: 128, stages: 4 };
/// 64 by 32, two blocks.
const NARROW: Tile = Tile { rows: 64, outputs: 32, stages: 8 };
const TILES: [Tile; 5] = [LARGE, MIDDLE, ALONE, SMALL, NARROW];
/// From so many inputs on, large tiles are worth their results, which nothing overlaps.
const DEEP: usize = 2048;

impl Tile {
    /// The fastest as measured (`kernels/selftest/tower_selftest.cu`): the largest that leaves few multiprocessors idle,
    /// and a small one where even that leaves many. All give the same bits.
    fn best([rows, outputs, inputs]: [usize; 3], multiprocessors: usize) -> Tile {
        let blocks = |tile: Tile| rows.div_ceil(tile.rows) * outputs.div_ceil(tile.outputs);
        if blocks(NARROW) <= 2 * multiprocessors {
            return NARROW;
        }
        let once = [SMALL, ALONE, LARGE].into_iter().find(|tile| blocks(*tile) <= multiprocessors);
        once.unwrap_or(if inputs >= DEEP { LARGE } else { MIDDLE })
    }

    /// Dynamic shared memory: tiles of bf16 and two barriers for each piece.
    fn bytes(self) -> usize {
        1024 + self.stages * ((self.rows + self.outputs) * 128 + 16)
    }

    /// A warp for each 16 rows, and one that copies.
    fn threads(self) -> u32 {
        2 * self.rows as u32 + 32
    }
}

/// `TowerHopper` of `kernels/tower_linear_90a.cu`.
#[derive(Clone, Copy)]
#[repr(C)]
struct HopperArgs {
    w: TensorMap,
    x: TensorMap,
    linear: Args,
}

/// Kernels by mode and tile.
pub(super) struct Hopper {
    kernels: [[Kernel; TILES.len()]; 5],
    multiprocessors: usize,
}

impl Hopper {
    /// `None` on other GPUs.
    ///
    /// # Errors
    /// What the driver says.
    pub fn new(gpu: &Gpu) -> Result<Option<Hopper>, CudaError> {
        macro_rules! tiles {
            ($mode:literal) => {{
                let kernels = [
                    gpu.kernel(concat!("tower_hopper_128x256_", $mode))?,
                    gpu.kernel(concat!("tower_hopper_128x128_", $mode))?,
                    gpu.kernel(concat!("tower_hopper_128x128_alone_", $mode))?,
                    gpu.kernel(concat!("tower_hopper_64x128_", $mode))?,
                    gpu.kernel(concat!("tower_hopper_64x32_", $mode))?,
                ];
                for (kernel, tile) in kernels.iter().zip(TILES) {
                    kernel.allow_shared(tile.bytes())?;
                }
                kernels
            }};
        }
        if !gpu.is_hopper() {
            return Ok(None);
        }
        // In the order of `Mode`.
        let kernels = [tiles!("store"), tiles!("full"), tiles!("add"), tiles!("gelu_erf"), tiles!("gelu_tanh")];
        Ok(Some(Hopper { kernels, multiprocessors: gpu.multiprocessors() as usize }))
    }

    /// Queues a product.
    ///
    /// # Errors
    /// What the driver says.
    pub fn run(&self, stream: &Stream, mode: Mode, linear: Args) -> Result<(), CudaError> {
        let [rows, outputs, inputs] = [linear.rows, linear.outputs, linear.inputs].map(|count| count as usize);
        if rows == 0 {
            return Ok(());
        }
        let tile = Tile::best([rows, outputs, inputs], self.multiprocessors);
        let args = HopperArgs {
            w: TensorMap::new(linear.w, outputs, inputs, tile.outputs as u32)?,
            x: TensorMap::new(linear.x, rows, inputs, tile.rows as u32)?,
            linear,
        };
        let at = TILES.iter().position(|known| *known == tile).unwrap_or_default();
        let shape = Shape::new(outputs.div_ceil(tile.outputs), tile.threads()).by(rows.div_ceil(tile.rows));
        let shape = shape.shared(tile.bytes()).overlapping();
        // SAFETY: the argument is `TowerHopper`; the layer lives as long as the stage that queues, and the caller gives
        // rows of the layer's sizes.
        unsafe { self.kernels[mode as usize][at].launch(stream, shape, kernel_args![args]) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tiles_suit_the_sizes_of_the_towers() {
        let best = |rows, outputs, inputs| Tile::best([rows, outputs, inputs], 132);
        // One window of sound, and eight.
        assert_eq!([best(104, 3840, 1280), best(104, 1280, 5120)], [NARROW, NARROW]);
        assert_eq!(best(104, 5120, 1280), SMALL);
        assert_eq!([best(832, 3840, 1280), best(832, 5120, 1280)], [LARGE, MIDDLE]);
        assert_eq!([best(832, 1280, 1280), best(832, 1280, 5120)], [SMALL, SMALL]);
        // Pictures of 640 x 480 and of 4 megapixels.
        assert_eq!([best(1560, 1152, 1152), best(1560, 1152, 4304)], [ALONE, ALONE]);
        assert_eq!([best(16384, 4304, 1152), best(16384, 1152, 4304)], [MIDDLE, LARGE]);
    }

    #[test]
    fn blocks_fit_a_multiprocessor_as_often_as_they_are_meant_to() {
        let shared = 227 * 1024;
        for (tile, blocks) in [(LARGE, 1), (MIDDLE, 2), (ALONE, 1), (SMALL, 2), (NARROW, 2)] {
            // Each takes 1 KiB more than it asks for.
            assert!(blocks * (tile.bytes() + 1024) <= shared + 1024, "{tile:?}");
        }
    }
}
