//! The thread of a link that sends: parts of frames while there is room, and otherwise how much has come.

use super::{BEAT, CLOSED, END, MORE, Mark, PART, State, WINDOW, weight};
use bytes::Bytes;
use flume::Selector;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};
use zenoh::Wait;
use zenoh::pubsub::{Publisher, Subscriber};

/// See the module.
pub(super) struct Mouth {
    state: Arc<State>,
    publisher: Publisher<'static>,
    outgoing: flume::Receiver<Bytes>,
    woken: flume::Receiver<()>,
    silence: Duration,
    /// What is not sent yet of a frame.
    rest: Option<Bytes>,
    /// Number of the next part.
    next: u64,
    /// How much was sent.
    sent: u64,
    /// When something was sent last.
    last: Instant,
    _subscriber: Subscriber<()>,
}

/// What the thread that sends waits for.
enum Heard {
    Frame(Bytes),
    /// The link has ended, the other end has taken more, or should hear how much this one has.
    Woken,
    /// The other end should hear that this one is there.
    Beat,
    /// There will be no other frame.
    Last,
}

impl Mouth {
    pub fn new(
        state: Arc<State>,
        publisher: Publisher<'static>,
        (outgoing, woken): (flume::Receiver<Bytes>, flume::Receiver<()>),
        silence: Duration,
        subscriber: Subscriber<()>,
    ) -> Mouth {
        let (rest, next, sent, last) = (None, 0, 0, Instant::now());
        Mouth { state, publisher, outgoing, woken, silence, rest, next, sent, last, _subscriber: subscriber }
    }

    /// Until the link has ended.
    pub fn speak(mut self) {
        if let Err(reason) = self.wait_for_a_listener() {
            self.state.close(&reason);
        }
        while !self.state.is_closed() {
            if let Err(error) = self.step() {
                self.state.close(&format!("nothing can be sent: {error}"));
            }
            let silent = self.state.silent();
            if silent > self.silence {
                self.state.close(&format!("nothing was heard for {:.1} s", silent.as_secs_f64()));
            }
        }
        // What was sent before the end is sent; what waits behind a link that broke has no receiver.
        let reason = self.state.reason.get().filter(|reason| *reason != CLOSED).cloned().unwrap_or_default();
        let _ = self.put(reason.into(), END);
    }

    /// Sends one part, or waits for something to do.
    fn step(&mut self) -> Result<(), zenoh::Error> {
        let part = self.rest.as_ref().map(|rest| rest.len().min(PART));
        if let Some(part) = part.filter(|part| self.has_room(weight(*part))) {
            return self.send(part);
        }
        match self.wait() {
            Heard::Frame(frame) => self.rest = Some(frame),
            Heard::Woken if !self.state.owes() => {}
            Heard::Woken | Heard::Beat => return self.put(Bytes::new(), BEAT),
            Heard::Last => self.state.close(CLOSED),
        }
        Ok(())
    }

    /// Sends so many bytes of the frame that is on its way.
    fn send(&mut self, length: usize) -> Result<(), zenoh::Error> {
        let mut rest = self.rest.take().unwrap_or_default();
        let part = rest.split_to(length);
        let more = if rest.is_empty() { 0 } else { MORE };
        let number = self.next | more;
        self.next += 1;
        self.sent += weight(length);
        self.rest = (more != 0).then_some(rest);
        self.put(part, number)
    }

    /// Whether a part of this weight may go. If not, this thread is woken when the other end has taken more.
    fn has_room(&self, weight: u64) -> bool {
        let fits = || self.sent + weight <= self.state.passed.load(Ordering::SeqCst).saturating_add(WINDOW);
        if fits() {
            return true;
        }
        self.state.starved.store(true, Ordering::SeqCst);
        // It may have taken more just before.
        fits()
    }

    fn wait(&self) -> Heard {
        let due = self.last + self.silence / 4;
        if self.rest.is_some() {
            return self.woken.recv_deadline(due).map_or(Heard::Beat, |()| Heard::Woken);
        }
        if let Ok(frame) = self.outgoing.try_recv() {
            return Heard::Frame(frame);
        }
        let frame = |frame: Result<Bytes, _>| frame.map_or(Heard::Last, Heard::Frame);
        let either = Selector::new().recv(&self.outgoing, frame).recv(&self.woken, |_| Heard::Woken);
        either.wait_deadline(due).unwrap_or(Heard::Beat)
    }

    /// What is sent before the other end is known to listen is sent to nobody.
    fn wait_for_a_listener(&self) -> Result<(), String> {
        let changes = self.publisher.matching_listener().wait().map_err(|error| error.to_string())?;
        let deadline = Instant::now() + self.silence;
        loop {
            let status = self.publisher.matching_status().wait().map_err(|error| error.to_string())?;
            if status.matching() || self.state.is_closed() {
                return Ok(());
            }
            match changes.recv_deadline(deadline) {
                Ok(Some(_)) => {}
                Ok(None) | Err(_) => return Err("the other side does not listen".to_owned()),
            }
        }
    }

    fn put(&mut self, part: Bytes, number: u64) -> Result<(), zenoh::Error> {
        let taken = self.state.taken.load(Ordering::Relaxed);
        self.state.told.store(taken, Ordering::Relaxed);
        self.last = Instant::now();
        self.publisher.put(part).attachment(&Mark { number, taken }.write()[..]).wait()
    }
}
