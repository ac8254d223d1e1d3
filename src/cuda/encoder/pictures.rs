//! Temporal slices of pictures through the vision tower, a layer at a time.

use super::memory::{Lent, Pool, Room};
use super::net::{Merger, VisionNet};
use super::products::Mode;
use super::queue::{Positions, Queue, Tile};
use crate::{CudaError, Pinned};
use omni_model::towers::side_places;
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

    /// Queues the next patches, `[count, patch_width]` of f32 in page-locked memory.
    ///
    /// # Errors
    /// What the driver says.
    pub fn feed(
        &mut self,
        net: &VisionNet,
        queue: Queue<'_>,
        features: &Pinned<u8>,
        count: usize,
    ) -> Result<(), CudaError> {
        let (hidden, width) = (net.config.hidden_size, net.config.patch_width());
        let numbers = count * width;
        let raw = queue.scratch.filled(queue.stream, Room::Features, features, numbers * F32)?;
        let taken = queue.room(Room::Taps, numbers)?;
        queue.take(raw, taken, numbers)?;
        let x = self.memory.at(self.fed * hidden * F32);
        queue.kernels.products.run(queue.stream, Mode::Add, &net.patch, taken, x, hidden, count)?;
        self.fed += count;
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

    /// Queues the copy of `count` rows, from the one with the number `start` on, to page-locked memory.
    ///
    /// # Errors
    /// What the driver says.
    pub fn emit(
        &mut self,
        net: &VisionNet,
        queue: Queue<'_>,
        [start, count]: [usize; 2],
        to: &Pinned<u8>,
    ) -> Result<(), CudaError> {
        if !self.merged {
            self.merge(net, queue, &net.merger, 0)?;
            self.merged = true;
        }
        let row = net.row() * F32;
        self.memory.buffer().download_async(queue.stream, self.layout.rows + start * row, to, 0, count * row)
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
