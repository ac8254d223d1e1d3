//! The link: payloads and control messages as frames, in one order, from one side to the other. Edges between threads
//! that carry frames and stages in processes of their own use the same one.
//!
//! ```text
//! Outbox -> Queue::send_all -> FrameWriter -> ring in shared memory, or a queue of buffers -> FrameReader -> receive
//! ```
//!
//! A sender puts control messages and payloads into an [`Outbox`] and never waits. One task sends what is there
//! ([`Queue::send_all`]): a payload as a [wire frame](super::wire), written straight into the memory of the channel,
//! and control messages that wait together in one frame. [`edge`] makes the two halves of an edge out of this; a stage
//! process has a link of each direction, with control messages of its own.
//!
//! A channel loses and reorders nothing by itself. A payload can still arrive broken, and faults are injected where it
//! arrives, so a link that [announces](FrameWriter::announcing) says how far it has come with each sequence whenever it
//! has nothing more to send. The receiver compares: the last payload cannot get lost unnoticed.
//!
//! The link repairs nothing, numbers nothing and keeps nothing that it has sent. It must never drop a control message:
//! one that cannot be read ends the link.

mod channel;
mod control;
pub mod edge;
mod frames;
mod outbox;
#[cfg(test)]
mod tests;

pub use channel::{Sink, Source, queue};
pub use control::{Control, Malformed, append, take};
pub use frames::{FrameReader, FrameWriter, LinkError, Received, receive};
pub use outbox::{Outbox, Queue, outbox};
