//! The answer to a request, as its client reads it.

use super::admission::Watch;
use super::api::{Event, MediaTokens, RequestError};
use std::sync::{Arc, OnceLock};
use std::time::Duration;
use tokio::time::Instant;

/// The answer to a request, event by event. Dropping it aborts the request and frees all it held. Not reading it pauses
/// this request alone.
pub struct ResponseStream {
    events: flume::Receiver<Event>,
    listener: Box<dyn Listener>,
    /// The event that a client which is slow on purpose takes next, and when.
    hesitating: Option<(Event, Instant)>,
    /// Of a request that was admitted.
    watch: Option<Watch>,
    life: Option<Life>,
    expired: Expired,
    /// What the stream keeps alive.
    _kept: Vec<Box<dyn Send + Sync>>,
    /// What of its prompt is media.
    media: MediaTokens,
}

/// How long a stream lasts.
struct Life {
    lasts: Duration,
    over: Instant,
    /// Events that had come when it was seen to be over and are still to be heard.
    left: Option<usize>,
}

/// Set by a stream that ended itself, with its life. The producer of the stream sees only that its client has left;
/// this tells the ledger that the request timed out.
pub(super) type Expired = Arc<OnceLock<Duration>>;

/// The engine's view of the reader of a [`ResponseStream`]. Dropped with the stream.
pub trait Listener: Send + Sync {
    /// An event was taken out of the stream.
    fn read(&self, event: &Event);

    /// For how long the reader waits before it takes the next event: a client that is slow on purpose.
    fn hesitates(&self, _: &Event) -> Option<Duration> {
        None
    }
}

impl std::fmt::Debug for ResponseStream {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("ResponseStream").field("waiting", &self.events.len()).finish()
    }
}

impl ResponseStream {
    /// A stream of `events`. Dropping the stream drops `alive`, which is all that its producer learns.
    pub fn new(events: flume::Receiver<Event>, alive: impl Send + Sync + 'static) -> ResponseStream {
        ResponseStream::heard_by(events, Alive(alive))
    }

    /// A stream of `events` whose producer follows the reading of it.
    pub fn heard_by(events: flume::Receiver<Event>, listener: impl Listener + 'static) -> ResponseStream {
        let expired = Expired::default();
        ResponseStream {
            events,
            listener: Box::new(listener),
            hesitating: None,
            watch: None,
            life: None,
            expired,
            _kept: Vec::new(),
            media: MediaTokens::default(),
        }
    }

    /// Keeps something as long as the stream is there.
    pub(super) fn keeping(mut self, kept: impl Send + Sync + 'static) -> ResponseStream {
        self._kept.push(Box::new(kept));
        self
    }

    /// Tells in the usage what of the prompt is media.
    pub(super) fn counting(self, media: MediaTokens) -> ResponseStream {
        ResponseStream { media, ..self }
    }

    /// Tells admission what is heard.
    pub(super) fn watched(self, watch: Watch) -> ResponseStream {
        ResponseStream { watch: Some(watch), ..self }
    }

    /// Ends the stream after so long from now with [`RequestError::TimedOut`], and sets `expired`. The reader gets the
    /// events that had come by then first.
    pub(super) fn lasting(self, lasts: Option<Duration>, expired: Expired) -> ResponseStream {
        let life = lasts.and_then(|lasts| Some(Life { lasts, over: Instant::now().checked_add(lasts)?, left: None }));
        ResponseStream { life, expired, ..self }
    }

    /// The next event; `None` after [`Event::Finished`] or [`Event::Failed`].
    pub async fn next(&mut self) -> Option<Event> {
        // A reader that drops this future and calls again gets the event that was waiting before.
        if self.hesitating.is_none() {
            let event = self.arrival().await?;
            let Some(pause) = self.listener.hesitates(&event) else { return Some(self.read(event)) };
            self.hesitating = Some((event, Instant::now() + pause));
        }
        if let Some((_, until)) = &self.hesitating {
            tokio::time::sleep_until(*until).await;
        }
        let (event, _) = self.hesitating.take()?;
        Some(self.read(event))
    }

