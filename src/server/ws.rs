//! `WS /v1/audio/speech/stream`: text in as it is written, speech out before the text is complete.
//!
//! One task reads and decides, one writes. Between them is a queue of [`OUT_QUEUE`] messages: when the client does not
//! read, the queue is full, the engine's stream is not read, and this request pauses; cancel is still heard.

use super::app::App;
use super::audio::StreamEncoder;
use super::error::ApiError;
use super::listen::ConnectionGuard;
use super::ws_input::{Input, Next, Refused};
use super::ws_protocol::{ClientMessage, SessionConfig, Summary, done_event, error_event};
use crate::engine::{Event, ResponseStream, SpeechParams, SpeechRequest, TextSource};
use axum::Extension;
use axum::extract::State;
use axum::extract::ws::rejection::WebSocketUpgradeRejection;
use axum::extract::ws::{CloseFrame, Message, WebSocket, WebSocketUpgrade, close_code};
use axum::http::{HeaderMap, StatusCode, Uri, header};
use axum::response::Response;
use futures::stream::SplitSink;
use futures::{SinkExt, Stream, StreamExt};
use serde_json::{Map, Value, json};
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::mpsc;
use tokio::time::{Instant, MissedTickBehavior, interval, sleep_until};
use tracing::debug;

/// Messages on their way to the socket.
const OUT_QUEUE: usize = 2;
/// Pieces of text on their way to the engine.
const TEXT_QUEUE: usize = 16;
/// Keeps proxies from closing a quiet connection.
const PING_EVERY: Duration = Duration::from_secs(20);
/// Pings without any sign of life after which the client counts as gone.
const MAX_UNANSWERED: u32 = 6;
/// A session that says nothing and is told nothing for this long is closed.
const IDLE_LIMIT: Duration = Duration::from_secs(300);

/// The handler.
pub(super) async fn connect(
    State(app): State<Arc<App>>,
    Extension(guard): Extension<ConnectionGuard>,
    headers: HeaderMap,
    upgrade: Result<WebSocketUpgrade, WebSocketUpgradeRejection>,
) -> Result<Response, ApiError> {
    let upgrade = upgrade.map_err(|why| {
        let message = format!("this address speaks WebSocket: {}", why.body_text());
        ApiError::new(StatusCode::UPGRADE_REQUIRED, "upgrade_required", message)
    })?;
    check_origin(&headers)?;
    let limit = app.max_body_bytes;
    let upgrade = upgrade.max_message_size(limit).max_frame_size(limit);
    Ok(upgrade.on_upgrade(move |socket| async move {
        tokio::select! {
            () = serve(app, socket) => {}
            () = guard.closing() => {}
        }
    }))
}

/// Browsers let any page open a WebSocket anywhere, but say which page it was. Only our own is welcome.
fn check_origin(headers: &HeaderMap) -> Result<(), ApiError> {
    let Some(origin) = headers.get(header::ORIGIN) else { return Ok(()) };
    let host = headers.get(header::HOST).and_then(|host| host.to_str().ok());
    let from = origin.to_str().ok().and_then(|origin| origin.parse::<Uri>().ok());
    let from = from.as_ref().and_then(Uri::authority);
    match (from, host) {
        (Some(from), Some(host)) if from.as_str().eq_ignore_ascii_case(host) => Ok(()),
        _ => {
            let message = "pages of other origins may not connect; open the page of this server, or connect from a \
                           program that sends no Origin header";
            Err(ApiError::new(StatusCode::FORBIDDEN, "origin_not_allowed", message))
        }
    }
}

async fn serve(app: Arc<App>, socket: WebSocket) {
    let (sink, mut source) = socket.split();
    let (out, queue) = mpsc::channel(OUT_QUEUE);
    let mut writer = std::pin::pin!(write(sink, queue));
    let mut session = Session::new(app, out);
    tokio::select! {
        _ = session.run(&mut source) => {}
        // Nobody hears us any more.
        () = &mut writer => return,
    }
    drop(session);
    writer.await;
}

/// Ends when the queue is closed and empty, or the socket fails.
async fn write(mut sink: SplitSink<WebSocket, Message>, mut queue: mpsc::Receiver<Message>) {
    while let Some(message) = queue.recv().await {
        if let Err(error) = sink.send(message).await {
            debug!(%error, "websocket writer ended");
            return;
        }
    }
    // The peer may be gone already.
    let _ = sink.close().await;
}

/// The session is over: the peer is gone, or everything is said.
struct Over;

