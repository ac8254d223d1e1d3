//! The frames of an animated GIF or WebP, and when each is shown.

use super::Picture;
use super::decode::{damaged, failure, flattened, format, guarded, memory};
use crate::limits::{MediaError, MediaLimits};
use crate::size::Size;
use image::codecs::gif::GifDecoder;
use image::codecs::webp::WebPDecoder;
use image::{AnimationDecoder, Frame, Frames, ImageDecoder, ImageFormat};
use std::io::Cursor;

/// How long a frame is shown that says at most [`SHORTEST`]: browsers do so, and animations are made for them.
const USUAL_SECONDS: f64 = 0.1;
/// Delays up to here are not meant.
const SHORTEST: f64 = 0.0105;
const STILL: &str = "it is one picture, not an animation";

/// Frames that were picked from an animation.
#[derive(Clone, Debug, PartialEq)]
pub struct Animation {
    /// Upright, all of one size.
    pub frames: Vec<Picture>,
    /// How many of them there are for a second.
    pub frames_per_second: f64,
}

/// Whether a file has several frames. No pixel is decoded.
pub fn is_animated(bytes: &[u8]) -> bool {
    match format(bytes) {
        Ok((ImageFormat::WebP, _)) => WebPDecoder::new(Cursor::new(bytes)).is_ok_and(|decoder| decoder.has_animation()),
        // Animated GIFs say how often they repeat.
        Ok((ImageFormat::Gif, _)) => bytes.windows(11).take(4_096).any(|name| name == b"NETSCAPE2.0"),
        _ => false,
    }
}

/// Decodes an animation and picks frames as a video is sampled: `rate` for a second, an even number of them, at least
/// two and at most [`MediaLimits::max_frames`], each the one that is shown in the middle of its part of the time. Each is
/// `sized` before the next is decoded: as large as they come, all of them may be more than the memory holds.
///
/// # Errors
/// [`MediaError::TooMuch`] for more bytes, pixels or seconds than the limits; [`MediaError::NotAPicture`] and
/// [`MediaError::Damaged`] for what is no whole animation; [`MediaError::Number`] for a rate that is not above 0; those of
/// `sized`.
pub fn decode_animation(
    bytes: &[u8],
    rate: f64,
    limits: &MediaLimits,
    sized: impl Fn(Picture) -> Result<Picture, MediaError>,
) -> Result<Animation, MediaError> {
    limits.check_bytes("video", bytes)?;
    if !(rate > 0.0 && rate.is_finite()) {
        return Err(MediaError::Number { field: "fps", value: rate.to_string(), expected: "a number above 0" });
    }
    let (format, name) = format(bytes)?;
    guarded(name, || {
        // Two passes, so that no more frames are kept than are picked.
        let (mut seconds, mut ends) = (0.0, Vec::new());
        for frame in frames(bytes, format, name, limits)? {
            let frame = frame.map_err(|error| failure(name, error))?;
            seconds += shown_for(&frame);
            limits.check_seconds("video", seconds)?;
            ends.push(seconds);
        }
        if ends.is_empty() {
            return Err(damaged(name, "it has no frames"));
        }
        let most = (limits.max_frames & !1).max(2);
        let count = (((seconds * rate) as usize).next_multiple_of(2)).clamp(2, most);
        let middle = |i: usize| (i as f64 + 0.5) * seconds / count as f64;
        let wanted: Vec<usize> =
            (0..count).map(|i| ends.partition_point(|end| *end <= middle(i)).min(ends.len() - 1)).collect();
        let mut picked = Vec::with_capacity(count);
        for (number, frame) in frames(bytes, format, name, limits)?.enumerate() {
            let times = wanted.iter().filter(|wanted| **wanted == number).count();
            if times > 0 {
                let buffer = frame.map_err(|error| failure(name, error))?.into_buffer();
                let size = Size { height: buffer.height() as usize, width: buffer.width() as usize };
                let picture = sized(Picture::new(size, flattened(&buffer)))?;
                picked.extend(std::iter::repeat_n(picture, times));
            }
        }
        Ok(Animation { frames: picked, frames_per_second: count as f64 / seconds })
    })
}

fn shown_for(frame: &Frame) -> f64 {
    let (numerator, denominator) = frame.delay().numer_denom_ms();
    let seconds = f64::from(numerator) / f64::from(denominator.max(1)) / 1000.0;
    if seconds < SHORTEST { USUAL_SECONDS } else { seconds }
}

fn frames<'a>(
    bytes: &'a [u8],
    format: ImageFormat,
    name: &'static str,
    limits: &MediaLimits,
) -> Result<Frames<'a>, MediaError> {
    let failed = |error| failure(name, error);
    let check = |decoder: &dyn ImageDecoder| {
        let (width, height) = decoder.dimensions();
        limits.check_pixels("video", width, height)
    };
    match format {
        ImageFormat::Gif => {
            let mut decoder = GifDecoder::new(Cursor::new(bytes)).map_err(failed)?;
            check(&decoder)?;
            decoder.set_limits(memory(limits)).map_err(failed)?;
            Ok(decoder.into_frames())
        }
        ImageFormat::WebP => {
            let mut decoder = WebPDecoder::new(Cursor::new(bytes)).map_err(failed)?;
            if !decoder.has_animation() {
                return Err(damaged(name, STILL));
            }
            check(&decoder)?;
            decoder.set_limits(memory(limits)).map_err(failed)?;
            Ok(decoder.into_frames())
        }
        _ => Err(damaged(name, STILL)),
    }
}
