//! Pictures and animations: within the limits, or a sentence.
#![no_main]

use libfuzzer_sys::fuzz_target;
use omni_media::MediaLimits;
use omni_media::picture::{Grey16, decode_animation, decode_picture};

fuzz_target!(|file: &[u8]| {
    let limits = MediaLimits { max_bytes: 1 << 20, max_pixels: 1 << 20, max_seconds: 5.0, max_frames: 8 };
    match decode_picture(file, &limits, Grey16::HighByte) {
        Ok(picture) => assert!(picture.size().height * picture.size().width <= 1 << 20),
        Err(error) => assert!(!error.to_string().is_empty()),
    }
    match decode_animation(file, 2.0, &limits) {
        Ok(animation) => assert!(animation.frames.len() <= 8 && animation.frames_per_second > 0.0),
        Err(error) => assert!(!error.to_string().is_empty()),
    }
});
