//! Clients that want to take the server down. Each attack runs against the real binary; meanwhile an ordinary client is
//! served, memory stays within bounds, and afterwards nothing is left.
//!
//! `OMNI_ATTACKS=attacks.md nice -n -10 cargo test --test attacks` runs them one after the other and writes a table:
//! what the ordinary client saw during each attack, and the memory of the server. docs/security.md tells the worst.
#![allow(clippy::unwrap_used)]

#[path = "../support/mod.rs"]
mod support;

mod bodies;
mod operation;
mod pictures;
mod places;
mod prompts;
mod readers;
mod websockets;
mod wishes;
