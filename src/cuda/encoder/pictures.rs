//! Temporal slices of pictures through the vision tower, a layer at a time.

use super::memory::{Lent, Pool, Room, Stash};
use super::net::{Merger, VisionNet};
use super::products::Mode;
use super::queue::{PixelShape, Positions, Queue, Tile};
use super::stage::filled;
use crate::copies::Memory;
use crate::weights::plain;
use crate::{CudaError, Pinned};
use omni_media::patches::Patches;
use omni_model::encoder::Features;
use omni_model::towers::side_places;
use std::ops::Range;
use std::rc::Rc;

const F32: usize = size_of::<f32>();
/// `TowerSide` of `kernels/tower_ops.cu`.
const SIDE_BYTES: usize = 16;
/// Where the parts of a slice's memory begin.
const ALIGNED: usize = 256;

/// A slice on its way through the layers.
pub(super) struct Slice {
    memory: Lent,
    layout: Layout,
    patches: usize,
    /// Patches that have come.
    fed: usize,
    /// Layers queued.
    layers: usize,
    merged: bool,
}

/// Where rows are copied to.
#[derive(Clone, Copy)]
pub(super) enum Target<'a> {
    /// Page-locked memory.
    Host(&'a Pinned<u8>),
    /// Memory that outlives the slice.
    Device(&'a Memory),
}

/// Where what a slice keeps lies in its memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Layout {
    /// Rows of the embeddings, `[patches / unit, levels * out]` of f32: the last layer's, then those of the levels.
    rows: usize,
    turns: usize,
    tables: usize,
    end: usize,
}

impl Layout {
    fn new(net: &VisionNet, patches: usize, tables: usize) -> Layout {
        let config = &net.config;
        let after = |at: usize, bytes: usize| (at + bytes).next_multiple_of(ALIGNED);
        let rows = after(0, patches * config.hidden_size * F32);
        let turns = after(rows, patches / config.merge_unit() * net.row() * F32);
        let tables_at = after(turns, patches * config.head_dim() * F32);
        Layout { rows, turns, tables: tables_at, end: after(tables_at, tables) }
    }
}

/// Patches on their way to the device.
pub(super) struct Piece {
    /// Page-locked.
    pub memory: Pinned<u8>,
    patches: usize,
    form: Form,
}

/// What the memory of a [`Piece`] has.
enum Form {
    /// `[patches, patch_width]` of f32.
    Numbers,
    /// A normalised value for each value of a pixel, `[3, 256]` of f32, then lines of `frames` frames. They take less than
    /// a tenth of the numbers, and the device makes the numbers of them.
    Pixels { bytes: usize, shape: PixelShape },
}

impl Piece {
    /// Copies what the device needs of patches.
    ///
    /// # Errors
    /// When the host has no page-locked memory.
    pub fn new(stash: &Stash, features: Features, patches: usize) -> Result<Piece, CudaError> {
        match features.patches() {
            Some((pictures, range)) => Piece::of_pixels(stash, pictures, range),
            None => Ok(Piece { memory: filled(stash, plain(&features.numbers()))?, patches, form: Form::Numbers }),
        }
    }

    fn of_pixels(stash: &Stash, pictures: &Patches, range: Range<usize>) -> Result<Piece, CudaError> {
        let (patches, lines) = (range.len(), pictures.lines(range));
        let levels = plain(pictures.levels().as_flattened());
        let bytes = levels.len() + lines.frames.iter().map(|frame| frame.len()).sum::<usize>();
        let memory = stash.pinned(bytes)?;
        let mut at = 0;
        for part in [levels].into_iter().chain(lines.frames.iter().copied()) {
            memory.set(at, part);
            at += part.len();
        }
        let (config, columns, frames) = (pictures.config(), pictures.grid().w, lines.frames.len());
        let height = lines.frames.first().map_or(0, |frame| frame.len() / (3 * pictures.size().width));
        let shape = PixelShape {
            before: lines.before as i32,
            patches: patches as i32,
            columns: columns as i32,
            height: height as i32,
            frames: frames as i32,
            deep: config.temporal_patch_size as i32,
            side: config.patch_size as i32,
            merge: config.merge_size as i32,
        };
        let form = Form::Pixels { bytes, shape };
        Ok(Piece { memory, patches, form })
    }
}

impl VisionNet {
    /// Numbers of a row that is emitted: the embedding, and the levels of what is seen.
    pub fn row(&self) -> usize {
        self.config.out_hidden_size * (1 + self.deepstack.len())
    }

    /// What [`Slice::begin`] copies to the device.
    pub fn tables(&self, queue: Queue<'_>, [rows, columns]: [usize; 2]) -> Vec<u8> {
        let place = |[(below, near), (above, far)]: [(usize, f32); 2]| {
            let (places, weights) = ([below as i32, above as i32], [near, far]);
            places.map(i32::to_le_bytes).into_iter().chain(weights.map(f32::to_le_bytes)).flatten()
        };
        let sides = [rows, columns].into_iter().flat_map(|len| side_places(&self.config, len));
        let tiles = Tile::of_parts([rows * columns], queue.queries(self.config.head_dim()));
        sides.flat_map(place).chain(Tile::bytes(&tiles)).collect()
    }
}

