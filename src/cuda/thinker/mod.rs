//! The thinker on the device: prompts in pieces, then one graph per token for all rows, sampled where it is computed.

mod handed;
mod net;
mod stage;
mod steps;
mod table;

pub use net::ThinkerNet;
pub use stage::{CudaThinker, CudaThinkerFactory, ThinkerOptions};
