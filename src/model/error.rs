//! What can go wrong with a checkpoint or in a net.

use std::path::PathBuf;

/// A checkpoint that cannot be served. The text tells what to change.
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
    /// A file was read but does not mean what it should.
    #[error("{file}: {reason}")]
    Invalid {
        /// File name inside the checkpoint.
        file: String,
        /// What is wrong and what is expected.
        reason: String,
    },
    /// Tensors that the config promises are not there, or have another shape. Every one is listed.
    #[error("the weights do not fit config.json:\n  {}", .0.join("\n  "))]
    Tensors(Vec<String>),
    /// The device refused.
    #[error("device: {0}")]
    Device(#[from] candle_core::Error),
}

/// A step or row that failed.
#[derive(Debug, thiserror::Error)]
pub enum ModelError {
    /// The tensor library or the device failed: the runner's state is suspect and the stage restarts.
    #[error("device: {0}")]
    Device(#[from] candle_core::Error),
    /// This row cannot go on (input out of range, context full); others are untouched.
    #[error("{0}")]
    Row(String),
}