    /// The next event, as soon as it is there.
    async fn arrival(&mut self) -> Option<Event> {
        if self.outlived() {
            return Some(self.time_out());
        }
        match self.events.try_recv() {
            Ok(event) => return Some(event),
            Err(flume::TryRecvError::Disconnected) => return None,
            Err(flume::TryRecvError::Empty) => {}
        }
        if let Some(watch) = &self.watch {
            watch.waits();
        }
        let Some(Life { over, .. }) = self.life else { return self.events.recv_async().await.ok() };
        match tokio::time::timeout_at(over, self.events.recv_async()).await {
            Ok(event) => event.ok(),
            Err(_) => Some(self.time_out()),
        }
    }

    /// Whether its life is over and the events that had come by then were read. Neither a producer that always has one
    /// more event ready nor a slow reader prolongs it.
    fn outlived(&mut self) -> bool {
        let Some(life) = &mut self.life else { return false };
        if Instant::now() < life.over {
            return false;
        }
        let left = life.left.get_or_insert(self.events.len());
        let none = *left == 0;
        *left = left.saturating_sub(1);
        // A stream that has ended already does not end again.
        none && !(self.events.is_empty() && self.events.is_disconnected())
    }

    fn read(&self, mut event: Event) -> Event {
        if let Event::Finished { usage, .. } = &mut event {
            usage.media = self.media;
        }
        self.listener.read(&event);
        if let Some(watch) = &self.watch {
            watch.heard(&event);
        }
        event
    }

    /// Frees all it held.
    fn time_out(&mut self) -> Event {
        let lasts = self.life.take().map(|life| life.lasts).unwrap_or_default();
        let _ = self.expired.set(lasts);
        self.events = flume::bounded(0).1;
        self.listener = Box::new(Alive(()));
        self.watch = None;
        Event::Failed(RequestError::TimedOut(lasts))
    }
}

struct Alive<T>(#[allow(dead_code, reason = "held for its Drop")] T);

impl<T: Send + Sync> Listener for Alive<T> {
    fn read(&self, _: &Event) {}
}

#[cfg(test)]
mod tests {
    use super::*;

    const LIFE: Duration = Duration::from_secs(3);

    fn word(word: &str) -> Event {
        Event::Text(word.into())
    }

    /// What comes next, to be compared.
    async fn next(stream: &mut ResponseStream) -> String {
        format!("{:?}", stream.next().await)
    }

    fn some(event: Event) -> String {
        format!("{:?}", Some(event))
    }

    fn too_late() -> String {
        some(Event::Failed(RequestError::TimedOut(LIFE)))
    }

    fn stream() -> (flume::Sender<Event>, ResponseStream, Expired) {
        let (send, events) = flume::bounded(4);
        let expired = Expired::default();
        (send, ResponseStream::new(events, ()).lasting(Some(LIFE), Arc::clone(&expired)), expired)
    }

    #[tokio::test(start_paused = true)]
    async fn what_had_come_when_its_life_was_over_is_heard_and_nothing_that_came_later() {
        let (send, mut stream, expired) = stream();
        send.send(word("one")).unwrap();
        send.send(word("two")).unwrap();
        tokio::time::advance(LIFE).await;
        for due in ["one", "two"] {
            assert_eq!(next(&mut stream).await, some(word(due)));
            // The producer always has one more.
            send.send(word("late")).unwrap();
        }
        assert_eq!(next(&mut stream).await, too_late());
        assert!(stream.next().await.is_none());
        assert_eq!(expired.get(), Some(&LIFE));
        assert!(send.is_disconnected(), "the producer is told");
    }

    #[tokio::test(start_paused = true)]
    async fn a_waiting_reader_is_told_in_time() {
        let (_send, mut stream, expired) = stream();
        let begun = Instant::now();
        assert_eq!(next(&mut stream).await, too_late());
        assert_eq!((begun.elapsed(), expired.get()), (LIFE, Some(&LIFE)));
    }

    #[tokio::test(start_paused = true)]
    async fn a_stream_that_ended_before_stays_ended() {
        let (send, mut stream, expired) = stream();
        send.send(word("one")).unwrap();
        drop(send);
        tokio::time::advance(LIFE).await;
        assert_eq!(next(&mut stream).await, some(word("one")));
        assert!(stream.next().await.is_none());
        assert_eq!(expired.get(), None);
    }
}
