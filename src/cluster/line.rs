//! A link of frames between a gateway and a node, both ways.
//!
//! Each end has a thread that sends: Zenoh's sender waits where the network is slower than the stage, and no task or
//! actor may wait so. In front of it is a queue of bounded length, which the sender of payloads waits for. What arrives
//! goes into a queue that is longer than all windows: one that is full ends the link, because Zenoh's receiving thread
//! serves the links of all.
//!
//! A beat goes out when nothing else has for a quarter of the patience, so each end notices when the other is gone,
//! stopped, or cut off in one direction. The end that gives up says so, if it can.

use super::session::ClusterError;
use bytes::Bytes;
use flume::{RecvTimeoutError, WeakSender};
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, OnceLock, PoisonError, Weak};
use std::time::{Duration, Instant};
use zenoh::Session;
use zenoh::Wait;
use zenoh::pubsub::{Publisher, Subscriber};
use zenoh::qos::CongestionControl;
use zenoh::sample::Sample;

/// Frames that wait for the network: enough to keep it busy, few enough that back-pressure shows in front of it.
const OUTGOING: usize = 64;
/// Frames that wait for their receiver, which only passes them on: more than the windows of all requests allow.
const INCOMING: usize = 1 << 16;
/// The number of a beat.
const BEAT: u64 = u64::MAX;
/// The number of a last word, which may say why.
const END: u64 = u64::MAX - 1;
/// Longest reason that is taken from the other side.
const LONGEST_REASON: usize = 200;
/// An end for which there is no more to say.
const CLOSED: &str = "this side has closed the link";

/// Both directions of a link, as one end has them.
pub struct Duplex {
    /// To the other end. Waits where that does not keep up. Dropped, it ends the link behind what was sent.
    pub send: flume::Sender<Bytes>,
    /// From the other end. Ends with the link.
    pub receive: flume::Receiver<Bytes>,
    /// Dropped, it ends the link at once.
    pub line: Line,
}

/// An open link. Dropped, it ends.
pub struct Line(Arc<State>);

impl Line {
    /// Why the link has ended, if it has by itself.
    pub fn reason(&self) -> Option<String> {
        self.0.reason.get().cloned()
    }

    /// Ends the link at once, and tells the other side why.
    pub fn end(&self, reason: &str) {
        self.0.close(reason);
    }
}

impl Drop for Line {
    fn drop(&mut self) {
        self.0.close(CLOSED);
    }
}

/// What threads and callbacks of a link share.
pub(super) struct State {
    made: Instant,
    /// When a frame or a beat came last, in milliseconds since `made`.
    heard: AtomicU64,
    /// Number of the next frame.
    expected: AtomicU64,
    reason: OnceLock<String>,
    /// `None` once the link has ended.
    arrived: Mutex<Option<flume::Sender<Bytes>>>,
    /// In front of the thread that sends, which waits there.
    mouth: OnceLock<WeakSender<Bytes>>,
}

impl State {
    fn new() -> (Arc<State>, flume::Receiver<Bytes>) {
        let (arrived, receive) = flume::bounded(INCOMING);
        let state = State {
            made: Instant::now(),
            heard: AtomicU64::new(0),
            expected: AtomicU64::new(0),
            reason: OnceLock::new(),
            arrived: Mutex::new(Some(arrived)),
            mouth: OnceLock::new(),
        };
        (Arc::new(state), receive)
    }

    /// Ends the link; the first reason stays.
    pub fn close(&self, reason: &str) {
        let _ = self.reason.set(reason.to_owned());
        self.arrived.lock().unwrap_or_else(PoisonError::into_inner).take();
        if let Some(mouth) = self.mouth.get().and_then(WeakSender::upgrade) {
            // One that has no room does not wait there.
            let _ = mouth.try_send(Bytes::new());
        }
    }

    fn is_closed(&self) -> bool {
        self.reason.get().is_some()
    }

    fn since_made(&self) -> u64 {
        u64::try_from(self.made.elapsed().as_millis()).unwrap_or(u64::MAX)
    }

    fn silent(&self) -> Duration {
        Duration::from_millis(self.since_made().saturating_sub(self.heard.load(Ordering::Relaxed)))
    }

    /// Zenoh's receiving thread calls this: it must not wait.
    fn take(&self, number: Option<u64>, frame: impl FnOnce() -> Bytes) {
        self.heard.store(self.since_made(), Ordering::Relaxed);
        let expected = self.expected.load(Ordering::Relaxed);
        match number {
            Some(BEAT) => {}
            Some(END) => self.close(&ended(&frame())),
            Some(number) if number == expected => {
                self.expected.store(expected + 1, Ordering::Relaxed);
                let arrived = self.arrived.lock().unwrap_or_else(PoisonError::into_inner).clone();
                if arrived.is_some_and(|arrived| arrived.try_send(frame()).is_err()) {
                    self.close("frames came faster than they were taken");
                }
            }
            number => self.close(&format!("frame {number:?} came where {expected} was due")),
        }
    }
}

/// What the other side's last word means.
fn ended(word: &[u8]) -> String {
    let said = String::from_utf8_lossy(&word[..word.len().min(LONGEST_REASON)]);
    let closed = "the other side has closed the link";
    if said.is_empty() { closed.to_owned() } else { format!("{closed}: {said}") }
}

