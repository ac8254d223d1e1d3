//! Stages and whole pipelines inside this process: order, back-pressure, deadlines, run-ahead, traces.
#![allow(clippy::unwrap_used)]

#[path = "../support/mod.rs"]
mod support;

mod astray;
mod clients_leave;
mod deadlines;
mod invariants;
mod kept;
mod markup;
mod media;
mod pending_steps;
mod pipeline;
mod pipeline_tts;
mod run_ahead;
mod trace;
