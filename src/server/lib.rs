//! The HTTP and WebSocket surface, and that of Wyoming. It knows the engine only as [`Service`](omni_engine::Service), owns the sockets, and
//! never buffers more of an answer than one chunk: a client that stops reading stops its own request only.
//!
//! | file | what |
//! | --- | --- |
//! | `listen`, `accept`, `connection`, `refusal`, `hangup`, `io`, `watched` | sockets: connection limits, timeouts, drain |
//! | `routes` | every route on one page |
//! | `api` | every object of a request, an answer or a message on one page |
//! | `openapi` | `/openapi.json`, from those two |
//! | `state` | what handlers share |
//! | `auth`, `keys`, `quota`, `origin` | who may use a route, and how much of it |
//! | `rules`, `reload` | what of that may change while the server runs |
//! | `aliases` | other names of the model and its voices |
//! | `tls`, `admin` | certificates; health and metrics at an address of their own |
//! | `visit`, `trace_context` | a request from its head to its last byte: its name, its line in the log |
//! | `speech`, `speech_request`, `voice_request`, `voice_finder` | `POST /v1/audio/speech` |
//! | `resume` | from which byte an answer that was cut goes on |
//! | `batch` | `POST /v1/audio/speech/batch` |
//! | `voices` | `/v1/audio/voices` |
//! | `described` | voices that are described and not recorded |
//! | `reference`, `fetch` | recordings of voices: from the request, an address, a file |
//! | `chat`, `chat_request`, `chat_parts` | `POST /v1/chat/completions` |
//! | `media` | the sounds, pictures and videos of a chat request: from where it names them to bytes |
//! | `ws`, `ws_frames`, `ws_socket` | WebSockets: the handshake, frames, messages |
//! | `ws_session`, `ws_protocol`, `ws_input`, `ws_utterance` | `WS /v1/audio/speech/stream` |
//! | `realtime`, `secrets` | `/v1/realtime`: sessions over a WebSocket or WebRTC, keys for them |
//! | `reader` | messages of a client within limits on size and time, whatever they are |
//! | `wyoming` | the Wyoming protocol of Home Assistant |
//! | `meta` | models, health, readiness, metrics, the page |
//! | `debug`, `traces`, `faults` | traces and drills, where the config lets clients have them |
//! | `export` | spans for a collector of OpenTelemetry |
//! | `response` | a request's events as the routes need them |
//! | `options` | when an answer has to come |
//! | `budget` | bytes that the server holds for clients, together |
//! | `body`, `error`, `sse` | encodings |
//!
//! Arrows between them point one way: sockets to routes, routes to handlers, handlers to state and `api`.
//!
//! `docs/api.md` describes what a client sees.

#![forbid(unsafe_code)]
#![cfg_attr(test, allow(clippy::unwrap_used))]

mod accept;
mod admin;
mod aliases;
mod api;
mod auth;
mod batch;
mod body;
mod budget;
mod chat;
mod chat_parts;
mod chat_request;
mod cluster;
mod connection;
mod debug;
mod described;
mod error;
mod export;
mod faults;
mod feed;
mod fetch;
mod hangup;
mod io;
mod kept;
mod keys;
mod listen;
mod media;
mod meta;
mod openapi;
mod options;
mod origin;
mod quota;
mod reader;
mod realtime;
mod reference;
mod refusal;
mod reload;
mod response;
mod resume;
mod routes;
mod rules;
mod secrets;
mod speech;
mod speech_request;
mod sse;
mod state;
mod tls;
mod trace_context;
mod traces;
mod visit;
mod voice_finder;
mod voice_request;
mod voices;
mod watched;
mod ws;
mod ws_frames;
mod ws_input;
mod ws_protocol;
mod ws_session;
mod ws_socket;
mod ws_utterance;
mod wyoming;

pub use aliases::{AliasError, Aliases, check_aliases};
pub use chat_request::media_of_chat;
pub use listen::{ServeError, Server};
pub use reload::{RELOADED, ReloadError, Reloader};
pub use state::Model;
pub use tls::{TlsError, check_tls};

#[cfg(test)]
mod tests {
    use std::collections::{BTreeMap, BTreeSet};
    use std::path::Path;

    /// The modules beside a file that its code names with `super::`.
    fn imports(source: &str) -> BTreeSet<String> {
        let code = source.split("#[cfg(test)]").next().unwrap();
        let code: String = code.lines().filter(|line| !line.trim_start().starts_with("//")).collect();
        let name =
            |text: &str| text.trim().split(|c: char| !c.is_alphanumeric() && c != '_').next().unwrap().to_owned();
        let mut found = BTreeSet::new();
        for rest in code.split("super::").skip(1) {
            match rest.strip_prefix('{') {
                Some(group) => found.extend(group.split('}').next().unwrap().split(',').map(name)),
                None => _ = found.insert(name(rest)),
            }
        }
        found
    }

    #[test]
    fn imports_form_no_circle() {
        for folder in ["", "api", "wyoming"] {
            let mut left = BTreeMap::new();
            for entry in std::fs::read_dir(Path::new(env!("CARGO_MANIFEST_DIR")).join(folder)).unwrap() {
                let path = entry.unwrap().path();
                let name = path.file_stem().unwrap().to_str().unwrap().to_owned();
                if path.extension().is_some_and(|ending| ending == "rs") && name != "lib" && name != "mod" {
                    left.insert(name, imports(&std::fs::read_to_string(path).unwrap()));
                }
            }
            assert!(left.len() > 5, "{folder}");
            // Takes away, again and again, the files that import none of those that are left.
            while !left.is_empty() {
                let names: BTreeSet<String> = left.keys().cloned().collect();
                left.retain(|_, imports| !imports.is_disjoint(&names));
                assert!(left.len() < names.len(), "these files import each other: {names:?}");
            }
        }
    }
}
