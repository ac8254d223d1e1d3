//! Embedding tables.

use crate::LoadError;
use crate::weights::Scope;
use candle_core::{DType, Result, Tensor};

/// A table of which a step needs a row or two. It keeps the element type of the file: in 16 bits, that of text has 622
/// MB at real size and those of the code predictor 126 MB.
pub(super) struct Table(Tensor);

impl Table {
    /// `weight` of the scope, `[rows, width]`.
    pub fn load(scope: &Scope<'_>, shape: [usize; 2]) -> std::result::Result<Table, LoadError> {
        Ok(Table(scope.get_stored("weight", &shape)?))
    }

    /// Ids that there are rows for, `0..len()`.
    pub fn len(&self) -> u32 {
        self.0.dims()[0] as u32
    }

    /// Rows `[ids.len(), width]` in f32.
    pub fn embed(&self, ids: &[u32]) -> Result<Tensor> {
        self.0.index_select(&Tensor::new(ids, self.0.device())?, 0)?.to_dtype(DType::F32)
    }
}
