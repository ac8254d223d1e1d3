//! Processes that end, by a signal or by a fault, and what they leave behind.
#![allow(clippy::unwrap_used)]

#[path = "../support/mod.rs"]
mod support;

mod give_up;
mod signals;
mod stages;
mod voices_survive;
