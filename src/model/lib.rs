//! Nets, weights, tokenizer, prompts and sampling of the two families, and the trait that a runner drives.

#![forbid(unsafe_code)]
#![cfg_attr(test, allow(clippy::unwrap_used))]

pub mod aligner;
pub mod budget;
pub mod checkpoint;
pub mod embeddings;
pub mod encoder;
pub mod error;
pub mod forced_aligner;
pub mod frontend;
pub mod hf;
pub mod media;
pub mod no_block;
pub mod pages;
pub mod prompt;
pub mod prompters;
pub mod sampling;
pub mod stage;
pub mod stages;
pub mod talker;
pub mod template;
pub mod thinker;
pub mod tokenizer;
pub mod towers;
pub mod transformer;
pub mod vocoder;
pub mod weights;

pub use budget::Budget;
pub use checkpoint::Checkpoint;
pub use error::{LoadError, ModelError};
pub use tokenizer::Tokenizer;
