//! The files of a checkpoint and the tensors in them: where bytes come from, and how a net gets its tensors by name.
//!
//! This folder knows file names, headers, shapes and element types. It knows neither configs nor nets: what a file
//! means is for [`crate::checkpoint`], [`crate::tokenizer`] and [`crate::template`], which all stand on it.

mod files;
mod loader;
pub mod random;
mod stored;

pub use files::{Content, EmbeddedFiles, Files};
pub(crate) use loader::Source;
pub use loader::{Loader, RawTensor, Scope};
pub use stored::Weights;
