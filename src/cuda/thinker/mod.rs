//! The thinker on the device: prompts in pieces, then one graph per token for all sequences, which samples on the
//! device.

mod handed;
mod host;
mod left;
mod net;
mod pending;
mod queue;
mod sequence;
mod stage;
mod steps;
mod table;

pub use net::ThinkerNet;
pub use stage::{CudaThinker, CudaThinkerFactory, KeptMemory, ThinkerOptions};
