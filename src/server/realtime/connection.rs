//! The connection of a session: takes what its link tells, carries effects out, gives events to the link. It reads nothing
//! while many events or bytes of them wait for the client, and asks for nothing more of an answer while one does, so a
//! client that does not read stops its own session and nothing else.

use super::link::{Farewell, Link, Message, News};
use super::measured::Measured;
use super::running::Running;
use crate::auth::Caller;
use crate::body::parse_object;
use crate::budget::Held;
use crate::connection::{Activity, Busy, ConnectionGuard};
use crate::state::App;
use crate::ws_protocol::close_code;
use futures::future::select_all;
use omni_config::format_duration;
use omni_realtime::{AnswerPart, Effect, Job, JobId, Refusal, ServerEvent, Session};
use std::collections::VecDeque;
use std::sync::Arc;
use tokio::time::{Instant, sleep_until};
use tokio_util::sync::CancellationToken;

/// Events that may wait for the client while more are read from it: each event of a client has a handful of answers.
const WAITING: usize = 64;
/// Bytes of them: an event of a few bytes may ask for an item of megabytes.
const WAITING_BYTES: usize = 1 << 20;
/// Events that may wait in any case: what a user says has some, too.
const MOST_WAITING: usize = 4096;
/// Bytes that an event may make of each of its own: sound of 8 bits is kept with 16.
const GROWTH: usize = 2;

/// The session is over: the client is gone, or the last message is sent.
pub(super) struct Over;

/// See the module.
pub(super) struct Connection {
    app: Arc<App>,
    caller: Caller,
    activity: Arc<Activity>,
    /// Cancelled when the server waits no longer.
    closing_at_once: CancellationToken,
    /// Held while an answer is made or events wait.
    busy: Option<Busy>,
    /// The part of the budget for what the session keeps, and for what waits.
    held: Held,
    session: Session,
    running: Vec<Running>,
    /// Whether an answer was begun: the first is part of the request that opened the session.
    has_begun: bool,
    waiting: Waiting,
    /// When the last message came or went.
    heard: Instant,
    begun: Instant,
    measured: Measured,
}

/// Events that wait for the client.
#[derive(Default)]
struct Waiting {
    events: VecDeque<String>,
    bytes: usize,
}

impl Waiting {
    fn push(&mut self, event: String) {
        self.bytes += event.len();
        self.events.push_back(event);
    }

    fn pop(&mut self) -> Option<String> {
        let event = self.events.pop_front()?;
        self.bytes -= event.len();
        Some(event)
    }

    /// Whether nothing more is read until some have left.
    fn is_full(&self) -> bool {
        self.events.len() >= WAITING || self.bytes >= WAITING_BYTES
    }
}

/// What the connection waits for.
enum Wake {
    News(News),
    Part(JobId, AnswerPart),
    Behind,
    Idle,
    Expired,
    Stopping,
    /// Another connection has this one's place.
    Evicted,
    /// The time for a shutdown is over.
    Cut,
}

impl Connection {
    /// A session, and its first effects.
    pub fn new(
        app: Arc<App>,
        caller: Caller,
        guard: &ConnectionGuard,
        (session, effects): (Session, Vec<Effect>),
    ) -> Connection {
        let held = Held::nothing(&app.budget);
        let now = Instant::now();
        let mut connection = Connection {
            app,
            caller,
            activity: Arc::clone(guard.activity()),
            closing_at_once: guard.closing.clone(),
            busy: None,
            held,
            session,
            running: Vec::new(),
            has_begun: false,
            waiting: Waiting::default(),
            heard: now,
            begun: now,
            measured: Measured::new(),
        };
        connection.carry_out(effects);
        connection
    }

