//! A WebSocket session: reads the client's messages, speaks one utterance at a time, writes the server's messages. It
//! owns the state of the connection; it must never wait for the client while a cancel could come.

mod messages;

use super::api::session::ServerMessage;
use super::api::speech::SpokenWord;
use super::auth::Caller;
use super::budget::Held;
use super::connection::{Activity, Busy, ConnectionGuard};
use super::error::ApiError;
use super::feed::Feed;
use super::reader::Broken;
use super::state::App;
use super::ws_frames::{Incoming, Outgoing, Violation};
use super::ws_input::{Input, Next};
use super::ws_protocol::{SessionConfig, Summary, close_code, done_event, error_event, session_done};
use super::ws_socket::{Sender, Source, Unreadable};
use super::ws_utterance::{Text, Upcoming, Utterance, feed, next_outgoing};
use axum::http::StatusCode;
use omni_config::format_duration;
use omni_engine::{Event, SpeechRequest, TextSource};
use omni_telemetry::HttpMetrics;
use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;
use tokio::io::AsyncRead;
use tokio::sync::mpsc;
use tokio::time::{Instant, MissedTickBehavior, interval, sleep_until};
use tokio_util::sync::CancellationToken;
use tracing::debug;

/// Pieces of text on their way to the engine.
const TEXT_QUEUE: usize = 16;
/// Keeps proxies from closing a quiet connection.
const PING_EVERY: Duration = Duration::from_secs(20);
/// Pings without any sign of life after which the client counts as gone.
const MAX_UNANSWERED: u32 = 6;

/// A message of JSON.
fn text(message: &ServerMessage<'_>) -> Outgoing {
    // A struct of numbers and strings is always JSON.
    Outgoing::Text(serde_json::to_string(message).unwrap_or_default())
}

/// The session is over: the client is gone, or the last message is sent.
pub(super) struct Over;

/// One connection's state.
pub(super) struct Session {
    app: Arc<App>,
    out: Sender,
    caller: Caller,
    activity: Arc<Activity>,
    /// Cancelled when the server waits no longer.
    closing_at_once: CancellationToken,
    /// Held while something is spoken or waits.
    busy: Option<Busy>,
    /// The part of the budget for text that waits.
    waiting: Held,
    config: SessionConfig,
    input: Input,
    current: Option<Utterance>,
    /// Number of the current utterance, or of the last one; 0 before the first.
    utterance: u64,
    /// The last messages of an utterance, which go out before any other.
    parting: VecDeque<Outgoing>,
    /// Set by `session.close`.
    closing: bool,
    /// When the last message came or went.
    heard: Instant,
    unanswered: u32,
}

/// What the session waits for.
enum Wake {
    Incoming(Result<Incoming, Unreadable>),
    /// The engine took a piece of text, or will take none.
    Fed(bool),
    Room(Option<(mpsc::OwnedPermit<Outgoing>, Upcoming)>),
    Ping,
    Idle,
    /// An utterance waits for text for too long.
    Unwritten,
    Stopping,
    /// Another connection has this one's place.
    Evicted,
    /// The time for a shutdown is over.
    Cut,
}

impl Session {
    /// A session that writes to `out`.
    pub(super) fn new(app: Arc<App>, out: Sender, caller: Caller, guard: &ConnectionGuard) -> Session {
        let config = SessionConfig::initial(&app);
        let waiting = Held::nothing(&app.budget);
        let input = Input::new(app.limits().max_input_chars);
        let heard = Instant::now();
        let parting = VecDeque::new();
        Session {
            app,
            out,
            caller,
            activity: Arc::clone(guard.activity()),
            closing_at_once: guard.closing.clone(),
            busy: None,
            waiting,
            config,
            input,
            current: None,
            utterance: 0,
            parting,
            closing: false,
            heard,
            unanswered: 0,
        }
    }