impl Slice {
    /// Queues the beginning of a slice of a grid: learned positions, and how heads turn. `tables`: page-locked memory with
    /// [`VisionNet::tables`].
    ///
    /// # Errors
    /// When the device has no room; what the driver says.
    pub fn begin(
        net: &VisionNet,
        queue: Queue<'_>,
        pool: &Rc<Pool>,
        [rows, columns]: [usize; 2],
        tables: &Pinned<u8>,
        bytes: usize,
    ) -> Result<Slice, CudaError> {
        let (config, patches) = (&net.config, rows * columns);
        let (hidden, inner) = (config.hidden_size, config.intermediate_size.max(config.hidden_size));
        // All that its layers need, so that one for which there is no room fails before it has begun.
        for (room, width) in
            [(Room::Normed, hidden), (Room::Qkv, 3 * hidden), (Room::Seen, hidden), (Room::Inner, inner)]
        {
            queue.room(room, patches * width)?;
        }
        let layout = Layout::new(net, patches, bytes);
        let memory = pool.take(layout.end)?;
        memory.buffer().upload_bytes_async(queue.stream, layout.tables, tables, 0, bytes)?;
        let (x, turns, sides) = (memory.at(0), memory.at(layout.turns), memory.at(layout.tables));
        let (merge, half) = (config.spatial_merge_size, config.head_dim() / 2);
        queue.corners(&net.table, sides, x, [rows, columns, merge, config.grid_side, hidden])?;
        queue.turns(net.frequencies.address(), turns, [patches, columns, merge, half])?;
        Ok(Slice { layout, memory, patches, fed: 0, layers: 0, merged: false })
    }

    /// Layers that were queued.
    pub fn layers(&self) -> usize {
        self.layers
    }

    /// Queues the next patches.
    ///
    /// # Errors
    /// What the driver says.
    pub fn feed(&mut self, net: &VisionNet, queue: Queue<'_>, piece: &Piece) -> Result<(), CudaError> {
        let (hidden, memory) = (net.config.hidden_size, &piece.memory);
        let numbers = piece.patches * net.config.patch_width();
        let taken = queue.room(Room::Taps, numbers)?;
        let came = |bytes| queue.scratch.filled(queue.stream, Room::Features, memory, bytes);
        match piece.form {
            Form::Numbers => queue.take(came(numbers * F32)?, taken, numbers)?,
            Form::Pixels { bytes, shape } => queue.pixels(came(bytes)?, taken, shape, numbers)?,
        }
        let x = self.memory.at(self.fed * hidden * F32);
        queue.kernels.products.run(queue.stream, Mode::Add, &net.patch, taken, x, hidden, piece.patches)?;
        self.fed += piece.patches;
        Ok(())
    }

    /// Queues the next layer, and the level that is taken behind it.
    ///
    /// # Errors
    /// What the driver says.
    pub fn advance(&mut self, net: &VisionNet, queue: Queue<'_>, sides: [usize; 2]) -> Result<(), CudaError> {
        let config = &net.config;
        let Some(layer) = net.layers.get(self.layers) else { return Ok(()) };
        let tables = self.memory.at(self.layout.tables) + ((sides[0] + sides[1]) * SIDE_BYTES) as u64;
        let at = Positions {
            x: self.memory.at(0),
            rows: self.patches,
            tiles: (tables, Tile::of_parts([self.patches], queue.queries(config.head_dim())).len()),
            turns: self.memory.at(self.layout.turns),
        };
        queue.layer(layer, at, config.num_heads, Mode::GeluTanh)?;
        if let Some(level) = config.deepstack_visual_indexes.iter().position(|taken| *taken == self.layers) {
            self.merge(net, queue, &net.deepstack[level], 1 + level)?;
        }
        self.layers += 1;
        Ok(())
    }

    /// Queues the copy of `count` rows, from the one with the number `start` on.
    ///
    /// # Errors
    /// What the driver says.
    pub fn emit(
        &mut self,
        net: &VisionNet,
        queue: Queue<'_>,
        [start, count]: [usize; 2],
        to: Target<'_>,
    ) -> Result<(), CudaError> {
        if !self.merged {
            self.merge(net, queue, &net.merger, 0)?;
            self.merged = true;
        }
        let row = net.row() * F32;
        let (buffer, at, bytes) = (self.memory.buffer(), self.layout.rows + start * row, count * row);
        match to {
            Target::Host(to) => buffer.download_async(queue.stream, at, to, 0, bytes),
            Target::Device(to) => to.fill(queue.stream, buffer, at, bytes),
        }
    }

    /// Queues a merger of all patches; its results are column block `level` of the rows.
    fn merge(&self, net: &VisionNet, queue: Queue<'_>, merger: &Merger, level: usize) -> Result<(), CudaError> {
        let (hidden, unit, out) = (net.config.hidden_size, net.config.merge_unit(), net.config.out_hidden_size);
        let (rows, width, x) = (self.patches / unit, hidden * unit, self.memory.at(0));
        let normed = queue.room(Room::Normed, rows * width)?;
        let inner = queue.room(Room::Inner, rows * width)?;
        let [count, wide] = if merger.together { [rows, width] } else { [self.patches, hidden] };
        queue.norm(&merger.norm, x, normed, count, wide)?;
        let products = &queue.kernels.products;
        products.run(queue.stream, Mode::GeluErf, &merger.inner, normed, inner, width, rows)?;
        let y = self.memory.at(self.layout.rows + level * out * F32);
        products.run(queue.stream, Mode::Full, &merger.output, inner, y, net.row(), rows)
    }
}
