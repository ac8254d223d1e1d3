//! The sounds and pictures of a drill: files that follow from a seed. Pure.

use std::f32::consts::TAU;
use std::sync::Arc;

/// Samples a second.
const RATE: u32 = 16_000;
/// More than the encoder takes in one step.
const SECONDS: u32 = 9;
/// Sides of a picture.
const WIDTH: u32 = 224;
const HEIGHT: u32 = 160;

/// A wav file of two tones.
pub fn sound(seed: u64) -> Arc<[u8]> {
    let pitch = 200.0 + (seed % 400) as f32;
    let tone = |at: u32, pitch: f32| (at as f32 / RATE as f32 * pitch * TAU).sin();
    let samples = (0..RATE * SECONDS).map(|at| (tone(at, pitch) + tone(at, 3.1 * pitch)) * 8_000.0);
    let samples: Vec<u8> = samples.flat_map(|sample| (sample as i16).to_le_bytes()).collect();
    // PCM of one channel and 16 bits.
    let form = [16, 0x0001_0001, RATE, 2 * RATE, 0x0010_0002].map(u32::to_le_bytes).concat();
    let size = samples.len() as u32;
    let parts: [&[u8]; 7] =
        [b"RIFF", &(36 + size).to_le_bytes(), b"WAVEfmt ", &form, b"data", &size.to_le_bytes(), &samples];
    parts.concat().into()
}

/// A bmp file of a pattern.
pub fn picture(seed: u64) -> Arc<[u8]> {
    let level = |x: u32, y: u32| (u64::from(x * y) / 3 + seed * 31) as u8;
    let pixels = (0..HEIGHT).flat_map(|y| (0..WIDTH).flat_map(move |x| [level(x, y), (x ^ y) as u8, (x + y) as u8]));
    let pixels: Vec<u8> = pixels.collect();
    // A header of 14 and one of 40 bytes; one plane of 24 bits; rows of 672 bytes, a multiple of 4.
    let header = [54 + pixels.len() as u32, 0, 54, 40, WIDTH, HEIGHT, 0x0018_0001, 0, pixels.len() as u32, 0, 0, 0, 0];
    [&b"BM"[..], &header.map(u32::to_le_bytes).concat(), &pixels].concat().into()
}

#[cfg(test)]
mod tests {
    use super::*;
    use omni_media::limits::MediaLimits;
    use omni_media::picture::{Grey16, decode_picture};
    use omni_media::size::Size;
    use omni_media::sound::{AudioLimits, decode_sound};

    #[test]
    fn files_follow_from_the_seed_and_can_be_decoded() {
        assert!(sound(7) == sound(7) && sound(7) != sound(8));
        assert!(picture(7) == picture(7) && picture(7) != picture(8));
        let decoded = decode_picture(&picture(7), &MediaLimits::default(), Grey16::default()).unwrap();
        assert_eq!(decoded.size(), Size { height: HEIGHT as usize, width: WIDTH as usize });
        let decoded = decode_sound(&sound(7), &AudioLimits::default()).unwrap();
        assert_eq!((decoded.rate, decoded.pcm.len()), (RATE, (RATE * SECONDS) as usize));
    }
}
