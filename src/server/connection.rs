//! The open connections: how many there are, of which address, which of them are idle, and what a request knows of its
//! own. Where a place is needed, the connection that has been idle for longest gives up its own.

use super::keys::network;
use super::watched::Watch;
use metrics::Gauge;
use omni_telemetry::HttpMetrics;
use std::collections::{BTreeMap, HashMap};
use std::net::{IpAddr, SocketAddr};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;
use tokio_util::task::task_tracker::TaskTrackerToken;

/// A connection that did something so lately is not idle.
const IDLE: Duration = Duration::from_millis(200);
/// The same for a WebSocket on which something was said: a conversation has pauses.
const PAUSE: Duration = Duration::from_secs(10);

/// A connection, as its requests carry it. A WebSocket leaves the task of its connection and keeps this: its place
/// among the open connections, and its part in the shutdown.
#[derive(Clone)]
pub(super) struct ConnectionGuard {
    pub place: Arc<Place>,
    pub _task: TaskTrackerToken,
    pub closing: CancellationToken,
    pub peer: SocketAddr,
}

impl ConnectionGuard {
    /// Resolves when the connection must end at once.
    pub async fn closing(&self) {
        tokio::select! {
            () = self.closing.cancelled() => {}
            () = self.place.activity.ended.cancelled() => {}
        }
    }

    /// The client's address.
    pub fn address(&self) -> IpAddr {
        self.peer.ip()
    }

    /// What it does.
    pub fn activity(&self) -> &Arc<Activity> {
        &self.place.activity
    }
}

/// Why there is no place for a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub(super) enum NoPlace {
    #[error("{0} connections are open already (server.max_connections)")]
    All(usize),
    #[error("{0} connections of this address are open already (server.max_connections_per_address)")]
    Address(usize),
}

/// The open connections.
#[derive(Debug)]
pub(super) struct Places {
    limit: usize,
    /// Of one address; 0 is none.
    address_limit: usize,
    open: Gauge,
    taken: Mutex<Taken>,
}

#[derive(Debug, Default)]
struct Taken {
    next: u64,
    places: BTreeMap<u64, Arc<Activity>>,
    addresses: HashMap<IpAddr, usize>,
}

impl Places {
    pub fn new(limit: usize, address_limit: usize, open: Gauge) -> Arc<Places> {
        Arc::new(Places { limit, address_limit, open, taken: Mutex::default() })
    }

    /// A place for a connection from this address. Where all are taken, one that is idle is told to end, and its place
    /// is this one's at once.
    pub fn take(self: &Arc<Self>, address: IpAddr) -> Result<Arc<Place>, NoPlace> {
        let mut taken = self.taken();
        let address = network(address);
        let counted = self.address_limit > 0 && !address.is_loopback();
        if counted && taken.addresses.get(&address).is_some_and(|open| *open >= self.address_limit) {
            return Err(NoPlace::Address(self.address_limit));
        }
        if taken.places.len() >= self.limit {
            let idle = |(number, activity): (&u64, &Arc<Activity>)| Some((activity.idle()?, *number));
            let Some((_, oldest)) = taken.places.iter().filter_map(idle).min() else {
                return Err(NoPlace::All(self.limit));
            };
            if let Some(evicted) = taken.places.remove(&oldest) {
                evicted.ended.cancel();
                HttpMetrics::evicted("idle");
            }
        }
        let number = taken.next;
        taken.next += 1;
        let activity = Activity::new();
        taken.places.insert(number, Arc::clone(&activity));
        if counted {
            *taken.addresses.entry(address).or_default() += 1;
        }
        drop(taken);
        self.open.increment(1.0);
        let address = counted.then_some(address);
        Ok(Arc::new(Place { places: Arc::clone(self), number, address, activity }))
    }

