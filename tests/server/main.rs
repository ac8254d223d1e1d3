//! The HTTP surface: its routes, its limits, and clients that break the rules.
#![allow(clippy::unwrap_used)]

#[path = "../support/mod.rs"]
mod support;

mod e2e_http;
mod hearing;
mod hostile;
mod kept;
mod keys;
mod markup;
mod media;
mod models;
mod otlp;
mod overload;
mod realtime;
mod resume;
mod routes;
mod text_only;
mod turns;
mod wyoming;
