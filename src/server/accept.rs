//! The accept loop, and what its connections share: their places, their timeouts, what ends them.

use super::connection::{ConnectionGuard, Places};
use super::hangup::Socket;
use super::io::StallGuard;
use super::refusal::refuse;
use super::state::{App, Retiring, SaidGoneBy, unix_seconds};
use super::tls::Tls;
use super::visit::Peer;
use super::watched::watched;
use super::wyoming;
use axum::Router;
use axum::http::header::CONNECTION;
use axum::http::{HeaderValue, StatusCode};
use futures::FutureExt;
use hyper::body::Incoming;
use hyper::server::conn::http1;
use hyper::service::{Service as _, service_fn};
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::service::TowerToHyperService;
use std::convert::Infallible;
use std::future::Future;
use std::sync::Arc;
use std::time::Duration;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::Semaphore;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;
use tracing::{debug, info, warn};

/// Bytes that the HTTP layer keeps for a client that stopped reading; it is also the limit on a request's headers.
const HTTP_BUFFER: usize = 64 << 10;
/// Pause after the system refused a new connection (out of file descriptors), so that the loop does not spin.
const ACCEPT_BACKOFF: Duration = Duration::from_millis(50);

/// What is spoken to those who come in by a socket.
pub(super) enum Door {
    Http,
    Wyoming(Arc<wyoming::Shared>),
}

/// The accept loop and what its connections share.
pub(super) struct Connections {
    pub router: Router,
    pub tls: Option<Arc<Tls>>,
    pub places: Arc<Places>,
    pub refusals: Arc<Semaphore>,
    pub read_timeout: Duration,
    pub stall_limit: Duration,
    pub min_read_rate: u64,
    /// Tells connections to finish their request and begin no other.
    pub stopping: CancellationToken,
    /// Tells connections that each request is their last.
    pub retiring: Retiring,
    /// Tells connections to end at once.
    pub closing: CancellationToken,
    pub tasks: TaskTracker,
}

impl Connections {
    pub fn begin_drain(&self, grace: Duration) {
        info!(grace_s = grace.as_secs_f32(), "draining");
        self.stopping.cancel();
    }

    /// Waits until the clients of this process are gone, for at most `grace`.
    pub async fn retire(&self, app: &App, grace: Duration) {
        let gone_by = unix_seconds().saturating_add(grace.as_secs());
        app.retiring.begin(gone_by);
        let connections = self.tasks.len();
        info!(
            connections,
            grace_s = grace.as_secs(),
            gone_by,
            "another process serves now; this one finishes its streams"
        );
        self.tasks.close();
        if tokio::time::timeout(grace, self.tasks.wait()).await.is_err() {
            warn!(connections = self.tasks.len(), "the time for streams of the process before the upgrade is over");
        }
    }

    /// Accepts from a socket that may not be there.
    pub async fn accept_too(&self, open: Option<&(TcpListener, Door)>) -> Infallible {
        match open {
            Some((listener, door)) => self.accept(listener, door).await,
            None => std::future::pending().await,
        }
    }

    /// Accepts from a socket, and serves what comes.
    pub async fn accept(&self, listener: &TcpListener, door: &Door) -> Infallible {
        let mut refused = false;
        loop {
            let (socket, peer) = match listener.accept().await {
                Ok(accepted) => {
                    refused = false;
                    accepted
                }
                Err(error) => {
                    // Once for as long as it lasts.
                    if !std::mem::replace(&mut refused, true) {
                        warn!(%error, "cannot accept connections");
                    }
                    tokio::time::sleep(ACCEPT_BACKOFF).await;
                    continue;
                }
            };
            match self.places.take(peer.ip()) {
                Ok(place) => {
                    let guard =
                        ConnectionGuard { place, _task: self.tasks.token(), closing: self.closing.clone(), peer };
                    let connection = match door {
                        Door::Http => self.connection(socket, guard.clone()).boxed(),
                        Door::Wyoming(shared) => wyoming::serve(Arc::clone(shared), socket, guard.clone()).boxed(),
                    };
                    self.tasks.spawn(async move {
                        tokio::select! {
                            () = connection => {}
                            () = guard.closing() => {}
                        }
                    });
                }
                Err(why) => {
                    debug!(%peer, %why, "a connection is refused");
                    let refusal = match door {
                        // A client that speaks TLS could not read it.
                        Door::Http if self.tls.is_some() => continue,
                        Door::Http => refuse(socket, self.router.clone(), why).boxed(),
                        Door::Wyoming(_) => wyoming::refuse(socket, why).boxed(),
                    };
                    if let Ok(permit) = self.refusals.clone().try_acquire_owned() {
                        self.tasks.spawn(async move {
                            let _permit = permit;
                            refusal.await;
                        });
                    }
                }
            }
        }
    }

