//! A ring of bytes in shared memory: frames of any length from one producer to one consumer, in two threads or in two
//! processes. Linux only.
//!
//! [`ring`] makes the two ends. Either can be handed to a child process as a [`RingHandle`]. A frame is written in
//! place ([`Producer::reserve`]) and read in place ([`Chunk`]): it is not copied in between.
//!
//! # The memory
//!
//! The memory is a memfd: it has no name, so nothing is left behind however its users die; the kernel frees it with the
//! last descriptor. Its size is sealed, so that no access can fault because the other side cut it. One page of header,
//! the rest of which is for [`Notes`], then the data, which each side maps twice, one mapping behind the other: a frame that wraps around the end is
//! contiguous all the same.
//!
//! ```text
//! frame, at a multiple of 64:   0  length of the data (u32), seal (u32)
//!                               8  position of this frame since the ring was made (u64)
//!                              16  the data
//! ```
//!
//! Positions count bytes and never wrap. `tail` is where the producer writes next, `head` where the oldest frame lies
//! that the consumer still uses. Chunks may be dropped in any order by any thread; space comes back in the order of the
//! frames, so **a chunk that is kept for long stops the ring**: a reader that must keep data copies it.
//!
//! # Waking and the end
//!
//! The two sides share one more thing, a pair of connected sockets: the doorbell. A side that finds nothing to do says
//! in the header that it sleeps and waits for its socket; the other, having moved `tail` or `head`, rings only then, by
//! one byte. Both write one word and then read the other's, with a sequentially consistent fence in between, so at
//! least one of them sees what the other wrote: either the sleeper sees the frame and does not sleep, or the other sees
//! it sleep and rings (`protocol.rs` tries every interleaving, store buffers included).
//!
//! The same socket tells of the end. When an end is dropped, or its process dies by whatever means, the socket closes,
//! and the other side reads the end of it. What was committed before is still read first.
//!
//! # Trust
//!
//! The other process may be dying or broken. Every position and length that is read from the memory is read once and
//! checked against what this side knows before it is used; a wrong one is an error ([`RingError::Corrupt`]), never an
//! access outside the ring.

mod bell;
mod consumer;
mod handle;
mod map;
mod notes;
mod producer;
#[cfg(test)]
mod protocol;
#[cfg(test)]
mod tests;

pub use consumer::{Chunk, Consumer};
pub use handle::{RingHandle, inherited};
pub use notes::Notes;
pub use producer::{Producer, Reservation};

use bell::Bell;
use map::Map;
use std::io;

/// Frames begin at multiples of a cache line, so that two of them never share one.
const ALIGN: u64 = 64;
/// Bytes in front of the data of a frame.
const FRAME_HEADER: u64 = 16;
/// In the header of each frame: something that old data is unlikely to have there.
const SEAL: u32 = 0x6672_616d;

/// Makes a ring that holds at least `bytes` of frames, and its two ends.
///
/// # Errors
/// Sizes over 4 GiB; whatever the system refuses: memory, descriptors.
pub fn ring(bytes: usize) -> io::Result<(Producer, Consumer)> {
    let (memory, map) = Map::create(bytes)?;
    let (ours, theirs) = Bell::pair()?;
    let consumer = Consumer::new(memory.try_clone()?, Map::open(&memory)?, theirs)?;
    Ok((Producer::new(memory, map, ours)?, consumer))
}

/// What a frame with `len` bytes of data takes.
fn footprint(len: usize) -> u64 {
    (FRAME_HEADER + len as u64).next_multiple_of(ALIGN)
}

/// Why a frame could not be pushed.
#[derive(Debug, thiserror::Error)]
pub enum PushError {
    /// There is no room now.
    #[error("the ring is full")]
    Full,
    /// There will never be room.
    #[error("a frame of {got} bytes does not fit into the ring, which takes {limit}")]
    TooLarge {
        /// Bytes of the frame.
        got: usize,
        /// Most that the ring takes.
        limit: usize,
    },
    /// The consumer is gone.
    #[error("the other end of the ring is closed")]
    Closed,
    /// The consumer wrote something impossible.
    #[error("the ring is corrupt: {0}")]
    Corrupt(&'static str),
    /// The doorbell failed.
    #[error("doorbell: {0}")]
    Bell(#[from] io::Error),
}

/// Why there is no next frame.
#[derive(Debug, thiserror::Error)]
pub enum RingError {
    /// The producer is gone, and everything that it pushed has been popped.
    #[error("the other end of the ring is closed")]
    Closed,
    /// The producer wrote something impossible.
    #[error("the ring is corrupt: {0}")]
    Corrupt(&'static str),
    /// The doorbell failed.
    #[error("doorbell: {0}")]
    Bell(#[from] io::Error),
}
