//! Queues the kernels of a tower: what both towers have in common.

use super::memory::{Room, Scratch};
use super::net::{Layer, Norm};
use super::products::{Cores, Mode, Products};
use crate::kernel::kernel_args;
use crate::weights::{Weight, element_size};
use crate::{CudaError, Gpu, Kernel, Shape, Stream};
use omni_config::Precision;

const THREADS: u32 = 256;
/// Blocks of kernels whose threads advance in strides of the grid.
const BLOCKS: usize = 2048;
/// Queries of a tile of attention.
const QUERIES: usize = 64;
/// Heads that the kernels on tensor cores take, with their kernels' shared memory.
const HEADS: [usize; 3] = [64, 80, 128];
const fn head_bytes(width: usize) -> usize {
    5 * QUERIES * (width * 2 + 16)
}
/// Those that the kernels for Hopper take, with twice as many queries to a tile, and their shared memory: of queries and
/// keys, 72 numbers lie as 80.
const HOPPER_HEADS: [usize; 2] = [64, 72];
const fn hopper_head_bytes(width: usize) -> usize {
    1024 + 8 * QUERIES * width.next_multiple_of(16) * 2
}

/// `TowerTile` of `kernels/tower_attention.cuh`: queries of a part that lies from `start` to `end`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(C)]
pub(super) struct Tile {
    first: i32,
    start: i32,
    end: i32,
}

impl Tile {
    /// The tiles, each of so many `queries`, of parts of these lengths, one behind the other.
    pub fn of_parts(parts: impl IntoIterator<Item = usize>, queries: usize) -> Vec<Tile> {
        let mut tiles = Vec::new();
        let mut start = 0;
        for len in parts {
            let end = start + len;
            let tile = |first| Tile { first: first as i32, start: start as i32, end: end as i32 };
            tiles.extend((start..end).step_by(queries).map(tile));
            start = end;
        }
        tiles
    }

    /// As the kernel reads them.
    pub fn bytes(tiles: &[Tile]) -> Vec<u8> {
        tiles.iter().flat_map(|tile| [tile.first, tile.start, tile.end]).flat_map(i32::to_le_bytes).collect()
    }
}

/// `TowerPixels` of `kernels/tower_ops.cu`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(C)]
pub(super) struct PixelShape {
    /// Patches of the first row of blocks that are not asked for.
    pub before: i32,
    pub patches: i32,
    /// Patches from left to right.
    pub columns: i32,
    /// Pixels of each frame from top to bottom.
    pub height: i32,
    /// Frames that there are.
    pub frames: i32,
    /// Frames of a row of numbers.
    pub deep: i32,
    /// Pixels of a patch's side.
    pub side: i32,
    /// Patches of a block's side.
    pub merge: i32,
}

/// `TowerAttention` of `kernels/tower_attention.cuh`.
#[derive(Clone, Copy)]
#[repr(C)]
struct AttentionArgs {
    qkv: u64,
    out: u64,
    tiles: u64,
    heads: i32,
    d: i32,
    scale: f32,
}

/// The kernels of one element type.
pub(super) struct Kernels {
    precision: Precision,
    pub products: Products,
    norm: Kernel,
    take: Kernel,
    pixels: Kernel,
    chunks: Kernel,
    taps: Kernel,
    taps8: Kernel,
    flatten: Kernel,
    places: Kernel,
    corners: Kernel,
    turns: Kernel,
    rotate: Kernel,
    attention: Kernel,
    /// For [`HEADS`].
    see: Option<[Kernel; 3]>,
    /// For [`HOPPER_HEADS`].
    see_hopper: Option<[Kernel; 2]>,
}

