//! Processes that end, by a signal or by a fault, and what they leave behind.
#![allow(clippy::unwrap_used)]

#[path = "../support/mod.rs"]
mod support;

mod decode;
#[cfg(feature = "cluster")]
mod drain;
mod films;
mod give_up;
#[cfg(feature = "cluster")]
mod joining;
mod kept;
mod logs;
mod managed;
#[cfg(feature = "cluster")]
mod namespaces;
#[cfg(feature = "cluster")]
mod nodes;
mod scarcity;
mod signals;
mod stages;
mod upgrade;
mod voices_survive;
