//! What one side asks of the other, and the answer.

use super::session::ClusterError;
use bytes::Bytes;
use std::time::Duration;
use zenoh::query::{Query, Reply};
use zenoh::{Session, Wait};

/// Questions that wait for their turn; one more has no answer but that, and is asked again.
const WAITING: usize = 256;

/// What is asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Question {
    /// A gateway asks a node for a link.
    Open,
    /// A gateway asks a node to leave, or to come back.
    Drain,
    /// A gateway asks a node to keep a share for it.
    Keep,
    /// A node asks a gateway whether nodes may leave.
    Leave,
}

/// One who asks for something. Dropped, it has no answer.
pub struct Asked {
    question: Question,
    query: Query,
}

impl Asked {
    /// What it asks for.
    pub fn question(&self) -> Question {
        self.question
    }

    /// What it says.
    pub fn request(&self) -> Bytes {
        self.query.payload().map_or_else(Bytes::new, |payload| Bytes::from(payload.to_bytes().into_owned()))
    }

    /// Which gateway asks a node.
    pub fn gateway(&self) -> String {
        self.parameter("gateway")
    }

    pub(super) fn parameter(&self, name: &str) -> String {
        self.query.parameters().get(name).unwrap_or_default().to_owned()
    }

    /// It is done.
    pub fn confirm(self) {
        answer(&self.query, Ok(Bytes::new()));
    }

    /// It is not done.
    pub fn refuse(self, reason: &str) {
        answer(&self.query, Err(reason.to_owned()));
    }
}

/// Where questions of Zenoh's receiving thread wait for one who answers them.
pub(super) struct Questions {
    tell: flume::Sender<Asked>,
    asked: flume::Receiver<Asked>,
}

impl Questions {
    pub fn new() -> Questions {
        let (tell, asked) = flume::bounded(WAITING);
        Questions { tell, asked }
    }

    /// What to call for each question of a kind. Needs a tokio runtime.
    pub fn of(&self, question: Question) -> impl Fn(Query) + Send + Sync + 'static {
        let (tell, runtime) = (self.tell.clone(), tokio::runtime::Handle::current());
        move |query| {
            if let Err(full) = tell.try_send(Asked { question, query }) {
                // Zenoh's thread must not wait. Without an answer, one who asks several would take it for consent.
                let asked = full.into_inner();
                runtime.spawn_blocking(move || asked.refuse("it has too many questions to answer"));
            }
        }
    }

    /// Waits for the next.
    pub async fn next(&self) -> Asked {
        match self.asked.recv_async().await {
            Ok(asked) => asked,
            // The other end lives as long as this.
            Err(_) => std::future::pending().await,
        }
    }
}

/// One small message.
pub(super) fn answer(query: &Query, answer: Result<Bytes, String>) {
    let answered = match answer {
        Ok(bytes) => query.reply(query.key_expr().clone(), bytes).wait(),
        Err(reason) => query.reply_err(reason).wait(),
    };
    if let Err(error) = answered {
        tracing::debug!(%error, "a question was not answered");
    }
}

/// The answer of the one that has declared the key.
pub(super) async fn ask(
    session: &Session,
    key: &str,
    payload: Bytes,
    patience: Duration,
) -> Result<Bytes, ClusterError> {
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
