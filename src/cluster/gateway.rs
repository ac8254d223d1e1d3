//! A gateway: hears which nodes join and leave, and opens links to them.

use super::line::{Duplex, Ear, Lines};
use super::node::answer;
use super::session::{ClusterError, Settings};
use bytes::Bytes;
use std::collections::BTreeSet;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::{Duration, Instant};
use zenoh::Session;
use zenoh::liveliness::LivelinessToken;
use zenoh::pubsub::Subscriber;
use zenoh::query::{Query, Queryable, Reply};
use zenoh::sample::{Sample, SampleKind};

/// Before a node is asked again what it offers: the first time, and at last.
const FIRST_PAUSE: Duration = Duration::from_millis(100);
const LAST_PAUSE: Duration = Duration::from_secs(1);
/// How long the other side may take to answer.
pub(super) const ANSWER: Duration = Duration::from_secs(5);
/// The same of a node that leaves: it asks gateways, and ends its stages.
const LEAVE: Duration = Duration::from_secs(30);

/// Whether these nodes may leave, in the words of the one that knows what they are used for. Called by Zenoh's receiving
/// thread: it must not wait.
pub type MayLeave = Box<dyn Fn(Bytes) -> Result<(), String> + Send + Sync>;

/// A node came or went. Each session of a node has a name of its own.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Change {
    /// It has joined, and what it offers.
    Joined(String, Bytes),
    /// It is gone; its links have ended.
    Left(String),
}

/// See the module. Dropped, it leaves.
pub struct Gateway {
    session: Session,
    name: String,
    silence: Duration,
    lines: Arc<Lines>,
    changes: flume::Receiver<Change>,
    opened: AtomicU64,
    _spare: Queryable<()>,
    _token: LivelinessToken,
    _members: Subscriber<()>,
}

impl Gateway {
    /// Opens a session. Needs a tokio runtime of several threads.
    ///
    /// # Errors
    /// [`ClusterError::Session`] when it cannot listen, or a file of its certificates cannot be used.
    pub async fn start(settings: &Settings, may_leave: MayLeave) -> Result<Gateway, ClusterError> {
        let session = settings.open().await?;
        let name = session.zid().to_string();
        let lines = Arc::new(Lines::default());
        // As many as there are nodes that come and go.
        let (tell, changes) = flume::bounded(4096);
        let runtime = tokio::runtime::Handle::current();
        // Zenoh's receiving thread asks: another one answers.
        let spares = move |query: Query| {
            let nodes = query.payload().map_or_else(Bytes::new, |nodes| Bytes::from(nodes.to_bytes().into_owned()));
            let said = may_leave(nodes).map(|()| Bytes::new());
            runtime.spawn_blocking(move || answer(&query, said));
        };
        let spare = session.declare_queryable(format!("omni/gateway/{name}/spare")).callback(spares).await?;
        let token = session.liveliness().declare_token(format!("omni/gateway/{name}")).await?;
        let (asking, runtime, its) = (session.clone(), tokio::runtime::Handle::current(), Arc::clone(&lines));
        // A node may be gone again before it has said what it offers.
        let present = Arc::new(Mutex::new(BTreeSet::new()));
        let changed = move |sample: Sample| {
            let Some(node) = sample.key_expr().as_str().strip_prefix("omni/node/").map(str::to_owned) else { return };
            let tell = tell.clone();
            match sample.kind() {
                SampleKind::Put => {
                    locked(&present).insert(node.clone());
                    let (session, present) = (asking.clone(), Arc::downgrade(&present));
                    runtime.spawn(async move {
                        if let Some(offer) = offer(&session, &node, &present).await {
                            let _ = tell.send_async(Change::Joined(node, offer)).await;
                        }
                    });
                }
                SampleKind::Delete => {
                    locked(&present).remove(&node);
                    its.gone(&node);
                    runtime.spawn(async move { tell.send_async(Change::Left(node)).await });
                }
            }
        };
        let members = session.liveliness().declare_subscriber("omni/node/*").history(true).callback(changed).await?;
        let (silence, opened) = (settings.silence, AtomicU64::new(0));
        Ok(Gateway { session, name, silence, lines, changes, opened, _spare: spare, _token: token, _members: members })
    }

