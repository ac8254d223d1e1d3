//! Packing, which happens once, while the program is built.

use crate::PIECE;
use miniz_oxide::deflate::core::{
    CompressionStrategy, CompressorOxide, TDEFLFlush, TDEFLStatus, compress_to_output,
    create_comp_flags_from_zip_params,
};

/// The bytes as `Planes` reads them.
///
/// # Panics
/// Never: deflating ends early only where what it writes is refused.
pub fn pack(bytes: &[u8]) -> Vec<u8> {
    let mut table = Vec::new();
    let mut pieces = Vec::with_capacity(bytes.len());
    for piece in bytes.chunks(PIECE) {
        pieces.extend(piece.iter().step_by(2));
        let upper: Vec<u8> = piece.iter().skip(1).step_by(2).copied().collect();
        deflate(&upper, &mut pieces);
        table.extend((pieces.len() as u64).to_le_bytes());
        table.extend(crc32fast::hash(piece).to_le_bytes());
    }
    let length = (bytes.len() as u64).to_le_bytes();
    [length.as_slice(), &table, &pieces].concat()
}

/// Appends a zlib stream. Weights hardly repeat: a search for what does takes ten times as long, and its result is a
/// fifth larger and slower to read.
fn deflate(bytes: &[u8], out: &mut Vec<u8>) {
    // Any level but 0 is the same without a search; a window makes it zlib's form.
    let flags = create_comp_flags_from_zip_params(6, 15, CompressionStrategy::HuffmanOnly as i32);
    let mut deflater = CompressorOxide::new(flags);
    let (status, _) = compress_to_output(&mut deflater, bytes, TDEFLFlush::Finish, |more| {
        out.extend_from_slice(more);
        true
    });
    assert_eq!(status, TDEFLStatus::Done, "what deflating writes is never refused");
}
