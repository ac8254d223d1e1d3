//! The captured graphs of a talker's steps, and which of them a step takes.

use super::persistent::Persistent;
use crate::stream::{Graph, fitting};

/// Graphs of each kind by the rows that they hold, ascending.
#[derive(Default)]
pub(super) struct Graphs {
    /// Whole frames.
    frames: Vec<(usize, Graph)>,
    /// Whole frames again, for sequences that are too long for [`Persistent`]'s layers.
    long_frames: Vec<(usize, Graph)>,
    /// Frames whose layers a pass over prompts did.
    tails: Vec<(usize, Graph)>,
    /// Passes over prompts.
    prompts: Vec<(usize, Graph)>,
}

/// How a frame's layers are queued.
#[derive(Clone, Copy, Debug)]
pub(super) enum LayersAs {
    /// As one launch where there is one for so many rows.
    Usual,
    /// Kernel by kernel.
    Graph,
}

impl LayersAs {
    /// How the layers of `rows` rows are captured: twice where they are one launch that long sequences slow too much.
    pub fn ways(persistent: Option<&Persistent>, rows: usize) -> &'static [LayersAs] {
        let bounded = persistent.is_some_and(|persistent| persistent.reach(rows).is_some());
        if bounded { &[LayersAs::Usual, LayersAs::Graph] } else { &[LayersAs::Usual] }
    }
}

impl Graphs {
    /// Adds a frame of `rows` rows, of more than those that are there.
    pub fn add_frame(&mut self, rows: usize, layers: LayersAs, graph: Graph) {
        match layers {
            LayersAs::Usual => self.frames.push((rows, graph)),
            LayersAs::Graph => self.long_frames.push((rows, graph)),
        }
    }

    /// The same of a frame whose layers a pass over prompts did.
    pub fn add_tail(&mut self, rows: usize, graph: Graph) {
        self.tails.push((rows, graph));
    }

    /// The same of a pass over prompts.
    pub fn add_prompt(&mut self, rows: usize, graph: Graph) {
        self.prompts.push((rows, graph));
    }

    /// The graph of the smallest size that holds `rows`, the last of which is at position `last`, and that size.
    pub fn frame(&self, persistent: Option<&Persistent>, rows: usize, last: usize) -> Option<(usize, &Graph)> {
        let usual = fitting(&self.frames, rows)?;
        match persistent.and_then(|persistent| persistent.reach(usual.0)) {
            Some(reach) if last > reach => fitting(&self.long_frames, rows),
            _ => Some(usual),
        }
    }

    /// The same for frames whose layers a pass over prompts did.
    pub fn tail(&self, rows: usize) -> Option<(usize, &Graph)> {
        fitting(&self.tails, rows)
    }

    /// The same for `rows` positions of prompts.
    pub fn prompt(&self, rows: usize) -> Option<(usize, &Graph)> {
        fitting(&self.prompts, rows)
    }

    /// Rows that fit into one frame.
    pub fn most_rows(&self) -> usize {
        self.frames.last().map_or(0, |(rows, _)| *rows)
    }

    /// Positions of prompts that fit into one pass.
    pub fn most_positions(&self) -> usize {
        self.prompts.last().map_or(0, |(rows, _)| *rows)
    }
}
