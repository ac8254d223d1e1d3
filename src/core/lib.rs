//! The pure state machines under the actors. They know no runtime, no clock but the time passed in, and no tensors: an
//! event goes in, effects come out, and proptest can play any history against them.

#![forbid(unsafe_code)]
#![cfg_attr(test, allow(clippy::unwrap_used))]

pub mod admission;
pub mod align;
pub mod arbiter;
pub mod crossfade;
pub mod deadline;
pub mod ids;
pub mod ledger;
pub mod nodes;
pub mod patience;
pub mod playback;
pub mod quota;
pub mod random;
pub mod residence;
pub mod restart;
pub mod runaway;
pub mod scheduler;
pub mod seats;
pub mod sequence;
pub mod shrink;
pub mod suspects;
pub mod text;
pub mod turns;
