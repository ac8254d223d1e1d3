//! Which tile a product is computed with. Results do not depend on it.

/// Channels of one step of a product through shared memory, and bytes of such a line.
pub(super) const DEPTH: usize = 32;
const LINE: usize = DEPTH * size_of::<f32>();
/// What a block keeps for each row of its tile besides.
const ROW_BYTES: usize = 24;

/// One shape that `kernels/vocoder_conv.cu` has a kernel for.
pub(super) struct Tile {
    /// Kernels for tensor cores and for f32.
    pub names: [&'static str; 2],
    pub rows: usize,
    pub columns: usize,
    stages: usize,
    /// Blocks that a multiprocessor holds at once.
    resident: usize,
    /// Share of the large tile's speed that it reaches when there is enough to do.
    worth: f64,
}

impl Tile {
    /// Shared memory of a block.
    pub fn shared(&self) -> usize {
        self.stages * (self.rows + self.columns) * LINE + self.rows * ROW_BYTES
    }

    pub fn blocks(&self, rows: usize, columns: usize) -> usize {
        rows.div_ceil(self.rows) * columns.div_ceil(self.columns)
    }
}

macro_rules! tile {
    ($shape:literal, $rows:literal, $columns:literal, $stages:literal, $resident:literal, $worth:literal) => {
        Tile {
            names: [concat!("vocoder_conv_tf32_", $shape), concat!("vocoder_conv_f32_", $shape)],
            rows: $rows,
            columns: $columns,
            stages: $stages,
            resident: $resident,
            worth: $worth,
        }
    };
}

pub(super) const TILES: [Tile; 5] = [
    tile!("128x96", 128, 96, 3, 2, 1.0),
    tile!("64x96", 64, 96, 3, 3, 0.9),
    tile!("64x48", 64, 48, 4, 3, 0.7),
    tile!("32x48", 32, 48, 6, 3, 0.5),
    tile!("16x32", 16, 32, 8, 3, 0.3),
];

/// Products of a multiprocessor per clock with the large tile.
const SPEED: f64 = 500.0;
/// Clocks that a step takes at least, however small the tile.
const LATENCY: f64 = 250.0;

/// The index of the tile that takes the least time for so many rows and columns: the busiest multiprocessor has to
/// multiply its share, and a step of a block cannot be faster than its latency.
pub(super) fn pick(rows: usize, columns: usize, multiprocessors: usize) -> usize {
    let cost = |tile: &Tile| {
        let share = tile.blocks(rows, columns).div_ceil(multiprocessors.max(1));
        let multiply = (share * tile.rows * tile.columns * DEPTH) as f64 / (SPEED * tile.worth);
        multiply.max(share.div_ceil(tile.resident) as f64 * LATENCY)
    };
    // Of equals, the larger.
    (0..TILES.len()).min_by(|a, b| cost(&TILES[*a]).total_cmp(&cost(&TILES[*b]))).unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn much_to_do_takes_the_large_tile_and_little_the_one_with_most_blocks() {
        assert_eq!(pick(64 * 1920, 96, 132), 0);
        assert_eq!(pick(1, 1024, 132), 4);
    }

    #[test]
    fn every_tile_fits_the_shared_memory_of_a_block() {
        assert!(TILES.iter().all(|tile| tile.shared() <= 160 << 10));
    }
}
