//! One utterance of a WebSocket session, and the two things that the session waits for while it is spoken: the engine
//! taking text, and room for the next message.

use super::feed::Feed;
use super::ws_input::{Input, Next};
use omni_audio::{AudioFormat, AudioWriter};
use omni_engine::{Event, ResponseStream};
use std::time::Duration;
use tokio::sync::mpsc;
use tokio::time::Instant;

/// Where the text of the utterance being spoken is.
pub(super) enum Text {
    /// More may come.
    Open(Feed),
    /// The engine takes no more; the session drops the rest when the engine says why.
    Refused,
    /// Complete.
    Ended,
}

/// What is being spoken. Dropping it aborts it.
pub(super) struct Utterance {
    pub text: Text,
    pub stream: ResponseStream,
    /// The format of `writer`. A `session.config` meanwhile is for the next utterance.
    pub format: AudioFormat,
    pub writer: AudioWriter,
    pub begun: Instant,
    pub first_audio: Option<Duration>,
    /// Bytes of audio sent.
    pub bytes: u64,
    /// Its text until it begins, for the event that says so.
    pub spoken: String,
    /// Whether that event has been sent.
    pub started: bool,
}

impl Utterance {
    pub fn new(text: Text, format: AudioFormat, writer: AudioWriter, stream: ResponseStream) -> Utterance {
        let (spoken, started) = (String::new(), false);
        Utterance { text, stream, format, writer, begun: Instant::now(), first_audio: None, bytes: 0, spoken, started }
    }
}

/// What goes to the client next.
pub(super) enum Upcoming {
    /// One of the last messages of an utterance.
    Parting,
    Event(Option<Event>),
}

/// Gives the engine the next piece of text: true if it took it, false if it takes none. Pending while there is none.
pub(super) async fn feed(text: Option<&mut Text>, input: &Input) -> bool {
    match (text, input.next()) {
        (Some(Text::Open(feed)), Some(Next::Text(text))) => feed.give(text).await,
        _ => std::future::pending().await,
    }
}

/// Waits for room in the queue to the client, then for what goes there. `None`: the writer is gone. Pending while there
/// is nothing to send.
pub(super) async fn next_outgoing<T>(
    out: &mpsc::Sender<T>,
    parting: bool,
    stream: Option<&mut ResponseStream>,
) -> Option<(mpsc::OwnedPermit<T>, Upcoming)> {
    if !parting && stream.is_none() {
        return std::future::pending().await;
    }
    let permit = out.clone().reserve_owned().await.ok()?;
    match stream {
        Some(stream) if !parting => Some((permit, Upcoming::Event(stream.next().await))),
        _ => Some((permit, Upcoming::Parting)),
    }
}
