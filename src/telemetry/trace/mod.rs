//! What each stage of an engine did when: off until a session listens, and then bounded.
//!
//! A call site costs one relaxed atomic load while no session listens. While one does, each thread writes its records
//! into a buffer of its own, whose lock only a session that collects records takes too; what does not fit is counted.
//! Every engine has a [`Recorder`], and a [`Session`] listens to one recorder; a recorder may have several sessions.
//! Records are plain data on the [clock of the host](super::clock), so a stage process sends its records to its parent:
//! [`Recorder::drain`] there, [`Recorder::absorb`] here.
//!
//! | file | what |
//! | --- | --- |
//! | `record` | what is recorded |
//! | `recorder` | buffers and sessions |
//! | `steps` | a trace as exact numbers of each step |
//! | `layout`, `flows`, `requests` | a trace as tracks of slices, arrows, and a track for each request |
//! | `chrome` | the file that a Perfetto viewer opens |
//! | `otlp` | spans of requests, for a collector of OpenTelemetry |

mod chrome;
mod flows;
mod layout;
mod otlp;
mod record;
mod recorder;
mod requests;
mod steps;

pub use chrome::write;
pub use otlp::{Parent, Spans, document};
pub use record::{Chunk, Component, Ran, Record, SequenceShare, Track, What};
pub use recorder::{CAPACITY, Recorder, Session, Trace, TrackWriter};
pub use steps::{StepTimes, Summary};

use super::{Direction, Queue, clock};
use omni_core::ids::{Generation, Replica, RequestId, StageName};
use std::time::{Duration, Instant};

/// When something begins that may be recorded: `None` while no session listens to any engine of this process.
pub fn now() -> Option<Instant> {
    recorder::anybody_listens().then(Instant::now)
}

/// Records what went on in a track from `began` until now. Does nothing without a beginning.
pub fn since(began: Option<Instant>, to: TrackWriter<'_>, what: impl FnOnce() -> What) {
    if let Some(began) = began
        && to.on()
    {
        to.push(clock::nanos(began), clock::now(), what());
    }
}

/// Records what went on in a track between two moments.
pub fn span(to: TrackWriter<'_>, began: Instant, ended: Instant, what: impl FnOnce() -> What) {
    if to.on() {
        to.push(clock::nanos(began), clock::nanos(ended), what());
    }
}

/// Records what went on in a track until now, from a moment that the caller has read for a purpose of its own.
pub fn until_now(to: TrackWriter<'_>, began: Instant, what: impl FnOnce() -> What) {
    since(Some(began), to, what);
}

impl Recorder {
    /// Records a copy beside the steps that is over now, and how long it took if that is known.
    pub fn copied(&self, stage: StageName, direction: Direction, bytes: usize, took: Option<Duration>) {
        if self.on() {
            let component = match direction {
                Direction::DeviceToHost => Component::DeviceToHost,
                Direction::HostToDevice | Direction::DeviceToDevice => Component::HostToDevice,
            };
            let (now, took) = (clock::now(), took.unwrap_or_default().as_nanos() as u64);
            // Streams of copies belong to the stage as a whole, whatever its generation.
            let to = self.writer(Track::of(stage, Generation(0), component));
            to.push(now.saturating_sub(took), now, What::Copied { direction, bytes: bytes as u64 });
        }
    }

    /// Records how many messages wait in a queue of a replica of a stage.
    pub fn queued(&self, replica: Replica, queue: Queue, depth: usize) {
        if self.on() {
            let now = clock::now();
            // Counters belong to the replica as a whole, whatever its generation.
            let to = self.writer(Track::of(replica, Generation(0), Component::Scheduler));
            to.push(now, now, What::Queued(queue, depth as u32));
        }
    }

    /// Records what happened to a request just now.
    pub fn request(&self, request: RequestId, what: impl FnOnce() -> What) {
        if self.on() {
            let now = clock::now();
            self.writer(Track::Request(request)).push(now, now, what());
        }
    }
}