    /// Serves one connection until it ends.
    fn connection(&self, socket: TcpStream, guard: ConnectionGuard) -> impl Future<Output = ()> + Send + 'static {
        // Chunks are small and must leave at once. Only a dead socket refuses the option.
        let _ = socket.set_nodelay(true);
        let (stall_limit, min_read_rate, patience) = (self.stall_limit, self.min_read_rate, self.read_timeout);
        let activity = Arc::clone(guard.activity());
        let tls = self.tls.as_ref().map(|tls| tls.acceptor());
        let http = Http {
            router: self.router.clone(),
            stopping: self.stopping.clone(),
            retiring: self.retiring.clone(),
            read_timeout: patience,
        };
        async move {
            let socket = Socket::new(socket);
            let watched = StallGuard::new(socket.clone(), stall_limit).paced(min_read_rate).shown(activity);
            let Some(tls) = tls else { return http.serve(watched, &socket, guard).await };
            match tokio::time::timeout(patience, tls.accept(watched)).await {
                Ok(Ok(secured)) => http.serve(secured, &socket, guard).await,
                Ok(Err(error)) => debug!(%error, "no TLS"),
                Err(_) => debug!("no TLS in time"),
            }
        }
    }
}

/// What a connection speaks, whatever carries it.
struct Http {
    router: Router,
    stopping: CancellationToken,
    retiring: Retiring,
    read_timeout: Duration,
}

impl Http {
    /// `socket` is what `io` reads in the end.
    async fn serve(
        self,
        io: impl AsyncRead + AsyncWrite + Unpin + Send + 'static,
        socket: &Socket,
        guard: ConnectionGuard,
    ) {
        let mut http = http1::Builder::new();
        http.timer(TokioTimer::new()).header_read_timeout(self.read_timeout).max_buf_size(HTTP_BUFFER);
        // While draining, a new connection gets one answer, so that `/ready` can tell why. (A graceful shutdown
        // before the first request would close it without any.)
        let mut told = self.stopping.is_cancelled();
        http.keep_alive(!told);
        let router = TowerToHyperService::new(self.router);
        let retiring = self.retiring.clone();
        let service = service_fn(move |mut request: hyper::Request<Incoming>| {
            request.extensions_mut().insert(Peer(guard.address()));
            request.extensions_mut().insert(guard.clone());
            // Until the last byte of the answer is on its way.
            let busy = guard.activity().busy();
            let (answer, retiring) = (router.call(request), retiring.clone());
            async move {
                let mut answer = answer.await?;
                let gone_by = match answer.extensions().get::<SaidGoneBy>() {
                    Some(said) => said.0,
                    None => retiring.gone_by(),
                };
                if gone_by.is_some() && answer.status() != StatusCode::SWITCHING_PROTOCOLS {
                    answer.headers_mut().insert(CONNECTION, HeaderValue::from_static("close"));
                }
                Ok::<_, Infallible>(answer.map(|body| watched(body, busy)))
            }
        });
        let mut connection = std::pin::pin!(http.serve_connection(TokioIo::new(io), service).with_upgrades());
        let result = loop {
            tokio::select! {
                result = &mut connection => break result,
                () = socket.hung_up() => {
                    debug!("the client left before its answer was there");
                    return;
                }
                () = self.stopping.cancelled(), if !told => {
                    told = true;
                    connection.as_mut().graceful_shutdown();
                }
            }
        };
        if let Err(error) = result {
            debug!(%error, "connection ended");
        }
    }
}
