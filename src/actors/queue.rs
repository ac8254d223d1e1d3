//! A bounded queue in front of an actor. Data goes through the queue; one [`Ready`] in the actor's mailbox says that
//! there is some. The windows bound what can wait: a full queue is a bug and ends the actor that met it.
//!
//! Without early hand-off, which exists to measure what it is worth, the news of a step for the scheduler travel behind
//! the step's outputs, through the same queues. Only this file knows of that.

use crate::failure::ActorFailure;
use crate::generation::Peer;
use crate::messages::{Ready, SchedulerMessage};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

/// What is in a queue.
enum Queued<T> {
    /// Data for the reader.
    Item(T),
    /// News that overtake nothing, passed on without the reader.
    News(SchedulerMessage),
}

/// Where the news of a queue go behind its items.
type PassOn = Box<dyn Fn(SchedulerMessage) -> Result<(), ActorFailure> + Send + Sync>;

/// The writing end.
pub(super) struct QueueSender<T> {
    name: &'static str,
    queue: flume::Sender<Queued<T>>,
    reader: Peer<Ready>,
    /// Whether a [`Ready`] is in the reader's mailbox, or the reader has not begun to look: one is enough.
    rung: Arc<AtomicBool>,
}

impl<T> Clone for QueueSender<T> {
    fn clone(&self) -> QueueSender<T> {
        let (queue, reader, rung) = (self.queue.clone(), self.reader.clone(), Arc::clone(&self.rung));
        QueueSender { name: self.name, queue, reader, rung }
    }
}

/// The reading end.
pub(super) struct QueueReceiver<T> {
    queue: flume::Receiver<Queued<T>>,
    rung: Arc<AtomicBool>,
    /// News at the head of the queue.
    held: Option<SchedulerMessage>,
    pass_on: PassOn,
}

/// A queue for `reader`, in which news would be passed on to `pass_on`.
pub(super) fn queue<T>(
    name: &'static str,
    capacity: usize,
    reader: Peer<Ready>,
    pass_on: impl Fn(SchedulerMessage) -> Result<(), ActorFailure> + Send + Sync + 'static,
) -> (QueueSender<T>, QueueReceiver<T>) {
    let (send, receive) = flume::bounded(capacity);
    let rung = Arc::new(AtomicBool::new(false));
    let sender = QueueSender { name, queue: send, reader, rung: Arc::clone(&rung) };
    (sender, QueueReceiver { queue: receive, rung, held: None, pass_on: Box::new(pass_on) })
}

impl<T> QueueSender<T> {
    /// Puts an item in. The reader hears of it with the next [`QueueSender::ring`].
    pub fn put(&self, item: T) -> Result<(), ActorFailure> {
        self.try_put(Queued::Item(item))
    }

    /// Tells the reader that there is something.
    pub fn ring(&self) {
        if !self.rung.swap(true, Ordering::AcqRel) {
            self.reader.tell(Ready);
        }
    }

    /// How many items wait.
    pub fn len(&self) -> usize {
        self.queue.len()
    }

    /// Puts news behind all items that are in the queue, and tells the reader.
    pub fn put_news(&self, news: SchedulerMessage) -> Result<(), ActorFailure> {
        self.try_put(Queued::News(news))?;
        self.ring();
        Ok(())
    }

    /// The supervisor hears of a reader that has ended from the reader, so its closed queue is no failure.
    fn try_put(&self, queued: Queued<T>) -> Result<(), ActorFailure> {
        match self.queue.try_send(queued) {
            Err(flume::TrySendError::Full(_)) => Err(ActorFailure::Queue(self.name)),
            Ok(()) | Err(flume::TrySendError::Disconnected(_)) => Ok(()),
        }
    }
}

impl<T> QueueReceiver<T> {
    /// The reader has heard a [`Ready`] and looks now.
    pub fn heard(&self) {
        // Before it looks: what comes from now on rings again.
        self.rung.swap(false, Ordering::AcqRel);
    }

    /// The next item. The reader is done with all items before it.
    pub fn next(&mut self) -> Result<Option<T>, ActorFailure> {
        loop {
            if let Some(news) = self.held.take() {
                (self.pass_on)(news)?;
            }
            match self.queue.try_recv() {
                Ok(Queued::Item(item)) => return Ok(Some(item)),
                Ok(Queued::News(news)) => self.held = Some(news),
                Err(_) => return Ok(None),
            }
        }
    }

    /// One item more, which the reader handles together with those before it.
    pub fn more(&mut self) -> Option<T> {
        if self.held.is_some() {
            return None;
        }
        match self.queue.try_recv().ok()? {
            Queued::Item(item) => Some(item),
            Queued::News(news) => {
                self.held = Some(news);
                None
            }
        }
    }
}
