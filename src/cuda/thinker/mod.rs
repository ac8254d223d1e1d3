//! The thinker on the device: prompts in pieces, then one graph per token for all sequences, which samples on the
//! device.

mod handed;
mod host;
mod left;
mod net;
mod options;
mod pending;
mod persistent;
mod queue;
mod sequence;
mod stage;
mod steps;
mod table;

pub use net::ThinkerNet;
pub use options::{KeptMemory, ThinkerOptions};
pub use stage::{CudaThinker, CudaThinkerFactory};