    /// Serves the client of a link, until the client or the server ends the session.
    pub async fn run(&mut self, link: &mut impl Link) -> Result<(), Over> {
        let stopping = self.app.stopping.clone();
        let (evicted, cut) = (self.activity.ended.clone(), self.closing_at_once.clone());
        let (idle_timeout, max_time) = (self.app.realtime.idle_timeout, self.app.realtime.max_time);
        loop {
            let (quiet, told) = (self.running.is_empty() && !self.session.is_playing(), self.waiting.events.is_empty());
            match (quiet && told, &self.busy) {
                (true, _) => self.busy = None,
                (false, None) => self.busy = Some(self.activity.busy()),
                (false, Some(_)) => {}
            }
            if stopping.is_cancelled() && quiet && told {
                return self.close(link, close_code::AWAY, "the server is shutting down").await;
            }
            if self.waiting.events.len() > MOST_WAITING {
                return self.close(link, close_code::AGAIN, "too many events wait").await;
            }
            let (behind, reads) = (self.session.is_behind(), !self.waiting.is_full());
            let waits = self.waiting.events.front().map(String::len);
            let session = &self.session;
            let wake = tokio::select! {
                () = evicted.cancelled() => Wake::Evicted,
                () = cut.cancelled() => Wake::Cut,
                () = tokio::task::yield_now(), if behind => Wake::Behind,
                news = link.next(reads && !behind, waits) => Wake::News(news),
                (job, part) = next(&mut self.running, |job| session.wants(job)), if told => Wake::Part(job, part),
                () = sleep_until(self.heard + idle_timeout), if quiet => Wake::Idle,
                () = sleep_until(self.begun + max_time) => Wake::Expired,
                () = stopping.cancelled(), if !stopping.is_cancelled() => Wake::Stopping,
            };
            match wake {
                Wake::News(news) => self.take(link, news).await?,
                Wake::Part(job, part) => {
                    self.heard = Instant::now();
                    if matches!(part, AnswerPart::Finished { .. } | AnswerPart::Failed { .. }) {
                        if self.running.iter().any(|running| running.id == job && running.prepares) {
                            let finished = matches!(part, AnswerPart::Finished { .. });
                            self.measured.prepared(if finished { "finished" } else { "refused" });
                        }
                        self.running.retain(|running| running.id != job);
                    }
                    let effects = self.session.answer(job, part);
                    self.carry_out(effects);
                    self.count();
                }
                Wake::Behind => {
                    let effects = self.session.go_on();
                    self.carry_out(effects);
                }
                Wake::Idle => {
                    let text =
                        format!("nothing was sent for {} (realtime.idle_timeout)", format_duration(idle_timeout));
                    let message = Message { code: "idle_timeout", text };
                    return self.end(link, message, Farewell { code: close_code::NORMAL, reason: "idle" }).await;
                }
                Wake::Expired => {
                    let text = format!("the session lasted {} (realtime.max_time)", format_duration(max_time));
                    let farewell = Farewell { code: close_code::NORMAL, reason: "the session has expired" };
                    return self.end(link, Message { code: "session_expired", text }, farewell).await;
                }
                Wake::Stopping => {}
                Wake::Evicted => return self.close(link, close_code::AGAIN, "idle, and its place was needed").await,
                Wake::Cut => return self.close(link, close_code::AWAY, "the server is shutting down").await,
            }
        }
    }

    /// Takes what a link tells.
    async fn take(&mut self, link: &mut impl Link, news: News) -> Result<(), Over> {
        match news {
            News::Event(text, held) => return self.hear(link, text, held).await,
            News::NotText => {
                self.heard = Instant::now();
                self.refuse("invalid_value", "events are JSON in text messages; a binary message was ignored");
            }
            News::Heard(samples, bytes) => return self.listen(link, &samples, bytes).await,
            News::Due => {
                let (samples, effects) = self.session.play();
                if samples.is_some() {
                    self.heard = Instant::now();
                }
                link.play(samples.as_deref(), self.session.is_playing());
                self.carry_out(effects);
                self.count();
            }
            News::Room => {
                if let Some(message) = self.waiting.pop() {
                    link.send(message);
                    self.count();
                }
            }
            // RFC 6455 wants the close answered with a close.
            News::Ends => return self.close(link, close_code::NORMAL, "").await,
            News::Gone => return Err(Over),
            News::Broken(Some(message), farewell) => return self.end(link, message, farewell).await,
            News::Broken(None, Farewell { code, reason }) => return self.close(link, code, reason).await,
        }
        Ok(())
    }

    /// Takes an event of the client.
    async fn hear(&mut self, link: &mut impl Link, text: String, held: Held) -> Result<(), Over> {
        self.came(link, text.len()).await?;
        let length = text.len();
        let (event, _held) = match parse_object(text.into_bytes(), self.app.json, held).await {
            Ok(parsed) => parsed,
            Err(error) => {
                self.refuse(error.code, error.message);
                return Ok(());
            }
        };
        // What the event may add is taken before it is followed.
        if !self.held.resize(self.kept() + GROWTH * length) {
            let error = self.app.budget.exhausted();
            self.refuse(error.code, error.message);
            return Ok(());
        }
        let effects = self.session.client_event(event);
        self.carry_out(effects);
        self.count();
        Ok(())
    }

    /// Takes sound of the user's that is none of an event.
    async fn listen(&mut self, link: &mut impl Link, samples: &[i16], bytes: usize) -> Result<(), Over> {
        self.came(link, bytes).await?;
        // Where there is no memory for it, it was not said.
        if self.held.resize(self.kept() + 2 * samples.len()) {
            let effects = self.session.listen(samples);
            self.carry_out(effects);
        }
        self.count();
        Ok(())
    }

