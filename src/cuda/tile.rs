//! Chooses the kernel of a product of more than a few rows. Results do not depend on it.

/// Rows of a tile.
const ROWS: usize = 64;
/// Inputs of a step through shared memory.
const DEPTH: usize = 64;
/// Blocks that share a tile: `PARTS` of `kernels/common.cuh`.
const PARTS: usize = 8;
/// The narrow tile must be so much faster than the wide one, which reads less from the second-level cache.
const CLEARLY: f64 = 0.9;

/// What a block computes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Tile {
    /// One part of the inputs of 64 outputs, in clusters of eight blocks.
    Shared,
    /// 32 outputs.
    Narrow,
    /// 64 outputs.
    Wide,
}

/// The sizes of a product.
#[derive(Clone, Copy, Debug)]
pub(super) struct Product {
    pub rows: usize,
    pub outputs: usize,
    pub inputs: usize,
}

impl Product {
    /// The tile that takes the least time; `clusters`: whether blocks can share one.
    pub fn tile(self, multiprocessors: usize, clusters: bool) -> Tile {
        let narrow = (Tile::Narrow, self.narrow(multiprocessors));
        if !self.outputs.is_multiple_of(64) {
            return Tile::Narrow;
        }
        let wide = (Tile::Wide, self.wide(multiprocessors));
        let best = if narrow.1 < wide.1 * CLEARLY { narrow } else { wide };
        if clusters && self.shared(multiprocessors) < best.1 { Tile::Shared } else { best.0 }
    }

    // Microseconds on an H200 of the kernels of linear.cu (`kernels/selftest/prompt_selftest.cu` prints them). On another GPU
    // they only have to be in proportion.

    fn narrow(self, multiprocessors: usize) -> f64 {
        self.tiled(32, 3, (0.34, 0.19), multiprocessors)
    }

    fn wide(self, multiprocessors: usize) -> f64 {
        self.tiled(64, 2, (0.444, 0.285), multiprocessors)
    }

    /// Blocks of so many outputs come in waves, of which a multiprocessor holds `resident`: a step takes the first time
    /// for one of them, and the second for each beside it.
    fn tiled(self, outputs: usize, resident: usize, step: (f64, f64), multiprocessors: usize) -> f64 {
        let steps = (self.inputs / DEPTH) as f64;
        let share = (self.outputs / outputs * self.rows.div_ceil(ROWS)).div_ceil(multiprocessors.max(1));
        let wave = |blocks: usize| if blocks == 0 { 0.0 } else { steps * (step.0 + step.1 * (blocks - 1) as f64) };
        3.0 + (share / resident) as f64 * wave(resident) + wave(share % resident)
    }

    fn shared(self, multiprocessors: usize) -> f64 {
        let steps = (self.inputs / PARTS / DEPTH) as f64;
        let blocks = PARTS * self.outputs / 64 * self.rows.div_ceil(ROWS);
        let share = blocks.div_ceil(multiprocessors.max(1)) as f64;
        2.8 + 0.41 * steps + share / 2.0 * (3.5 + 0.58 * steps)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SMS: usize = 132;

    fn tile(rows: usize, outputs: usize, inputs: usize) -> Tile {
        Product { rows, outputs, inputs }.tile(SMS, true)
    }

    /// What was fastest on an H200, or within a tenth of it.
    #[test]
    fn the_tile_is_the_one_that_was_measured_to_be_fastest() {
        use Tile::{Narrow, Shared, Wide};
        // Rows, then the talker's queries with keys and values, its output, gate with up, and down; sizes of the 1.7B.
        let measured = [
            (64, [Narrow, Shared, Wide, Shared]),
            (128, [Wide, Narrow, Wide, Shared]),
            (256, [Wide, Wide, Wide, Wide]),
            (512, [Wide, Wide, Wide, Wide]),
        ];
        for (rows, want) in measured {
            let sizes = [(4096, 2048), (2048, 2048), (12288, 2048), (2048, 6144)];
            assert_eq!(sizes.map(|(outputs, inputs)| tile(rows, outputs, inputs)), want, "{rows} rows");
        }
        // The output of attention of the thinker of the 30B, and of its talker.
        assert_eq!([64, 192, 256].map(|rows| tile(rows, 2048, 4096)), [Shared, Shared, Wide]);
        assert_eq!([64, 192, 256, 512].map(|rows| tile(rows, 1024, 2048)), [Shared, Shared, Narrow, Wide]);
        // The predictor with 64 sequences.
        let predictor = [(4096, 1024), (1024, 2048), (6144, 1024), (1024, 3072)];
        assert_eq!(predictor.map(|(outputs, inputs)| tile(64, outputs, inputs)), [Narrow, Shared, Wide, Shared]);
    }

    #[test]
    fn a_tile_fits_the_outputs_and_the_device() {
        for outputs in (32..8192).step_by(32) {
            let of = Product { rows: 100, outputs, inputs: 2048 };
            assert!(outputs % 64 == 0 || of.tile(SMS, true) == Tile::Narrow, "{outputs}");
            assert_ne!(of.tile(SMS, false), Tile::Shared, "{outputs}");
            of.tile(0, true);
        }
    }
}
