//! The towers on a GPU: sound and pictures to embeddings of the thinker.
//!
//! The rows of a part are many, so all of it goes through a layer at once, and the parts of one step go through the
//! products of a layer together. A part has the same bits whatever is encoded beside it: the kernels add in an order that
//! depends on the sizes of a layer and of the part alone.

mod hopper;
mod memory;
mod net;
mod pending;
mod pictures;
mod products;
mod queue;
mod sound;
mod stage;

pub use net::TowersNet;
pub use stage::CudaEncoderFactory;
