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
//! | [`cli`] | the command line: `run`, `say`, `check`, `node` |
//! | [`tools`] | `bench`, `chaos`, `simulate`, `verify`, `trace`, `top`, `drain` |
//! | [`server`] | HTTP, server-sent events, WebSocket, the demo page |
//! | [`engine`] | assembles stages from a config; the request ledger; the handle that server and commands use |
//! | [`actors`] | supervisor, scheduler, model runner, sampler, packager, connector: one file each |
//! | [`transfer`] | payloads, leases, wire frames, transports |
//! | `cuda` | the CUDA engine and its kernels, with the feature `cuda` |
//! | [`model`] | nets, weights, tokenizer, prompts, sampling |
//! | [`ops`] | the CPU kernels |
//! | [`planes`] | packs 16-bit floats: the weights of the embedded voice |
//! | [`media`] | what a model hears and sees: files of sound, pictures and videos to numbers |
//! | [`realtime`] | OpenAI's realtime protocol as a state machine |
//! | `cluster` | gateways and nodes over Zenoh, with the feature `cluster` |
//! | `webrtc` | a call over WebRTC without its socket, with the feature `webrtc` |
//! | [`audio`] | formats of sound: wav, flac, mp3, opus; speed |
//! | [`config`] | what the user wrote, and what it means |
//! | [`fault`] | faults on purpose |
//! | [`telemetry`] | metrics, logs, traces |
//! | [`core`] | ids and pure state machines: no runtime, no clock, no tensors |
//!
//! # The engine as a library
//!
//! ```no_run
//! use omni_actors::engine::{Engine, Event, Service, SpeechParams, SpeechRequest, TextSource};
//! use omni_actors::{config, model::Checkpoint};
//! use std::path::Path;
//!
//! # #[tokio::main]
//! # async fn main() -> anyhow::Result<()> {
//! let config = config::parse("", Path::new("."), &[])?;
//! let checkpoint = Checkpoint::open(Path::new("assets/voice/checkpoint"))?;
//! let engine = Engine::start(&checkpoint, &config).await?;
//! let text = TextSource::Whole("Good morning.".to_owned());
//! let mut speech = engine.speak(SpeechRequest { text, params: SpeechParams::default() }).await?;
//! while let Some(event) = speech.next().await {
//!     if let Event::Audio(chunk) = event {
//!         println!("{} samples more, of {} a second", chunk.samples.len(), engine.info().sample_rate);
//!     }
//! }
//! # Ok(())
//! # }
//! ```
//!
//! `examples/engine_as_library.rs` writes them into a file.

#![forbid(unsafe_code)]

pub use omni_audio as audio;
pub use omni_cli as cli;
#[cfg(feature = "cluster")]
pub use omni_cluster as cluster;
pub use omni_config as config;
pub use omni_core as core;
#[cfg(feature = "cuda")]
pub use omni_cuda as cuda;
pub use omni_engine as engine;
pub use omni_fault as fault;
pub use omni_media as media;
pub use omni_model as model;
pub use omni_ops as ops;
pub use omni_planes as planes;
pub use omni_realtime as realtime;
pub use omni_server as server;
pub use omni_stage as actors;
pub use omni_telemetry as telemetry;
pub use omni_tools as tools;
pub use omni_transfer as transfer;
#[cfg(feature = "webrtc")]
pub use omni_webrtc as webrtc;
