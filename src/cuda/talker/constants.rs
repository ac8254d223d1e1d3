//! What the graphs of frames read and no step changes.

use crate::buffer::Buffer;
use crate::{CudaError, Gpu};

/// Sequences and positions of the predictor's passes for a batch: the same in every frame.
pub(super) struct Constants {
    pub sequences: Buffer<u32>,
    /// Of the first pass, which takes two positions of each row.
    pub first: Buffer<i32>,
    /// Of every later pass, `[passes, rows]`.
    pub later: Buffer<i32>,
}

impl Constants {
    /// For batches of `rows` sequences.
    pub fn new(gpu: &Gpu, rows: usize, groups: usize) -> Result<Constants, CudaError> {
        let sequences: Vec<u32> = (0..2).flat_map(|_| 0..rows as u32).collect();
        let first: Vec<i32> = (0..2).flat_map(|position| vec![position; rows]).collect();
        let later: Vec<i32> = (2..=groups as i32).flat_map(|position| vec![position; rows]).collect();
        Ok(Constants {
            sequences: gpu.upload("tables of a step", &sequences)?,
            first: gpu.upload("tables of a step", &first)?,
            later: gpu.upload("tables of a step", &later)?,
        })
    }
}
