//! A link of frames between a gateway and a node, both ways.
//!
//! No more than [`WINDOW`] bytes of a link are on the way: an end says how much it has taken, and the other one waits
//! for that before it sends more. So what is sent to a side that takes nothing, because it is dead, stopped or cut off,
//! fits in front of its connection, and Zenoh does not wait there. It would hold locks meanwhile, which the one thread that
//! sends to everybody takes when the connection is closed: all others would hear nothing of this side.
//!
//! A frame goes as parts of bounded length. Each end has a thread that sends them, and in front of it a queue of bounded
//! length, which the sender of payloads waits for. What arrives goes into a queue that is longer than all windows of
//! requests: one that is full ends the link, because Zenoh's receiving thread serves the links of all.
//!
//! A beat goes out when nothing else has for a quarter of the patience, so each end notices when the other is gone,
//! stopped, or cut off in one direction. The end that gives up says so, if it can.

mod mouth;

use super::session::ClusterError;
use bytes::Bytes;
use mouth::Mouth;
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError, Weak};
use std::time::{Duration, Instant};
use zenoh::Session;
use zenoh::pubsub::Subscriber;
use zenoh::qos::CongestionControl;
use zenoh::sample::Sample;

/// Frames that wait for the network: enough to keep it busy, few enough that back-pressure shows in front of it.
pub(super) const OUTGOING: usize = 64;
/// Frames that wait for their receiver, which only passes them on: more than the windows of all requests allow.
const INCOMING: usize = 1 << 16;
/// Bytes of a link that are on the way at most. A gateway has up to four links with a node, one for each stage, and all
/// that is on the way of them has to fit in front of a connection that takes nothing: 1.25 MB, of which an eighth may be
/// used up, that QUIC takes, and 16 batches of 64 KiB, of which a fifth may stay empty, that Zenoh keeps.
pub(super) const WINDOW: u64 = 448 << 10;
/// How much may be taken before the other end is told.
const TOLD: u64 = WINDOW / 4;
/// Bytes of a frame that go together. With what is around them they fit into a batch, and seldom leave much of one empty.
const PART: usize = 15 << 10;
/// What a part counts for besides its bytes: more than Zenoh and this module put around it.
const AROUND: u64 = 128;
/// The longest frame that is taken: what Zenoh takes, too.
const LONGEST_FRAME: usize = 1 << 30;
/// In the number of a part: more of its frame follow.
const MORE: u64 = 1 << 63;
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

/// What is sent with each part.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Mark {
    /// Of the part.
    number: u64,
    /// How much the end that sends it has taken since the link is open.
    taken: u64,
}

impl Mark {
    fn write(self) -> [u8; 16] {
        (u128::from(self.number) | u128::from(self.taken) << 64).to_le_bytes()
    }

    fn read(bytes: &[u8]) -> Option<Mark> {
        let both = u128::from_le_bytes(bytes.try_into().ok()?);
        Some(Mark { number: both as u64, taken: (both >> 64) as u64 })
    }
}

/// What a part counts for in the window.
fn weight(part: usize) -> u64 {
    AROUND + part as u64
}

/// What threads and callbacks of a link share.
pub(super) struct State {
    made: Instant,
    /// When a part or a beat came last, in milliseconds since `made`.
    heard: AtomicU64,
    /// Number of the next part.
    expected: AtomicU64,
    /// How much has come.
    taken: AtomicU64,
    /// How much of that the other end has been told.
    told: AtomicU64,
    /// How much the other end has taken.
    passed: AtomicU64,
    /// The thread that sends waits for the other end to take more.
    starved: AtomicBool,
    reason: OnceLock<String>,
    /// `None` once the link has ended.
    arrived: Mutex<Option<Arrived>>,
    /// Wakes the thread that sends.
    wake: flume::Sender<()>,
}

/// Where frames go that have come.
struct Arrived {
    to: flume::Sender<Bytes>,
    /// The beginning of a frame of several parts.
    begun: Vec<u8>,
}

