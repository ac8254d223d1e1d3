//! A server from its sockets on: binding, what its connections share, and the drain at the end.

use super::accept::{Connections, Door};
use super::admin::Admin;
use super::connection::Places;
use super::export;
use super::realtime::Calls;
use super::reload::Reloader;
use super::routes::{admin_router, router};
use super::rules::Current;
use super::state::{App, Model};
use super::tls::{Tls, TlsError};
use super::wyoming::{self, Announcement};
use futures::future::{BoxFuture, join_all};
use omni_config::{
    Config, LimitsConfig, MediaInputConfig, ReferenceAudioConfig, ServerConfig, TelemetryConfig, WyomingConfig,
};
use omni_engine::Service;
use std::future::Future;
use std::net::SocketAddr;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;
use std::time::Duration;
use tokio::net::{TcpListener, TcpSocket};
use tokio::sync::Semaphore;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;
use tracing::{info, warn};

/// Bytes of speech that the kernel may hold for a client that stopped reading: 3 s of base64 PCM. With the kernel's own
/// sizes a paused client would have minutes of speech computed ahead of it.
const SEND_BUFFER: u32 = 192 << 10;
/// Connections that may wait to be accepted.
const BACKLOG: u32 = 1024;
/// Refused connections that are told why at the same time; more are closed at once.
const MAX_REFUSALS: usize = 64;
/// After the drain: how long the last bytes may take to leave.
const FLUSH_TIME: Duration = Duration::from_secs(2);
/// Sound of a call that is made ahead of its playing, at most.
const PLAYED_AHEAD: Duration = Duration::from_secs(5);

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
    /// The port of calls is taken or not ours, or this program has no calls.
    #[error("cannot take calls at {address}: {source}; `realtime.webrtc.listen` names another address, or none")]
    WebRtc {
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
    media: MediaInputConfig,
    telemetry: TelemetryConfig,
    rules: Arc<Current>,
    tls: Option<Arc<Tls>>,
    admin: Option<Admin>,
    wyoming: Option<Wyoming>,
    calls: Option<Arc<Calls>>,
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

/// Drains all models at once.
async fn drain(models: &[Model], grace: Duration) {
    join_all(models.iter().map(|model| model.service.drain(grace))).await;
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
        Server::with(listener, address, config.clone(), false)
    }

    /// `inherits`: whether a process before it may have its other ports for a while.
    fn with(
        listener: TcpListener,
        address: SocketAddr,
        config: ServerConfig,
        inherits: bool,
    ) -> Result<Server, ServeError> {
        let Config { reference_audio: references, media, telemetry, .. } = Config::default();
        let rules = Arc::new(Current::new(&config, &telemetry));
        let tls = config.access.tls.as_ref().map(Tls::new).transpose()?.map(Arc::new);
        let admin = |address| Admin::bind(address).map_err(|source| ServeError::Admin { address, source });
        let admin = config.access.admin_listen.map(admin).transpose()?;
        let webrtc = &config.realtime.webrtc;
        let calls = Calls::bind(webrtc, inherits)
            .map_err(|source| ServeError::WebRtc { address: webrtc.listen.unwrap_or(address), source })?;
        Ok(Server { listener, address, config, references, media, telemetry, rules, tls, admin, wyoming: None, calls })
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
        Server::with(listener, address, config, true)
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

    /// The UDP address of calls.
    pub fn calls_addr(&self) -> Option<SocketAddr> {
        self.calls.as_ref().map(|calls| calls.address())
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

    /// Bounds what chat turns carry besides text by this config; without it, by what an empty file means.
    pub fn with_media(self, media: &MediaInputConfig) -> Server {
        Server { media: media.clone(), ..self }
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
        let models = vec![Model { service, aliases: Vec::new() }];
        self.serve_until(models, limits, Box::pin(std::future::pending()), Box::pin(shutdown))
    }

    /// The same with several models, of which there is at least one, until another process accepts in this one's place, too: once `succeeded` resolves, this server accepts
    /// no connection, serves those that it has until they end, for at most `server.upgrade_grace`, and answers each
    /// request on them with `Connection: close`; then it drains.
    ///
    /// Not generic, and boxed: it is compiled here, not in every crate that serves.
    pub fn serve_until<'a>(
        self,
        models: Vec<Model>,
        limits: &'a LimitsConfig,
        succeeded: BoxFuture<'a, ()>,
        shutdown: BoxFuture<'a, ()>,
    ) -> BoxFuture<'a, ()> {
        Box::pin(self.run(models, limits, succeeded, shutdown))
    }

    async fn run(
        self,
        models: Vec<Model>,
        limits: &LimitsConfig,
        succeeded: BoxFuture<'_, ()>,
        mut shutdown: BoxFuture<'_, ()>,
    ) {
        let app = Arc::new(App::new(
            models.clone(),
            &self.config,
            limits,
            (self.references, self.media),
            &self.telemetry,
            self.rules,
            self.calls,
        ));
        let receiving = app.calls.as_ref().map(Calls::begin);
        let admin = self.admin.and_then(|admin| {
            let (address, open) = (admin.address, admin.address.ip().is_loopback());
            let answering = admin.serve(admin_router(app.clone(), open));
            answering.inspect_err(|error| warn!(%error, %address, "the admin listener does not answer")).ok()
        });
        let exporting = app.links.clone().zip(self.telemetry.otlp_endpoint.as_ref());
        let exporting = exporting.map(|(links, endpoint)| export::start(&app.service.recorder(), links, endpoint));
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
        let mut announced = None;
        let wyoming = self.wyoming.map(|wyoming| {
            let Wyoming { listener, config, address } = wyoming;
            announced = config.announce.as_deref().and_then(|name| Announcement::begin(name, address));
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
        if let Some(announced) = announced {
            // Another process that accepts in this one's place announces the same.
            announced.end(!retires).await;
        }
        if retires {
            if let Some(calls) = &app.calls {
                calls.retire();
            }
            // The other process takes the address over.
            drop((self.listener, admin));
            tokio::select! {
                () = connections.retire(&app, self.config.upgrade_grace) => {}
                () = shutdown => {}
            }
            connections.begin_drain(self.config.drain_grace);
            drain(&models, self.config.drain_grace).await;
        } else {
            connections.begin_drain(self.config.drain_grace);
            tokio::select! {
                never = connections.accept(&self.listener, &Door::Http) => match never {},
                () = drain(&models, self.config.drain_grace) => {}
            }
            drop((self.listener, admin));
        }
        connections.tasks.close();
        // What is made of a call's sound is played; a call ends by itself then.
        let patience = if receiving.is_some() { FLUSH_TIME + PLAYED_AHEAD } else { FLUSH_TIME };
        if tokio::time::timeout(patience, connections.tasks.wait()).await.is_err() {
            warn!(connections = connections.tasks.len(), "closing connections that are still open");
        }
        drop(close_all);
        connections.tasks.wait().await;
        drop((exporting, receiving));
        info!("drained");
    }
}
