//! How results travel from stage to stage: handles first, bytes last.
//!
//! A [`Payload`](payload::Payload) is a typed header and parts that are handles as long as the consumer lives on the
//! same device. Whatever a step leaves behind for others is under a [`Lease`](lease::Lease), so that live output can be
//! counted, bounded and found when it leaks. A [`transport`] carries payloads over one edge; the [`wire`] frame is what
//! they look like where bytes are needed.

#![cfg_attr(test, allow(clippy::unwrap_used))]

pub mod lease;
pub mod link;
pub mod payload;
pub mod shm;
pub mod transport;
pub mod wire;
