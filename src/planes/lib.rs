//! 16-bit floats in two thirds of their room. Of a bf16 number the upper byte, its sign and most of its exponent, has
//! some three bits of information and the lower one nearly eight. So every piece of the bytes is stored as two planes:
//! the lower bytes as they are, then the upper ones deflated.
//!
//! The build script of the program packs the weights of the embedded voice, and `omni-model` reads them, some pieces at
//! a time. Any bytes can be packed; those that are no 16-bit floats only gain less.
//!
//! ```text
//! length of the bytes                            u64
//! for each piece: where it ends in what follows  u64
//!                 CRC-32 of its bytes            u32
//! the pieces: lower bytes, zlib stream of the upper bytes
//! ```
//!
//! All numbers are little-endian. This is no format for files: what packs and what reads are of one build. The crate is
//! pure and must never do I/O; packed bytes may be damaged in any way and must never make it panic.

#![forbid(unsafe_code)]
#![cfg_attr(test, allow(clippy::unwrap_used))]

mod pack;
#[cfg(test)]
mod tests;

pub use pack::pack;

use fdeflate::Decompressor;
use std::ops::Range;

/// Bytes of a piece before it is packed; the last one may be shorter. Many tensors are small, and a read unpacks whole
/// pieces: one of this size takes 15 us. All of them are 0.2 % larger than pieces of a megabyte.
const PIECE: usize = 16 << 10;
/// The length in front of the table.
const HEAD: usize = 8;
/// The end of a piece and its checksum.
const ENTRY: usize = 12;

/// Packed bytes that cannot be read, said of the file that they are.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum UnpackError {
    /// The table and the size do not fit.
    #[error("is damaged or cut short: its table does not fit its {0} bytes")]
    Table(usize),
    /// A piece is not what was packed.
    #[error("is damaged between bytes {} and {}", .0.start, .0.end)]
    Piece(Range<usize>),
    /// The caller asked for bytes behind the end.
    #[error("has {length} bytes, not {start} + {count}")]
    Range {
        /// All of them.
        length: usize,
        /// The first that was asked for.
        start: usize,
        /// How many were.
        count: usize,
    },
}

/// What [`pack()`] made, to be read from any position on.
#[derive(Clone, Copy, Debug)]
pub struct Planes<'a> {
    length: usize,
    table: &'a [[u8; ENTRY]],
    pieces: &'a [u8],
}

impl<'a> Planes<'a> {
    /// Looks at the table alone.
    ///
    /// # Errors
    /// [`UnpackError::Table`].
    pub fn open(packed: &'a [u8]) -> Result<Planes<'a>, UnpackError> {
        let planes = || {
            let (length, rest) = packed.split_first_chunk::<HEAD>()?;
            let length = usize::try_from(u64::from_le_bytes(*length)).ok()?;
            let (table, pieces) = rest.split_at_checked(length.div_ceil(PIECE).checked_mul(ENTRY)?)?;
            let planes = Planes { length, table: table.as_chunks().0, pieces };
            (planes.entry(planes.table.len())?.0 == pieces.len()).then_some(planes)
        };
        planes().ok_or(UnpackError::Table(packed.len()))
    }

    /// How many bytes were packed.
    pub fn length(&self) -> usize {
        self.length
    }

    /// Fills `out` with the bytes from `start` on. Unpacks the pieces that they lie in and no others.
    ///
    /// # Errors
    /// [`UnpackError::Piece`] for what is damaged, [`UnpackError::Range`] for bytes that are not there.
    pub fn read(&self, start: usize, out: &mut [u8]) -> Result<(), UnpackError> {
        let count = out.len();
        if start.checked_add(count).is_none_or(|end| end > self.length) {
            return Err(UnpackError::Range { length: self.length, start, count });
        }
        let (mut unpacked, mut upper) = (Vec::new(), [0; PIECE / 2]);
        let (mut at, mut rest) = (start, out);
        while !rest.is_empty() {
            let piece = at / PIECE;
            let whole = piece * PIECE..self.length.min((piece + 1) * PIECE);
            let (part, next) = rest.split_at_mut((whole.end - at).min(rest.len()));
            let damaged = || UnpackError::Piece(whole.clone());
            if part.len() == whole.len() {
                self.unpack(piece, part, &mut upper).ok_or_else(damaged)?;
            } else {
                unpacked.resize(whole.len(), 0);
                self.unpack(piece, &mut unpacked, &mut upper).ok_or_else(damaged)?;
                part.copy_from_slice(&unpacked[at - whole.start..][..part.len()]);
            }
            at += part.len();
            rest = next;
        }
        Ok(())
    }

    /// All bytes.
    ///
    /// # Errors
    /// [`UnpackError::Piece`].
    pub fn read_all(&self) -> Result<Vec<u8>, UnpackError> {
        let mut out = vec![0; self.length];
        self.read(0, &mut out)?;
        Ok(out)
    }

    /// Where the piece before `piece` ends, and what the checksum of that is.
    fn entry(&self, piece: usize) -> Option<(usize, u32)> {
        let Some(before) = piece.checked_sub(1) else { return Some((0, 0)) };
        let [end @ .., a, b, c, d] = *self.table.get(before)?;
        Some((usize::try_from(u64::from_le_bytes(end)).ok()?, u32::from_le_bytes([a, b, c, d])))
    }

    /// Fills `out`, which has the length of this piece. `None`: the piece is damaged.
    fn unpack(&self, piece: usize, out: &mut [u8], upper: &mut [u8; PIECE / 2]) -> Option<()> {
        let ((start, _), (end, checksum)) = (self.entry(piece)?, self.entry(piece + 1)?);
        let (lower, deflated) = self.pieces.get(start..end)?.split_at_checked(out.len().div_ceil(2))?;
        let upper = &mut upper[..out.len() / 2];
        let mut inflate = Decompressor::new();
        // The checksum below is of both planes.
        inflate.ignore_adler32();
        let (_, filled) = inflate.read(deflated, upper, 0, true).ok()?;
        if filled != upper.len() || !inflate.is_done() {
            return None;
        }
        let (pairs, odd) = out.as_chunks_mut::<2>();
        for ((pair, lower), upper) in pairs.iter_mut().zip(lower).zip(&*upper) {
            *pair = [*lower, *upper];
        }
        if let ([last], Some(lower)) = (odd, lower.last()) {
            *last = *lower;
        }
        (crc32fast::hash(out) == checksum).then_some(())
    }
}
