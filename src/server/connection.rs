//! What a request knows of its connection: the client's address, how much it has read, whether it has to end.

use super::budget::Intake;
use metrics::Gauge;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use tokio::sync::OwnedSemaphorePermit;
use tokio_util::sync::CancellationToken;
use tokio_util::task::task_tracker::TaskTrackerToken;

/// A connection, as its requests carry it. A WebSocket leaves the task of its connection and keeps this: its place
/// among the open connections, and its part in the shutdown.
#[derive(Clone)]
pub(super) struct ConnectionGuard {
    pub _permit: Arc<Permit>,
    pub _task: TaskTrackerToken,
    pub closing: CancellationToken,
    pub peer: SocketAddr,
    pub intake: Arc<Intake>,
}

/// One of the connections that may be open. Counted in the metrics while it lives.
pub(super) struct Permit {
    _permit: OwnedSemaphorePermit,
    open: Gauge,
}

impl Permit {
    pub fn new(permit: OwnedSemaphorePermit, open: &Gauge) -> Permit {
        open.increment(1.0);
        Permit { _permit: permit, open: open.clone() }
    }
}

impl Drop for Permit {
    fn drop(&mut self) {
        self.open.decrement(1.0);
    }
}

impl ConnectionGuard {
    /// Resolves when the connection must end at once.
    pub async fn closing(&self) {
        self.closing.cancelled().await;
    }

    /// The client's address.
    pub fn address(&self) -> IpAddr {
        self.peer.ip()
    }

    /// What it has read since it became a WebSocket.
    pub fn intake(&self) -> &Arc<Intake> {
        &self.intake
    }
}
