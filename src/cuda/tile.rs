//! Chooses the kernel of a product of more than a few rows. Results do not depend on it.

use super::many;

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
    /// 128 outputs by so many rows, whose inputs are dealt: `many_linear_90a.cu`.
    Many(usize),
}

/// Which tiles a GPU has beside those that all have.
#[derive(Clone, Copy, Debug)]
pub(super) struct Has {
    /// Blocks that share one.
    pub clusters: bool,
    /// [`Tile::Many`].
    pub many: bool,
}

/// The sizes of a product.
#[derive(Clone, Copy, Debug)]
pub(super) struct Product {
    pub rows: usize,
    pub outputs: usize,
    pub inputs: usize,
}

impl Product {
    /// The tile that takes the least time.
    pub fn tile(self, multiprocessors: usize, has: Has) -> Tile {
        let narrow = (Tile::Narrow, self.narrow(multiprocessors));
        if !self.outputs.is_multiple_of(64) {
            return Tile::Narrow;
        }
        let wide = (Tile::Wide, self.wide(multiprocessors));
        let mut best = if narrow.1 < wide.1 * CLEARLY { narrow } else { wide };
        let shared = (Tile::Shared, self.shared(multiprocessors));
        if has.clusters && shared.1 < best.1 {
            best = shared;
        }
        let (rows, time) = self.many(multiprocessors);
        if has.many && time < best.1 { Tile::Many(rows) } else { best.0 }
    }

    /// Rows of the [`Tile::Many`] that takes the least time, and this time.
    pub fn many(self, multiprocessors: usize) -> (usize, f64) {
        // Of a wave of tiles: its results, and a step through the inputs.
        let times = [(1.9, 0.225), (2.5, 0.28), (3.0, 0.43)];
        let mut best = (many::TILES[0], f64::INFINITY);
        for (rows, (results, step)) in many::TILES.into_iter().zip(times) {
            let tiles = self.outputs.div_ceil(128) * self.rows.div_ceil(rows);
            let wave = results + step * (self.inputs / DEPTH) as f64;
            // Where each weight is read once, memory is as slow as the products are.
            let memory = 0.45 * (self.outputs * self.inputs * 2) as f64 / 4.3e6;
            let time = 0.5 + memory + wave * tiles.div_ceil(multiprocessors.max(1)) as f64;
            if time < best.1 {
                best = (rows, time);
            }
        }
        best
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
        Product { rows, outputs, inputs }.tile(SMS, Has { clusters: true, many: false })
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

    /// As above, on Hopper.
    #[test]
    fn rows_are_dealt_where_that_was_measured_to_be_fastest() {
        use Tile::{Many, Shared};
        let tile =
            |rows, outputs, inputs| Product { rows, outputs, inputs }.tile(SMS, Has { clusters: true, many: true });
        // Queries with keys and values, and output, of the thinker of the 30B; its router; gate with up, and down, of the
        // 1.7B.
        let sizes = [(5120, 2048), (2048, 4096), (128, 2048), (12288, 2048), (2048, 6144)];
        let measured = [
            (64, [Many(32), Shared, Shared, Many(64), Shared]),
            (128, [Many(64), Many(32), Shared, Many(128), Many(32)]),
            (304, [Many(128), Many(64), Shared, Many(64), Many(64)]),
            (2048, [Many(128), Many(128), Many(32), Many(128), Many(128)]),
        ];
        for (rows, want) in measured {
            assert_eq!(sizes.map(|(outputs, inputs)| tile(rows, outputs, inputs)), want, "{rows} rows");
        }
    }

    #[test]
    fn a_tile_fits_the_outputs_and_the_device() {
        for outputs in (32..8192).step_by(32) {
            let of = Product { rows: 100, outputs, inputs: 2048 };
            let all = Has { clusters: true, many: true };
            assert!(outputs % 64 == 0 || of.tile(SMS, all) == Tile::Narrow, "{outputs}");
            let usual = of.tile(SMS, Has { clusters: false, many: false });
            assert!(matches!(usual, Tile::Narrow | Tile::Wide), "{outputs}");
            of.tile(0, all);
        }
    }
}
