//! The commands that measure, break, check and record: [`bench`], [`chaos`], [`verify`], [`trace`]; and what all commands
//! share: where the model comes from ([`model`]), exit codes ([`exit`]), signals.
//!
//! A command's arguments are what the user typed; each command turns them into what they mean before it begins.

#![forbid(unsafe_code)]
#![cfg_attr(test, allow(clippy::unwrap_used))]

pub mod bench;
pub mod chaos;
pub mod exit;
pub mod local;
pub mod model;
pub mod signals;
pub mod trace;
pub mod verify;

pub use omni_model::weights::EmbeddedFiles;
