//! The HTTP and WebSocket surface. It knows the engine only as [`Service`](omni_engine::Service), owns the sockets, and
//! never buffers more of an answer than one chunk: a client that stops reading stops its own request only.
//!
//! | file | what |
//! | --- | --- |
//! | `listen` | sockets: connection limit, timeouts, drain |
//! | `app` | routes and shared state |
//! | `speech`, `speech_request`, `voice_request` | `POST /v1/audio/speech` |
//! | `batch` | `POST /v1/audio/speech/batch` |
//! | `voices` | `/v1/audio/voices` |
//! | `reference`, `fetch` | recordings of voices: from the request, an address, a file |
//! | `chat`, `chat_request` | `POST /v1/chat/completions` |
//! | `ws`, `ws_session`, `ws_protocol`, `ws_input`, `ws_utterance` | `WS /v1/audio/speech/stream` |
//! | `meta` | models, health, readiness, metrics, the page |
//! | `debug`, `faults` | traces and drills, where the config lets clients have them |
//! | `answer` | a request's events as the routes need them |
//! | `gate` | keys: who asks |
//! | `terms` | when an answer has to come |
//! | `budget` | bytes that clients have sent, together |
//! | `sse`, `fields`, `body`, `error` | encodings |
//!
//! `docs/api.md` describes what a client sees.

#![forbid(unsafe_code)]
#![cfg_attr(test, allow(clippy::unwrap_used))]

mod app;
mod auth;
mod batch;
mod body;
mod budget;
mod chat;
mod chat_request;
mod debug;
mod error;
mod faults;
mod fetch;
mod fields;
mod io;
mod listen;
mod meta;
mod options;
mod reference;
mod response;
mod sampling;
mod speech;
mod speech_request;
mod sse;
mod voice_request;
mod voices;
mod ws;
mod ws_input;
mod ws_protocol;
mod ws_session;
mod ws_utterance;

pub use listen::{ServeError, Server};
