//! The Wyoming protocol, in which Home Assistant asks for speech: lines of JSON over TCP, with data and payloads behind
//! them. It has neither keys nor TLS.
//!
//! | file | what |
//! | --- | --- |
//! | `announce` | tells the local network where the listener is |
//! | `connection` | one client: a thin loop around the others |
//! | `frame` | bytes to frames and back |
//! | `event` | the objects in them |
//! | `session` | which event may come when, and what it means |
//! | `utterance` | one text, from its words to its sound |
//! | `voice` | the voices that clients are told, and who speaks a request |
//!
//! Clients such as Home Assistant wait until the connection closes when something went wrong. So every error is an event
//! `error`, and then the connection ends.

mod announce;
mod connection;
mod event;
mod frame;
mod session;
mod utterance;
mod voice;

pub(crate) use announce::Announcement;

use crate::connection::{ConnectionGuard, NoPlace};
use crate::error::ApiError;
use crate::state::App;
use axum::http::StatusCode;
use omni_config::WyomingConfig;
use std::sync::Arc;
use std::time::Duration;
use tokio::net::TcpStream;

/// How long a refused client may take to read why.
const TIME: Duration = Duration::from_secs(1);

/// What the connections share.
pub(crate) struct Shared {
    pub app: Arc<App>,
    pub config: WyomingConfig,
    /// Bytes per second that a client has to read while bytes wait for it.
    pub min_read_rate: u64,
}

/// Serves a client until it leaves or has to.
pub(crate) async fn serve(shared: Arc<Shared>, socket: TcpStream, guard: ConnectionGuard) {
    connection::serve(shared, socket, guard).await;
}

/// Tells a client that there is no place for it.
pub(crate) async fn refuse(socket: TcpStream, why: NoPlace) {
    let message = format!("{why}; try again later");
    let error = ApiError::new(StatusCode::SERVICE_UNAVAILABLE, "too_many_connections", message);
    // A client that does not read it goes without.
    let _ = tokio::time::timeout(TIME, connection::refuse(socket, &error)).await;
}
