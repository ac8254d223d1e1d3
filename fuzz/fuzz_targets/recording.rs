//! Recordings of voices: finite samples within the limits, or a sentence.
#![no_main]

use libfuzzer_sys::fuzz_target;
use omni_model::frontend::{AudioLimits, decode_audio};

fuzz_target!(|file: &[u8]| {
    let limits = AudioLimits { max_bytes: 1 << 20, min_seconds: 0.1, max_seconds: 10.0 };
    match decode_audio(file, &limits) {
        Ok(clip) => {
            assert!(clip.pcm.iter().all(|sample| sample.is_finite()));
            assert!(clip.seconds() <= limits.max_seconds);
        }
        Err(error) => assert!(!error.to_string().is_empty()),
    }
});
