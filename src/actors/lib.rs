//! The actors of a stage, one file each. Every one is a thin shell around a pure core or a net.
//!
//! ```text
//!            Admit, Abort                                  acks
//!  engine ---------------> Connector(in) --> Scheduler ----------> previous stage
//!                              | input          | plans
//!                              v                v
//!                            ModelRunner (OS thread, owns the device state)
//!                                               | launched steps
//!                            Sampler (on the same thread; on its own where a device computes beside the host)
//!                               +--1--> Scheduler
//!                               +--2--> Packager --> Connector(out) --> next stage or client
//! ```
//!
//! `messages.rs` has all that the actors say to each other, `generation.rs` the queues and who gets which end of them.
//! Control travels in ractor mailboxes, which are unbounded and therefore carry no payload bytes; data travels in
//! bounded queues (`queue.rs`). When any actor of a stage fails, the supervisor takes the stage down as a whole, waits
//! until the old device state is gone, and starts the next generation: each actor holds a part of the state of every
//! sequence, so none can go on without the others.

#![forbid(unsafe_code)]
#![cfg_attr(test, allow(clippy::unwrap_used))]

pub mod aligner;
mod arbiter;
mod connector;
mod failure;
mod generation;
mod handle;
mod in_hand;
mod messages;
mod model_runner;
mod packager;
pub mod process;
mod pulse;
mod queue;
mod sampler;
mod scheduler;
mod setup;
pub mod simulation;
mod supervisor;
mod waits;
mod watchdog;

pub use arbiter::Arbiter;
pub use handle::{StageHandle, StageLoad, StageState, StageStatus};
pub use in_hand::InHands;
pub use messages::{Admission, Outputs, Resume};
pub use setup::{AckSink, OutEdge, RELEASED, StageFailure, StageReports, StageSetup};
pub use supervisor::start;