    fn taken(&self) -> MutexGuard<'_, Taken> {
        self.taken.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// One of the connections that may be open. Counted in the metrics while it lives.
#[derive(Debug)]
pub(super) struct Place {
    places: Arc<Places>,
    number: u64,
    address: Option<IpAddr>,
    activity: Arc<Activity>,
}

impl Drop for Place {
    fn drop(&mut self) {
        let mut taken = self.places.taken();
        taken.places.remove(&self.number);
        if let Some(address) = self.address
            && let Some(open) = taken.addresses.get_mut(&address)
        {
            *open -= 1;
            if *open == 0 {
                taken.addresses.remove(&address);
            }
        }
        drop(taken);
        self.places.open.decrement(1.0);
    }
}

/// Whether a connection is in use.
#[derive(Debug)]
pub(super) struct Activity {
    state: Mutex<Doing>,
    /// Cancelled when the connection has to end.
    pub ended: CancellationToken,
}

#[derive(Debug)]
struct Doing {
    /// Requests and utterances under way, and bytes that wait for the client.
    busy: usize,
    /// When the last of them ended.
    since: Instant,
    /// A WebSocket on which something was said.
    conversation: bool,
}

impl Activity {
    pub fn new() -> Arc<Activity> {
        let doing = Doing { busy: 0, since: Instant::now(), conversation: false };
        Arc::new(Activity { state: Mutex::new(doing), ended: CancellationToken::new() })
    }

    /// The connection is in use until this is dropped.
    pub fn busy(self: &Arc<Self>) -> Busy {
        self.doing().busy += 1;
        Busy(Arc::clone(self))
    }

    /// Something was said on a WebSocket.
    pub fn said(&self) {
        let mut doing = self.doing();
        (doing.since, doing.conversation) = (Instant::now(), true);
    }

    /// How soon it may be ended, where another one needs its place: conversations last, then by the time since when it
    /// is idle. `None` if it is in use.
    fn idle(&self) -> Option<(bool, Instant)> {
        let doing = self.doing();
        let least = if doing.conversation { PAUSE } else { IDLE };
        (doing.busy == 0 && doing.since.elapsed() >= least).then_some((doing.conversation, doing.since))
    }

    fn doing(&self) -> MutexGuard<'_, Doing> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A connection in use.
#[derive(Debug)]
pub(super) struct Busy(Arc<Activity>);

/// Of an answer: its connection is in use until it has gone.
impl Watch for Busy {}

impl Drop for Busy {
    fn drop(&mut self) {
        let mut doing = self.0.doing();
        doing.busy -= 1;
        doing.since = Instant::now();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tokio::time::advance;

    const HOME: IpAddr = IpAddr::V4(std::net::Ipv4Addr::LOCALHOST);

    #[tokio::test(start_paused = true)]
    async fn the_connection_that_is_idle_for_longest_makes_room() {
        let places = Places::new(3, 0, Gauge::noop());
        let first = places.take(HOME).unwrap();
        advance(IDLE).await;
        let second = places.take(HOME).unwrap();
        let third = places.take(HOME).unwrap();
        let busy = first.activity.busy();
        assert_eq!(places.take(HOME).unwrap_err(), NoPlace::All(3), "one is in use, two have just come");
        advance(IDLE).await;
        third.activity.said();
        advance(IDLE).await;
        let fourth = places.take(HOME).unwrap();
        assert!(second.activity.ended.is_cancelled() && !third.activity.ended.is_cancelled());
        drop(second);
        assert_eq!(places.take(HOME).unwrap_err(), NoPlace::All(3), "the place of the second is the fourth's");
        let _busy = fourth.activity.busy();
        advance(PAUSE).await;
        let _fifth = places.take(HOME).unwrap();
        assert!(third.activity.ended.is_cancelled(), "a conversation that pauses for long");
        drop(busy);
        assert!(!first.activity.ended.is_cancelled());
    }

    #[tokio::test(start_paused = true)]
    async fn one_address_does_not_take_all_places_and_this_machine_may() {
        let places = Places::new(8, 2, Gauge::noop());
        let other = IpAddr::from([192, 0, 2, 1]);
        let taken = [other, other].map(|address| places.take(address).unwrap());
        assert_eq!(places.take(other).unwrap_err(), NoPlace::Address(2));
        let near = ["2001:db8::1", "2001:db8::2:1"].map(|address| places.take(address.parse().unwrap()).unwrap());
        assert_eq!(places.take("2001:db8::3".parse().unwrap()).unwrap_err(), NoPlace::Address(2));
        drop(near);
        let mapped: IpAddr = "::ffff:192.0.2.1".parse().unwrap();
        assert_eq!(places.take(mapped).unwrap_err(), NoPlace::Address(2));
        let _home = [HOME; 3].map(|address| places.take(address).unwrap());
        drop(taken);
        assert!(places.take(other).is_ok());
    }
}
