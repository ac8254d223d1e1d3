//! The layout of a stream's state: offsets within a slot of the arena, in floats.

use super::args::Past;

/// The history of a causal layer.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct History {
    /// Within a half.
    pub offset: usize,
    /// Positions.
    pub kept: usize,
    /// Positions of a frame where the layer reads.
    pub rate: usize,
    /// Positions at the start of a stream that count as zeros.
    pub drop: usize,
}

/// A slot: both halves of all histories, then keys and values of every transformer layer.
///
/// A step reads the histories of one half and writes the other one, so no block of a step overwrites what another one
/// still reads. Keys and values are a ring that is long enough for that.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Layout {
    half: usize,
    caches: usize,
    /// Keys of one layer in a slot, values as many.
    keys: usize,
}

impl Layout {
    /// Room for `kept` positions of so many bytes; gives their offset.
    pub fn keep(&mut self, kept: usize, bytes: usize) -> usize {
        let offset = self.half;
        self.half += kept * bytes / size_of::<f32>();
        offset
    }

    /// Room for the keys and values of `layers` layers, `keys` floats each; comes last.
    pub fn cache(&mut self, layers: usize, keys: usize) {
        (self.caches, self.keys) = (layers, keys);
    }

    /// Where the keys of a layer are in a slot; the values follow.
    pub fn keys(&self, layer: usize) -> usize {
        2 * self.half + layer * 2 * self.keys
    }

    /// Floats of a slot.
    pub fn slot(&self) -> usize {
        self.keys(self.caches)
    }

    /// For a kernel that reads `history`.
    pub fn past(&self, history: History, arena: u64, rows: u64) -> Past {
        Past {
            arena,
            rows,
            slot_floats: self.slot() as i64,
            half_floats: self.half as i32,
            offset: history.offset as i32,
            positions_per_frame: history.rate as i32,
            drop: history.drop as i32,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nothing_in_a_slot_overlaps() {
        let mut layout = Layout::default();
        assert_eq!([layout.keep(6, 32), layout.keep(2, 16), layout.keep(1, 16)], [0, 48, 56]);
        layout.cache(2, 100);
        assert_eq!((layout.half, layout.keys(0), layout.keys(1), layout.slot()), (60, 120, 320, 520));
    }
}
