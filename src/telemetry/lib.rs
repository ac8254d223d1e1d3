//! What the program tells about itself: metrics of the process, log lines, and traces of an engine.
//!
//! Only [`catalogue`] has names of metrics. Other modules hold handles ([`StageMetrics`], [`EdgeMetrics`],
//! [`CopyMetrics`], [`RequestMetrics`], [`DeviceMetrics`], [`HttpMetrics`]); code on a step path never looks a metric
//! up by its name. No metric, trace, or log line of level info may carry a client's text.

#![forbid(unsafe_code)]
#![cfg_attr(test, allow(clippy::unwrap_used))]

mod admission;
pub mod catalogue;
pub mod clock;
mod elsewhere;
mod exposition;
mod handles;
mod keys;
mod link;
mod log_queue;
mod logging;
mod merge;
mod nodes;
mod phase;
mod request;
mod served;
pub mod trace;

pub use admission::AdmissionMetrics;
pub use elsewhere::ClockElsewhere;
pub use exposition::render;
pub use handles::{
    AlignerMetrics, CopyMetrics, DeviceMetrics, Direction, EdgeMetrics, MemoryUse, PromptCacheMetrics, Queue,
    StageMetrics, SupervisionMetrics, edge_lost, fault_injected, launch_waited, request_guilty, speech_anew,
    speech_astray,
};
pub use keys::{KeyMetrics, KeyRefusal, SpanMetrics};
pub use link::{LinkMetrics, LinkTraffic};
pub use logging::{LogError, LogFormat, complain, flush_logs, init_logging, init_stage_logging};
pub use merge::{Process, merged};
pub use nodes::{ReplicaOnNode, render_nodes};
pub use phase::{Phase, PhaseClock, Phases};
pub use request::{Outcome, RequestKind, RequestMeter, RequestMetrics};
pub use served::{
    CallMetrics, DecodeMetrics, HttpMetrics, MediaMetrics, ModelMetrics, RealtimeMetrics, process_started, set_ready,
};
