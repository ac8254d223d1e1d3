//! Chooses the tile of a product. Results do not depend on it.

use super::Precision;
use crate::Gpu;

/// Bytes of a row in one step of a product through shared memory.
pub(super) const LINE: usize = 128;
/// Further bytes that a block keeps for each row of its tile.
const ROW_BYTES: usize = 24;

/// One shape that `kernels/vocoder_conv.cu` or `kernels/vocoder_conv_90a.cu` has a kernel for.
pub(super) struct Tile {
    /// Kernels, by precision.
    pub names: [&'static str; 3],
    pub rows: usize,
    pub columns: usize,
    /// Threads of a block.
    pub threads: u32,
    /// Steps that it holds in shared memory.
    held: usize,
    /// Blocks that a multiprocessor holds at once.
    resident: usize,
    /// Microseconds of a step: of the first block of a multiprocessor, and of each beside it.
    step: (f64, f64),
    /// Microseconds that a block takes besides.
    rest: f64,
}

impl Tile {
    /// Shared memory of a block.
    pub fn shared(&self) -> usize {
        self.held * (self.rows + self.columns) * LINE + self.rows * ROW_BYTES
    }

    pub fn blocks(&self, rows: usize, columns: usize) -> usize {
        rows.div_ceil(self.rows) * columns.div_ceil(self.columns)
    }
}

/// The tiles that there are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Tiles {
    Usual,
    /// And those that F16 has on Hopper alone.
    Hopper,
}

macro_rules! tile {
    ($shape:literal, $size:expr, $threads:literal, $held:literal, $resident:literal, $step:expr, $rest:literal) => {
        Tile {
            names: [
                concat!("vocoder_conv_f32_", $shape),
                concat!("vocoder_conv_tf32_", $shape),
                concat!("vocoder_conv_f16_", $shape),
            ],
            rows: $size.0,
            columns: $size.1,
            threads: $threads,
            held: $held,
            resident: $resident,
            step: $step,
            rest: $rest,
        }
    };
}

/// With the times that an H200 took (`kernels/selftest/vocoder_selftest.cu` prints them). On another GPU they only have
/// to be in proportion.
const TILES: [Tile; 6] = [
    tile!("128x96", (128, 96), 256, 3, 2, (0.80, 0.35), 3.0),
    tile!("64x96", (64, 96), 128, 3, 3, (0.61, 0.21), 3.0),
    tile!("64x48", (64, 48), 128, 4, 3, (0.48, 0.07), 2.0),
    tile!("32x48", (32, 48), 128, 6, 3, (0.26, 0.09), 1.2),
    tile!("16x32", (16, 32), 128, 12, 3, (0.19, 0.05), 0.8),
    Tile {
        names: ["vocoder_conv_hopper_128x96"; 3],
        rows: 128,
        columns: 96,
        threads: 256,
        held: 3,
        resident: 2,
        step: (0.55, 0.27),
        rest: 3.0,
    },
];

impl Tiles {
    pub fn of(gpu: &Gpu, precision: Precision) -> Tiles {
        if gpu.is_hopper() && precision == Precision::F16 { Tiles::Hopper } else { Tiles::Usual }
    }

    pub fn all(self) -> &'static [Tile] {
        match self {
            Tiles::Usual => &TILES[..5],
            Tiles::Hopper => &TILES,
        }
    }

    /// The index of the tile that takes the least time for a product of so many rows, columns and steps: blocks come to a
    /// multiprocessor in waves, as many as it holds.
    pub fn pick(self, rows: usize, columns: usize, steps: usize, multiprocessors: usize) -> usize {
        let tiles = self.all();
        let cost = |tile: &Tile| {
            let share = tile.blocks(rows, columns).div_ceil(multiprocessors.max(1));
            let wave = |blocks: usize| {
                let step = tile.step.0 + tile.step.1 * (blocks - 1) as f64;
                step * steps as f64 + tile.rest
            };
            let (full, left) = (share / tile.resident, share % tile.resident);
            full as f64 * wave(tile.resident) + if left > 0 { wave(left) } else { 0.0 }
        };
        // Of equals, the larger.
        (0..tiles.len()).min_by(|a, b| cost(&tiles[*a]).total_cmp(&cost(&tiles[*b]))).unwrap_or(0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn much_to_do_takes_the_large_tile_and_little_the_one_with_most_blocks() {
        for (tiles, large) in [(Tiles::Usual, "vocoder_conv_f16_128x96"), (Tiles::Hopper, "vocoder_conv_hopper_128x96")]
        {
            let name = |rows, columns, steps| tiles.all()[tiles.pick(rows, columns, steps, 132)].names[2];
            assert_eq!(name(64 * 1920, 96, 21), large);
            assert_eq!(name(1, 1024, 48), "vocoder_conv_f16_16x32");
        }
    }

    #[test]
    fn every_tile_fits_the_shared_memory_of_a_block() {
        assert!(TILES.iter().all(|tile| tile.shared() <= 160 << 10));
    }
}