impl State {
    /// What comes on the link, and what wakes the thread that sends.
    fn new() -> (Arc<State>, flume::Receiver<Bytes>, flume::Receiver<()>) {
        let (to, receive) = flume::bounded(INCOMING);
        let (wake, woken) = flume::bounded(1);
        let state = State {
            made: Instant::now(),
            heard: AtomicU64::new(0),
            expected: AtomicU64::new(0),
            taken: AtomicU64::new(0),
            told: AtomicU64::new(0),
            passed: AtomicU64::new(0),
            starved: AtomicBool::new(false),
            reason: OnceLock::new(),
            arrived: Mutex::new(Some(Arrived { to, begun: Vec::new() })),
            wake,
        };
        (Arc::new(state), receive, woken)
    }

    /// Ends the link; the first reason stays.
    pub fn close(&self, reason: &str) {
        let _ = self.reason.set(reason.to_owned());
        self.arrived().take();
        self.wake();
    }

    fn is_closed(&self) -> bool {
        self.reason.get().is_some()
    }

    fn arrived(&self) -> MutexGuard<'_, Option<Arrived>> {
        self.arrived.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn wake(&self) {
        // Where there is no room it will wake.
        let _ = self.wake.try_send(());
    }

    fn since_made(&self) -> u64 {
        u64::try_from(self.made.elapsed().as_millis()).unwrap_or(u64::MAX)
    }

    fn silent(&self) -> Duration {
        Duration::from_millis(self.since_made().saturating_sub(self.heard.load(Ordering::Relaxed)))
    }

    /// Whether the other end should hear how much this one has taken.
    fn owes(&self) -> bool {
        self.taken.load(Ordering::Relaxed) - self.told.load(Ordering::Relaxed) >= TOLD
    }

    /// Zenoh's receiving thread calls this: it must not wait.
    fn take(&self, mark: Option<Mark>, part: impl FnOnce() -> Bytes) {
        self.heard.store(self.since_made(), Ordering::Relaxed);
        if let Some(Mark { taken, .. }) = mark {
            self.passed.fetch_max(taken, Ordering::SeqCst);
            if self.starved.swap(false, Ordering::SeqCst) {
                self.wake();
            }
        }
        let expected = self.expected.load(Ordering::Relaxed);
        match mark.map(|mark| mark.number) {
            Some(BEAT) => {}
            Some(END) => self.close(&ended(&part())),
            Some(number) if number & !MORE == expected => {
                self.expected.store(expected + 1, Ordering::Relaxed);
                let part = part();
                self.taken.fetch_add(weight(part.len()), Ordering::Relaxed);
                if let Err(reason) = self.arrives(part, number & MORE != 0) {
                    self.close(reason);
                }
                if self.owes() {
                    self.wake();
                }
            }
            number => self.close(&format!("part {number:?} came where {expected} was due")),
        }
    }

    fn arrives(&self, part: Bytes, more: bool) -> Result<(), &'static str> {
        let mut arrived = self.arrived();
        let Some(Arrived { to, begun }) = &mut *arrived else { return Ok(()) };
        if begun.len() + part.len() > LONGEST_FRAME {
            return Err("a frame came that is longer than any can be");
        }
        if more || !begun.is_empty() {
            begun.extend_from_slice(&part);
        }
        let frame = match (more, begun.is_empty()) {
            (true, _) => return Ok(()),
            (false, true) => part,
            (false, false) => std::mem::take(begun).into(),
        };
        to.try_send(frame).map_err(|_| "frames came faster than they were taken")
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
    woken: flume::Receiver<()>,
    subscriber: Subscriber<()>,
}

impl Ear {
    pub async fn open(session: &Session, key: String) -> Result<Ear, ClusterError> {
        let (state, receive, woken) = State::new();
        let told = Arc::clone(&state);
        let hear = move |sample: Sample| {
            let mark = sample.attachment().and_then(|bytes| Mark::read(&bytes.to_bytes()));
            told.take(mark, || Bytes::from(sample.payload().to_bytes().into_owned()));
        };
        let subscriber = session.declare_subscriber(key).callback(hear).await?;
        Ok(Ear { state, receive, woken, subscriber })
    }

