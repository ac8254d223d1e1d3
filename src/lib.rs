//! A serving runtime for models that talk.
//!
//! Each stage of a pipeline (thinker, talker with its code predictor, vocoder) is a small supervised tree of actors.
//! Sampled tokens go straight back to the scheduler; everything that the next step does not need happens elsewhere.
//!
//! Every folder in `src/` is a crate of one workspace, and this package names them all. A crate depends only on those
//! below it in this list; `tests/house/architecture.rs` holds the drawing in `docs/architecture.md` to that.
//!
//! | crate | what |
//! | --- | --- |
//! | [`cli`] | the command line: `run`, `say`, `check` |
//! | [`tools`] | `bench`, `chaos`, `verify`, `trace` |
//! | [`server`] | HTTP, server-sent events, WebSocket, the demo page |
//! | [`engine`] | assembles stages from a config; the request ledger; the handle that server and commands use |
//! | [`actors`] | supervisor, scheduler, model runner, sampler, packager, connector: one file each |
//! | [`transfer`] | payloads, leases, wire frames, transports |
//! | `cuda` | the CUDA engine and its kernels, with the feature `cuda` |
//! | [`model`] | nets, weights, tokenizer, prompts, sampling |
//! | [`ops`] | the CPU kernels |
//! | [`audio`] | formats of sound: wav, flac, mp3, opus; speed |
//! | [`config`] | what the user wrote, and what it means |
//! | [`fault`] | faults on purpose |
//! | [`telemetry`] | metrics, logs, traces |
//! | [`core`] | ids and pure state machines: no runtime, no clock, no tensors |

#![forbid(unsafe_code)]

pub use omni_audio as audio;
pub use omni_cli as cli;
pub use omni_config as config;
pub use omni_core as core;
#[cfg(feature = "cuda")]
pub use omni_cuda as cuda;
pub use omni_engine as engine;
pub use omni_fault as fault;
pub use omni_model as model;
pub use omni_ops as ops;
pub use omni_server as server;
pub use omni_stage as actors;
pub use omni_telemetry as telemetry;
pub use omni_tools as tools;
pub use omni_transfer as transfer;
