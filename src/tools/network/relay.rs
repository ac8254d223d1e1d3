//! Carries packets of UDP between those that send to it and one that listens, each way as its [`Passage`] says.

use super::way::{Passage, Way};
use std::collections::BTreeMap;
use std::io;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};
use tokio::net::UdpSocket;
use tokio::sync::Notify;
use tokio::task::{AbortHandle, JoinSet};

/// One who has had nothing for so long is forgotten: each attempt to connect comes from another port.
const FORGOTTEN: Duration = Duration::from_secs(60);
/// More than any packet has.
const LARGEST: usize = 1 << 16;

/// See the module. It needs the runtime that it was made on, and ends when it is dropped.
pub struct Relay {
    address: SocketAddr,
    ways: Arc<[Road; 2]>,
    _tasks: JoinSet<()>,
}

impl Relay {
    /// A relay to the one that listens there, open both ways. The seed decides which packets are lost on a slow way.
    ///
    /// # Errors
    /// The system has no socket for it.
    pub async fn towards(listener: SocketAddr, seed: u64) -> io::Result<Relay> {
        let near = Arc::new(bound().await?);
        let address = near.local_addr()?;
        let began = Instant::now();
        // Two ways of one seed would lose the same packets.
        let ways = Arc::new([Road::new(began, seed), Road::new(began, !seed)]);
        let mut tasks = JoinSet::new();
        for way in 0..2 {
            let ways = Arc::clone(&ways);
            tasks.spawn(async move { ways[way].carry().await });
        }
        tasks.spawn(forward(near, listener, Arc::clone(&ways)));
        Ok(Relay { address, ways, _tasks: tasks })
    }

    /// Where to send what is for the listener.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// From now on: what is sent to the listener, and what it sends back.
    pub fn set(&self, to_listener: Passage, back: Passage) {
        for (road, passage) in self.ways.iter().zip([to_listener, back]) {
            road.set(passage);
        }
    }
}

/// A packet, and where it goes: to this address, or to the one that the socket is connected to.
struct Packet {
    socket: Arc<UdpSocket>,
    to: Option<SocketAddr>,
    bytes: Vec<u8>,
}

impl Packet {
    fn leave(self) {
        // What the system does not take is lost, as in any network: a socket that is full, a listener that is not there.
        let _ = match self.to {
            Some(to) => self.socket.try_send_to(&self.bytes, to),
            None => self.socket.try_send(&self.bytes),
        };
    }
}

/// A way, and its clock.
struct Road {
    began: Instant,
    way: Mutex<Way<Packet>>,
    changed: Notify,
}

impl Road {
    fn new(began: Instant, seed: u64) -> Road {
        Road { began, way: Mutex::new(Way::new(seed)), changed: Notify::new() }
    }

    fn set(&self, passage: Passage) {
        self.change(|way, now| way.set(now, passage));
    }

    fn send(&self, packet: Packet) {
        self.change(|way, now| way.sent(now, packet));
    }

    /// What arrives at once does so here; the rest is for the task that carries.
    fn change(&self, what: impl FnOnce(&mut Way<Packet>, Duration)) {
        if self.let_out(what).is_some() {
            self.changed.notify_one();
        }
    }

    /// When there is more to let out.
    fn let_out(&self, what: impl FnOnce(&mut Way<Packet>, Duration)) -> Option<Duration> {
        let now = self.began.elapsed();
        // The lock only guards a pure state.
        let mut way = self.way.lock().unwrap_or_else(PoisonError::into_inner);
        what(&mut way, now);
        while let Some(packet) = way.arrived(now) {
            packet.leave();
        }
        way.next()
    }

    /// Lets out what arrives later.
    async fn carry(&self) {
        let mut next: Option<Duration> = None;
        loop {
            let due = async {
                match next {
                    Some(due) => tokio::time::sleep_until((self.began + due).into()).await,
                    None => std::future::pending().await,
                }
            };
            tokio::select! {
                () = due => {}
                () = self.changed.notified() => {}
            }
            next = self.let_out(|_, _| {});
        }
    }
}

async fn bound() -> io::Result<UdpSocket> {
    let socket = UdpSocket::bind("127.0.0.1:0").await?;
    // From here on it can be tried to send.
    socket.writable().await?;
    Ok(socket)
}

/// Takes what is for the listener. Each one that sends has a socket of its own there, which brings back what is for it.
async fn forward(near: Arc<UdpSocket>, listener: SocketAddr, ways: Arc<[Road; 2]>) {
    let mut known: BTreeMap<SocketAddr, (Arc<UdpSocket>, AbortHandle)> = BTreeMap::new();
    let mut returning = JoinSet::new();
    let mut packet = vec![0; LARGEST];
    loop {
        // A port that is closed is told to the next one that asks: it is no end.
        let Ok((length, sender)) = near.recv_from(&mut packet).await else { continue };
        if !known.contains_key(&sender) {
            known.retain(|_, (_, returns)| !returns.is_finished());
            while returning.try_join_next().is_some() {}
            // Without a socket its packets are lost until there is one.
            let Ok(far) = connected(listener).await else { continue };
            let far = Arc::new(far);
            let back = back(Arc::clone(&far), Arc::clone(&near), sender, Arc::clone(&ways));
            known.insert(sender, (far, returning.spawn(back)));
        }
        if let Some((far, _)) = known.get(&sender) {
            ways[0].send(Packet { socket: Arc::clone(far), to: None, bytes: packet[..length].to_vec() });
        }
    }
}

async fn connected(listener: SocketAddr) -> io::Result<UdpSocket> {
    let socket = bound().await?;
    socket.connect(listener).await?;
    Ok(socket)
}

async fn back(far: Arc<UdpSocket>, near: Arc<UdpSocket>, sender: SocketAddr, ways: Arc<[Road; 2]>) {
    let mut packet = vec![0; LARGEST];
    while let Ok(received) = tokio::time::timeout(FORGOTTEN, far.recv(&mut packet)).await {
        if let Ok(length) = received {
            let bytes = packet[..length].to_vec();
            ways[1].send(Packet { socket: Arc::clone(&near), to: Some(sender), bytes });
        }
    }
}
