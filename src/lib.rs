//! A serving runtime for models that talk.
//!
//! Each stage of a pipeline (thinker, talker with its code predictor, vocoder) is a small supervised tree of actors.
//! Sampled tokens go straight back to the scheduler; everything that the next step does not need happens elsewhere.
//!
//! Folders import only what stands below them in this list; `tests/architecture.rs` checks it.
//!
//! | folder | what |
//! | --- | --- |
//! | [`cli`] | the commands |
//! | [`server`] | HTTP, server-sent events, WebSocket, the demo page |
//! | [`engine`] | assembles stages from a config; the request ledger; the handle that server and commands use |
//! | [`actors`] | supervisor, scheduler, model runner, sampler, packager, connector: one file each |
//! | [`core`] | pure state machines: no runtime, no clock, no tensors |
//! | [`transfer`] | payloads, leases, wire frames, transports |
//! | [`model`] | nets, weights, tokenizer, prompts, sampling, device backends |
//! | [`audio`] | formats of sound: wav, flac, mp3, opus; speed |
//! | [`config`], [`telemetry`], [`fault`], [`ids`] | what everybody needs |

#![cfg_attr(test, allow(clippy::unwrap_used))]

pub mod actors;
pub mod audio;
pub mod cli;
pub mod config;
pub mod core;
pub mod engine;
pub mod fault;
pub mod ids;
pub mod model;
pub mod server;
pub mod telemetry;
pub mod transfer;
