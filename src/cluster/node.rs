//! A node: says that it is there and what it offers, and is asked for links.

use super::asked::{Asked, Question, Questions, answer, answered};
use super::gateway::ANSWER;
use super::line::{Duplex, Ear, Lines};
use super::session::{ClusterError, Settings};
use bytes::Bytes;
use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};
use tokio::sync::{oneshot, watch};
use zenoh::Session;
use zenoh::Wait;
use zenoh::liveliness::LivelinessToken;
use zenoh::pubsub::Subscriber;
use zenoh::query::{ConsolidationMode, Query, QueryTarget, Queryable};
use zenoh::sample::{Sample, SampleKind};

/// A node sees no gateway for at least so long before it opens another session: connecting may take a while.
const LEAST_ALONE: Duration = Duration::from_secs(5);

/// A node has no question for at least so long before it opens another session: each gateway asks every two seconds what it
/// offers, and every seven where another node does not answer.
const LEAST_DEAF: Duration = Duration::from_secs(20);
/// How long a session may take to close: one that is stuck never does.
const CLOSING: Duration = Duration::from_secs(5);

/// When a question was answered last.
struct Answered {
    made: Instant,
    /// Milliseconds since then.
    last: AtomicU64,
}

impl Answered {
    fn now(&self) {
        self.last.store(self.made.elapsed().as_millis() as u64, Ordering::Relaxed);
    }

    fn since(&self) -> Duration {
        self.made.elapsed().saturating_sub(Duration::from_millis(self.last.load(Ordering::Relaxed)))
    }
}

/// See the module. Dropped, it leaves.
pub struct Node {
    session: Session,
    name: String,
    silence: Duration,
    lines: Arc<Lines>,
    questions: Questions,
    answered: Arc<Answered>,
    /// The gateways that it sees; `None` for one that joins none by itself.
    seen: Option<watch::Sender<BTreeSet<String>>>,
    _answers: [Queryable<()>; 4],
    _token: LivelinessToken,
    _gateways: Subscriber<()>,
}

impl Node {
    /// Opens a session that offers this. Needs a tokio runtime of several threads.
    ///
    /// # Errors
    /// [`ClusterError::Session`] when it cannot listen, or a file of its certificates cannot be used.
    pub async fn start(settings: &Settings, offer: Bytes) -> Result<Node, ClusterError> {
        let session = settings.open().await?;
        let name = session.zid().to_string();
        let lines = Arc::new(Lines::default());
        let runtime = tokio::runtime::Handle::current();
        // Zenoh's receiving thread asks: another one answers.
        let answered = Arc::new(Answered { made: Instant::now(), last: AtomicU64::new(0) });
        let answers = Arc::clone(&answered);
        let tell_offer = move |query: Query| {
            let (offer, answered) = (offer.clone(), Arc::clone(&answers));
            runtime.spawn_blocking(move || {
                answer(&query, Ok(offer));
                answered.now();
            });
        };
        let told = session.declare_queryable(format!("omni/node/{name}/offer")).callback(tell_offer).await?;
        let questions = Questions::new();
        let asks = |word: &str, question| {
            session.declare_queryable(format!("omni/node/{name}/{word}")).callback(questions.of(question))
        };
        let open = asks("open", Question::Open).await?;
        let drain = asks("drain", Question::Drain).await?;
        let keep = asks("keep", Question::Keep).await?;
        let seen = watch::Sender::new(BTreeSet::new());
        let (its, sees) = (Arc::clone(&lines), seen.clone());
        let changed = move |sample: Sample| {
            let Some(gateway) = sample.key_expr().as_str().strip_prefix("omni/gateway/") else { return };
            match sample.kind() {
                SampleKind::Put => sees.send_modify(|seen| _ = seen.insert(gateway.to_owned())),
                SampleKind::Delete => {
                    its.gone(gateway);
                    sees.send_modify(|seen| _ = seen.remove(gateway));
                }
            }
        };
        let gateways =
            session.liveliness().declare_subscriber("omni/gateway/*").history(true).callback(changed).await?;
        // The last: who sees it may ask.
        let token = session.liveliness().declare_token(format!("omni/node/{name}")).await?;
        let (silence, answers) = (settings.silence, [told, open, drain, keep]);
        let seen = (!settings.join.is_empty()).then_some(seen);
        let (_answers, _token, _gateways) = (answers, token, gateways);
        Ok(Node { session, name, silence, lines, questions, answered, seen, _answers, _token, _gateways })
    }