    /// The name of this session.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Waits for the next change.
    pub async fn changed(&self) -> Change {
        match self.changes.recv_async().await {
            Ok(change) => change,
            // The subscriber, which has the other end, lives as long as this.
            Err(_) => std::future::pending().await,
        }
    }

    /// Asks a node for a link. Each opening has a name of its own: nothing of another one arrives on it.
    ///
    /// # Errors
    /// [`ClusterError::Refused`] with the node's reason, or when it does not answer.
    pub async fn open(&self, node: &str, request: Bytes) -> Result<Duplex, ClusterError> {
        let number = self.opened.fetch_add(1, Ordering::Relaxed);
        let link = format!("{}-{number}", self.name);
        let ear = Ear::open(&self.session, format!("omni/link/{link}/up")).await?;
        let key = format!("omni/node/{node}/open?gateway={};link={link}", self.name);
        ask(&self.session, &key, request, ANSWER).await?;
        let (duplex, state) = ear.speak(&self.session, format!("omni/link/{link}/down"), self.silence).await?;
        self.lines.add(node, &state);
        Ok(duplex)
    }

    /// Asks a node to leave, or to come back. It has done so when this returns.
    ///
    /// # Errors
    /// [`ClusterError::Refused`] with the node's reason, or when it does not answer.
    pub async fn drain(&self, node: &str, order: Bytes) -> Result<(), ClusterError> {
        ask(&self.session, &format!("omni/node/{node}/drain"), order, LEAVE).await.map(|_| ())
    }

    /// How long a question to a node and its answer take. `None` if it does not answer.
    pub async fn round_trip(&self, node: &str) -> Option<Duration> {
        let begun = Instant::now();
        ask(&self.session, &format!("omni/node/{node}/offer"), Bytes::new(), ANSWER).await.ok()?;
        Some(begun.elapsed())
    }
}

/// What a node offers that has just joined. One that does not say it is asked again for as long as it is there: the
/// question or its answer may have been on a connection that broke. `None` when it is gone, or this side is.
async fn offer(session: &Session, node: &str, present: &Weak<Mutex<BTreeSet<String>>>) -> Option<Bytes> {
    let mut pause = FIRST_PAUSE;
    loop {
        let answer = ask(session, &format!("omni/node/{node}/offer"), Bytes::new(), ANSWER).await;
        if !locked(&*present.upgrade()?).contains(node) {
            return None;
        }
        match answer {
            Ok(offer) => return Some(offer),
            Err(error) => {
                tracing::warn!(node, %error, "a node has joined and does not say what it offers; it is asked again");
            }
        }
        tokio::time::sleep(pause).await;
        pause = (2 * pause).min(LAST_PAUSE);
    }
}

fn locked(present: &Mutex<BTreeSet<String>>) -> MutexGuard<'_, BTreeSet<String>> {
    // The lock only guards a set.
    present.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The answer of the one that has declared the key.
async fn ask(session: &Session, key: &str, payload: Bytes, patience: Duration) -> Result<Bytes, ClusterError> {
    let answers = session.get(key).payload(payload).timeout(patience).await?;
    match answers.recv_async().await {
        Ok(reply) => answered(&reply),
        Err(_) => Err(ClusterError::Refused("it does not answer".to_owned())),
    }
}

/// What one of those that were asked says.
pub(super) fn answered(reply: &Reply) -> Result<Bytes, ClusterError> {
    match reply.result() {
        Ok(sample) => Ok(Bytes::from(sample.payload().to_bytes().into_owned())),
        Err(refused) => {
            // Zenoh's own word for one that takes too long.
            let said = String::from_utf8_lossy(&refused.payload().to_bytes()).replace("Timeout", "it does not answer");
            Err(ClusterError::Refused(said))
        }
    }
}
