//! Sockets: binding, the limit on connections, timeouts, and the drain at the end.

use super::admin::Admin;
use super::connection::{ConnectionGuard, Places};
use super::export;
use super::hangup::Socket;
use super::io::StallGuard;
use super::refusal::refuse;
use super::reload::Reloader;
use super::routes::{admin_router, router};
use super::rules::Current;
use super::state::{App, Retiring, unix_seconds};
use super::tls::{Tls, TlsError};
use super::visit::Peer;
use super::watched::watched;
use super::wyoming;
use axum::Router;
use axum::http::header::CONNECTION;
use axum::http::{HeaderValue, StatusCode};
use futures::FutureExt;
use futures::future::BoxFuture;
use hyper::body::Incoming;
use hyper::server::conn::http1;
use hyper::service::{Service as _, service_fn};
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::service::TowerToHyperService;
use omni_config::{Config, LimitsConfig, ReferenceAudioConfig, ServerConfig, TelemetryConfig, WyomingConfig};
use omni_engine::Service;
use std::convert::Infallible;
use std::future::Future;
use std::net::SocketAddr;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;
use std::time::Duration;
use tokio::io::{AsyncRead, AsyncWrite};
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
    /// Anyone who reaches the address of the Wyoming listener could use the server.
    #[error("wyoming.listen: {0} {1}")]
    WyomingTooOpen(SocketAddr, &'static str),
    /// The Wyoming listener does not begin.
    #[error("cannot listen on {address}: {source}; choose another address with `wyoming.listen`")]
    Wyoming {
        /// What was asked for.
        address: SocketAddr,
        /// What the system said.
        source: std::io::Error,
    },
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
    wyoming: Option<Wyoming>,
}

/// The socket for clients of the Wyoming protocol.
#[derive(Debug)]
struct Wyoming {
    listener: TcpListener,
    address: SocketAddr,
    config: WyomingConfig,
}

/// A socket that listens at an address, and which it is.
fn bind(address: SocketAddr) -> std::io::Result<(TcpListener, SocketAddr)> {
    let socket = match address {
        SocketAddr::V4(_) => TcpSocket::new_v4()?,
        SocketAddr::V6(_) => TcpSocket::new_v6()?,
    };
    // Accepted sockets inherit the size.
    socket.set_send_buffer_size(SEND_BUFFER)?;
    #[cfg(unix)] // elsewhere it would let two servers share a port
    socket.set_reuseaddr(true)?;
    socket.bind(address)?;
    let listener = socket.listen(BACKLOG)?;
    let address = listener.local_addr()?;
    Ok((listener, address))
}

/// The same for a socket that listens already.
fn adopt(socket: std::net::TcpListener) -> std::io::Result<(TcpListener, SocketAddr)> {
    let address = socket.local_addr()?;
    // Accepted sockets inherit the size.
    rustix::net::sockopt::set_socket_send_buffer_size(&socket, SEND_BUFFER as usize)?;
    socket.set_nonblocking(true)?;
    Ok((TcpListener::from_std(socket)?, address))
}

impl Server {
    /// Binds the configured address. Port 0 lets the system choose; [`Server::local_addr`] tells the port.
    ///
    /// Must be called inside a Tokio runtime.
    pub fn bind(config: &ServerConfig) -> Result<Server, ServeError> {
        if let Some(why) = config.too_open() {
            return Err(ServeError::TooOpen(config.listen, why));
        }
        let (listener, address) =
            bind(config.listen).map_err(|source| ServeError::Bind { address: config.listen, source })?;
        Server::with(listener, address, config.clone())
    }

    fn with(listener: TcpListener, address: SocketAddr, config: ServerConfig) -> Result<Server, ServeError> {
        let Config { reference_audio: references, telemetry, .. } = Config::default();
        let rules = Arc::new(Current::new(&config, &telemetry));
        let tls = config.access.tls.as_ref().map(Tls::new).transpose()?.map(Arc::new);
        let admin = |address| Admin::bind(address).map_err(|source| ServeError::Admin { address, source });
        let admin = config.access.admin_listen.map(admin).transpose()?;
        Ok(Server { listener, address, config, references, telemetry, rules, tls, admin, wyoming: None })
    }

    /// Takes over a socket that listens already, whatever address the config names.
    ///
    /// Must be called inside a Tokio runtime.
    pub fn on(socket: std::net::TcpListener, config: &ServerConfig) -> Result<Server, ServeError> {
        let (listener, address) =
            adopt(socket).map_err(|source| ServeError::Bind { address: config.listen, source })?;
        let config = ServerConfig { listen: address, ..config.clone() };
        if let Some(why) = config.too_open() {
            return Err(ServeError::TooOpen(address, why));
        }
        Server::with(listener, address, config)
    }

    /// The listening socket, for another process that accepts from it after this one.
    pub fn socket(&self) -> std::io::Result<OwnedFd> {
        self.listener.as_fd().try_clone_to_owned()
    }

    /// Speaks the Wyoming protocol, too, if the config says where; `inherited` is a socket that listens there already.
    ///
    /// # Errors
    /// An address that is taken, or that others reach without a line of the config that allows it.
    pub fn with_wyoming(
        self,
        config: &WyomingConfig,
        inherited: Option<std::net::TcpListener>,
    ) -> Result<Server, ServeError> {
        let Some(asked) = config.listen else { return Ok(self) };
        let listening = inherited.map_or_else(|| bind(asked), adopt);
        let (listener, address) = listening.map_err(|source| ServeError::Wyoming { address: asked, source })?;
        if let Some(why) = config.too_open_at(address, &self.config) {
            return Err(ServeError::WyomingTooOpen(address, why));
        }
        Ok(Server { wyoming: Some(Wyoming { listener, address, config: config.clone() }), ..self })
    }

