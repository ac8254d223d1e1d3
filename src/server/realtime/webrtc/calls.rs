//! The UDP port of all calls, and to which of them a packet belongs: by the address from which it comes, once that has
//! shown that it knows the password of a call, and before by the name that it calls. A packet that no call claims is dropped, and
//! nothing is ever sent to an address that has shown nothing.

use omni_config::WebRtcConfig;
use omni_core::admission::TenantId;
use omni_telemetry::CallMetrics;
use std::collections::HashMap;
use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, UdpSocket as StdSocket};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;
use tokio::net::UdpSocket;
use tokio::sync::mpsc;
use tokio_rustls::rustls::crypto::ring::default_provider;
use tokio_util::sync::CancellationToken;
use tokio_util::task::AbortOnDropHandle;
use tracing::{info, warn};

/// Packets of a call that wait for it: a second of sound, and the pieces of a long event.
const WAITING: usize = 128;
/// Longest packet: no peer sends more in one, whose path is that of Ethernet.
const PACKET: usize = 2048;
/// Bytes of packets that the kernel keeps while the server is busy.
const BUFFER: usize = 1 << 20;
/// How often the port is tried again while the process before has it.
const AGAIN: Duration = Duration::from_secs(1);
/// Pause after the system failed, so that the loop does not spin.
const BACKOFF: Duration = Duration::from_millis(50);

/// A packet, and from where it came.
pub(super) type Packet = (SocketAddr, Vec<u8>);

/// The tasks behind the port; dropping it ends them.
pub(crate) struct Receiving {
    _task: AbortOnDropHandle<()>,
}

/// Why there is no call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Full {
    /// There are as many as there may be.
    Calls,
    /// The port is not ours yet, or no more.
    Closed,
    NoRandom,
}

/// See the module.
#[derive(Debug)]
pub(crate) struct Calls {
    config: WebRtcConfig,
    address: SocketAddr,
    table: Mutex<Table>,
    metrics: CallMetrics,
    /// Cancelled once another process is to have the port.
    retiring: CancellationToken,
}

#[derive(Debug, Default)]
struct Table {
    socket: Option<Arc<UdpSocket>>,
    calls: HashMap<String, Line>,
    names: HashMap<String, mpsc::Sender<Packet>>,
    addresses: HashMap<SocketAddr, mpsc::Sender<Packet>>,
}

/// What is known of a call outside of it.
#[derive(Debug)]
struct Line {
    owner: Option<TenantId>,
    hung_up: CancellationToken,
}

impl Calls {
    /// Binds the port, where the config names one. `waits`: whether a port that is taken is waited for, because the
    /// process before has it.
    pub fn bind(config: &WebRtcConfig, waits: bool) -> io::Result<Option<Arc<Calls>>> {
        let Some(asked) = config.listen else { return Ok(None) };
        let (socket, address) = match open(asked) {
            Ok(socket) => {
                let address = socket.local_addr()?;
                (Some(Arc::new(socket)), address)
            }
            Err(error) if waits && error.kind() == io::ErrorKind::AddrInUse => (None, asked),
            Err(error) => return Err(error),
        };
        let table = Mutex::new(Table { socket, ..Table::default() });
        let (metrics, retiring) = (CallMetrics::new(), CancellationToken::new());
        Ok(Some(Arc::new(Calls { config: config.clone(), address, table, metrics, retiring })))
    }

    /// Where it listens.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Begins to receive, once the port is there.
    pub fn begin(self: &Arc<Calls>) -> Receiving {
        let calls = Arc::clone(self);
        Receiving { _task: AbortOnDropHandle::new(tokio::spawn(async move { calls.receive().await })) }
    }

    /// Gives the port up as soon as no call is open, so that another process can have it.
    pub fn retire(&self) {
        self.retiring.cancel();
        self.table().close_if_idle(true);
    }

    async fn receive(&self) {
        let socket = loop {
            if let Some(socket) = &self.table().socket {
                // The table alone holds it, and the calls, so that the port can be given up.
                break Arc::downgrade(socket);
            }
            tokio::time::sleep(AGAIN).await;
            match open(self.address) {
                Ok(socket) => {
                    info!(address = %self.address, "the port of calls is free");
                    self.table().socket = Some(Arc::new(socket));
                }
                Err(error) if error.kind() == io::ErrorKind::AddrInUse => {}
                Err(error) => return warn!(%error, address = %self.address, "cannot open the port of calls"),
            }
        };
        let mut packet = [0; PACKET];
        loop {
            let Some(socket) = socket.upgrade() else { return };
            let received = tokio::select! {
                received = socket.recv_from(&mut packet) => received,
                () = tokio::time::sleep(AGAIN), if self.retiring.is_cancelled() => continue,
                () = self.retiring.cancelled(), if !self.retiring.is_cancelled() => continue,
            };
            match received {
                Ok((length, from)) => {
                    self.route(SocketAddr::new(from.ip().to_canonical(), from.port()), &packet[..length]);
                }
                // An address to which something was sent does not listen any more.
                Err(error) if error.kind() == io::ErrorKind::ConnectionRefused => {}
                Err(error) => {
                    warn!(%error, "cannot receive packets of calls");
                    tokio::time::sleep(BACKOFF).await;
                }
            }
        }
    }

