//! The client of one request: reads its stream as it was told to, and compares every sample with what it has to get.

use super::model::{Expected, SAMPLES};
use super::scenario::Manner;
use crate::api::{Event, RequestError, ResponseStream};
use crate::plan::FollowedText;
use crate::stream::Expired;
use futures::future::BoxFuture;
use omni_core::ids::{FinishReason, RequestId};
use std::collections::VecDeque;
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll, Wake, Waker};
use std::time::Duration;

/// How a request ended for its client.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum End {
    Finished,
    Failed(RequestError),
    Left,
    Expired,
}

/// Clients whose stream has something for them.
pub(super) type Woken = Arc<Mutex<Vec<usize>>>;

struct Bell(usize, Woken);

impl Wake for Bell {
    fn wake(self: Arc<Self>) {
        super::edges::lock(&self.1).push(self.0);
    }
}

/// See the module.
pub(super) struct Client {
    /// Which script of the scenario it follows.
    pub script: usize,
    pub request: RequestId,
    pub end: Option<End>,
    pub accepted: Duration,
    pub expired: Expired,
    pub later: VecDeque<(u32, FollowedText)>,
    /// An event of its own is under way.
    pub scheduled: bool,
    /// Times that it may ask again.
    pub again: u32,
    manner: Manner,
    expected: Expected,
    state: State,
    waker: Waker,
    events: u32,
    stopped: bool,
    text: String,
    samples: usize,
    frames: u32,
}

enum State {
    /// Between two reads.
    Has(Box<ResponseStream>),
    /// It reads.
    Waits(BoxFuture<'static, (ResponseStream, Option<Event>)>),
    Gone,
}

/// What a read brought.
pub(super) enum Read {
    /// It waits for more, and will be woken.
    Nothing,
    /// It reads on after this time. So many frames were heard.
    Something(Duration, u32),
    /// Its stream is over.
    Over,
}

impl Client {
    pub fn new(
        place: usize,
        script: usize,
        manner: Manner,
        again: u32,
        planned: (Expected, Vec<(u32, FollowedText)>),
        stream: ResponseStream,
        woken: &Woken,
    ) -> Client {
        Client {
            script,
            request: RequestId(0),
            end: None,
            accepted: Duration::ZERO,
            expired: Expired::default(),
            later: planned.1.into(),
            scheduled: false,
            again,
            manner,
            expected: planned.0,
            state: State::Has(Box::new(stream)),
            waker: Waker::from(Arc::new(Bell(place, Arc::clone(woken)))),
            events: 0,
            stopped: false,
            text: String::new(),
            samples: 0,
            frames: 0,
        }
    }

    /// Whether its request holds a place.
    pub fn holds(&self) -> bool {
        !matches!(self.state, State::Gone)
    }

    pub fn manner(&self) -> Manner {
        self.manner
    }

    /// It goes, and its request with it.
    pub fn leave(&mut self, end: End) {
        self.state = State::Gone;
        self.end.get_or_insert(end);
    }

    /// Reads one event, if there is one.
    ///
    /// # Errors
    /// What it got that it must not get.
    pub fn read(&mut self) -> Result<Read, String> {
        let mut waits = match std::mem::replace(&mut self.state, State::Gone) {
            State::Gone => return Ok(Read::Over),
            State::Waits(waits) => waits,
            State::Has(mut stream) => Box::pin(async move {
                let event = stream.next().await;
                (*stream, event)
            }),
        };
        match waits.as_mut().poll(&mut Context::from_waker(&self.waker)) {
            Poll::Pending => {
                self.state = State::Waits(waits);
                Ok(Read::Nothing)
            }
            Poll::Ready((stream, event)) => {
                self.state = State::Has(Box::new(stream));
                self.took(event)
            }
        }
    }

    fn took(&mut self, event: Option<Event>) -> Result<Read, String> {
        let Some(event) = event else {
            if self.end.is_none() {
                return Err("the stream is over without an end".into());
            }
            self.state = State::Gone;
            return Ok(Read::Over);
        };
        if let Some(end) = &self.end {
            return Err(format!("{event:?} behind the end, {end:?}"));
        }
        let frames = self.check(event)?;
        self.events += 1;
        let pause = match self.manner {
            Manner::Slowly(pause) => pause,
            Manner::Stops(behind, pause) if self.events > behind && !self.stopped => {
                self.stopped = true;
                pause
            }
            Manner::Leaves(behind) if self.events > behind => {
                self.leave(End::Left);
                return Ok(Read::Over);
            }
            _ => Duration::ZERO,
        };
        Ok(Read::Something(pause, frames))
    }

    fn check(&mut self, event: Event) -> Result<u32, String> {
        match event {
            Event::Started { id, .. } if self.events == 0 && id == self.request => {}
            Event::Started { id, .. } => return Err(format!("it started as {id}, as event {}", self.events)),
            Event::Word(word) => return Err(format!("it told of {word:?}, for which it was not asked")),
            Event::Text(delta) => {
                self.text.push_str(&delta);
                if !self.expected.text.starts_with(&self.text) {
                    return Err(format!("the text is {:?}, not {:?}", self.text, self.expected.text));
                }
            }
            Event::Audio(chunk) => {
                let (from, upto) = (self.samples, self.samples + chunk.samples.len());
                if self.expected.samples.get(from..upto) != Some(&chunk.samples[..]) {
                    let frames = (from / SAMPLES, upto / SAMPLES, self.expected.frames);
                    return Err(format!("frames {} to {} of {} are others", frames.0, frames.1, frames.2));
                }
                if chunk.frames.0 as usize * SAMPLES != chunk.samples.len() {
                    return Err(format!("{} samples as {}", chunk.samples.len(), chunk.frames));
                }
                self.samples = upto;
                self.frames += chunk.frames.0;
                return Ok(chunk.frames.0);
            }
            Event::Finished { reason, usage } => {
                let Expected { text, samples, frames, length_limit, .. } = &self.expected;
                if self.samples != samples.len() || self.text != *text || usage.frames.0 != *frames {
                    let heard = (self.samples / SAMPLES, usage.frames, *frames);
                    return Err(format!(
                        "it ended with {} of {} frames, {}, {:?}",
                        heard.0, heard.2, heard.1, self.text
                    ));
                }
                if (reason == FinishReason::Length) != *length_limit {
                    return Err(format!("it ended by {reason:?}"));
                }
                self.end = Some(End::Finished);
            }
            Event::Failed(error) => self.end = Some(End::Failed(error)),
        }
        Ok(0)
    }

    /// Units that it has compared.
    pub fn units(&self) -> u64 {
        u64::from(self.frames) + self.text.len() as u64
    }
}
