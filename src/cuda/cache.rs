//! The paged memory of a stack of layers.

use super::buffer::Buffer;

/// Keys and values of all sequences of a stack.
pub struct Cache {
    pub(super) keys: Buffer<u8>,
    pub(super) values: Buffer<u8>,
    /// Which page holds which positions of a sequence, `[slots, max_pages]`.
    pub(super) tables: Buffer<u32>,
    pub(super) max_pages: usize,
    pub(super) layers: usize,
    pub(super) layer_bytes: usize,
    pub(super) page_bytes: usize,
}

impl Cache {
    /// Address of the tables.
    pub fn tables(&self) -> u64 {
        self.tables.address()
    }

    /// The tables.
    pub fn tables_buffer(&self) -> &Buffer<u32> {
        &self.tables
    }

    /// Pages that one sequence can have.
    pub fn max_pages(&self) -> usize {
        self.max_pages
    }

    /// Keys and values.
    pub fn buffers(&self) -> [&Buffer<u8>; 2] {
        [&self.keys, &self.values]
    }

    /// How many pages there are.
    pub fn pages(&self) -> usize {
        self.layer_bytes / self.page_bytes
    }

    /// Bytes of a layer's keys, or values.
    pub fn layer_bytes(&self) -> usize {
        self.layer_bytes
    }

    /// Layers.
    pub fn layers(&self) -> usize {
        self.layers
    }

    /// Bytes of one page of one layer's keys, or values.
    pub fn page_bytes(&self) -> usize {
        self.page_bytes
    }
}
