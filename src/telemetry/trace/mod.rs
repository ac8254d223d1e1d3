//! What each stage did when: off until somebody takes a trace, and then bounded.
//!
//! A call site costs one relaxed atomic load while nobody listens. While somebody does, records go into a buffer of their
//! thread, which nobody else locks but to empty it; what does not fit is counted. A [`Session`] is what listens; several
//! may at once. Records are plain data on the [clock of the host](super::clock), so those of a stage in another process
//! travel to whoever takes the trace: [`drain`] there, [`absorb`] here.
//!
//! | file | what |
//! | --- | --- |
//! | `record` | what is recorded |
//! | `recorder` | buffers and sessions |
//! | `steps` | a trace as exact numbers of each step |
//! | `layout`, `flows`, `requests` | a trace as tracks of slices, the arrows between them, and a track for each request |
//! | `chrome` | the file that a Perfetto viewer opens |

mod chrome;
mod flows;
mod layout;
mod record;
mod recorder;
mod requests;
mod steps;

pub use chrome::write;
pub use record::{Chunk, Component, Ran, Record, SequenceShare, Track, What};
pub use recorder::{CAPACITY, Session, Trace, absorb, drain, on, settle, switched};
pub use steps::{StepTimes, Summary};

use super::{Direction, Queue, clock};
use omni_core::ids::{Generation, RequestId, StageName};
use recorder::push;
use std::time::{Duration, Instant};

/// When something begins that may be recorded: `None` while nobody listens.
pub fn now() -> Option<Instant> {
    on().then(Instant::now)
}

/// Records what went on in a track from `began` until now. Does nothing without a beginning.
pub fn since(began: Option<Instant>, track: Track, what: impl FnOnce() -> What) {
    if let Some(began) = began {
        push(track, clock::nanos(began), clock::now(), what());
    }
}

/// Records what went on in a track between two moments.
pub fn span(track: Track, began: Instant, ended: Instant, what: impl FnOnce() -> What) {
    if on() {
        push(track, clock::nanos(began), clock::nanos(ended), what());
    }
}

/// Records what went on in a track from `began`, which somebody needed anyhow, until now.
pub fn until_now(track: Track, began: Instant, what: impl FnOnce() -> What) {
    since(on().then_some(began), track, what);
}

/// Records a copy beside the steps that is over now, and took so long if that is known.
pub fn copied(stage: StageName, direction: Direction, bytes: usize, took: Option<Duration>) {
    if on() {
        let component = match direction {
            Direction::DeviceToHost => Component::DeviceToHost,
            Direction::HostToDevice | Direction::DeviceToDevice => Component::HostToDevice,
        };
        let (now, took) = (clock::now(), took.unwrap_or_default().as_nanos() as u64);
        // Streams of copies belong to the stage as a whole, whatever its generation.
        let track = Track::of(stage, Generation(0), component);
        push(track, now.saturating_sub(took), now, What::Copied { direction, bytes: bytes as u64 });
    }
}

/// Records how many messages wait in a queue of a stage.
pub fn queued(stage: StageName, queue: Queue, depth: usize) {
    if on() {
        let now = clock::now();
        // Counters belong to the stage as a whole, whatever its generation.
        push(Track::of(stage, Generation(0), Component::Scheduler), now, now, What::Queued(queue, depth as u32));
    }
}

/// Records what happened to a request just now.
pub fn request(request: RequestId, what: impl FnOnce() -> What) {
    if on() {
        let now = clock::now();
        push(Track::Request(request), now, now, what());
    }
}
