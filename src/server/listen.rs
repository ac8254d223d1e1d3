//! Sockets: binding, the limit on connections, timeouts, and the drain at the end.

use super::admin::Admin;
use super::budget::{Budget, Intake};
use super::connection::{ConnectionGuard, Permit};
use super::error::ApiError;
use super::export;
use super::io::StallGuard;
use super::reload::Reloader;
use super::routes::{admin_router, router};
use super::rules::Current;
use super::state::App;
use super::tls::{Tls, TlsError};
use super::visit::Peer;
use axum::Router;
use axum::http::StatusCode;
use futures::future::BoxFuture;
use hyper::body::Incoming;
use hyper::server::conn::http1;
use hyper::service::{Service as _, service_fn};
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::service::TowerToHyperService;
use metrics::Gauge;
use omni_config::{Config, LimitsConfig, ReferenceAudioConfig, ServerConfig, TelemetryConfig};
use omni_engine::Service;
use std::future::Future;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::net::{TcpListener, TcpSocket, TcpStream};
use tokio::sync::Semaphore;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;
use tracing::{debug, info, warn};

/// Bytes of speech that the kernel may hold for a client that stopped reading: 3 s of base64 PCM. With the kernel's own
/// sizes a paused client would have minutes of speech computed ahead of it.
const SEND_BUFFER: u32 = 192 << 10;
/// The same for the HTTP layer; it is also the limit on a request's headers.
const HTTP_BUFFER: usize = 64 << 10;
/// Connections that may wait to be accepted.
const BACKLOG: u32 = 1024;
/// Refused connections that are told why at the same time; more are closed at once.
const MAX_REFUSALS: usize = 64;
/// How long a refused client may take to read the refusal.
const REFUSAL_TIME: Duration = Duration::from_secs(1);
/// After the drain: how long the last bytes may take to leave.
const FLUSH_TIME: Duration = Duration::from_secs(2);
/// Pause after the system refused a new connection (out of file descriptors), so that the loop does not spin.
const ACCEPT_BACKOFF: Duration = Duration::from_millis(50);

