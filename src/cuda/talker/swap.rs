//! Preempted sequences: their keys and values wait in the host's memory, bit for bit.

use crate::decoder::Cache;
use crate::stream::Stream;
use crate::{CudaError, Pinned};
use omni_model::no_block;

/// The pages of one sequence.
pub(super) struct Swapped {
    /// Keys, then values: layer after layer, page after page.
    sides: [Pinned<u8>; 2],
    pages: usize,
}

impl Swapped {
    /// Queues the copy out of a sequence's pages, which work that is queued later may use for other sequences.
    ///
    /// # Errors
    /// What the driver says.
    pub fn save(stream: &Stream, cache: &Cache, pages: &[u32]) -> Result<Swapped, CudaError> {
        let (layers, page) = (cache.layers(), cache.page_bytes());
        let bytes = layers * pages.len() * page;
        let _excused =
            no_block::allow("a sequence makes room when the pages have run out: what it saves is as large as it is");
        let sides = [stream.gpu().pinned(bytes)?, stream.gpu().pinned(bytes)?];
        for (side, from) in sides.iter().zip(cache.buffers()) {
            for (layer, (i, number)) in (0..layers).flat_map(|layer| pages.iter().enumerate().map(move |p| (layer, p)))
            {
                let at = layer * cache.layer_bytes() + *number as usize * page;
                from.download_async(stream, at, side, (layer * pages.len() + i) * page, page)?;
            }
        }
        Ok(Swapped { sides, pages: pages.len() })
    }

    /// How many there are.
    pub fn pages(&self) -> usize {
        self.pages
    }

    /// Queues the copy back, into the first of `pages`. `self` must live until the stream has run the copy.
    ///
    /// # Errors
    /// What the driver says.
    pub fn restore(&self, stream: &Stream, cache: &Cache, pages: &[u32]) -> Result<(), CudaError> {
        let (layers, page) = (cache.layers(), cache.page_bytes());
        for (side, to) in self.sides.iter().zip(cache.buffers()) {
            for layer in 0..layers {
                for (i, number) in pages.iter().take(self.pages).enumerate() {
                    let at = layer * cache.layer_bytes() + *number as usize * page;
                    to.upload_async(stream, at, side, (layer * self.pages + i) * page, page)?;
                }
            }
        }
        Ok(())
    }
}
