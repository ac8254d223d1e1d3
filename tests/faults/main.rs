//! Faults in a running pipeline: every stream finishes with exactly the samples that it would have had.
#![allow(clippy::unwrap_used)]

#[path = "../support/mod.rs"]
mod support;

mod actors;
mod guilty;
mod matrix;
mod media;
mod plan;
mod replicas;