    /// Serves the client whose messages `source` reads, until the client or the server ends the session.
    pub(super) async fn run(&mut self, source: &mut Source<impl AsyncRead + Unpin>) -> Result<(), Over> {
        let app = Arc::clone(&self.app);
        let session = self.config.state(&app);
        let created = text(&ServerMessage::Created { session, voices: app.voice_names() });
        self.say(created).await?;
        let mut pings = interval(PING_EVERY);
        pings.set_missed_tick_behavior(MissedTickBehavior::Delay);
        pings.reset(); // the first tick of an interval is immediate
        let stopping = self.app.stopping.clone();
        let (evicted, cut) = (self.activity.ended.clone(), self.closing_at_once.clone());
        loop {
            self.begin().await?;
            self.end_text();
            self.waiting.resize(self.input.bytes()); // less than before: text is counted when it comes
            let at_rest = self.current.is_none() && self.input.next().is_none() && self.parting.is_empty();
            match (at_rest, &self.busy) {
                (true, _) => self.busy = None,
                (false, None) => self.busy = Some(self.activity.busy()),
                (false, Some(_)) => {}
            }
            if at_rest {
                if self.closing {
                    self.tell(&ServerMessage::Closed { utterances: self.utterance }).await?;
                    return self.close(close_code::NORMAL, "closed by the client").await;
                }
                if stopping.is_cancelled() {
                    return self.close(close_code::AWAY, "the server is shutting down").await;
                }
            }
            // A client that has begun to write has a place among the requests, which it must not keep in silence.
            let writing = self.current.as_ref().is_some_and(|utterance| matches!(utterance.text, Text::Open(_)));
            let silent = self.current.is_none();
            let patience = if writing { self.app.limits().stalled_client_timeout } else { self.app.idle_timeout };
            let parting = !self.parting.is_empty();
            let (text, stream) = match &mut self.current {
                Some(utterance) => (Some(&mut utterance.text), Some(&mut utterance.stream)),
                None => (None, None),
            };
            let wake = tokio::select! {
                incoming = source.next() => Wake::Incoming(incoming),
                taken = feed(text, &self.input) => Wake::Fed(taken),
                outgoing = next_outgoing(&self.out.messages, parting, stream) => Wake::Room(outgoing),
                _ = pings.tick() => Wake::Ping,
                () = sleep_until(self.heard + patience), if silent => Wake::Idle,
                () = sleep_until(self.heard + patience), if writing => Wake::Unwritten,
                () = stopping.cancelled(), if !stopping.is_cancelled() => Wake::Stopping,
                () = evicted.cancelled() => Wake::Evicted,
                () = cut.cancelled() => Wake::Cut,
            };
            match wake {
                Wake::Incoming(incoming) => self.hear(incoming).await?,
                Wake::Fed(taken) => self.fed(taken),
                Wake::Room(Some((permit, Upcoming::Parting))) => {
                    if let Some(message) = self.parting.pop_front() {
                        permit.send(message);
                    }
                }
                Wake::Room(Some((permit, Upcoming::Event(event)))) => self.pass_on(permit, event),
                Wake::Room(None) => return Err(Over),
                Wake::Ping => self.ping()?,
                Wake::Idle => {
                    let message = format!("nothing was said for {}", format_duration(patience));
                    let error = ApiError::new(StatusCode::REQUEST_TIMEOUT, "idle_timeout", message);
                    self.tell(&error_event(None, &error)).await?;
                    return self.close(close_code::NORMAL, "idle").await;
                }
                Wake::Unwritten => {
                    let message = format!("no text came for {}", format_duration(patience));
                    let error = ApiError::new(StatusCode::GATEWAY_TIMEOUT, "timed_out", message);
                    self.finish(&error_event(Some(self.utterance), &error));
                }
                Wake::Stopping => {} // looked at above
                Wake::Evicted => {
                    let message =
                        "the server is full, and this connection was idle for longest (server.max_connections)";
                    let error = ApiError::new(StatusCode::SERVICE_UNAVAILABLE, "too_many_connections", message);
                    self.tell(&error_event(None, &error)).await?;
                    return self.close(close_code::AGAIN, "idle, and its place was needed").await;
                }
                Wake::Cut => return self.close(close_code::AWAY, "the server is shutting down").await,
            }
        }
    }

