//! The GPU engine: own kernels (folder `kernels/`), own memory, own graphs, behind
//! [`StageModel`](omni_model::stage::StageModel).
//!
//! The tensor library of the CPU path only reads checkpoints here. Kernels are compiled when the binary is built and
//! embedded in it; the driver is opened at run time, so that the binary starts without a GPU too.

#![cfg_attr(test, allow(clippy::unwrap_used))]

mod buffer;
mod cache;
pub mod copies;
pub mod decoder;
mod device;
pub mod encoder;
mod error;
pub mod images;
mod kernel;
pub mod linear;
mod many;
pub mod moe;
mod persistent;
mod probe;
mod sizes;
mod spinning;
mod stream;
mod take;
pub mod talker;
mod tensor_map;
pub mod thinker;
mod tile;
mod upload;
pub mod vocoder;
pub mod weights;

pub use buffer::{Buffer, Element, Pinned};
pub use device::{Gpu, Priority};
pub use error::CudaError;
pub use kernel::{Kernel, Shape};
pub use probe::{probe, total_memory};
pub use stream::{Event, Graph, Stream};