/// Why the server could not begin.
#[derive(Debug, thiserror::Error)]
pub enum ServeError {
    /// The address is taken or not ours.
    #[error("cannot listen on {address}: {source}; choose another address with `server.listen`")]
    Bind {
        /// What was asked for.
        address: SocketAddr,
        /// What the system said.
        source: std::io::Error,
    },
    /// Anyone who reaches the address could use the server.
    #[error("server.listen: {0} {1}")]
    TooOpen(SocketAddr, &'static str),
    /// The certificate cannot be used.
    #[error(transparent)]
    Tls(#[from] TlsError),
    /// The admin listener does not begin.
    #[error("cannot listen on {address}: {source}; choose another address with `server.admin_listen`")]
    Admin {
        /// What was asked for.
        address: SocketAddr,
        /// What the system said.
        source: std::io::Error,
    },
}

/// A bound socket that does not answer yet: clients that connect wait.
#[derive(Debug)]
pub struct Server {
    listener: TcpListener,
    address: SocketAddr,
    config: ServerConfig,
    references: ReferenceAudioConfig,
    telemetry: TelemetryConfig,
    rules: Arc<Current>,
    tls: Option<Arc<Tls>>,
    admin: Option<Admin>,
}

impl Server {
    /// Binds the configured address. Port 0 lets the system choose; [`Server::local_addr`] tells the port.
    ///
    /// Must be called inside a Tokio runtime.
    pub fn bind(config: &ServerConfig) -> Result<Server, ServeError> {
        if let Some(why) = config.too_open() {
            return Err(ServeError::TooOpen(config.listen, why));
        }
        let listen = || {
            let socket = match config.listen {
                SocketAddr::V4(_) => TcpSocket::new_v4()?,
                SocketAddr::V6(_) => TcpSocket::new_v6()?,
            };
            // Accepted sockets inherit the size.
            socket.set_send_buffer_size(SEND_BUFFER)?;
            #[cfg(unix)] // elsewhere it would let two servers share a port
            socket.set_reuseaddr(true)?;
            socket.bind(config.listen)?;
            let listener = socket.listen(BACKLOG)?;
            let address = listener.local_addr()?;
            Ok((listener, address))
        };
        let (listener, address) = listen().map_err(|source| ServeError::Bind { address: config.listen, source })?;
        let Config { reference_audio: references, telemetry, .. } = Config::default();
        let rules = Arc::new(Current::new(config, &telemetry));
        let tls = config.access.tls.as_ref().map(Tls::new).transpose()?.map(Arc::new);
        let admin = |address| Admin::bind(address).map_err(|source| ServeError::Admin { address, source });
        let admin = config.access.admin_listen.map(admin).transpose()?;
        Ok(Server { listener, address, config: config.clone(), references, telemetry, rules, tls, admin })
    }

    /// Lets the server read recordings from the hosts and folders of this config; without it, only those in requests.
    pub fn with_references(self, references: &ReferenceAudioConfig) -> Server {
        Server { references: references.clone(), ..self }
    }

    /// Lets clients trace the server, and writes a line of each request, if the config says so.
    pub fn with_telemetry(self, telemetry: &TelemetryConfig) -> Server {
        self.rules.set(&self.config, telemetry);
        Server { telemetry: telemetry.clone(), ..self }
    }

    /// Takes over other keys, names and certificates while the server runs.
    pub fn reloader(&self) -> Reloader {
        let listens = [self.address].into_iter().chain(self.admin_addr()).collect();
        Reloader { rules: Arc::clone(&self.rules), tls: self.tls.clone(), listens }
    }

    /// How clients have to speak to it: `https` or `http`.
    pub fn scheme(&self) -> &'static str {
        if self.tls.is_some() { "https" } else { "http" }
    }

    /// The address of health and metrics, if they have one of their own.
    pub fn admin_addr(&self) -> Option<SocketAddr> {
        self.admin.as_ref().map(|admin| admin.address)
    }

    /// The address that clients connect to.
    pub fn local_addr(&self) -> SocketAddr {
        self.address
    }

    /// Serves until `shutdown` resolves, then drains: the engine refuses new requests and lets running ones finish for
    /// at most `server.drain_grace`; `/health` and `/ready` answer until then. Returns when every connection is closed.
    ///
    /// Dropping the future stops at once.
    pub fn serve<'a>(
        self,
        service: Arc<dyn Service>,
        limits: &'a LimitsConfig,
        shutdown: impl Future<Output = ()> + Send + 'a,
    ) -> BoxFuture<'a, ()> {
        self.serve_until(service, limits, Box::pin(shutdown))
    }

    /// Not generic, and boxed: it is compiled here, not in every crate that serves.
    fn serve_until<'a>(
        self,
        service: Arc<dyn Service>,
        limits: &'a LimitsConfig,
        shutdown: BoxFuture<'a, ()>,
    ) -> BoxFuture<'a, ()> {
        Box::pin(self.run(service, limits, shutdown))
    }

    async fn run(self, service: Arc<dyn Service>, limits: &LimitsConfig, shutdown: BoxFuture<'_, ()>) {
        let app =
            Arc::new(App::new(service.clone(), &self.config, limits, self.references, &self.telemetry, self.rules));
        let admin = self.admin.and_then(|admin| {
            let (address, open) = (admin.address, admin.address.ip().is_loopback());
            let answering = admin.serve(admin_router(app.clone(), open));
            answering.inspect_err(|error| warn!(%error, %address, "the admin listener does not answer")).ok()
        });
        let exporting = app.links.clone().zip(self.telemetry.otlp_endpoint.as_ref());
        let exporting = exporting.map(|(links, endpoint)| export::start(&service.recorder(), links, endpoint));
        let connections = Connections {
            router: router(app.clone()),
            tls: self.tls,
            places: Arc::new(Semaphore::new(self.config.max_connections)),
            refusals: Arc::new(Semaphore::new(MAX_REFUSALS)),
            max_connections: self.config.max_connections,
            read_timeout: self.config.read_timeout,
            stall_limit: limits.stalled_client_timeout,
            open: app.metrics.connections.clone(),
            budget: app.budget.clone(),
            stopping: app.stopping.clone(),
            closing: CancellationToken::new(),
            tasks: TaskTracker::new(),
        };
        // The connections end with this function, also where it is dropped.
        let close_all = connections.closing.clone().drop_guard();
        let drained = async {
            shutdown.await;
            info!(grace_s = self.config.drain_grace.as_secs_f32(), "draining");
            app.stopping.cancel();
            service.drain(self.config.drain_grace).await;
        };
        tokio::select! {
            () = connections.accept(&self.listener) => {}
            () = drained => {}
        }
        drop(self.listener);
        connections.tasks.close();
        if tokio::time::timeout(FLUSH_TIME, connections.tasks.wait()).await.is_err() {
            warn!(connections = connections.tasks.len(), "closing connections that are still open");
        }
        drop(close_all);
        connections.tasks.wait().await;
        drop((admin, exporting));
        info!("drained");
    }
}

/// The accept loop and what its connections share.
struct Connections {
    router: Router,
    tls: Option<Arc<Tls>>,
    places: Arc<Semaphore>,
    refusals: Arc<Semaphore>,
    max_connections: usize,
    read_timeout: Duration,
    stall_limit: Duration,
    open: Gauge,
    budget: Arc<Budget>,
    /// Tells connections to finish their request and begin no other.
    stopping: CancellationToken,
    /// Tells connections to end at once.
    closing: CancellationToken,
    tasks: TaskTracker,
}