    /// Resolves when it has seen no gateway for so long that another session should be opened: Zenoh may stop trying to
    /// connect when a connection ends just as it was made, and a session that connects anew beside one of its own that
    /// the gateway still counts as open is told of nothing (eclipse-zenoh/zenoh#2806). No link is lost by it. Also when it sees
    /// gateways and has long answered none: a session whose threads wait for each other is of no use to anybody.
    pub async fn alone(&self) {
        tokio::select! {
            () = self.sees_none() => {}
            () = self.answers_none(LEAST_DEAF.max(4 * self.silence)) => {}
        }
    }

    /// Resolves when it sees gateways and has answered none of them for so long.
    pub(super) async fn answers_none(&self, after: Duration) {
        let Some(seen) = &self.seen else { return std::future::pending().await };
        let mut seen = seen.subscribe();
        loop {
            // The sender lives as long as this.
            let _ = seen.wait_for(|seen| !seen.is_empty()).await;
            if self.answered.since() > after {
                return;
            }
            tokio::time::sleep(after / 4).await;
        }
    }

    async fn sees_none(&self) {
        let Some(seen) = &self.seen else { return std::future::pending().await };
        let (mut seen, after) = (seen.subscribe(), LEAST_ALONE.max(4 * self.silence));
        loop {
            // The sender lives as long as this.
            let _ = seen.wait_for(BTreeSet::is_empty).await;
            if tokio::time::timeout(after, seen.wait_for(|seen| !seen.is_empty())).await.is_err() {
                return;
            }
        }
    }

    /// Closes the session. What it listens at is free then, unless the session is stuck.
    pub async fn leave(self) {
        let (tell, told) = oneshot::channel();
        // One that is stuck keeps the thread that closes it.
        let closing = std::thread::Builder::new().name("cluster-close".to_owned()).spawn(move || {
            if let Err(error) = self.session.close().wait() {
                tracing::debug!(%error, "a session did not close");
            }
            drop(self);
            let _ = tell.send(());
        });
        if closing.is_err() || tokio::time::timeout(CLOSING, told).await.is_err() {
            tracing::warn!("a session does not close, and is left as it is");
        }
    }

    /// The name of this session.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Waits until a gateway asks for something.
    pub async fn asked(&self) -> Asked {
        self.questions.next().await
    }

    /// Opens a link to one that asks for it.
    ///
    /// # Errors
    /// [`ClusterError`] when the gateway is gone or asks for none.
    pub async fn accept(&self, asked: Asked) -> Result<Duplex, ClusterError> {
        let (gateway, link) = (asked.gateway(), asked.parameter("link"));
        let plain = |c: char| c.is_ascii_alphanumeric() || c == '-';
        if link.is_empty() || !link.chars().all(plain) {
            return Err(ClusterError::Refused("the gateway names no link".to_owned()));
        }
        let ear = Ear::open(&self.session, format!("omni/link/{link}/down")).await?;
        let (duplex, state) = ear.speak(&self.session, format!("omni/link/{link}/up"), self.silence).await?;
        self.lines.add(&gateway, &state);
        asked.confirm();
        Ok(duplex)
    }

    /// Asks all gateways that it is joined to whether nodes may leave, in words that this crate does not know. Returns when
    /// all have answered: what is said to them next comes behind that.
    ///
    /// # Errors
    /// [`ClusterError::Refused`] with the reason of one that says no, or when one does not answer.
    pub async fn may_leave(&self, nodes: Bytes) -> Result<(), ClusterError> {
        let all = self.session.get("omni/gateway/*/spare").target(QueryTarget::All);
        let answers = all.consolidation(ConsolidationMode::None).payload(nodes).timeout(ANSWER).await?;
        let mut said = Ok(());
        while let Ok(reply) = answers.recv_async().await {
            said = said.and(answered(&reply).map(|_| ()));
        }
        said
    }
}
