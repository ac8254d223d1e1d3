//! The actors of a stage, one file each. Every one is a thin shell around a pure core or a net.
//!
//! ```text
//!            Admit, Abort                                  acks
//!  engine ---------------> Connector(in) --> Scheduler ----------> previous stage
//!                              | feed           | plans
//!                              v                v
//!                            ModelRunner (OS thread, owns the device state)
//!                                               | launched steps
//!                            Completion (the same thread; another one where a device computes beside the host)
//!                                               | one ticket per step
//!                                               v
//!                            Sampler --1--> Scheduler
//!                               +------2--> Packager --> Connector(out) --> next stage or client
//! ```
//!
//! Control travels in ractor mailboxes, which are unbounded and therefore carry no payload bytes; data travels in bounded
//! flume channels, with one small message to say that there is something to fetch. When any actor of a stage fails, the
//! supervisor takes the stage down as a whole, waits until the old device state is gone, and starts the next generation:
//! each of them holds a part of what a sequence is, so none can go on without the others.

#![forbid(unsafe_code)]
#![cfg_attr(test, allow(clippy::unwrap_used))]

mod arbiter;
mod connector;
mod failure;
mod generation;
mod handle;
mod messages;
mod model_runner;
mod packager;
pub mod process;
mod pulse;
mod queue;
mod sampler;
mod scheduler;
mod setup;
mod supervisor;

pub use arbiter::Arbiter;
pub use handle::{StageHandle, StageLoad, StageState, StageStatus};
pub use messages::{Admission, Outputs, Resume};
pub use setup::{AckSink, OutEdge, RELEASED, StageReports, StageSetup};
pub use supervisor::start;
