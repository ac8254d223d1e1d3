//! At-least-once over a channel that may lose, repeat, reorder or damage frames; exactly once and in order for whoever
//! takes what comes out. Two pure halves: no runtime, no clock, no bytes.
//!
//! The sender numbers frames and keeps each until the receiver has acknowledged it. The receiver keeps what came early,
//! drops what came twice, and acknowledges with one number: the frame that it expects next. It asks once for each gap that
//! it finds; the sender then sends the oldest frame again. A loss behind which nothing follows is found by the sender: when
//! everything that it sent has been taken off the channel and something is still not acknowledged, that was lost. A
//! receiver that is merely slow is never mistaken for a loss, however long it takes.
//!
//! A frame that did not get through in [`Limits::attempts`] is given up: the sender hands it back, so that its request can
//! be told, and says in each later frame how far back it still keeps frames, so that the receiver does not wait for it.
//!
//! Both sides hold at most [`Limits::window`] frames.

mod receiver;
mod sender;
#[cfg(test)]
mod tests;

pub use receiver::{Arrival, Receiver};
pub use sender::{Action, Sender};

/// What both halves agree on.
#[derive(Clone, Copy, Debug)]
pub struct Limits {
    /// Frames that may be sent and not acknowledged.
    pub window: u32,
    /// How often a frame is sent before it is given up.
    pub attempts: u32,
}

/// A window that keeps a ring busy and a reorder buffer small; enough attempts that a channel which loses every other
/// frame delivers all but one in sixty thousand.
pub const LIMITS: Limits = Limits { window: 256, attempts: 16 };
