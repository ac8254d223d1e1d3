//! The stages' implementations of [`StageModel`](super::stage::StageModel): rows and their bookkeeping around the nets.

pub mod talker;
pub mod thinker;
pub mod vocoder;

use crate::ids::Slot;
use crate::model::ModelError;

fn not_open(slot: Slot) -> ModelError {
    ModelError::Row(format!("{slot} is not open"))
}

fn refused<T>(text: impl Into<String>) -> Result<T, ModelError> {
    Err(ModelError::Row(text.into()))
}

fn in_vocabulary(tokens: &[u32], vocabulary: u32) -> Result<(), ModelError> {
    match tokens.iter().find(|token| **token >= vocabulary) {
        Some(token) => refused(format!("token {token} is outside the vocabulary of {vocabulary}")),
        None => Ok(()),
    }
}
