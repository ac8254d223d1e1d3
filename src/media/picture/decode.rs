//! One picture of a file.

use super::{Picture, jpeg};
use crate::limits::{MediaError, MediaLimits};
use crate::size::Size;
use image::metadata::Orientation;
use image::{DynamicImage, ImageDecoder, ImageError, ImageFormat, ImageReader, Limits};
use std::io::Cursor;
use std::panic::{AssertUnwindSafe, catch_unwind};

/// Memory of a decoder for each pixel: the picture with 16 bits in four channels, and once more to work in.
const BYTES_PER_PIXEL: u64 = 16;
/// Memory of a decoder beside pixels: tables and metadata.
const WORKING_BYTES: u64 = 16 << 20;
/// Characters of what a decoder says that a client is told.
const MOST_REASON: usize = 120;

/// What becomes of grey with 16 bits.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Grey16 {
    /// The high byte counts, as for colours with 16 bits.
    #[default]
    HighByte,
    /// Values above 255 become white, as the reference's decoder has it (Pillow 13): nearly every picture is white then.
    Clip,
}

/// Formats that are read here.
pub(super) fn format(bytes: &[u8]) -> Result<(ImageFormat, &'static str), MediaError> {
    match image::guess_format(bytes) {
        Ok(format @ ImageFormat::Png) => Ok((format, "png")),
        Ok(format @ ImageFormat::Jpeg) => Ok((format, "jpeg")),
        Ok(format @ ImageFormat::Gif) => Ok((format, "gif")),
        Ok(format @ ImageFormat::WebP) => Ok((format, "webp")),
        Ok(format @ ImageFormat::Bmp) => Ok((format, "bmp")),
        _ => Err(MediaError::NotAPicture),
    }
}

/// Decodes a picture, of an animation the first: upright by its EXIF tag, transparent pixels on white, grey in all three
/// channels, palettes expanded.
///
/// # Errors
/// [`MediaError::TooMuch`] for more bytes or pixels than the limits, from the header alone; [`MediaError::NotAPicture`]
/// and [`MediaError::Damaged`] for what is no whole picture.
pub fn decode_picture(bytes: &[u8], limits: &MediaLimits, grey: Grey16) -> Result<Picture, MediaError> {
    limits.check_bytes("image", bytes)?;
    let (format, name) = format(bytes)?;
    guarded(name, || {
        if format == ImageFormat::Jpeg {
            let (picture, orientation) = jpeg::decode(bytes, limits)?;
            return Ok(upright(picture, orientation, grey));
        }
        let failed = |error: ImageError| failure(name, error);
        let mut reader = ImageReader::with_format(Cursor::new(bytes), format);
        reader.limits(memory(limits));
        let mut decoder = reader.into_decoder().map_err(failed)?;
        let (width, height) = decoder.dimensions();
        limits.check_pixels("image", width, height)?;
        // A damaged tag turns no picture.
        let orientation = decoder.orientation().unwrap_or(Orientation::NoTransforms);
        Ok(upright(DynamicImage::from_decoder(decoder).map_err(failed)?, orientation, grey))
    })
}

fn upright(mut picture: DynamicImage, orientation: Orientation, grey: Grey16) -> Picture {
    picture.apply_orientation(orientation);
    rgb(picture, grey)
}

/// Has a decoder work: a panic in it fails the request, not the thread that serves it.
pub(super) fn guarded<T>(name: &'static str, work: impl FnOnce() -> Result<T, MediaError>) -> Result<T, MediaError> {
    catch_unwind(AssertUnwindSafe(work)).unwrap_or_else(|_| Err(damaged(name, "its structure makes no sense")))
}

/// Limits of a decoder's memory.
pub(super) fn memory(limits: &MediaLimits) -> Limits {
    let mut memory = Limits::no_limits();
    memory.max_alloc = Some(most_memory(limits));
    memory
}

/// Bytes that a decoder may allocate.
pub(super) fn most_memory(limits: &MediaLimits) -> u64 {
    limits.max_pixels.saturating_mul(BYTES_PER_PIXEL).saturating_add(WORKING_BYTES)
}

pub(super) fn damaged(format: &'static str, reason: impl Into<String>) -> MediaError {
    let line = reason.into().replace(['\n', '\r'], " ");
    MediaError::Damaged { format, reason: line.chars().take(MOST_REASON).collect() }
}

pub(super) fn failure(format: &'static str, error: ImageError) -> MediaError {
    let text = match error {
        ImageError::IoError(error) if error.kind() == std::io::ErrorKind::UnexpectedEof => {
            "it ends in the middle".into()
        }
        error => error.to_string(),
    };
    damaged(format, text)
}

fn rgb(picture: DynamicImage, grey: Grey16) -> Picture {
    let size = Size { height: picture.height() as usize, width: picture.width() as usize };
    let high = |value: u16| (value >> 8) as u8;
    let one = |value: u16| match grey {
        Grey16::HighByte => high(value),
        Grey16::Clip => value.min(255) as u8,
    };
    let values = match picture {
        DynamicImage::ImageRgb8(picture) => picture.into_raw(),
        DynamicImage::ImageLuma8(picture) => picture.into_raw().into_iter().flat_map(|v| [v; 3]).collect(),
        DynamicImage::ImageLuma16(picture) => picture.into_raw().into_iter().flat_map(|v| [one(v); 3]).collect(),
        DynamicImage::ImageLumaA8(picture) => picture.pixels().flat_map(|p| on_white([p.0[0]; 3], p.0[1])).collect(),
        DynamicImage::ImageLumaA16(picture) => {
            picture.pixels().flat_map(|p| on_white([high(p.0[0]); 3], high(p.0[1]))).collect()
        }
        DynamicImage::ImageRgb16(picture) => picture.into_raw().into_iter().map(high).collect(),
        DynamicImage::ImageRgba16(picture) => picture
            .pixels()
            .flat_map(|p| {
                let [r, g, b, a] = p.0.map(high);
                on_white([r, g, b], a)
            })
            .collect(),
        // The one kind that is left of those that the decoders give.
        other => flattened(&other.into_rgba8()),
    };
    Picture::new(size, values)
}

/// A picture with transparent pixels, on white.
pub(super) fn flattened(picture: &image::RgbaImage) -> Vec<u8> {
    picture.pixels().flat_map(|p| on_white([p.0[0], p.0[1], p.0[2]], p.0[3])).collect()
}

/// A pixel of this opacity on white, `(c * a + 255 * (255 - a)) / 255` to the nearest, as Pillow composes.
fn on_white(pixel: [u8; 3], alpha: u8) -> [u8; 3] {
    let alpha = u32::from(alpha);
    pixel.map(|value| {
        let sum = u32::from(value) * alpha + 255 * (255 - alpha) + 128;
        ((sum + (sum >> 8)) >> 8) as u8
    })
}