/// Where the text of the utterance being spoken is.
enum Text {
    /// More may come.
    Open(flume::Sender<String>),
    /// The engine takes no more; the rest is dropped when it says why.
    Refused,
    /// Complete.
    Ended,
}

/// What is being spoken. Dropping it aborts it.
struct Utterance {
    text: Text,
    stream: ResponseStream,
    encoder: StreamEncoder,
    begun: Instant,
    first_audio: Option<Duration>,
    samples: u64,
}

struct Session {
    app: Arc<App>,
    out: mpsc::Sender<Message>,
    config: SessionConfig,
    input: Input,
    current: Option<Utterance>,
    /// Number of the current utterance, or of the last one; 0 before the first.
    utterance: u64,
    /// Set by `session.close`.
    closing: bool,
    heard: Instant,
    unanswered: u32,
}

/// What the session waits for.
enum Wake {
    Incoming(Option<Result<Message, axum::Error>>),
    /// The engine took a piece of text, or will take none.
    Fed(bool),
    Event(Option<(mpsc::OwnedPermit<Message>, Option<Event>)>),
    Ping,
    Idle,
    Stopping,
}

impl Session {
    fn new(app: Arc<App>, out: mpsc::Sender<Message>) -> Session {
        let config = SessionConfig { format: super::audio::AudioFormat::Pcm, speech: SpeechParams::default() };
        let input = Input::new(app.limits.max_input_chars);
        let heard = Instant::now();
        Session { app, out, config, input, current: None, utterance: 0, closing: false, heard, unanswered: 0 }
    }

    async fn run(
        &mut self,
        source: &mut (impl Stream<Item = Result<Message, axum::Error>> + Unpin),
    ) -> Result<(), Over> {
        let mut created = self.config.object(&self.app);
        created["type"] = json!("session.created");
        created["voices"] = json!(self.app.service.info().voices);
        self.tell(&created).await?;
        let mut pings = interval(PING_EVERY);
        pings.set_missed_tick_behavior(MissedTickBehavior::Delay);
        pings.reset(); // the first tick of an interval is immediate
        let stopping = self.app.stopping.clone();
        loop {
            self.begin().await?;
            self.end_text();
            if self.current.is_none() && self.input.next().is_none() {
                if self.closing {
                    self.tell(&json!({ "type": "session.done", "utterances": self.utterance })).await?;
                    return self.close(close_code::NORMAL, "closed by the client").await;
                }
                if stopping.is_cancelled() {
                    return self.close(close_code::AWAY, "the server is shutting down").await;
                }
            }
            let silent = self.current.is_none();
            let (text, stream) = match &mut self.current {
                Some(utterance) => (Some(&utterance.text), Some(&mut utterance.stream)),
                None => (None, None),
            };
            let wake = tokio::select! {
                incoming = source.next() => Wake::Incoming(incoming),
                taken = feed(text, &self.input) => Wake::Fed(taken),
                event = next_event(&self.out, stream) => Wake::Event(event),
                _ = pings.tick() => Wake::Ping,
                () = sleep_until(self.heard + IDLE_LIMIT), if silent => Wake::Idle,
                () = stopping.cancelled(), if !stopping.is_cancelled() => Wake::Stopping,
            };
            match wake {
                Wake::Incoming(incoming) => self.hear(incoming).await?,
                Wake::Fed(taken) => self.fed(taken),
                Wake::Event(Some((permit, event))) => self.pass_on(permit, event),
                Wake::Event(None) => return Err(Over),
                Wake::Ping => self.ping()?,
                Wake::Idle => {
                    let message = format!("nothing was said for {} s", IDLE_LIMIT.as_secs());
                    let error = ApiError::new(StatusCode::REQUEST_TIMEOUT, "idle_timeout", message);
                    self.tell(&error_event(None, &error)).await?;
                    return self.close(close_code::NORMAL, "idle").await;
                }
                Wake::Stopping => {} // looked at above
            }
        }
    }