impl Kernels {
    /// For a GPU and element type.
    ///
    /// # Errors
    /// What the driver says.
    pub fn new(gpu: &Gpu, precision: Precision, cores: Cores) -> Result<Kernels, CudaError> {
        macro_rules! kernel {
            ($name:literal) => {
                match precision {
                    Precision::F32 => gpu.kernel(concat!($name, "_f32"))?,
                    Precision::Bf16 => gpu.kernel(concat!($name, "_bf16"))?,
                }
            };
        }
        let see = match precision {
            Precision::Bf16 if cores != Cores::Plain => {
                let kernels = [gpu.kernel("tower_see64")?, gpu.kernel("tower_see80")?, gpu.kernel("tower_see128")?];
                for (kernel, width) in kernels.iter().zip(HEADS) {
                    kernel.allow_shared(head_bytes(width))?;
                }
                Some(kernels)
            }
            _ => None,
        };
        let see_hopper = match precision {
            Precision::Bf16 if cores == Cores::Best && gpu.is_hopper() => {
                let kernels = [gpu.kernel("tower_hopper_see64")?, gpu.kernel("tower_hopper_see72")?];
                for (kernel, width) in kernels.iter().zip(HOPPER_HEADS) {
                    kernel.allow_shared(hopper_head_bytes(width))?;
                }
                Some(kernels)
            }
            _ => None,
        };
        Ok(Kernels {
            precision,
            products: Products::new(gpu, precision, cores)?,
            norm: kernel!("tower_norm"),
            take: kernel!("tower_take"),
            pixels: kernel!("tower_pixels"),
            chunks: kernel!("tower_chunks"),
            taps: kernel!("tower_taps"),
            taps8: kernel!("tower_taps8"),
            flatten: kernel!("tower_flatten"),
            places: gpu.kernel("tower_places")?,
            corners: kernel!("tower_corners"),
            turns: gpu.kernel("tower_turns")?,
            rotate: kernel!("tower_rotate"),
            attention: kernel!("tower_attention"),
            see,
            see_hopper,
        })
    }
}

/// Positions that go through a layer together.
#[derive(Clone, Copy)]
pub(super) struct Positions {
    /// Their residual stream, `[rows, width]` of f32.
    pub x: u64,
    pub rows: usize,
    /// Tiles of attention, and how many.
    pub tiles: (u64, usize),
    /// Cosines and sines of a picture's patches; 0: heads do not turn.
    pub turns: u64,
}

/// A stream and what is queued with.
#[derive(Clone, Copy)]
pub(super) struct Queue<'a> {
    pub stream: &'a Stream,
    pub kernels: &'a Kernels,
    pub scratch: &'a Scratch,
}

/// Threads in strides of the grid.
fn strides(count: usize) -> Shape {
    Shape::new(count.div_ceil(THREADS as usize).min(BLOCKS), THREADS)
}

