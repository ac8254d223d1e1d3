//! Files of jpeg. Their decoder may fill with grey what is missing, and a model would describe it, so a file that does
//! not come to its end is refused.

use super::decode::{damaged, most_memory};
use crate::limits::{MediaError, MediaLimits};
use image::metadata::Orientation;
use image::{DynamicImage, GrayImage, ImageBuffer, RgbImage};
use jpeg_decoder::{Decoder, PixelFormat};

const NAME: &str = "jpeg";

/// The picture as it is stored, and how it is to be turned.
pub(super) fn decode(bytes: &[u8], limits: &MediaLimits) -> Result<(DynamicImage, Orientation), MediaError> {
    if !is_whole(bytes) {
        return Err(damaged(NAME, "it ends in the middle"));
    }
    let failed = |error: jpeg_decoder::Error| damaged(NAME, error.to_string());
    let mut decoder = Decoder::new(bytes);
    decoder.set_max_decoding_buffer_size(usize::try_from(most_memory(limits)).unwrap_or(usize::MAX));
    decoder.read_info().map_err(failed)?;
    let Some(info) = decoder.info() else { return Err(damaged(NAME, "it has no picture")) };
    let (width, height) = (u32::from(info.width), u32::from(info.height));
    limits.check_pixels("image", width, height)?;
    // A damaged tag turns no picture.
    let orientation = decoder.exif_data().and_then(Orientation::from_exif_chunk).unwrap_or(Orientation::NoTransforms);
    let values = decoder.decode().map_err(failed)?;
    let picture = match info.pixel_format {
        PixelFormat::L8 => GrayImage::from_raw(width, height, values).map(DynamicImage::from),
        PixelFormat::L16 => {
            let wide = values.as_chunks().0.iter().map(|two| u16::from_ne_bytes(*two)).collect();
            ImageBuffer::from_raw(width, height, wide).map(DynamicImage::ImageLuma16)
        }
        PixelFormat::RGB24 => RgbImage::from_raw(width, height, values).map(DynamicImage::from),
        PixelFormat::CMYK32 => {
            let rgb = values.as_chunks().0.iter().flat_map(|ink| printed(*ink)).collect();
            RgbImage::from_raw(width, height, rgb).map(DynamicImage::from)
        }
    };
    Ok((picture.ok_or_else(|| damaged(NAME, "it has fewer pixels than it says"))?, orientation))
}

/// Four inks on white paper, as Pillow mixes them.
fn printed([c, m, y, k]: [u8; 4]) -> [u8; 3] {
    let light = |ink: u8| u32::from(255 - ink);
    [c, m, y].map(|ink| ((light(ink) * light(k) + 127) / 255) as u8)
}

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
