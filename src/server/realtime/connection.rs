//! The connection of a session: reads events, carries effects out, writes events. It reads nothing while many events wait
//! for the client, and asks the engine for nothing more while one does, so a client that does not read stops its own
//! session and nothing else.

use super::measured::Measured;
use super::running::Running;
use crate::auth::Caller;
use crate::body::parse_object;
use crate::budget::Held;
use crate::connection::{Activity, Busy, ConnectionGuard};
use crate::error::ApiError;
use crate::reader::Broken;
use crate::state::App;
use crate::ws_frames::{Incoming, Outgoing, Violation};
use crate::ws_protocol::close_code;
use crate::ws_socket::{Sender, Source, Unreadable};
use futures::future::select_all;
use omni_config::format_duration;
use omni_realtime::{AnswerPart, Effect, Job, JobId, Refusal, Session};
use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;
use tokio::io::AsyncRead;
use tokio::sync::mpsc::OwnedPermit;
use tokio::time::{Instant, MissedTickBehavior, interval, sleep_until};
use tokio_util::sync::CancellationToken;
use tracing::debug;

/// Events that may wait for the client while more are read from it: each event of a client has a handful of answers.
const WAITING: usize = 64;
/// Keeps proxies from closing a quiet connection.
const PING_EVERY: Duration = Duration::from_secs(20);
/// Pings without any sign of life after which the client counts as gone.
const MAX_UNANSWERED: u32 = 6;
/// Bytes that an event may make of each of its own: sound of 8 bits is kept with 16.
const GROWTH: usize = 2;

/// The session is over: the client is gone, or the last message is sent.
pub(super) struct Over;

/// See the module.
pub(super) struct Connection {
    app: Arc<App>,
    out: Sender,
    caller: Caller,
    activity: Arc<Activity>,
    /// Cancelled when the server waits no longer.
    closing_at_once: CancellationToken,
    /// Held while an answer is made or events wait.
    busy: Option<Busy>,
    /// The part of the budget for what the session keeps.
    held: Held,
    session: Session,
    running: Vec<Running>,
    /// Whether an answer was begun: the first is part of the request that opened the session.
    has_begun: bool,
    waiting: VecDeque<Outgoing>,
    /// When the last message came or went.
    heard: Instant,
    begun: Instant,
    unanswered: u32,
    measured: Measured,
}

/// What the connection waits for.
enum Wake {
    Incoming(Result<Incoming, Unreadable>),
    Room(Option<OwnedPermit<Outgoing>>),
    Part(JobId, AnswerPart),
    Behind,
    Ping,
    Idle,
    Expired,
    Stopping,
    /// Another connection has this one's place.
    Evicted,
    /// The time for a shutdown is over.
    Cut,
}

impl Connection {
    /// A session that writes to `out`, and its first effects.
    pub fn new(
        app: Arc<App>,
        out: Sender,
        caller: Caller,
        guard: &ConnectionGuard,
        (session, effects): (Session, Vec<Effect>),
    ) -> Connection {
        let held = Held::nothing(&app.budget);
        let now = Instant::now();
        let mut connection = Connection {
            app,
            out,
            caller,
            activity: Arc::clone(guard.activity()),
            closing_at_once: guard.closing.clone(),
            busy: None,
            held,
            session,
            running: Vec::new(),
            has_begun: false,
            waiting: VecDeque::new(),
            heard: now,
            begun: now,
            unanswered: 0,
            measured: Measured::new(),
        };
        connection.carry_out(effects);
        connection
    }

    /// Serves the client whose messages `source` reads, until the client or the server ends the session.
    pub async fn run(&mut self, source: &mut Source<impl AsyncRead + Unpin>) -> Result<(), Over> {
        let mut pings = interval(PING_EVERY);
        pings.set_missed_tick_behavior(MissedTickBehavior::Delay);
        pings.reset(); // the first tick of an interval is immediate
        let stopping = self.app.stopping.clone();
        let (evicted, cut) = (self.activity.ended.clone(), self.closing_at_once.clone());
        let (idle_timeout, max_time) = (self.app.realtime.idle_timeout, self.app.realtime.max_time);
        loop {
            let (quiet, told) = (self.running.is_empty(), self.waiting.is_empty());
            match (quiet && told, &self.busy) {
                (true, _) => self.busy = None,
                (false, None) => self.busy = Some(self.activity.busy()),
                (false, Some(_)) => {}
            }
            if stopping.is_cancelled() && quiet && told {
                return self.close(close_code::AWAY, "the server is shutting down").await;
            }
            let (behind, reads) = (self.session.is_behind(), self.waiting.len() < WAITING);
            let messages = self.out.messages.clone();
            let wake = tokio::select! {
                () = evicted.cancelled() => Wake::Evicted,
                () = cut.cancelled() => Wake::Cut,
                () = tokio::task::yield_now(), if behind => Wake::Behind,
                incoming = source.next(), if reads && !behind => Wake::Incoming(incoming),
                permit = messages.reserve_owned(), if !told => Wake::Room(permit.ok()),
                (job, part) = next(&mut self.running), if told && !quiet => Wake::Part(job, part),
                _ = pings.tick() => Wake::Ping,
                () = sleep_until(self.heard + idle_timeout), if quiet => Wake::Idle,
                () = sleep_until(self.begun + max_time) => Wake::Expired,
                () = stopping.cancelled(), if !stopping.is_cancelled() => Wake::Stopping,
            };
            match wake {
                Wake::Incoming(incoming) => self.hear(incoming).await?,
                Wake::Room(Some(permit)) => {
                    if let Some(message) = self.waiting.pop_front() {
                        permit.send(message);
                        self.unanswered = 0; // the writer took the message before: the client reads
                    }
                }
                Wake::Room(None) => return Err(Over),
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
                Wake::Ping => self.ping()?,
                Wake::Idle => {
                    let message =
                        format!("nothing was sent for {} (realtime.idle_timeout)", format_duration(idle_timeout));
                    return self.end("idle_timeout", message, close_code::NORMAL, "idle").await;
                }
                Wake::Expired => {
                    let message = format!("the session lasted {} (realtime.max_time)", format_duration(max_time));
                    return self.end("session_expired", message, close_code::NORMAL, "the session has expired").await;
                }
                Wake::Stopping => {}
                Wake::Evicted => return self.close(close_code::AGAIN, "idle, and its place was needed").await,
                Wake::Cut => return self.close(close_code::AWAY, "the server is shutting down").await,
            }
        }
    }