impl Connections {
    /// Never returns.
    async fn accept(&self, listener: &TcpListener) {
        loop {
            let (socket, peer) = match listener.accept().await {
                Ok(accepted) => accepted,
                Err(error) => {
                    warn!(%error, "cannot accept a connection");
                    tokio::time::sleep(ACCEPT_BACKOFF).await;
                    continue;
                }
            };
            match self.places.clone().try_acquire_owned() {
                Ok(permit) => {
                    let guard = ConnectionGuard {
                        _permit: Arc::new(Permit::new(permit, &self.open)),
                        _task: self.tasks.token(),
                        closing: self.closing.clone(),
                        peer,
                        intake: Intake::new(&self.budget),
                    };
                    let connection = self.connection(socket, guard.clone());
                    self.tasks.spawn(async move {
                        tokio::select! {
                            () = connection => {}
                            () = guard.closing() => {}
                        }
                    });
                }
                Err(_) => {
                    debug!(%peer, "too many connections");
                    // A client that speaks TLS could not read it.
                    if self.tls.is_none()
                        && let Ok(permit) = self.refusals.clone().try_acquire_owned()
                    {
                        let refusal = refuse(socket, self.max_connections);
                        self.tasks.spawn(async move {
                            let _permit = permit;
                            // A client that does not read its refusal in time goes without.
                            let _ = tokio::time::timeout(REFUSAL_TIME, refusal).await;
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
        let (intake, stall_limit, patience) = (Arc::clone(&guard.intake), self.stall_limit, self.read_timeout);
        let socket = StallGuard::new(socket, stall_limit);
        let tls = self.tls.as_ref().map(|tls| tls.acceptor());
        let http = Http { router: self.router.clone(), stopping: self.stopping.clone(), read_timeout: patience };
        async move {
            let Some(tls) = tls else { return http.serve(socket.counted(intake), guard).await };
            match tokio::time::timeout(patience, tls.accept(socket)).await {
                // What is counted is what comes out of TLS.
                Ok(Ok(socket)) => http.serve(StallGuard::new(socket, stall_limit).counted(intake), guard).await,
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
    read_timeout: Duration,
}

impl Http {
    async fn serve(self, io: impl AsyncRead + AsyncWrite + Unpin + Send + 'static, guard: ConnectionGuard) {
        let mut http = http1::Builder::new();
        http.timer(TokioTimer::new()).header_read_timeout(self.read_timeout).max_buf_size(HTTP_BUFFER);
        // While draining, a new connection gets one answer, so that `/ready` can tell why. (A graceful shutdown
        // before the first request would close it without any.)
        let mut told = self.stopping.is_cancelled();
        http.keep_alive(!told);
        let router = TowerToHyperService::new(self.router);
        let service = service_fn(move |mut request: hyper::Request<Incoming>| {
            request.extensions_mut().insert(Peer(guard.address()));
            request.extensions_mut().insert(guard.clone());
            router.call(request)
        });
        let mut connection = std::pin::pin!(http.serve_connection(TokioIo::new(io), service).with_upgrades());
        let result = loop {
            tokio::select! {
                result = &mut connection => break result,
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

/// Reads the head of the request, answers why it is refused, and closes.
async fn refuse(mut socket: TcpStream, limit: usize) {
    let message = format!("{limit} connections are open already; try again later");
    let error = ApiError::new(StatusCode::SERVICE_UNAVAILABLE, "too_many_connections", message);
    // A struct of strings is always JSON.
    let body = serde_json::to_string(&error.body()).unwrap_or_default();
    let response = format!(
        "HTTP/1.1 503 Service Unavailable\r\nContent-Type: application/json\r\nContent-Length: {}\r\n\
         Retry-After: 1\r\nConnection: close\r\n\r\n{body}",
        body.len()
    );
    // Clients take an answer to a request that they have not sent for garbage: read its head first.
    let mut head = Vec::new();
    let mut piece = [0; 4096];
    while head.len() < HTTP_BUFFER && !head.windows(4).any(|window| window == b"\r\n\r\n") {
        match socket.read(&mut piece).await {
            Ok(count @ 1..) => head.extend_from_slice(&piece[..count]),
            _ => return,
        }
    }
    if socket.write_all(response.as_bytes()).await.is_err() || socket.shutdown().await.is_err() {
        return;
    }
    // Closing a socket with unread bytes resets it, and the client might never see the answer: read the rest.
    while matches!(socket.read(&mut piece).await, Ok(1..)) {}
}
