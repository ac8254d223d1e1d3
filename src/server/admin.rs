//! The admin listener: health and metrics at an address, on a thread and with connections of its own, so that no flood of
//! clients keeps an orchestrator or a metrics server out.

use super::error::ApiError;
use super::visit::Peer;
use axum::Router;
use axum::http::StatusCode;
use hyper::body::Incoming;
use hyper::server::conn::http1;
use hyper::service::{Service as _, service_fn};
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::service::TowerToHyperService;
use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;
use tokio::net::{TcpListener, TcpSocket};
use tokio::sync::Semaphore;
use tokio::sync::oneshot;
use tracing::{debug, warn};

/// Connections at once: probes and metrics servers of a large installation, each for a moment.
const CONNECTIONS: usize = 64;
/// Connections that may wait to be accepted.
const BACKLOG: u32 = 128;
/// How long one request and its answer may take together.
const PATIENCE: Duration = Duration::from_secs(10);
/// Longest head of a request.
const BUFFER: usize = 16 << 10;
/// Pause after the system refused a new connection.
const BACKOFF: Duration = Duration::from_millis(50);

/// A bound socket that does not listen yet.
#[derive(Debug)]
pub(super) struct Admin {
    socket: TcpSocket,
    pub address: SocketAddr,
}

impl Admin {
    pub fn bind(address: SocketAddr) -> io::Result<Admin> {
        let socket = match address {
            SocketAddr::V4(_) => TcpSocket::new_v4()?,
            SocketAddr::V6(_) => TcpSocket::new_v6()?,
        };
        socket.set_reuseaddr(true)?;
        // A process that takes over from another one binds the same address while the other still answers.
        #[cfg(unix)]
        socket.set_reuseport(true)?;
        socket.bind(address)?;
        let address = socket.local_addr()?;
        Ok(Admin { socket, address })
    }

    /// Answers until the result is dropped.
    pub fn serve(self, router: Router) -> io::Result<Answering> {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        let (stop, stopped) = oneshot::channel::<()>();
        std::thread::Builder::new().name("admin".to_owned()).spawn(move || {
            runtime.block_on(async move {
                let listener = match self.socket.listen(BACKLOG) {
                    Ok(listener) => listener,
                    Err(error) => return warn!(%error, "the admin listener does not answer"),
                };
                tokio::select! {
                    () = accept(listener, router) => {}
                    _ = stopped => {}
                }
            });
        })?;
        Ok(Answering { _stop: stop })
    }
}

/// The thread of the admin listener; it ends when this is dropped.
#[derive(Debug)]
pub(super) struct Answering {
    _stop: oneshot::Sender<()>,
}

/// Never returns.
async fn accept(listener: TcpListener, router: Router) {
    let places = Arc::new(Semaphore::new(CONNECTIONS));
    loop {
        let (socket, peer) = match listener.accept().await {
            Ok(accepted) => accepted,
            Err(error) => {
                warn!(%error, "the admin listener cannot accept a connection");
                tokio::time::sleep(BACKOFF).await;
                continue;
            }
        };
        // Those beyond it wait in the kernel's queue: each place is free again within `PATIENCE`.
        let Ok(place) = Arc::clone(&places).acquire_owned().await else { return };
        let router = TowerToHyperService::new(router.clone());
        tokio::spawn(async move {
            let _place = place;
            let service = service_fn(move |mut request: hyper::Request<Incoming>| {
                request.extensions_mut().insert(Peer(peer.ip()));
                router.call(request)
            });
            let mut http = http1::Builder::new();
            http.timer(TokioTimer::new()).header_read_timeout(PATIENCE).max_buf_size(BUFFER).keep_alive(false);
            let answered = tokio::time::timeout(PATIENCE, http.serve_connection(TokioIo::new(socket), service)).await;
            if let Ok(Err(error)) = answered {
                debug!(%error, "an admin connection ended");
            }
        });
    }
}

/// What is at no address of this listener.
pub(super) async fn not_here() -> ApiError {
    let message = "the admin listener has /live, /livez, /ready, /readyz, /health, /metrics and /cluster";
    ApiError::new(StatusCode::NOT_FOUND, "not_found", message)
}
