//! Keeps a Vorbis header from taking memory.

/// Floats that the code vectors of a stream may have together: 64 MB. Encoders use a hundredth of it.
const MAX_FLOATS: u64 = 16 << 20;
/// What every codebook begins with, read bit by bit, lowest first.
const SYNC: u64 = 0x56_43_42;

/// Whether the codebooks of a setup header can be unpacked. A codebook of a few bytes may describe 16 MB of vectors and
/// a header may have 256 of them; the decoder bounds each one alone.
///
/// The header is a bit stream in which a codebook can begin at any bit, so every occurrence of the sync word counts,
/// also the few that are none.
pub(super) fn is_bounded(setup: &[u8]) -> bool {
    let mut window = 0u64;
    let mut floats = 0u64;
    for byte in setup.iter().chain(&[0; 8]) {
        for bit in 0..8 {
            window = window >> 1 | u64::from(byte >> bit & 1) << 63;
            if window & 0xff_ffff == SYNC {
                let (dimensions, entries) = (window >> 24 & 0xffff, window >> 40);
                floats = floats.saturating_add(dimensions * entries);
            }
        }
    }
    floats <= MAX_FLOATS
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn many_small_descriptions_of_large_codebooks_are_too_much() {
        // Sync, 32 dimensions, 131072 entries, and three bits so that the next one is not aligned.
        let one = SYNC | 32 << 24 | 131_072 << 40;
        let header = |count: usize| -> Vec<u8> {
            let bits: Vec<u8> =
                (0..count).flat_map(|_| (0..67).map(|i| if i < 64 { (one >> i & 1) as u8 } else { 1 })).collect();
            bits.chunks(8).map(|byte| byte.iter().rev().fold(0, |n, bit| n << 1 | bit)).collect()
        };
        assert!(is_bounded(&header(4)));
        assert!(!is_bounded(&header(5)));
        assert!(is_bounded(b""));
    }
}