    /// Begins to speak. `silence` is how long the other end may say nothing.
    pub async fn speak(
        self,
        session: &Session,
        key: String,
        silence: Duration,
    ) -> Result<(Duplex, Arc<State>), ClusterError> {
        let Ear { state, receive, woken, subscriber } = self;
        let (send, outgoing) = flume::bounded(OUTGOING);
        let publisher = session.declare_publisher(key).congestion_control(CongestionControl::Block).await?;
        let (line, kept) = (Line(Arc::clone(&state)), Arc::clone(&state));
        // From here on both ends beat.
        state.heard.store(state.since_made(), Ordering::Relaxed);
        let thread = std::thread::Builder::new().name("cluster-link".to_owned());
        let mouth = Mouth::new(state, publisher, (outgoing, woken), silence, subscriber);
        thread
            .spawn(move || mouth.speak())
            .map_err(|error| ClusterError::Session(format!("no thread for a link: {error}")))?;
        Ok((Duplex { send, receive, line }, kept))
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

    fn mark(number: u64) -> Option<Mark> {
        Some(Mark { number, taken: 0 })
    }

    fn taken(numbers: &[u64]) -> (usize, Option<String>) {
        let (state, receive, _woken) = State::new();
        numbers.iter().for_each(|number| state.take(mark(*number), || Bytes::from_static(b"frame")));
        (receive.len(), state.reason.get().cloned())
    }

    #[test]
    fn a_gap_ends_the_link_and_a_beat_is_no_frame() {
        assert_eq!(taken(&[0, BEAT, 1, 2]), (3, None));
        let (frames, reason) = taken(&[0, 2, 1]);
        assert_eq!((frames, reason.unwrap().as_str()), (1, "part Some(2) came where 1 was due"));
        assert_eq!(taken(&[0, 0]).0, 1, "a frame that comes twice");
        assert_eq!(taken(&[0, END]).1.unwrap(), "the other side has closed the link: frame");
        assert_eq!(ended(b""), "the other side has closed the link");
        assert!(ended(&[b'x'; 1 << 20]).len() < 2 * LONGEST_REASON);
        assert_eq!(taken(&[END, 0]).0, 0, "what comes behind the end");
    }

    #[test]
    fn a_frame_is_whole_when_its_last_part_has_come() {
        let (state, receive, _woken) = State::new();
        for (number, part) in [(MORE, "one "), (1 | MORE, "two "), (2, "three"), (3, ""), (4, "four")] {
            state.take(mark(number), || Bytes::from_static(part.as_bytes()));
        }
        assert_eq!(receive.drain().collect::<Vec<_>>(), ["one two three", "", "four"]);
        assert_eq!(taken(&[MORE, MORE | 1, 3]).1.unwrap(), "part Some(3) came where 2 was due");
    }

    #[test]
    fn what_is_sent_with_a_part_is_read_again_and_nothing_else_is() {
        let mark = Mark { number: 7 | MORE, taken: u64::MAX - 5 };
        assert_eq!(Mark::read(&mark.write()), Some(mark));
        assert_eq!((Mark::read(b""), Mark::read(&[0; 8])), (None, None));
    }

    #[test]
    fn the_thread_that_sends_is_woken_to_tell_what_was_taken_and_when_the_other_end_has_taken_more() {
        let (state, _receive, woken) = State::new();
        let parts = TOLD.div_ceil(weight(PART));
        for number in 0..parts {
            assert!(woken.is_empty() && !state.owes(), "at part {number} of {parts}");
            state.take(mark(number), || Bytes::from_static(&[0; PART]));
        }
        assert!(state.owes() && woken.try_recv().is_ok());
        state.take(mark(BEAT), Bytes::new);
        assert!(woken.is_empty(), "it waits for nothing");
        state.starved.store(true, Ordering::SeqCst);
        state.take(Some(Mark { number: BEAT, taken: 9 }), Bytes::new);
        assert!(woken.try_recv().is_ok() && state.passed.load(Ordering::SeqCst) == 9);
        state.take(Some(Mark { number: BEAT, taken: 5 }), Bytes::new);
        assert_eq!(state.passed.load(Ordering::SeqCst), 9, "an old word");
    }

    #[test]
    fn a_receiver_that_does_not_take_ends_its_link_and_keeps_no_thread_waiting() {
        let (state, receive, _woken) = State::new();
        for number in 0..=INCOMING as u64 {
            state.take(mark(number), Bytes::new);
        }
        assert_eq!(receive.len(), INCOMING);
        assert_eq!(state.reason.get().unwrap(), "frames came faster than they were taken");
    }
}