    /// Begins the next utterance if nothing is being spoken and there is text.
    async fn begin(&mut self) -> Result<(), Over> {
        while self.current.is_none() && matches!(self.input.next(), Some(Next::Text(_))) {
            self.utterance += 1;
            let begun = Instant::now();
            let (sender, receiver) = flume::bounded(TEXT_QUEUE);
            let request = SpeechRequest { text: TextSource::Streamed(receiver), params: self.config.speech.clone() };
            match self.app.service.speak(request).await {
                Ok(stream) => {
                    let encoder = StreamEncoder::new(self.config.format, self.app.service.info().sample_rate);
                    let text = Text::Open(sender);
                    self.current = Some(Utterance { text, stream, encoder, begun, first_audio: None, samples: 0 });
                }
                Err(error) => {
                    self.input.skip_utterance();
                    self.tell(&error_event(Some(self.utterance), &error.into())).await?;
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
            self.input.advance();
        } else if let Some(utterance) = &mut self.current {
            utterance.text = Text::Refused;
        }
    }

    async fn hear(&mut self, incoming: Option<Result<Message, axum::Error>>) -> Result<(), Over> {
        self.unanswered = 0;
        let message = match incoming {
            Some(Ok(message)) => message,
            Some(Err(error)) => return self.broken(&error).await,
            None => return Err(Over),
        };
        if !matches!(message, Message::Ping(_) | Message::Pong(_)) {
            self.heard = Instant::now();
        }
        let text = match message {
            Message::Text(text) => text,
            Message::Binary(_) => {
                let error = ApiError::invalid("type", "messages are JSON in text frames; a binary frame was ignored");
                return self.tell(&error_event(None, &error)).await;
            }
            Message::Ping(_) | Message::Pong(_) => return Ok(()), // answered below us
            Message::Close(_) => return Err(Over),
        };
        match ClientMessage::parse(&text) {
            Err(error) => self.tell(&error_event(None, &error)).await,
            Ok(ClientMessage::Cancel) => self.cancel().await,
            Ok(_) if self.closing => Ok(()),
            Ok(ClientMessage::Config(map)) => self.configure(&map).await,
            Ok(ClientMessage::Text(text)) => match self.input.push_text(text) {
                Ok(()) => Ok(()),
                Err(refused) => self.refuse(&refused).await,
            },
            Ok(ClientMessage::Done) => match self.input.push_end() {
                Ok(()) => Ok(()),
                Err(refused) => self.refuse(&refused).await,
            },
            Ok(ClientMessage::Close) => {
                self.closing = true;
                if self.input.is_open() {
                    // It is open, so there is text.
                    let _ = self.input.push_end();
                }
                Ok(())
            }
        }
    }

    async fn configure(&mut self, map: &Map<String, Value>) -> Result<(), Over> {
        match SessionConfig::parse(&self.app, map) {
            Ok(config) => {
                self.config = config;
                let mut updated = self.config.object(&self.app);
                updated["type"] = json!("session.updated");
                self.tell(&updated).await
            }
            Err(error) => self.tell(&error_event(None, &error)).await,
        }
    }

    async fn refuse(&mut self, refused: &Refused) -> Result<(), Over> {
        let error = match refused {
            Refused::NoText => ApiError::invalid("type", "input.done came without any input.text before it"),
            Refused::TooLong => {
                let limit = self.app.limits.max_input_chars;
                let message = format!("more than {limit} characters in one utterance or waiting; it was dropped");
                ApiError { code: "text_too_long", ..ApiError::invalid("text", message) }
            }
        };
        // Too long a text may be that of the utterance that is being spoken, or of one behind it.
        let speaking = self.current.as_ref().is_some_and(|utterance| !matches!(utterance.text, Text::Ended));
        let concerns_current = *refused == Refused::TooLong && speaking && self.input.next().is_none();
        if concerns_current {
            self.current = None;
        }
        self.tell(&error_event(concerns_current.then_some(self.utterance), &error)).await
    }

    async fn cancel(&mut self) -> Result<(), Over> {
        let stopped = self.current.take();
        self.input.cancel();
        let utterance = stopped.as_ref().map(|_| self.utterance);
        let samples = stopped.map_or(0, |utterance| utterance.samples);
        self.tell(&json!({ "type": "audio.cancelled", "utterance": utterance, "samples": samples })).await
    }

    /// Sends what an event of the current utterance means to the client.
    fn pass_on(&mut self, permit: mpsc::OwnedPermit<Message>, event: Option<Event>) {
        let Some(utterance) = &mut self.current else { return };
        self.unanswered = 0; // the writer took what was there before: somebody reads
        let sample_rate = self.app.service.info().sample_rate;
        let message = match event {
            Some(Event::Started { id, seed }) => json!({
                "type": "audio.start",
                "utterance": self.utterance,
                "request_id": id.to_string(),
                "seed": seed,
                "sample_rate": sample_rate,
                "channels": 1,
                "format": self.config.format.as_str(),
            }),
            Some(Event::Audio(chunk)) => {
                utterance.first_audio.get_or_insert_with(|| utterance.begun.elapsed());
                utterance.samples += chunk.samples.len() as u64;
                permit.send(Message::Binary(utterance.encoder.encode(&chunk.samples).into()));
                return;
            }
            Some(Event::Text(_)) => return,
            Some(Event::Finished { reason, usage }) => {
                let summary = Summary {
                    reason,
                    usage,
                    sample_rate,
                    samples: utterance.samples,
                    first_audio: utterance.first_audio,
                    total: utterance.begun.elapsed(),
                };
                self.finish();
                done_event(self.utterance, &summary)
            }
            Some(Event::Failed(error)) => {
                self.finish();
                error_event(Some(self.utterance), &error.into())
            }
            None => {
                self.finish();
                let error = ApiError::internal("the answer ended before it was complete");
                error_event(Some(self.utterance), &error)
            }
        };
        permit.send(Message::text(message.to_string()));
    }

    /// The current utterance is over, whatever text of it is still to come.
    fn finish(&mut self) {
        self.heard = Instant::now(); // a client that has listened has not been idle
        if let Some(utterance) = self.current.take()
            && !matches!(utterance.text, Text::Ended)
        {
            self.input.skip_utterance();
        }
    }

    fn ping(&mut self) -> Result<(), Over> {
        if self.unanswered >= MAX_UNANSWERED {
            debug!("the client does not answer pings");
            return Err(Over);
        }
        // With a full queue something else keeps the connection busy.
        if self.out.try_send(Message::Ping(Default::default())).is_ok() {
            self.unanswered += 1;
        }
        Ok(())
    }

    /// The connection cannot go on; says why if it was the size of a message.
    async fn broken(&mut self, error: &axum::Error) -> Result<(), Over> {
        debug!(%error, "websocket reader ended");
        self.current = None;
        if error.to_string().contains("too long") {
            let message = format!("a message was larger than {} bytes", self.app.max_body_bytes);
            let error = ApiError::new(StatusCode::PAYLOAD_TOO_LARGE, "message_too_large", message);
            self.tell(&error_event(None, &error)).await?;
            return self.close(close_code::SIZE, "message too large").await;
        }
        Err(Over)
    }

    async fn tell(&self, event: &Value) -> Result<(), Over> {
        self.out.send(Message::text(event.to_string())).await.map_err(|_| Over)
    }

    async fn close(&self, code: u16, reason: &'static str) -> Result<(), Over> {
        let frame = CloseFrame { code, reason: reason.into() };
        // Over either way.
        let _ = self.out.send(Message::Close(Some(frame))).await;
        Err(Over)
    }
}

/// Gives the engine the next piece of text: true if it took it, false if it takes none. Pending while there is none.
async fn feed(text: Option<&Text>, input: &Input) -> bool {
    match (text, input.next()) {
        (Some(Text::Open(sender)), Some(Next::Text(text))) => sender.send_async(text.to_owned()).await.is_ok(),
        _ => std::future::pending().await,
    }
}

/// The next event, once there is room to send what it means. Outer `None`: the writer is gone. Pending while nothing is
/// being spoken.
async fn next_event(
    out: &mpsc::Sender<Message>,
    stream: Option<&mut ResponseStream>,
) -> Option<(mpsc::OwnedPermit<Message>, Option<Event>)> {
    let Some(stream) = stream else { return std::future::pending().await };
    let permit = out.clone().reserve_owned().await.ok()?;
    Some((permit, stream.next().await))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn origin(origin: Option<&str>, host: &str) -> bool {
        let mut headers = HeaderMap::new();
        headers.insert(header::HOST, host.parse().unwrap());
        if let Some(origin) = origin {
            headers.insert(header::ORIGIN, origin.parse().unwrap());
        }
        check_origin(&headers).is_ok()
    }

    #[test]
    fn programs_and_our_own_page_may_connect() {
        assert!(origin(None, "127.0.0.1:8080"));
        assert!(origin(Some("http://127.0.0.1:8080"), "127.0.0.1:8080"));
        assert!(origin(Some("https://Voice.example"), "voice.example"));
    }

    #[test]
    fn other_pages_may_not() {
        for other in
            ["http://evil.example", "http://127.0.0.1:9", "null", "file://", "http://127.0.0.1:8080.evil.example"]
        {
            assert!(!origin(Some(other), "127.0.0.1:8080"), "{other}");
        }
    }
}