    /// Begins the next utterance if nothing is being spoken and there is text.
    async fn begin(&mut self) -> Result<(), Over> {
        while self.current.is_none() && matches!(self.input.next(), Some(Next::Text(_))) {
            self.utterance += 1;
            let (sender, receiver) = flume::bounded(TEXT_QUEUE);
            let request = SpeechRequest { text: TextSource::Streamed(receiver), params: self.config.speech.clone() };
            let mut request = request;
            request.params.options.tenant = self.caller.tenant;
            let writer = self.app.writer(self.config.sound).map_err(ApiError::from);
            let can_begin = writer.is_ok();
            // The request of the session itself counts as its first utterance.
            let allowed = if self.utterance > 1 { self.caller.begin() } else { Ok(()) };
            let begun = match allowed.and(writer) {
                Ok(writer) => self.app.service.speak(request).await.map(|stream| (writer, stream)).map_err(Into::into),
                Err(error) => Err(error),
            };
            // Where the sound begins is said for one utterance; one that the server had no place for may come again.
            if begun.is_ok() || !can_begin {
                self.config.sound.start = 0;
            }
            match begun {
                Ok((writer, stream)) => {
                    if writer.start() > 0 {
                        HttpMetrics::resumed("sample");
                    }
                    self.current =
                        Some(Utterance::new(Text::Open(Feed::new(sender)), self.config.sound.format, writer, stream));
                }
                Err(error) => {
                    self.tell(&error_event(Some(self.utterance), &error)).await?;
                    if self.input.skip_utterance() {
                        self.tell(&session_done(Some(self.utterance), 0)).await?;
                    }
                }
            }
        }
        Ok(())
    }

    /// Tells the engine that the text is complete, if it is.
    fn end_text(&mut self) {
        if let Some(utterance) = &mut self.current
            && matches!(utterance.text, Text::Open(_))
            && self.input.next() == Some(Next::End)
        {
            utterance.text = Text::Ended;
            self.input.advance();
        }
    }

    fn fed(&mut self, taken: bool) {
        if taken {
            if let (Some(utterance), Some(Next::Text(text))) = (&mut self.current, self.input.next())
                && !utterance.started
            {
                utterance.spoken.push_str(text);
            }
            self.input.advance();
        } else if let Some(utterance) = &mut self.current {
            utterance.text = Text::Refused;
        }
    }

    /// Sends the client the message for an event of the current utterance.
    fn pass_on(&mut self, permit: mpsc::OwnedPermit<Outgoing>, event: Option<Event>) {
        let Some(utterance) = &mut self.current else { return };
        self.heard = Instant::now();
        self.unanswered = 0; // the writer took the message before: the client reads
        let sample_rate = self.app.service.info().sample_rate;
        if let Some(Event::Audio(chunk)) = &event {
            self.caller.spoke(chunk.samples.len(), sample_rate);
        }
        let failed = match event {
            Some(Event::Started { id, seed }) => {
                utterance.started = true;
                self.caller.visit.leads_to(id);
                permit.send(text(&ServerMessage::Start {
                    utterance: self.utterance,
                    utterance_index: self.utterance - 1,
                    sentence_index: 0,
                    sentence_text: std::mem::take(&mut utterance.spoken),
                    request_id: id.to_string(),
                    seed,
                    sample_rate: utterance.writer.sample_rate(),
                    channels: 1,
                    format: utterance.format.as_str(),
                    start_sample: utterance.writer.start(),
                }));
                return;
            }
            Some(Event::Audio(chunk)) => match utterance.writer.push(&chunk.samples) {
                // The format may need more samples for its next bytes.
                Ok(bytes) if bytes.is_empty() => return,
                Ok(bytes) => {
                    utterance.first_audio.get_or_insert_with(|| utterance.begun.elapsed());
                    utterance.bytes += bytes.len() as u64;
                    permit.send(Outgoing::Binary(bytes));
                    return;
                }
                Err(error) => error.into(),
            },
            Some(Event::Word(word)) => {
                if let Some(word) = SpokenWord::heard(word, &utterance.writer) {
                    let (utterance, utterance_index) = (self.utterance, self.utterance - 1);
                    permit.send(text(&ServerMessage::Word { utterance, utterance_index, word }));
                }
                return;
            }
            Some(Event::Text(_)) => return,
            Some(Event::Finished { reason, usage }) => match utterance.writer.finish() {
                Ok(rest) => {
                    let bytes = utterance.bytes + rest.len() as u64;
                    if !rest.is_empty() {
                        self.parting.push_back(Outgoing::Binary(rest));
                    }
                    let summary = Summary {
                        reason,
                        usage,
                        sample_rate: utterance.writer.sample_rate(),
                        samples: utterance.writer.samples(),
                        bytes,
                        first_audio: utterance.first_audio,
                        total: utterance.begun.elapsed(),
                    };
                    return self.finish(&done_event(self.utterance, &summary));
                }
                Err(error) => error.into(),
            },
            Some(Event::Failed(error)) => error.into(),
            None => ApiError::internal("the answer ended before it was complete"),
        };
        self.finish(&error_event(Some(self.utterance), &failed));
    }

