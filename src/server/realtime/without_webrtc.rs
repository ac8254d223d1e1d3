//! What a server without the feature `webrtc` says of calls: that it takes none.

use crate::error::ApiError;
use axum::http::StatusCode;
use omni_config::WebRtcConfig;
use std::convert::Infallible;
use std::io;
use std::net::SocketAddr;
use std::sync::Arc;

/// There are none.
#[derive(Debug)]
pub(crate) struct Calls(Infallible);

impl Calls {
    pub fn bind(config: &WebRtcConfig, _: bool) -> io::Result<Option<Arc<Calls>>> {
        match config.listen {
            None => Ok(None),
            Some(_) => Err(io::Error::other("this program was built without the feature webrtc")),
        }
    }

    pub fn address(&self) -> SocketAddr {
        match self.0 {}
    }

    pub fn begin(self: &Arc<Calls>) -> Receiving {
        match self.0 {}
    }

    pub fn retire(&self) {
        match self.0 {}
    }
}

/// Never.
pub(crate) struct Receiving;

/// The handlers.
pub(crate) async fn call() -> ApiError {
    let message = "this server was built without WebRTC (the feature webrtc); use WS /v1/realtime";
    ApiError::new(StatusCode::NOT_IMPLEMENTED, "webrtc_unavailable", message)
}

pub(crate) async fn hang_up() -> ApiError {
    call().await
}
