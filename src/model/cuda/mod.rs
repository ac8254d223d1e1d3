//! The CUDA engine.

pub mod images;