/// The end of a link that hears already and does not speak yet.
pub(super) struct Ear {
    state: Arc<State>,
    receive: flume::Receiver<Bytes>,
    subscriber: Subscriber<()>,
}

impl Ear {
    pub async fn open(session: &Session, key: String) -> Result<Ear, ClusterError> {
        let (state, receive) = State::new();
        let told = Arc::clone(&state);
        let hear = move |sample: Sample| {
            let number = sample.attachment().and_then(|bytes| bytes.to_bytes().as_ref().try_into().ok());
            told.take(number.map(u64::from_le_bytes), || Bytes::from(sample.payload().to_bytes().into_owned()));
        };
        let subscriber = session.declare_subscriber(key).callback(hear).await?;
        Ok(Ear { state, receive, subscriber })
    }

    /// Begins to speak. `silence` is how long the other end may say nothing.
    pub async fn speak(
        self,
        session: &Session,
        key: String,
        silence: Duration,
    ) -> Result<(Duplex, Arc<State>), ClusterError> {
        let Ear { state, receive, subscriber } = self;
        let (send, outgoing) = flume::bounded(OUTGOING);
        // Without batching: a frame that waits for others is a frame that comes late.
        let publisher =
            session.declare_publisher(key).congestion_control(CongestionControl::Block).express(true).await?;
        let (line, kept) = (Line(Arc::clone(&state)), Arc::clone(&state));
        let _ = state.mouth.set(send.downgrade());
        // From here on both ends beat.
        state.heard.store(state.since_made(), Ordering::Relaxed);
        let thread = std::thread::Builder::new().name("cluster-link".to_owned());
        let speak = move || Mouth { state, publisher, outgoing, silence, _subscriber: subscriber }.speak();
        thread.spawn(speak).map_err(|error| ClusterError::Session(format!("no thread for a link: {error}")))?;
        Ok((Duplex { send, receive, line }, kept))
    }
}

/// The thread that sends.
struct Mouth {
    state: Arc<State>,
    publisher: Publisher<'static>,
    outgoing: flume::Receiver<Bytes>,
    silence: Duration,
    _subscriber: Subscriber<()>,
}

impl Mouth {
    fn speak(self) {
        let beat = self.silence / 4;
        let mut number = 0;
        if let Err(reason) = self.wait_for_a_listener() {
            self.state.close(&reason);
        }
        while !self.state.is_closed() {
            let sent = match self.outgoing.recv_timeout(beat) {
                // It was only woken.
                Ok(frame) if frame.is_empty() && self.state.is_closed() => break,
                Ok(frame) => {
                    number += 1;
                    self.put(frame, number - 1)
                }
                Err(RecvTimeoutError::Timeout) => self.put(Bytes::new(), BEAT),
                Err(RecvTimeoutError::Disconnected) => {
                    self.state.close(CLOSED);
                    Ok(())
                }
            };
            if let Err(error) = sent {
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

    fn put(&self, frame: Bytes, number: u64) -> Result<(), zenoh::Error> {
        self.publisher.put(frame).attachment(&number.to_le_bytes()[..]).wait()
    }
}

/// The open links to each of the others, which end when the other is gone.
#[derive(Default)]
pub(super) struct Lines(Mutex<BTreeMap<String, Vec<Weak<State>>>>);

impl Lines {
    pub fn add(&self, with: &str, state: &Arc<State>) {
        let mut lines = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let its = lines.entry(with.to_owned()).or_default();
        its.retain(|state| state.strong_count() > 0);
        its.push(Arc::downgrade(state));
    }

    /// Ends those with one that is gone.
    pub fn gone(&self, with: &str) {
        let its = self.0.lock().unwrap_or_else(PoisonError::into_inner).remove(with);
        for state in its.into_iter().flatten().filter_map(|state| state.upgrade()) {
            state.close("the connection to the other side is gone");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn taken(numbers: &[u64]) -> (usize, Option<String>) {
        let (state, receive) = State::new();
        numbers.iter().for_each(|number| state.take(Some(*number), || Bytes::from_static(b"frame")));
        (receive.len(), state.reason.get().cloned())
    }

    #[test]
    fn a_gap_ends_the_link_and_a_beat_is_no_frame() {
        assert_eq!(taken(&[0, BEAT, 1, 2]), (3, None));
        let (frames, reason) = taken(&[0, 2, 1]);
        assert_eq!((frames, reason.unwrap().as_str()), (1, "frame Some(2) came where 1 was due"));
        assert_eq!(taken(&[0, 0]).0, 1, "a frame that comes twice");
        assert_eq!(taken(&[0, END]).1.unwrap(), "the other side has closed the link: frame");
        assert_eq!(ended(b""), "the other side has closed the link");
        assert!(ended(&[b'x'; 1 << 20]).len() < 2 * LONGEST_REASON);
        assert_eq!(taken(&[END, 0]).0, 0, "what comes behind the end");
    }

    #[test]
    fn a_receiver_that_does_not_take_ends_its_link_and_keeps_no_thread_waiting() {
        let (state, receive) = State::new();
        for number in 0..=INCOMING as u64 {
            state.take(Some(number), Bytes::new);
        }
        assert_eq!(receive.len(), INCOMING);
        assert_eq!(state.reason.get().unwrap(), "frames came faster than they were taken");
    }
}
