//! Whether a jpeg is whole. Its decoder fills with grey what is missing and says nothing, and a model would describe it.

/// Markers without a length: restarts and the one for temporary use.
fn stands_alone(marker: u8) -> bool {
    matches!(marker, 0x01 | 0xd0..=0xd7)
}

/// Whether the last scan ends with the marker that ends an image. Bytes behind it (a second picture, a film) are none of
/// it, and a file that has no structure is for the decoder to refuse.
pub(super) fn is_whole(bytes: &[u8]) -> bool {
    let mut at = 2; // behind the start of the image
    let mut in_scan = false;
    while let Some(step) = bytes.get(at..).and_then(|rest| rest.iter().position(|byte| *byte == 0xff)) {
        at += step;
        let Some(marker) = bytes.get(at + 1).copied() else { return false };
        match marker {
            0xff => at += 1,
            // An escaped byte of the scan's data.
            0x00 if in_scan => at += 2,
            0xd9 => return true,
            marker if stands_alone(marker) => at += 2,
            marker => {
                let Some([high, low]) = bytes.get(at + 2..at + 4) else { return false };
                in_scan = marker == 0xda;
                at += 2 + usize::from(u16::from_be_bytes([*high, *low])).max(2);
            }
        }
    }
    false
}
