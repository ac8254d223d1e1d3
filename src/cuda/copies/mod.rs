//! Copies that no step waits for.
//!
//! - [`HostCopies`]: device to host, on a stream and a thread of its own, into page-locked memory that is lent out until
//!   the last slice of it is dropped.
//! - [`Prefetch`]: host to device, begun when there is something to copy; the step that uses it waits on the device.
//! - [`EmbeddingArena`]: memory in which steps leave embeddings for other stages, one [`EmbeddingBuffer`] per step; its
//!   owners share one copy to the host, or read it where it is.

mod arena;
mod fetch;
mod prefetch;
mod ranges;

pub(crate) use arena::Memory;
pub use arena::{EmbeddingArena, EmbeddingBuffer};
pub use fetch::{HostBytes, HostCopies};
pub use prefetch::{Prefetch, Prefetched};
