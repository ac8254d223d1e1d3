//! Errors of loading a checkpoint and of running a net.

use omni_core::ids::Slot;
use std::path::PathBuf;

/// A checkpoint that cannot be served. The message says what to change.
#[derive(Debug, thiserror::Error)]
pub enum LoadError {
    /// A file of the checkpoint could not be read.
    #[error("cannot read {path}: {source}")]
    Io {
        /// The file or folder.
        path: PathBuf,
        /// What the system said.
        source: std::io::Error,
    },
    /// The content of a file is not what the program expects.
    #[error("{file}: {reason}")]
    Invalid {
        /// File name inside the checkpoint.
        file: String,
        /// What is wrong and what is expected.
        reason: String,
    },
    /// Tensors that the config promises are missing or have another shape. The list is complete.
    #[error("the weights do not fit config.json:\n  {}", .0.join("\n  "))]
    Tensors(Vec<String>),
    /// The device failed.
    #[error("device: {0}")]
    Device(#[from] candle_core::Error),
}

/// A step or sequence that failed.
#[derive(Debug, thiserror::Error)]
pub enum ModelError {
    /// The tensor library or the device failed: the runner's state is suspect and the stage restarts.
    #[error("device: {0}")]
    Device(#[from] candle_core::Error),
    /// This sequence cannot go on (input out of range, context full); others are untouched.
    #[error("{0}")]
    Sequence(String),
}

/// The error for work on a slot without a sequence.
pub fn not_open(slot: Slot) -> ModelError {
    ModelError::Sequence(format!("{slot} is not open"))
}

/// Refuses what one sequence asks for.
///
/// # Errors
/// Always: [`ModelError::Sequence`] with this text.
pub fn refused<T>(text: impl Into<String>) -> Result<T, ModelError> {
    Err(ModelError::Sequence(text.into()))
}

/// Checks that every token has an embedding.
///
/// # Errors
/// [`ModelError::Sequence`] that names the first token outside the vocabulary.
pub fn in_vocabulary(tokens: &[u32], vocabulary: u32) -> Result<(), ModelError> {
    match tokens.iter().find(|token| **token >= vocabulary) {
        Some(token) => refused(format!("token {token} is outside the vocabulary of {vocabulary}")),
        None => Ok(()),
    }
}
