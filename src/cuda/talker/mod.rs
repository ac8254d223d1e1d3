//! The talker on the device: one graph makes a whole frame for all sequences; the host reads nothing in between.

mod arrivals;
mod constants;
mod frame;
mod graphs;
mod net;
mod pending;
mod persistent;
mod plan;
mod prompt;
mod queue;
pub(crate) mod ring;
mod stage;
mod swap;
pub(crate) mod table;

pub use net::TalkerNet;
pub use stage::{CudaTalker, CudaTalkerFactory, TalkerOptions};
