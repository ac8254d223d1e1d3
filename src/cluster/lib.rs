//! Gateways and nodes over Zenoh: who has joined, and links of frames between them. All that knows Zenoh is here, and
//! nothing here knows what the bytes mean.
//!
//! ```text
//! key                          declared by    what
//! omni/gateway/GATEWAY         a gateway      a liveliness token
//! omni/gateway/GATEWAY/spare   a gateway      answers whether nodes may leave
//! omni/node/NODE               a node         a liveliness token
//! omni/node/NODE/offer         a node         answers with what it offers
//! omni/node/NODE/open          a node         answers whether it opens a link
//! omni/node/NODE/drain         a node         leaves its gateways, or comes back, and answers when it has
//! omni/node/NODE/keep          a node         answers whether it keeps a share for the gateway
//! omni/link/LINK/down, up      both           the frames of one link, to the node and from it
//! ```
//!
//! GATEWAY and NODE name sessions, and LINK an opening: a host that comes back has another name, and what is
//! still on its way of an earlier one has no receiver.
//!
//! Nobody is found: each session listens where it is told and connects where it is told, and passes nothing on for
//! others. A [`Line`] loses nothing while it is open: frames are numbered, and a gap, a side that says nothing for too
//! long, and a receiver that does not keep up end it. What that means for requests is for the engine. A line must never
//! send more than fits in front of a connection that takes nothing: Zenoh's waiting would be felt by all others.

#![forbid(unsafe_code)]
#![cfg_attr(test, allow(clippy::unwrap_used))]

mod asked;
mod certificates;
mod gateway;
mod line;
mod node;
mod session;
#[cfg(test)]
mod tests;

pub use asked::{Asked, Question};
pub use gateway::{Change, Gateway};
pub use line::{Duplex, Line};
pub use node::Node;
pub use session::{ClusterError, Settings, Tls};
