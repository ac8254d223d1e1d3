//! Stages on a GPU against those on the CPU. Each test needs a GPU, so `cargo test` lists it as ignored:
//!
//! ```sh
//! cargo test --features cuda --test cuda -- --include-ignored
//! ```
//!
//! runs them all, and each one fails where there is no GPU.
#![cfg(feature = "cuda")]
#![allow(clippy::unwrap_used)]

#[path = "../support/mod.rs"]
mod support;

mod copies;
mod encoder;
mod kept;
mod kernels;
mod moe;
mod persistent;
mod persistent_thinker;
mod prompts;
mod replicas;
mod talker;
mod thinker;
mod verify;
mod vocoder;

use omni_actors::cuda::Gpu;

/// The first GPU.
fn gpu() -> Gpu {
    Gpu::open(0).unwrap_or_else(|why| panic!("this test needs a GPU: {why}"))
}
