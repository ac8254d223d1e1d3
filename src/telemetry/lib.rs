//! What the process tells about itself: metrics and logs.
//!
//! Names live in [`catalogue`] alone. Everybody else holds pre-made handles ([`StageMetrics`], [`EdgeMetrics`],
//! [`CopyMetrics`], [`RequestMetrics`], [`DeviceMetrics`], [`HttpMetrics`]); nothing on a step path looks a metric up by name. No metric or log line at
//! level info carries what a client said.

#![forbid(unsafe_code)]
#![cfg_attr(test, allow(clippy::unwrap_used))]

mod admission;
pub mod catalogue;
pub mod clock;
mod exposition;
mod handles;
mod logging;
mod merge;
mod phase;
mod request;
pub mod trace;

pub use admission::AdmissionMetrics;
pub use exposition::render;
pub use handles::{
    CopyMetrics, DeviceMetrics, Direction, EdgeMetrics, HttpMetrics, LinkMetrics, MemoryUse, Queue, RepairMetrics,
    StageMetrics, SupervisionMetrics, fault_injected, launch_waited, process_started, set_ready,
};
pub use logging::{LogError, LogFormat, init_logging, init_stage_logging};
pub use merge::merged;
pub use phase::{Phase, PhaseClock, Phases};
pub use request::{Outcome, RequestKind, RequestMeter, RequestMetrics};