    /// Takes what the client has sent.
    async fn hear(&mut self, incoming: Result<Incoming, Unreadable>) -> Result<(), Over> {
        self.unanswered = 0;
        let (text, held) = match incoming {
            Ok(Incoming::Text(text, held)) => (text, held),
            Ok(Incoming::Binary) => {
                self.heard = Instant::now();
                self.refuse("invalid_value", "events are JSON in text frames; a binary frame was ignored");
                return Ok(());
            }
            Ok(Incoming::Ping(payload)) => {
                self.out.pong(payload);
                return Ok(());
            }
            Ok(Incoming::Pong) => return Ok(()),
            // RFC 6455 wants the close answered with a close.
            Ok(Incoming::Close) => return self.close(close_code::NORMAL, "").await,
            Err(broken) => return self.broken(broken).await,
        };
        self.heard = Instant::now();
        self.activity.said();
        if let Err(error) = self.caller.sent(text.len()) {
            return self.end(error.code, error.message, close_code::AGAIN, "too many bytes").await;
        }
        let length = text.len();
        let (event, _held) = match parse_object(text.into_bytes(), self.app.json, held).await {
            Ok(parsed) => parsed,
            Err(error) => {
                self.refuse(error.code, error.message);
                return Ok(());
            }
        };
        // What the event may add is taken before it is followed.
        if !self.held.resize(self.session.bytes() + GROWTH * length) {
            let error = self.app.budget.exhausted();
            self.refuse(error.code, error.message);
            return Ok(());
        }
        let effects = self.session.client_event(event);
        self.carry_out(effects);
        self.count();
        Ok(())
    }

    /// Counts what the session keeps. The text of an answer is bounded by the model's limits, and small.
    fn count(&mut self) {
        let _ = self.held.resize(self.session.bytes());
    }

    fn carry_out(&mut self, effects: Vec<Effect>) {
        for effect in effects {
            match effect {
                // A struct of numbers and strings is always JSON.
                Effect::Send(event) => {
                    self.measured.tells(&event.event);
                    self.waiting.push_back(Outgoing::Text(serde_json::to_string(&event).unwrap_or_default()));
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
        if self.held.resize(self.session.bytes()) {
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

    fn ping(&mut self) -> Result<(), Over> {
        if self.unanswered >= MAX_UNANSWERED {
            debug!("the client does not answer pings");
            return Err(Over);
        }
        // A full queue keeps the connection busy without a ping. It counts all the same: a client that reads nothing for
        // so long is gone.
        let _ = self.out.messages.try_send(Outgoing::Ping);
        self.unanswered += 1;
        Ok(())
    }

    /// Ends a session whose connection failed; tells the client where a limit was the cause.
    async fn broken(&mut self, broken: Unreadable) -> Result<(), Over> {
        debug!(error = %broken, "websocket reader ended");
        self.running.clear();
        let (error, code, reason) = match broken {
            Broken::Gone => return Err(Over),
            Broken::Violation(Violation::Full) => (self.app.budget.exhausted(), close_code::AGAIN, "too much input"),
            Broken::Violation(Violation::TooLarge) => {
                let message = format!("a message was larger than {} bytes", self.app.max_body_bytes);
                (ApiError::invalid("event", message), close_code::SIZE, "message too large")
            }
            Broken::Slow => {
                let patience = format_duration(self.app.read_timeout);
                let message = format!("a message did not arrive within {patience} (server.read_timeout)");
                (ApiError::invalid("event", message), close_code::POLICY, "message too slow")
            }
            Broken::Violation(Violation::NotText) => return self.close(close_code::INVALID, "not UTF-8").await,
            Broken::Violation(Violation::Protocol(what)) => return self.close(close_code::PROTOCOL, what).await,
        };
        self.end(error.code, error.message, code, reason).await
    }

    /// Tells the client why the session ends, and ends it.
    async fn end(&mut self, code: &str, message: String, close: u16, reason: &'static str) -> Result<(), Over> {
        self.running.clear();
        self.refuse(code, message);
        while let Some(message) = self.waiting.pop_front() {
            self.out.messages.send(message).await.map_err(|_| Over)?;
        }
        self.close(close, reason).await
    }

    async fn close(&mut self, code: u16, reason: &'static str) -> Result<(), Over> {
        // The session is over, whether the frame leaves or not.
        let _ = self.out.messages.send(Outgoing::Close(code, reason)).await;
        Err(Over)
    }
}

/// The next part of any answer, each in its turn.
async fn next(running: &mut [Running]) -> (JobId, AnswerPart) {
    running.rotate_left(1);
    let ids: Vec<JobId> = running.iter().map(|running| running.id).collect();
    let parts = running.iter_mut().map(|running| Box::pin(running.next()));
    let (part, which, _) = select_all(parts).await;
    (ids[which], part)
}
