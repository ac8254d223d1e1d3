//! Sound that a detector takes for speech, where there is no recording. Pure.

use std::f32::consts::TAU;

/// Samples a second: OpenAI's `audio/pcm`.
const RATE: u32 = 24_000;

/// Formants of two vowels, Hz.
const VOWELS: [[f32; 3]; 2] = [[700.0, 1_200.0, 2_600.0], [300.0, 2_300.0, 3_000.0]];

/// Width of a formant, Hz.
const WIDTH: f32 = 90.0;

/// Samples at 24 kHz of something that sounds like speech for as long as it lasts: vowels in turn, on a voice that rises
/// and falls.
pub(crate) fn speech(seed: u64) -> Vec<i16> {
    let base = 110.0 + (seed % 60) as f32;
    let mut phase = 0.0;
    let sample = |at: u32| {
        let time = at as f32 / RATE as f32;
        let pitch = base + 15.0 * (1.5 * time * TAU).sin();
        phase = (phase + pitch / RATE as f32).fract();
        // Four syllables a second.
        let (syllable, within) = ((time * 4.0) as usize, (time * 4.0).fract());
        let loud = |frequency: f32| {
            let near = |formant: &f32| 1.0 / (1.0 + ((frequency - formant) / WIDTH).powi(2));
            VOWELS[syllable % 2].iter().map(near).sum::<f32>()
        };
        let harmonics = (1..=30).map(|n| n as f32).map(|n| loud(n * pitch) * (n * phase * TAU).sin());
        let envelope = 0.3 + 0.7 * (within * TAU / 2.0).sin();
        (harmonics.sum::<f32>() * envelope * 4_500.0) as i16
    };
    (0..RATE * 6 / 5).map(sample).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn speech_follows_from_its_seed_and_is_neither_silent_nor_clipped() {
        assert!(speech(7) == speech(7) && speech(7) != speech(8));
        for seed in 0..60 {
            let loudest = speech(seed).iter().map(|sample| sample.unsigned_abs()).max().unwrap();
            assert!((8_000..32_767).contains(&loudest), "{seed}: {loudest}");
        }
    }
}
