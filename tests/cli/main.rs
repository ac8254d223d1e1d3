//! The program as a user meets it: commands, config file, exit codes.
#![allow(clippy::unwrap_used)]

#[path = "../support/mod.rs"]
mod support;

mod bench;
mod chaos;
mod commands;
mod config;
mod speech;
mod verify;
