//! Windows of sound through the audio tower: each through its convolutions, all of a step through the layers together.

use super::memory::Room;
use super::net::AudioNet;
use super::products::Mode;
use super::queue::{Positions, Queue, Tile};
use crate::{CudaError, Pinned};
use omni_model::hf::downsampled;

/// A window and where its features are.
pub(super) struct Window {
    /// Page-locked: `[bins, frames]`.
    pub features: Pinned<u8>,
    pub frames: usize,
    /// Frames that its chunks are padded to.
    pub chunk: usize,
}

impl AudioNet {
    /// Queues the encoding of windows; their rows then lie in [`Room::Rows`], one behind the other, `[tokens, output_dim]`
    /// of f32. Returns how many rows each has. `tables`: page-locked memory that [`AudioNet::tables`] has filled.
    ///
    /// # Errors
    /// What the driver says.
    pub fn queue(&self, queue: Queue<'_>, windows: &[Window], tables: &Pinned<u8>) -> Result<Vec<usize>, CudaError> {
        let (width, f32s) = (self.config.d_model, size_of::<f32>());
        let tokens: Vec<usize> = windows.iter().map(|window| self.config.tokens(window.frames)).collect();
        let rows = tokens.iter().sum();
        let stream = queue.stream;
        let x = queue.scratch.room(stream, Room::Stream, rows * width * f32s)?;
        let mut before = 0;
        for (window, tokens) in windows.iter().zip(&tokens) {
            self.convolve(queue, window, *tokens, x + (before * width * f32s) as u64)?;
            before += tokens;
        }
        let heads = self.config.encoder_attention_heads;
        let tiles = Tile::of_parts(tokens.iter().copied(), queue.queries(self.config.head_dim())).len();
        let tables = queue.scratch.filled(stream, Room::Tables, tables, tiles * size_of::<Tile>())?;
        let at = Positions { x, rows, tiles: (tables, tiles), turns: 0 };
        for layer in &self.layers {
            queue.layer(layer, at, heads, Mode::GeluErf)?;
        }
        let normed = queue.room(Room::Normed, rows * width)?;
        let inner = queue.room(Room::Inner, rows * width)?;
        let out = queue.scratch.room(stream, Room::Rows, rows * self.config.output_dim * f32s)?;
        let products = &queue.kernels.products;
        queue.norm(&self.norm, x, normed, rows, width)?;
        products.run(stream, Mode::GeluErf, &self.inner, normed, inner, width, rows)?;
        products.run(stream, Mode::Full, &self.output, inner, out, self.config.output_dim, rows)?;
        Ok(tokens)
    }

    /// The table that attention of these windows reads.
    pub fn tables(&self, queue: Queue<'_>, windows: &[Window]) -> Vec<u8> {
        let tokens = windows.iter().map(|window| self.config.tokens(window.frames));
        Tile::bytes(&Tile::of_parts(tokens, queue.queries(self.config.head_dim())))
    }

    /// The transformer's input of a window, `[tokens, d_model]` of f32, to `x`.
    fn convolve(&self, queue: Queue<'_>, window: &Window, tokens: usize, x: u64) -> Result<(), CudaError> {
        let Window { features, frames, chunk } = window;
        let (bins, step, width) = (self.config.num_mel_bins, self.config.chunk_frames(), self.config.d_model);
        let (chunks, products) = (frames.div_ceil(step), &queue.kernels.products);
        let features =
            queue.scratch.filled(queue.stream, Room::Features, features, bins * frames * size_of::<f32>())?;
        let mut from = queue.room(Room::Before, chunks * bins * chunk)?;
        queue.chunks(features, from, [chunks, bins, *frames, step, *chunk])?;
        let (mut height, mut wide, mut channels) = (bins, *chunk, 1);
        for (number, convolution) in self.convolutions.iter().enumerate() {
            let places = chunks * downsampled_by_two(height) * downsampled_by_two(wide);
            let taps = queue.room(Room::Taps, places * convolution.inputs())?;
            queue.taps(from, taps, [chunks, height, wide, channels], convolution.inputs())?;
            (height, wide, channels) = (downsampled_by_two(height), downsampled_by_two(wide), convolution.outputs());
            from = queue.room(if number % 2 == 0 { Room::After } else { Room::Before }, places * channels)?;
            products.run(queue.stream, Mode::GeluErf, convolution, taps, from, channels, places)?;
        }
        let flat = queue.room(Room::Taps, tokens * channels * height)?;
        queue.flatten(from, flat, tokens, [height, wide, channels])?;
        // Of a whole chunk: only the last one of a window is shorter.
        let time = downsampled(step);
        queue.places(self.positions.address(), x, [tokens, time, width])?;
        products.run(queue.stream, Mode::Add, &self.flatten, flat, x, width, tokens)
    }
}

/// A side behind a convolution of stride 2 that is padded by one.
fn downsampled_by_two(side: usize) -> usize {
    side.div_ceil(2)
}
