//! The device backend: the few operations in which the nets spend their time, as plain functions on candle tensors.
//!
//! On the CPU (f32) they run our own kernels; elsewhere they are made of candle's operations, so that a net is defined
//! once. Our own kernels exist for one property that general libraries do not give: **batch invariance**. Every output
//! element is accumulated in one fixed order that does not depend on how many rows the call has, how the rows were
//! split into calls, or how many threads run. So a prompt that is prefilled in pieces leaves the same cache, and a
//! request gets the same tokens whatever else is in the batch.
//!
//! Its `unsafe` is vector instructions, tiles written from several threads, and the allocator's settings.

#![cfg_attr(test, allow(clippy::unwrap_used))]

mod act;
mod attention;
mod axial;
mod bidirectional;
mod depthwise;
mod gemm;
mod heap;
mod linear;
mod math;
mod norm;
mod rope;
mod simd;
mod tile;

pub use act::{elu, silu_mul, snake};
pub use attention::attention;
pub use axial::{AxialRope, interleaved_axis};
pub use bidirectional::attention_to_all;
pub use depthwise::depthwise_conv;
pub use heap::give_large_blocks_back;
pub use linear::Linear;
pub use norm::{layer_norm, rms_norm};
pub use rope::{Angles, Rope};

use candle_core::{CpuStorage, Layout, Result};

/// The instructions that the CPU kernels use on this machine, for logs and benchmarks.
pub fn instruction_set() -> &'static str {
    simd::Level::best().name()
}

/// The elements of a contiguous f32 tensor inside its storage.
fn f32_slice<'a>(storage: &'a CpuStorage, layout: &Layout) -> Result<&'a [f32]> {
    match (storage, layout.contiguous_offsets()) {
        (CpuStorage::F32(data), Some((start, end))) => Ok(&data[start..end]),
        (CpuStorage::F32(_), None) => candle_core::bail!("expected a contiguous tensor, got {layout:?}"),
        _ => candle_core::bail!("expected f32 on the cpu"),
    }
}
