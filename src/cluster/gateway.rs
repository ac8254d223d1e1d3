//! A gateway: hears which nodes join and leave, and opens links to them.

use super::asked::{Asked, Question, Questions, ask};
use super::line::{Duplex, Ear, Lines};
use super::session::{ClusterError, Settings};
use bytes::Bytes;
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::{Duration, Instant};
use zenoh::Session;
use zenoh::liveliness::LivelinessToken;
use zenoh::pubsub::Subscriber;
use zenoh::query::Queryable;
use zenoh::sample::{Sample, SampleKind};

/// Before a node is asked again what it offers: the first time, and at last.
const FIRST_PAUSE: Duration = Duration::from_millis(100);
const LAST_PAUSE: Duration = Duration::from_secs(1);
/// How long the other side may take to answer.
pub(super) const ANSWER: Duration = Duration::from_secs(5);
/// The same of a node that leaves: it asks gateways, and ends its stages.
const LEAVE: Duration = Duration::from_secs(30);

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
    questions: Questions,
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
    pub async fn start(settings: &Settings) -> Result<Gateway, ClusterError> {
        let session = settings.open().await?;
        let name = session.zid().to_string();
        let lines = Arc::new(Lines::default());
        // As many as there are nodes that come and go.
        let (tell, changes) = flume::bounded(4096);
        let questions = Questions::new();
        let asks = questions.of(Question::Leave);
        let spare = session.declare_queryable(format!("omni/gateway/{name}/spare")).callback(asks).await?;
        let token = session.liveliness().declare_token(format!("omni/gateway/{name}")).await?;
        let (asking, runtime, its) = (session.clone(), tokio::runtime::Handle::current(), Arc::clone(&lines));
        // A node may be gone again before it has said what it offers, and back.
        let present = Arc::new(Mutex::new(Present::default()));
        let changed = move |sample: Sample| {
            let Some(node) = sample.key_expr().as_str().strip_prefix("omni/node/").map(str::to_owned) else { return };
            let tell = tell.clone();
            match sample.kind() {
                SampleKind::Put => {
                    let Some(coming) = locked(&present).comes(&node) else { return };
                    let (session, present) = (asking.clone(), Arc::downgrade(&present));
                    runtime.spawn(async move {
                        if let Some(offer) = offer(&session, &node, coming, &present).await
                            && let Some(present) = present.upgrade()
                        {
                            locked(&present).joined(&tell, node, coming, offer);
                        }
                    });
                }
                SampleKind::Delete => {
                    its.gone(&node);
                    locked(&present).goes(&tell, node);
                }
            }
        };
        let members = session.liveliness().declare_subscriber("omni/node/*").history(true).callback(changed).await?;
        let (silence, opened) = (settings.silence, AtomicU64::new(0));
        let (_spare, _token, _members) = (spare, token, members);
        Ok(Gateway { session, name, silence, lines, changes, questions, opened, _spare, _token, _members })
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

    /// Waits until a node asks whether nodes may leave. It waits for the answer as long as [`Node::may_leave`] does.
    ///
    /// [`Node::may_leave`]: super::Node::may_leave
    pub async fn asked(&self) -> Asked {
        self.questions.next().await
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

    /// Asks a node to keep a share for this gateway.
    ///
    /// # Errors
    /// [`ClusterError::Refused`] with the node's reason, or when it does not answer in time.
    pub async fn keep(&self, node: &str, patience: Duration) -> Result<(), ClusterError> {
        let key = format!("omni/node/{node}/keep?gateway={}", self.name);
        ask(&self.session, &key, Bytes::new(), patience).await.map(|_| ())
    }

    /// How long a question to a node and its answer take. `None` if it does not answer.
    pub async fn round_trip(&self, node: &str) -> Option<Duration> {
        let begun = Instant::now();
        ask(&self.session, &format!("omni/node/{node}/offer"), Bytes::new(), ANSWER).await.ok()?;
        Some(begun.elapsed())
    }
}

/// The nodes that are there, and the number of the coming of each: one that was away for a moment has come again.
#[derive(Default)]
struct Present {
    nodes: BTreeMap<String, u64>,
    comings: u64,
}

impl Present {
    /// The number of its coming, if it was not here.
    fn comes(&mut self, node: &str) -> Option<u64> {
        if self.nodes.contains_key(node) {
            return None;
        }
        self.comings += 1;
        self.nodes.insert(node.to_owned(), self.comings);
        Some(self.comings)
    }

    fn is_here(&self, node: &str, coming: u64) -> bool {
        self.nodes.get(node) == Some(&coming)
    }

    /// Tells what a node offers that has not left since.
    fn joined(&self, tell: &flume::Sender<Change>, node: String, coming: u64, offer: Bytes) {
        if self.is_here(&node, coming) && tell.try_send(Change::Joined(node, offer)).is_err() {
            tracing::warn!("more nodes come and go than can be told; one that has joined is not used");
        }
    }

    fn goes(&mut self, tell: &flume::Sender<Change>, node: String) {
        if self.nodes.remove(&node).is_some() && tell.try_send(Change::Left(node)).is_err() {
            tracing::warn!("more nodes come and go than can be told; one that is gone stays in the list");
        }
    }
}

/// What a node offers that has just joined. One that does not say it is asked again for as long as it is there: the
/// question or its answer may have been on a connection that broke. `None` when it is gone, or this side is.
async fn offer(session: &Session, node: &str, coming: u64, present: &Weak<Mutex<Present>>) -> Option<Bytes> {
    let mut pause = FIRST_PAUSE;
    loop {
        let answer = ask(session, &format!("omni/node/{node}/offer"), Bytes::new(), ANSWER).await;
        if !locked(&*present.upgrade()?).is_here(node, coming) {
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

fn locked(present: &Mutex<Present>) -> MutexGuard<'_, Present> {
    // The lock only guards a list.
    present.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_node_that_was_away_for_a_moment_is_told_once_and_in_order() {
        let (tell, told) = flume::bounded(8);
        let mut present = Present::default();
        let first = present.comes("node").unwrap();
        assert_eq!(present.comes("node"), None, "it is here");
        present.goes(&tell, "node".to_owned());
        let second = present.comes("node").unwrap();
        let joined = |present: &Present, coming| present.joined(&tell, "node".to_owned(), coming, Bytes::new());
        // The answer to the question of its first coming.
        assert!(!present.is_here("node", first));
        joined(&present, first);
        joined(&present, second);
        present.goes(&tell, "node".to_owned());
        present.goes(&tell, "node".to_owned());
        joined(&present, second);
        let left = || Change::Left("node".to_owned());
        let came = Change::Joined("node".to_owned(), Bytes::new());
        assert_eq!(told.drain().collect::<Vec<_>>(), [left(), came, left()]);
    }
}
