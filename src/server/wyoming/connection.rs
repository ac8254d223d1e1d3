//! One client of the Wyoming protocol: a loop that reads events, speaks one text at a time and writes events. It must
//! never wait for the client while that could leave; an answer that waits for its client keeps it from being read.

use super::event::{self, ClientEvent, Voice};
use super::frame::{Decoder, Frame, Limits};
use super::session::{Action, Session};
use super::utterance::{Passed, Text, Utterance, feed};
use super::{Shared, voice};
use crate::budget::Held;
use crate::connection::{Busy, ConnectionGuard};
use crate::error::ApiError;
use crate::feed::Feed;
use crate::hangup::Socket;
use crate::io::StallGuard;
use crate::keys::by_address;
use crate::reader::{Broken, Reader, drain};
use crate::visit::Visit;
use crate::ws_utterance::{Upcoming, next_outgoing};
use axum::http::{HeaderMap, Method, StatusCode};
use omni_audio::AudioFormat;
use omni_config::format_duration;
use omni_engine::{Event, SpeechParams, SpeechRequest, TextSource};
use std::collections::VecDeque;
use std::sync::Arc;
use tokio::io::{AsyncRead, AsyncWrite, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::sync::mpsc;
use tokio::time::{Instant, sleep_until};
use tracing::debug;

/// Events on their way to the socket.
const OUT_QUEUE: usize = 2;
/// Pieces of text on their way to the engine.
const TEXT_QUEUE: usize = 16;
/// What the metrics and the access log call a request.
const ROUTE: &str = "wyoming";

/// Serves a client until it leaves or has to.
pub(super) async fn serve(shared: Arc<Shared>, socket: TcpStream, guard: ConnectionGuard) {
    // Chunks are small and must leave at once. Only a dead socket refuses the option.
    let _ = socket.set_nodelay(true);
    let socket = Socket::new(socket);
    let app = &shared.app;
    let watched = StallGuard::new(socket.clone(), app.limits().stalled_client_timeout)
        .paced(shared.min_read_rate)
        .shown(Arc::clone(guard.activity()));
    let (source, sink) = tokio::io::split(watched);
    let limits = Limits { bytes: app.max_body_bytes, json: app.json };
    let decoder = Decoder::new(limits, Held::nothing(&app.budget));
    let mut reader = Reader::new(source, decoder, app.read_timeout);
    let (out, queued) = mpsc::channel(OUT_QUEUE);
    let mut writing = std::pin::pin!(write(queued, sink));
    let mut connection = Connection::new(Arc::clone(&shared), guard, out);
    tokio::select! {
        () = connection.run(&mut reader) => {}
        // The client is gone.
        () = &mut writing => return,
        () = socket.hung_up() => return,
    }
    drop(connection);
    writing.await;
    reader.linger().await;
}

/// Writes what comes from the queue, until that is closed or the socket fails.
async fn write(mut queued: mpsc::Receiver<Vec<u8>>, mut sink: impl AsyncWrite + Unpin) {
    while let Some(bytes) = queued.recv().await {
        if sink.write_all(&bytes).await.is_err() || sink.flush().await.is_err() {
            return;
        }
    }
    // The peer may be gone already.
    let _ = sink.shutdown().await;
}

/// Tells a client why the server ends the connection at once.
pub(super) async fn refuse(mut socket: TcpStream, error: &ApiError) {
    if socket.write_all(&event::error(error)).await.is_err() || socket.shutdown().await.is_err() {
        return;
    }
    drain(&mut socket).await;
}

/// Why a connection ends.
enum End {
    /// The client or the server wants no more.
    Quiet,
    /// The client is told.
    Failed(ApiError),
}

impl From<ApiError> for End {
    fn from(error: ApiError) -> End {
        End::Failed(error)
    }
}

/// One connection's state.
struct Connection {
    shared: Arc<Shared>,
    guard: ConnectionGuard,
    out: mpsc::Sender<Vec<u8>>,
    session: Session,
    /// Held while something is spoken or waits.
    busy: Option<Busy>,
    /// Events for the client that go before any speech.
    answers: VecDeque<Vec<u8>>,
    /// What the client wants next, once all is spoken, and its part of the budget.
    deferred: Option<(ClientEvent, (Held, Held))>,
    /// How the text in pieces is spoken, from its start to its first piece.
    params: Option<SpeechParams>,
    current: Option<Utterance>,
    /// Whether anything has been spoken.
    served: bool,
    /// When the last event came or went.
    heard: Instant,
}

/// What the connection waits for.
enum Wake {
    Incoming(Result<Frame, Broken<ApiError>>),
    /// The engine took a piece of text, or will take none.
    Fed(bool),
    Room(Option<(mpsc::OwnedPermit<Vec<u8>>, Upcoming)>),
    Silent,
    Stopping,
}

impl Connection {
    fn new(shared: Arc<Shared>, guard: ConnectionGuard, out: mpsc::Sender<Vec<u8>>) -> Connection {
        let session = Session::new(shared.app.limits().max_input_chars);
        let answers = VecDeque::new();
        let (busy, deferred, params, current) = (None, None, None, None);
        let heard = Instant::now();
        Connection { shared, guard, out, session, busy, answers, deferred, params, current, served: false, heard }
    }

    /// Serves the client until the connection has to end, and tells it why if something was wrong.
    async fn run(&mut self, source: &mut Reader<impl AsyncRead + Unpin, Decoder>) {
        let Err(End::Failed(error)) = self.serve(source).await else { return };
        debug!(code = error.code, message = error.message, "a Wyoming connection ends with an error");
        // One that has begun to speak is counted already.
        if self.current.as_ref().is_none_or(|utterance| !utterance.begun) {
            self.answered(error.status);
        }
        self.current = None;
        self.answers.push_back(event::error(&error));
        while let Some(answer) = self.answers.pop_front() {
            if self.out.send(answer).await.is_err() {
                return;
            }
        }
    }

    async fn serve(&mut self, source: &mut Reader<impl AsyncRead + Unpin, Decoder>) -> Result<(), End> {
        let (stopping, retiring) = (self.shared.app.stopping.clone(), self.shared.app.retiring.clone());
        loop {
            if let Some((event, _held)) = self.deferred.take_if(|(event, _)| !self.session.defers(event)) {
                self.execute(event).await?;
            }
            let at_rest = self.session.is_at_rest() && self.answers.is_empty();
            match (at_rest, &self.busy) {
                (true, _) => self.busy = None,
                (false, None) => self.busy = Some(self.guard.activity().busy()),
                (false, Some(_)) => {}
            }
            if at_rest && (stopping.is_cancelled() || (self.served && retiring.gone_by().is_some())) {
                return Err(End::Quiet);
            }
            let writing = self.session.is_writing();
            let app = &self.shared.app;
            let patience = if writing { app.limits().stalled_client_timeout } else { app.idle_timeout };
            let answers = !self.answers.is_empty();
            // What is there goes first: a client that sends and does not read fills no memory.
            let reads = !answers && self.deferred.is_none() && !self.current.as_ref().is_some_and(Utterance::waits);
            let (text, stream) = match &mut self.current {
                Some(utterance) => (Some(&mut utterance.text), Some(&mut utterance.stream)),
                None => (None, None),
            };
            let wake = tokio::select! {
                incoming = source.next(), if reads => Wake::Incoming(incoming),
                taken = feed(text) => Wake::Fed(taken),
                room = next_outgoing(&self.out, answers, stream) => Wake::Room(room),
                () = sleep_until(self.heard + patience), if at_rest || writing => Wake::Silent,
                () = stopping.cancelled(), if !stopping.is_cancelled() => Wake::Stopping,
            };
            match wake {
                Wake::Incoming(Err(Broken::Gone)) | Wake::Room(None) => return Err(End::Quiet),
                Wake::Incoming(Err(Broken::Violation(error))) => return Err(error.into()),
                Wake::Incoming(Err(Broken::Slow)) => return Err(self.slow().into()),
                Wake::Incoming(Ok(frame)) => self.hear(frame).await?,
                Wake::Fed(taken) => {
                    if let Some(utterance) = &mut self.current {
                        utterance.fed(taken);
                    }
                }
                Wake::Room(Some((permit, Upcoming::Parting))) => {
                    if let Some(answer) = self.answers.pop_front() {
                        permit.send(answer);
                    }
                }
                Wake::Room(Some((permit, Upcoming::Event(event)))) => self.pass_on(permit, event)?,
                Wake::Silent => return Err(self.silent().into()),
                Wake::Stopping => {} // looked at above
            }
        }
    }

    /// What a client hears whose event did not come to its end.
    fn slow(&self) -> ApiError {
        let patience = format_duration(self.shared.app.read_timeout);
        let message = format!("an event did not arrive within {patience} (server.read_timeout)");
        ApiError::new(StatusCode::REQUEST_TIMEOUT, "request_timeout", message)
    }

    /// What a client hears that said nothing for too long.
    fn silent(&self) -> ApiError {
        let app = &self.shared.app;
        if self.session.is_writing() {
            let patience = format_duration(app.limits().stalled_client_timeout);
            let message = format!("no text came for {patience} (limits.stalled_client_timeout)");
            return ApiError::new(StatusCode::GATEWAY_TIMEOUT, "timed_out", message);
        }
        let message = format!("nothing was said for {} (server.idle_timeout)", format_duration(app.idle_timeout));
        ApiError::new(StatusCode::REQUEST_TIMEOUT, "idle_timeout", message)
    }

    async fn hear(&mut self, frame: Frame) -> Result<(), ApiError> {
        self.heard = Instant::now();
        let (name, data, held) = frame.data().await?;
        let event = ClientEvent::read(&name, &data)?;
        drop(data);
        if self.session.defers(&event) {
            self.deferred = Some((event, held));
            return Ok(());
        }
        self.execute(event).await
    }

    async fn execute(&mut self, event: ClientEvent) -> Result<(), ApiError> {
        match self.session.on(event)? {
            Action::Ignore => {}
            Action::Describe => {
                let info = voice::info(&self.shared.app, &self.shared.config);
                self.answers.push_back(event::info(&info));
            }
            Action::Pong(text) => self.answers.push_back(event::pong(text.as_deref())),
            Action::Speak { text, voice } => {
                let params = self.params(&voice)?;
                let mut held = Held::nothing(&self.shared.app.budget);
                if !held.take(text.len()) {
                    return Err(held.exhausted());
                }
                self.speak(TextSource::Whole(text), params, Text::Ended, held).await?;
            }
            Action::Begin(voice) => self.params = Some(self.params(&voice)?),
            Action::Feed(text) => {
                if let Some(params) = self.params.take() {
                    let (sender, receiver) = flume::bounded(TEXT_QUEUE);
                    let held = Held::nothing(&self.shared.app.budget);
                    self.speak(TextSource::Streamed(receiver), params, Text::Open(Feed::new(sender), None), held)
                        .await?;
                }
                // Text behind an answer that has reached its limit is dropped.
                if let Some(utterance) = &mut self.current {
                    utterance.push(text)?;
                }
            }
            Action::End => match &mut self.current {
                Some(utterance) => utterance.text = Text::Ended,
                // Nothing was said, or all that may be has been spoken.
                None => self.over(),
            },
        }
        Ok(())
    }

    fn params(&self, voice: &Voice) -> Result<SpeechParams, ApiError> {
        voice::params(&self.shared.app, &self.shared.config, by_address(self.guard.address()), voice)
    }

    async fn speak(
        &mut self,
        source: TextSource,
        params: SpeechParams,
        text: Text,
        held: Held,
    ) -> Result<(), ApiError> {
        let app = &self.shared.app;
        let rate = app.service.info().sample_rate;
        let writer = app.writer(AudioFormat::Pcm.into())?;
        // Letters are a method.
        let method = Method::from_bytes(b"SYNTHESIZE").unwrap_or(Method::POST);
        let logged = app.rules.get().access_log;
        let visit = Visit::new(&method, &HeaderMap::new(), ROUTE, self.guard.address(), logged);
        let visit = visit.linked(app.links.clone());
        match app.service.speak(SpeechRequest { text: source, params }).await {
            Ok(stream) => {
                self.current = Some(Utterance { text, stream, visit, held, writer, rate, begun: false });
                Ok(())
            }
            Err(error) => {
                let error = ApiError::from(error);
                visit.begin(error.status.as_u16(), app.fresh_id());
                Err(error)
            }
        }
    }

    /// Sends the client what an event of the engine means.
    fn pass_on(&mut self, permit: mpsc::OwnedPermit<Vec<u8>>, event: Option<Event>) -> Result<(), ApiError> {
        let Some(utterance) = &mut self.current else { return Ok(()) };
        let begun = utterance.begun;
        let passed = utterance.pass_on(event)?;
        let begins = utterance.begun && !begun;
        let (bytes, last) = match passed {
            Passed::Nothing => return Ok(()),
            Passed::Bytes(bytes) => (bytes, false),
            Passed::Last(bytes) => (bytes, true),
        };
        utterance.visit.sent(bytes.len());
        if last {
            utterance.visit.complete();
        }
        permit.send(bytes);
        self.heard = Instant::now();
        if begins {
            self.answered(StatusCode::OK);
        }
        if last {
            self.current = None;
            // Inside of a stream its end is answered when it comes.
            if !self.session.is_writing() {
                self.over();
            }
        }
        Ok(())
    }

    /// A text has been spoken.
    fn over(&mut self) {
        (self.params, self.served) = (None, true);
        if self.session.over() {
            self.answers.push_back(event::synthesize_stopped());
        }
    }

    /// Counts an answer, which begins, or will not.
    fn answered(&self, status: StatusCode) {
        let app = &self.shared.app;
        app.metrics.response(ROUTE, status.as_u16());
        if let Some(utterance) = &self.current {
            utterance.visit.begin(status.as_u16(), app.fresh_id());
        }
    }
}