    /// Gives a packet to its call. A queue that is full drops it, as networks do.
    fn route(&self, from: SocketAddr, packet: &[u8]) {
        let table = self.table();
        let named = omni_webrtc::called(packet).and_then(|name| table.names.get(name));
        let Some(line) = named.or_else(|| table.addresses.get(&from)) else {
            return self.metrics.unknown.increment(1);
        };
        if line.try_send((from, packet.to_vec())).is_err() {
            self.metrics.full.increment(1);
        }
    }

    /// A place for a call.
    pub(super) fn enter(self: &Arc<Calls>, owner: Option<TenantId>) -> Result<Entry, Full> {
        let mut random = [0; 16];
        default_provider().secure_random.fill(&mut random).map_err(|_| Full::NoRandom)?;
        let id = format!("rtc_{:032x}", u128::from_le_bytes(random));
        let (sender, packets) = mpsc::channel(WAITING);
        let hung_up = CancellationToken::new();
        let mut table = self.table();
        let socket = table.socket.clone().ok_or(Full::Closed)?;
        if table.calls.len() >= self.config.max_calls {
            return Err(Full::Calls);
        }
        table.calls.insert(id.clone(), Line { owner, hung_up: hung_up.clone() });
        self.metrics.open.increment(1.0);
        let (name, addresses) = (None, Vec::new());
        Ok(Entry { calls: Arc::clone(self), id, name, addresses, sender, packets, socket, hung_up })
    }

    /// At which addresses a client that came from `peer` may reach the port.
    pub(super) fn addresses(&self, peer: IpAddr) -> Vec<SocketAddr> {
        let own = match self.address.ip() {
            ip if ip.is_unspecified() => towards(peer.to_canonical()),
            ip => Some(ip),
        };
        let mut all: Vec<IpAddr> = self.config.public_addresses.clone();
        all.extend(own.filter(|own| !self.config.public_addresses.contains(own)));
        all.into_iter().map(|ip| SocketAddr::new(ip, self.address.port())).collect()
    }

    /// Ends a call of this owner, if there is one of this name.
    pub(super) fn hang_up(&self, id: &str, owner: Option<TenantId>) -> bool {
        let table = self.table();
        let line = table.calls.get(id).filter(|line| line.owner == owner);
        line.inspect(|line| line.hung_up.cancel()).is_some()
    }

    fn table(&self) -> MutexGuard<'_, Table> {
        self.table.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Table {
    fn close_if_idle(&mut self, retires: bool) {
        if retires && self.calls.is_empty() {
            self.socket = None;
        }
    }
}

/// The socket of the port.
fn open(address: SocketAddr) -> io::Result<UdpSocket> {
    let socket = StdSocket::bind(address)?;
    // A smaller one does, too.
    let _ = socket2::SockRef::from(&socket).set_recv_buffer_size(BUFFER);
    socket.set_nonblocking(true)?;
    UdpSocket::from_std(socket)
}

/// The address of this machine from which it would send to another one. Nothing is sent.
fn towards(peer: IpAddr) -> Option<IpAddr> {
    let any: IpAddr = match peer {
        IpAddr::V4(_) => Ipv4Addr::UNSPECIFIED.into(),
        IpAddr::V6(_) => Ipv6Addr::UNSPECIFIED.into(),
    };
    let socket = StdSocket::bind((any, 0)).ok()?;
    socket.connect((peer, 9)).ok()?;
    socket.local_addr().ok().map(|address| address.ip())
}

/// The place of a call: what it takes from the port. Dropping it gives all of that back.
pub(super) struct Entry {
    calls: Arc<Calls>,
    id: String,
    name: Option<String>,
    addresses: Vec<SocketAddr>,
    sender: mpsc::Sender<Packet>,
    pub packets: mpsc::Receiver<Packet>,
    pub socket: Arc<UdpSocket>,
    pub hung_up: CancellationToken,
}

impl Entry {
    /// The name of the call in the API, which cannot be guessed.
    pub fn id(&self) -> &str {
        &self.id
    }

    /// Gives it the packets that call this name.
    pub fn named(mut self, name: &str) -> Entry {
        self.calls.table().names.insert(name.to_owned(), self.sender.clone());
        self.name = Some(name.to_owned());
        self
    }

    /// Gives it what comes from an address, which has shown that it knows the password. The oldest of several goes.
    pub fn at(&mut self, address: SocketAddr) {
        const ADDRESSES: usize = 8;
        if self.addresses.contains(&address) {
            return;
        }
        let mut table = self.calls.table();
        if self.addresses.len() >= ADDRESSES {
            table.addresses.remove(&self.addresses.remove(0));
        }
        table.addresses.insert(address, self.sender.clone());
        self.addresses.push(address);
    }

    /// Where to send what is for an address.
    pub fn target(&self, to: SocketAddr) -> SocketAddr {
        match (self.calls.address, to.ip()) {
            (SocketAddr::V6(_), IpAddr::V4(ip)) => SocketAddr::new(ip.to_ipv6_mapped().into(), to.port()),
            _ => to,
        }
    }
}

impl Drop for Entry {
    fn drop(&mut self) {
        let mut table = self.calls.table();
        table.calls.remove(&self.id);
        self.calls.metrics.open.decrement(1.0);
        if let Some(name) = &self.name {
            table.names.remove(name);
        }
        for address in &self.addresses {
            // Another call may have come from there since.
            if table.addresses.get(address).is_some_and(|sender| sender.same_channel(&self.sender)) {
                table.addresses.remove(address);
            }
        }
        table.close_if_idle(self.calls.retiring.is_cancelled());
    }
}