    /// Ends the current utterance with `last`, also where text of it is still to come.
    fn finish(&mut self, last: &ServerMessage<'_>) {
        self.heard = Instant::now(); // a client that has listened has not been idle
        self.parting.push_back(text(last));
        let Some(utterance) = self.current.take() else { return };
        // Otherwise its `input.done` will be answered when it comes.
        if matches!(utterance.text, Text::Ended) || self.input.skip_utterance() {
            let done = session_done(Some(self.utterance), u32::from(utterance.started));
            self.parting.push_back(text(&done));
        }
    }

    fn ping(&mut self) -> Result<(), Over> {
        if self.unanswered >= MAX_UNANSWERED {
            debug!("the client does not answer pings");
            return Err(Over);
        }
        // A full queue keeps the connection busy without a ping.
        if self.out.messages.try_send(Outgoing::Ping).is_ok() {
            self.unanswered += 1;
        }
        Ok(())
    }

    /// Ends a session whose connection failed; tells the client where a limit was the cause.
    async fn broken(&mut self, broken: Unreadable) -> Result<(), Over> {
        debug!(error = %broken, "websocket reader ended");
        self.current = None;
        let (error, code, reason) = match broken {
            Broken::Gone => return Err(Over),
            Broken::Violation(Violation::Full) => (self.app.budget.exhausted(), close_code::AGAIN, "too much input"),
            Broken::Violation(Violation::TooLarge) => {
                let message = format!("a message was larger than {} bytes", self.app.max_body_bytes);
                let error = ApiError::new(StatusCode::PAYLOAD_TOO_LARGE, "message_too_large", message);
                (error, close_code::SIZE, "message too large")
            }
            Broken::Slow => {
                let patience = format_duration(self.app.read_timeout);
                let message = format!("a message did not arrive within {patience} (server.read_timeout)");
                let error = ApiError::new(StatusCode::REQUEST_TIMEOUT, "request_timeout", message);
                (error, close_code::POLICY, "message too slow")
            }
            Broken::Violation(Violation::NotText) => return self.close(close_code::INVALID, "not UTF-8").await,
            Broken::Violation(Violation::Protocol(what)) => return self.close(close_code::PROTOCOL, what).await,
        };
        self.tell(&error_event(None, &error)).await?;
        self.close(code, reason).await
    }

    /// Sends a message behind those that wait.
    async fn tell(&mut self, event: &ServerMessage<'_>) -> Result<(), Over> {
        self.say(text(event)).await
    }

    async fn say(&mut self, message: Outgoing) -> Result<(), Over> {
        self.parting.push_back(message);
        while let Some(message) = self.parting.pop_front() {
            self.out.messages.send(message).await.map_err(|_| Over)?;
        }
        Ok(())
    }

    async fn close(&self, code: u16, reason: &'static str) -> Result<(), Over> {
        // The session is over, whether the frame leaves or not.
        let _ = self.out.messages.send(Outgoing::Close(code, reason)).await;
        Err(Over)
    }
}