impl Queue<'_> {
    /// Bytes of one number of the engine.
    pub fn element(&self) -> usize {
        element_size(self.kernels.precision)
    }

    /// Queries of a tile of attention with heads of `d` numbers.
    pub fn queries(&self, d: usize) -> usize {
        if self.kernels.see_hopper.is_some() && HOPPER_HEADS.contains(&d) { 2 * QUERIES } else { QUERIES }
    }

    /// Room for numbers of the engine.
    pub fn room(&self, room: Room, numbers: usize) -> Result<u64, CudaError> {
        self.scratch.room(self.stream, room, numbers * self.element())
    }

    /// Norms rows of f32.
    pub fn norm(&self, norm: &Norm, x: u64, y: u64, rows: usize, width: usize) -> Result<(), CudaError> {
        let (gain, bias) = (norm.gain.address(), norm.bias.address());
        let shape = Shape::new(rows.div_ceil(8), THREADS).overlapping();
        // SAFETY: the arguments are those of `tower_norm_*` in kernels/tower_ops.cu; the caller's rows have this width.
        unsafe {
            self.kernels.norm.launch(
                self.stream,
                shape,
                kernel_args![x, gain, bias, y, rows as i32, width as i32, norm.eps],
            )
        }
    }

    /// Numbers of f32 to the engine's type.
    pub fn take(&self, x: u64, y: u64, count: usize) -> Result<(), CudaError> {
        // SAFETY: the arguments are those of `tower_take_*`; both sides have `count` numbers.
        unsafe { self.kernels.take.launch(self.stream, strides(count), kernel_args![x, y, count as i32]) }
    }

    /// Lines of frames behind the levels of their pixels to `numbers` numbers of the engine.
    pub fn pixels(&self, x: u64, y: u64, shape: PixelShape, numbers: usize) -> Result<(), CudaError> {
        // SAFETY: the arguments are those of `tower_pixels_*`; the caller has as many lines as the shape says, and room for
        // the numbers, which are as many as the shape has.
        unsafe { self.kernels.pixels.launch(self.stream, strides(numbers), kernel_args![x, y, shape]) }
    }

    /// A window of `frames` frames to `[chunks, bins, wide]`.
    pub fn chunks(&self, x: u64, y: u64, [chunks, bins, frames, step, wide]: [usize; 5]) -> Result<(), CudaError> {
        let shape = strides(chunks * bins * wide);
        let [c, b, f, s, w] = [chunks, bins, frames, step, wide].map(|n| n as i32);
        // SAFETY: the arguments are those of `tower_chunks_*`; the caller has room for what it writes.
        unsafe { self.kernels.chunks.launch(self.stream, shape, kernel_args![x, y, c, b, f, s, w]) }
    }

    /// Images `[n, height, width, channels]` to what a convolution sees of them, `inputs` numbers a place.
    pub fn taps(
        &self,
        x: u64,
        y: u64,
        [n, height, width, channels]: [usize; 4],
        inputs: usize,
    ) -> Result<(), CudaError> {
        let count = n * height.div_ceil(2) * width.div_ceil(2) * inputs;
        let [n, h, w, c, i] = [n, height, width, channels, inputs].map(|n| n as i32);
        // SAFETY: the arguments are those of `tower_taps_*` and `tower_taps8_*`; the caller has room for what they write.
        unsafe {
            if channels.is_multiple_of(8) {
                self.kernels.taps8.launch(self.stream, strides(count / 8), kernel_args![x, y, n, h, w, c])
            } else {
                self.kernels.taps.launch(self.stream, strides(count), kernel_args![x, y, n, h, w, c, i])
            }
        }
    }

    /// Convolved chunks `[_, bins, time, channels]` to the rows of their first `tokens` places in time.
    pub fn flatten(&self, x: u64, y: u64, tokens: usize, [bins, time, channels]: [usize; 3]) -> Result<(), CudaError> {
        let shape = strides(tokens * bins * channels);
        let [n, b, t, c] = [tokens, bins, time, channels].map(|n| n as i32);
        // SAFETY: the arguments are those of `tower_flatten_*`.
        unsafe { self.kernels.flatten.launch(self.stream, shape, kernel_args![x, y, n, b, t, c]) }
    }

    /// `x = positions` of each token's place in its chunk, `time` to a chunk.
    pub fn places(&self, positions: u64, x: u64, [tokens, time, width]: [usize; 3]) -> Result<(), CudaError> {
        let shape = strides(tokens * width);
        let [n, t, w] = [tokens, time, width].map(|n| n as i32);
        // SAFETY: the arguments are those of `tower_places`.
        unsafe { self.kernels.places.launch(self.stream, shape, kernel_args![positions, x, n, t, w]) }
    }

    /// `x` = the learned positions of the patches of a grid of `rows` by `columns`, between those of a table of `side` by
    /// `side`.
    pub fn corners(
        &self,
        table: &Weight,
        sides: u64,
        x: u64,
        [rows, columns, merge, side, width]: [usize; 5],
    ) -> Result<(), CudaError> {
        let patches = rows * columns;
        let shape = strides(patches * width);
        let table = table.address();
        let [n, r, c, m, s, w] = [patches, rows, columns, merge, side, width].map(|n| n as i32);
        // SAFETY: the arguments are those of `tower_corners_*`.
        unsafe { self.kernels.corners.launch(self.stream, shape, kernel_args![table, sides, x, n, r, c, m, s, w]) }
    }

    /// Cosines and sines of the patches of a grid.
    pub fn turns(
        &self,
        frequencies: u64,
        turns: u64,
        [patches, columns, merge, half]: [usize; 4],
    ) -> Result<(), CudaError> {
        let shape = strides(patches * half);
        let [n, c, m, h] = [patches, columns, merge, half].map(|n| n as i32);
        // SAFETY: the arguments are those of `tower_turns`.
        unsafe { self.kernels.turns.launch(self.stream, shape, kernel_args![frequencies, turns, n, c, m, h]) }
    }

    /// One layer of a transformer over positions of `heads` heads.
    pub fn layer(&self, layer: &Layer, at: Positions, heads: usize, gelu: Mode) -> Result<(), CudaError> {
        let Positions { x, rows, turns, .. } = at;
        let (width, inner) = (layer.project.outputs(), layer.expand.outputs());
        let normed = self.room(Room::Normed, rows * width)?;
        let qkv = self.room(Room::Qkv, rows * 3 * width)?;
        let seen = self.room(Room::Seen, rows * width)?;
        let wide = self.room(Room::Inner, rows * inner)?;
        let run = |mode, linear, x, y, ldy| self.kernels.products.run(self.stream, mode, linear, x, y, ldy, rows);
        self.norm(&layer.attention_norm, x, normed, rows, width)?;
        run(Mode::Store, &layer.qkv, normed, qkv, 3 * width)?;
        if turns != 0 {
            let half = width / heads / 2;
            let (n, h, half_) = (rows as i32, heads as i32, half as i32);
            let shape = strides(rows * 2 * heads * half).overlapping();
            // SAFETY: the arguments are those of `tower_rotate_*`; there is a turn for each row and pair.
            unsafe { self.kernels.rotate.launch(self.stream, shape, kernel_args![qkv, turns, n, h, half_])? };
        }
        self.attention(qkv, seen, at.tiles, heads, width / heads)?;
        run(Mode::Add, &layer.project, seen, x, width)?;
        self.norm(&layer.ffn_norm, x, normed, rows, width)?;
        run(gelu, &layer.expand, normed, wide, inner)?;
        run(Mode::Add, &layer.shrink, wide, x, width)
    }

    fn attention(&self, qkv: u64, out: u64, tiles: (u64, usize), heads: usize, d: usize) -> Result<(), CudaError> {
        let scale = (d as f32).sqrt().recip();
        let args = AttentionArgs { qkv, out, tiles: tiles.0, heads: heads as i32, d: d as i32, scale };
        let hopper = HOPPER_HEADS.iter().position(|width| d == *width);
        if let Some((kernels, at)) = self.kernels.see_hopper.zip(hopper) {
            let shape = Shape::new(tiles.1, THREADS).by(heads).shared(hopper_head_bytes(d)).overlapping();
            // SAFETY: the argument is `TowerAttention`; the tiles lie inside the rows.
            return unsafe { kernels[at].launch(self.stream, shape, kernel_args![args]) };
        }
        let fits = HEADS.iter().position(|width| d <= *width && d.is_multiple_of(8));
        let (kernel, shape) = match self.kernels.see.zip(fits) {
            Some((kernels, at)) => {
                (kernels[at], Shape::new(tiles.1, THREADS / 2).by(heads).shared(head_bytes(HEADS[at])))
            }
            None => (self.kernels.attention, Shape::new(tiles.1 * 8, THREADS).by(heads)),
        };
        // SAFETY: the argument is `TowerAttention`; the tiles lie inside the rows.
        unsafe { kernel.launch(self.stream, shape, kernel_args![args]) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tiles_cover_each_part_and_see_no_other() {
        let tiles = Tile::of_parts([1, 64, 0, 65], QUERIES);
        let of = |first, start, end| Tile { first, start, end };
        assert_eq!(tiles, [of(0, 0, 1), of(1, 1, 65), of(65, 65, 130), of(129, 65, 130)]);
        assert_eq!(Tile::bytes(&tiles).len(), tiles.len() * size_of::<Tile>());
    }
}
