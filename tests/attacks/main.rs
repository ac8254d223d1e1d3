//! Clients that want to take the server down. Each attack runs against the real binary; meanwhile an ordinary client is
//! served, memory stays within bounds, and afterwards nothing is left.
#![allow(clippy::unwrap_used)]

#[path = "../support/mod.rs"]
mod support;

mod bodies;
mod places;
mod prompts;
mod wishes;