    /// Bytes have come from the client.
    async fn came(&mut self, link: &mut impl Link, bytes: usize) -> Result<(), Over> {
        self.heard = Instant::now();
        self.activity.said();
        let Err(error) = self.caller.sent(bytes) else { return Ok(()) };
        let farewell = Farewell { code: close_code::AGAIN, reason: "too many bytes" };
        self.end(link, Message { code: error.code, text: error.message }, farewell).await
    }

    /// Bytes of the session, and of what waits for the client.
    fn kept(&self) -> usize {
        self.session.bytes() + self.waiting.bytes
    }

    /// Counts what is kept. The text of an answer is bounded by the model's limits, and small.
    fn count(&mut self) {
        let _ = self.held.resize(self.kept());
    }

    fn carry_out(&mut self, effects: Vec<Effect>) {
        for effect in effects {
            match effect {
                // A struct of numbers and strings is always JSON.
                Effect::Send(event) => {
                    self.measured.tells(&event.event);
                    let text = serde_json::to_string(&event).unwrap_or_default();
                    // The one event that is much larger than what asked for it.
                    let large = matches!(event.event, ServerEvent::ItemRetrieved { .. });
                    if large && !self.held.resize(self.kept() + text.len()) {
                        let error = self.app.budget.exhausted();
                        self.refuse(error.code, error.message);
                        continue;
                    }
                    self.waiting.push(text);
                }
                Effect::Begin(job) if job.prepares => self.prepare(*job),
                Effect::Begin(job) => {
                    let running = Running::begin(&self.app, self.caller.clone(), *job, self.has_begun);
                    self.has_begun = true;
                    self.running.push(running);
                }
                Effect::Cancel(job) => {
                    if self.running.iter().any(|running| running.id == job && running.prepares) {
                        self.measured.prepared("cut_off");
                    }
                    self.running.retain(|running| running.id != job);
                }
            }
        }
    }

    /// Begins what nobody waits for, if there is memory for it. It counts for no key.
    fn prepare(&mut self, job: Job) {
        if self.held.resize(self.kept()) {
            self.running.push(Running::begin(&self.app, self.caller.clone(), job, false));
            return;
        }
        self.measured.prepared("refused");
        let error = self.app.budget.exhausted();
        let failed = AnswerPart::Failed { code: error.code.to_owned(), message: error.message };
        let effects = self.session.answer(job.id, failed);
        self.carry_out(effects);
    }

    fn refuse(&mut self, code: &str, message: impl std::fmt::Display) {
        let effects = self.session.refused(Refusal::new(code, None, message));
        self.carry_out(effects);
    }

    /// Tells the client why the session ends, and ends it.
    async fn end(&mut self, link: &mut impl Link, message: Message, farewell: Farewell) -> Result<(), Over> {
        self.running.clear();
        self.refuse(message.code, message.text);
        link.end(std::mem::take(&mut self.waiting.events).into(), farewell).await;
        Err(Over)
    }

    async fn close(&mut self, link: &mut impl Link, code: u16, reason: &'static str) -> Result<(), Over> {
        self.running.clear();
        link.end(Vec::new(), Farewell { code, reason }).await;
        Err(Over)
    }
}

/// The next part of any answer of which more is wanted, each in its turn.
async fn next(running: &mut [Running], wants: impl Fn(JobId) -> bool) -> (JobId, AnswerPart) {
    if !running.is_empty() {
        running.rotate_left(1);
    }
    let wanted = running.iter_mut().filter(|running| wants(running.id));
    let (ids, parts): (Vec<JobId>, Vec<_>) = wanted.map(|running| (running.id, Box::pin(running.next()))).unzip();
    if parts.is_empty() {
        return std::future::pending().await;
    }
    let (part, which, _) = select_all(parts).await;
    (ids[which], part)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn events_that_wait_are_bounded_by_their_number_and_their_bytes() {
        let mut waiting = Waiting::default();
        (1..WAITING).for_each(|_| waiting.push("x".to_owned()));
        assert!(!waiting.is_full());
        waiting.push("x".to_owned());
        assert!(waiting.is_full());
        waiting.pop();
        assert!(!waiting.is_full());
        waiting.push("x".repeat(WAITING_BYTES));
        waiting.pop();
        assert!(waiting.is_full(), "{} bytes", waiting.bytes);
        while waiting.pop().is_some() {}
        assert_eq!((waiting.is_full(), waiting.bytes), (false, 0));
    }
}