    /// Where it speaks the Wyoming protocol.
    pub fn wyoming_addr(&self) -> Option<SocketAddr> {
        self.wyoming.as_ref().map(|wyoming| wyoming.address)
    }

    /// The socket of the Wyoming protocol, for another process that accepts from it after this one.
    pub fn wyoming_socket(&self) -> std::io::Result<Option<OwnedFd>> {
        self.wyoming.as_ref().map(|wyoming| wyoming.listener.as_fd().try_clone_to_owned()).transpose()
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
        let wyoming = self.wyoming.as_ref().map(|wyoming| wyoming.address);
        Reloader { rules: Arc::clone(&self.rules), tls: self.tls.clone(), listens, wyoming }
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
        self.serve_until(service, limits, Box::pin(std::future::pending()), Box::pin(shutdown))
    }

    /// The same until another process accepts in this one's place, too: once `succeeded` resolves, this server accepts
    /// no connection, serves those that it has until they end, for at most `server.upgrade_grace`, and answers each
    /// request on them with `Connection: close`; then it drains.
    ///
    /// Not generic, and boxed: it is compiled here, not in every crate that serves.
    pub fn serve_until<'a>(
        self,
        service: Arc<dyn Service>,
        limits: &'a LimitsConfig,
        succeeded: BoxFuture<'a, ()>,
        shutdown: BoxFuture<'a, ()>,
    ) -> BoxFuture<'a, ()> {
        Box::pin(self.run(service, limits, succeeded, shutdown))
    }

    async fn run(
        self,
        service: Arc<dyn Service>,
        limits: &LimitsConfig,
        succeeded: BoxFuture<'_, ()>,
        mut shutdown: BoxFuture<'_, ()>,
    ) {
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
            places: Places::new(
                self.config.max_connections,
                self.config.max_connections_per_address,
                app.metrics.connections.clone(),
            ),
            refusals: Arc::new(Semaphore::new(MAX_REFUSALS)),
            read_timeout: self.config.read_timeout,
            stall_limit: limits.stalled_client_timeout,
            min_read_rate: self.config.min_read_rate,
            stopping: app.stopping.clone(),
            retiring: app.retiring.clone(),
            closing: CancellationToken::new(),
            tasks: TaskTracker::new(),
        };
        let wyoming = self.wyoming.map(|wyoming| {
            let Wyoming { listener, config, .. } = wyoming;
            let min_read_rate = self.config.min_read_rate;
            (listener, Door::Wyoming(Arc::new(wyoming::Shared { app: app.clone(), config, min_read_rate })))
        });
        // The connections end with this function, also where it is dropped.
        let close_all = connections.closing.clone().drop_guard();
        let retires = tokio::select! {
            never = connections.accept(&self.listener, &Door::Http) => match never {},
            never = connections.accept_too(wyoming.as_ref()) => match never {},
            () = &mut shutdown => false,
            () = succeeded => true,
        };
        // Health is told until the end, and there is none in this protocol.
        drop(wyoming);
        if retires {
            // The other process takes the address over.
            drop((self.listener, admin));
            tokio::select! {
                () = connections.retire(&app, self.config.upgrade_grace) => {}
                () = shutdown => {}
            }
            connections.begin_drain(self.config.drain_grace);
            service.drain(self.config.drain_grace).await;
        } else {
            connections.begin_drain(self.config.drain_grace);
            tokio::select! {
                never = connections.accept(&self.listener, &Door::Http) => match never {},
                () = service.drain(self.config.drain_grace) => {}
            }
            drop((self.listener, admin));
        }
        connections.tasks.close();
        if tokio::time::timeout(FLUSH_TIME, connections.tasks.wait()).await.is_err() {
            warn!(connections = connections.tasks.len(), "closing connections that are still open");
        }
        drop(close_all);
        connections.tasks.wait().await;
        drop(exporting);
        info!("drained");
    }
}

/// What is spoken to those who come in by a socket.
enum Door {
    Http,
    Wyoming(Arc<wyoming::Shared>),
}

/// The accept loop and what its connections share.
struct Connections {
    router: Router,
    tls: Option<Arc<Tls>>,
    places: Arc<Places>,
    refusals: Arc<Semaphore>,
    read_timeout: Duration,
    stall_limit: Duration,
    min_read_rate: u64,
    /// Tells connections to finish their request and begin no other.
    stopping: CancellationToken,
    /// Tells connections that each request is their last.
    retiring: Retiring,
    /// Tells connections to end at once.
    closing: CancellationToken,
    tasks: TaskTracker,
}

impl Connections {
    fn begin_drain(&self, grace: Duration) {
        info!(grace_s = grace.as_secs_f32(), "draining");
        self.stopping.cancel();
    }

    /// Waits until the clients of this process are gone, for at most `grace`.
    async fn retire(&self, app: &App, grace: Duration) {
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
    async fn accept_too(&self, open: Option<&(TcpListener, Door)>) -> Infallible {
        match open {
            Some((listener, door)) => self.accept(listener, door).await,
            None => std::future::pending().await,
        }
    }

    async fn accept(&self, listener: &TcpListener, door: &Door) -> Infallible {
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
                if retiring.gone_by().is_some() && answer.status() != StatusCode::SWITCHING_PROTOCOLS {
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
