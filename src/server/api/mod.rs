//! The API on one page: a struct for each object that a client sends or receives. Serde reads and writes them, and
//! [`openapi`](super::openapi) derives `/openapi.json` from them, so a field that is not here does not exist.
//!
//! | file | objects |
//! | --- | --- |
//! | `speech` | `POST /v1/audio/speech` and what other routes share with it: voice, sampling, deadlines |
//! | `wording` | its markup and its pronunciations |
//! | `batch` | `POST /v1/audio/speech/batch` |
//! | `chat` | `POST /v1/chat/completions` |
//! | `parts` | the content of its messages: text, sound, pictures, videos |
//! | `voices` | `/v1/audio/voices` |
//! | `service` | models, health, readiness, faults |
//! | `cluster` | `/cluster` |
//! | `session` | messages of `WS /v1/audio/speech/stream` |
//! | `realtime` | the types of messages of `WS /v1/realtime` |
//! | `error` | every error |
//! | `values` | numbers with their ranges, names with their choices: the one place of such a rule |
//! | `measure` | limits on JSON before it is parsed |
//! | `fields`, `json` | reading an object so that an error names the field, what it has and what is allowed |
//!
//! The rules of the wire stand here: types, ranges, choices. What depends on the model (its voices, its sample rate,
//! its languages) or on the config (limits) does not: the handlers and the engine decide that.
//!
//! This module must never look at the server's state.

pub(crate) mod batch;
pub(crate) mod chat;
pub(crate) mod cluster;
pub(crate) mod error;
pub(crate) mod fields;
mod json;
pub(crate) mod measure;
pub(crate) mod parts;
pub(crate) mod realtime;
pub(crate) mod service;
pub(crate) mod session;
pub(crate) mod speech;
pub(crate) mod values;
pub(crate) mod voice_values;
pub(crate) mod voices;
pub(crate) mod wording;

pub(crate) use fields::{FieldError, Fields, kind};
pub(crate) use values::short;
