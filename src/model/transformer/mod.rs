//! The pre-norm decoder stack that thinker, talker and code predictor share (spec section 3).
//!
//! A forward takes one *flattened* batch: `x [n, hidden]` is the concatenation of the new positions of several
//! sequences, and one [`Segment`] per sequence says which are its own. A prefill brings many positions, a decode step
//! one; both mix freely, which is all that continuous batching asks of a net. Linears run on all positions at once,
//! attention per segment.
//!
//! Invariant: what a sequence computes is bit-identical whatever else is in the batch and however its prompt was split.
//! Every op here either treats positions one by one or adds in an order that depends on that position alone.

mod attention;
mod cache;
mod ffn;
mod fused;
mod head;
mod moe;
mod stack;

pub use cache::{ContextFull, KvBlock, KvCache};
pub use head::output_head;
pub use stack::{DecoderStack, MediaInput, Segment};
