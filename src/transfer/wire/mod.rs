//! The wire frame: a fixed prefix, a small bincode header, raw bytes that no codec touches.
//!
//! ```text
//! offset  size  what
//!      0     4  magic "OMNA"
//!      4     2  version (4), little endian like every number here
//!      6     2  length h of the header
//!      8     4  length b of the body
//!     12     4  CRC-32 (IEEE) of bytes 4..12 and everything after byte 16
//!     16     h  header: `Header`, then type and dimensions of each part, bincode (standard configuration)
//!   16+h        zeros up to a multiple of 16
//!            b  body: the parts one after the other, each followed by zeros up to a multiple of 16
//! ```
//!
//! A part is a list of `u32` or `f32` (features too, once they are computed), or embeddings of `f32` or `bf16`. A frame that begins at a multiple of 16 has
//! all its parts at multiples of 16: a reader can use them where they lie.
//!
//! [`Frame`] writes into memory that the transport provides, [`decode()`] leaves embeddings in the frame they came in:
//! on the way through shared memory nothing is copied in between. A decoder believes nothing: every length is checked
//! against what is there and against a limit before memory is taken.

mod decode;
mod encode;
#[cfg(test)]
mod tests;

pub use decode::decode;
pub use encode::{Frame, encode};

use super::payload::Header;
use omni_model::ModelError;

const MAGIC: [u8; 4] = *b"OMNA";
const VERSION: u16 = 4;
const PREFIX: usize = 16;
/// Where parts may begin: enough for every element type and for vector loads.
const ALIGN: usize = 16;
/// A header is a few dozen bytes; this is far above any real one.
const MAX_HEADER: usize = 1024;
/// Largest body: 16 Mi elements, an hour of codes or five minutes of samples in one payload.
pub const MAX_BODY: usize = 64 << 20;
/// A payload has one part for each step that it gathers, and few of those; more than this is not ours.
const MAX_PARTS: usize = 64;
/// Parts are lists or `[embeddings, width]`.
const MAX_RANK: usize = 2;

/// Why bytes are not a payload, or a payload no bytes.
#[derive(Debug, thiserror::Error)]
pub enum WireError {
    /// Fewer bytes than the prefix promises, or more.
    #[error("frame of {got} bytes where {expected} were announced")]
    Length {
        /// From the prefix.
        expected: usize,
        /// What is there.
        got: usize,
    },
    /// Not a frame of ours.
    #[error("not a wire frame: {0}")]
    Foreign(&'static str),
    /// Bits changed on the way.
    #[error("checksum mismatch")]
    Checksum,
    /// Larger than any real payload.
    #[error("{what} of {got} exceeds the limit of {limit}")]
    TooLarge {
        /// What is too large.
        what: &'static str,
        /// How large.
        got: usize,
        /// What is allowed.
        limit: usize,
    },
    /// The header cannot be read or contradicts the body.
    #[error("malformed header: {0}")]
    Header(String),
    /// Embeddings that are not in the host's memory, or are no embeddings.
    #[error("embeddings: {0}")]
    Embeddings(#[from] ModelError),
}

#[derive(bincode::Encode, bincode::Decode)]
struct WireHeader {
    header: Header,
    parts: Vec<PartHeader>,
}

#[derive(bincode::Encode, bincode::Decode)]
struct PartHeader {
    dtype: Dtype,
    dims: Vec<u32>,
}

/// Type of the elements of a part.
#[derive(Clone, Copy, Debug, PartialEq, Eq, bincode::Encode, bincode::Decode)]
enum Dtype {
    F32,
    Bf16,
    U32,
}

impl PartHeader {
    /// Bytes of the elements; `None` if no memory could hold them.
    fn bytes(&self) -> Option<usize> {
        let size = match self.dtype {
            Dtype::F32 | Dtype::U32 => 4usize,
            Dtype::Bf16 => 2,
        };
        self.dims.iter().try_fold(size, |product, dim| product.checked_mul(*dim as usize))
    }
}

/// Where the body begins behind a header of this length.
fn body_start(header_len: usize) -> usize {
    (PREFIX + header_len).next_multiple_of(ALIGN)
}

/// Over everything but the magic and the checksum itself.
fn checksum(frame: &[u8]) -> u32 {
    let mut hasher = crc32fast::Hasher::new();
    hasher.update(&frame[4..12]);
    hasher.update(&frame[PREFIX..]);
    hasher.finalize()
}
