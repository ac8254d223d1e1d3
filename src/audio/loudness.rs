//! Loudness: EBU R 128, over a whole answer.

use super::AudioError;
use ebur128::{EbuR128, Mode};

/// Quietest loudness that can be asked for, LUFS.
pub const MIN_LOUDNESS: f32 = -40.0;
/// Loudest one: what streaming services play at most.
pub const MAX_LOUDNESS: f32 = -8.0;
/// The true peak stays below this, dBTP, as R 128 has it: a decoder of a lossy format may overshoot by less.
const CEILING: f64 = -1.0;
/// Most amplification, dB: what is quieter than that is no speech.
const MOST_GAIN: f64 = 30.0;

/// The factor that gives samples of `rate` Hz the integrated loudness `target` (LUFS), or less where the true peak would
/// rise above the ceiling. It is 1 for silence and for less than 400 ms, of which loudness is not defined.
pub(super) fn gain(samples: &[f32], rate: u32, target: f32) -> Result<f32, AudioError> {
    let failed = |error: ebur128::Error| AudioError::Loudness(error.to_string());
    let mut meter = EbuR128::new(1, rate, Mode::I | Mode::TRUE_PEAK).map_err(failed)?;
    // One channel that is played from both speakers is as loud as two.
    meter.set_channel(0, ebur128::Channel::DualMono).map_err(failed)?;
    meter.add_frames_f32(samples).map_err(failed)?;
    let loudness = meter.loudness_global().map_err(failed)?;
    if !loudness.is_finite() {
        return Ok(1.0);
    }
    let peak = 20.0 * meter.true_peak(0).map_err(failed)?.log10();
    let decibels = (f64::from(target) - loudness).min(CEILING - peak).min(MOST_GAIN);
    Ok(10f64.powf(decibels / 20.0) as f32)
}

#[cfg(test)]
mod tests {
    use super::*;

    const RATE: u32 = 24_000;

    fn sine(level: f64, samples: usize) -> Vec<f32> {
        let step = std::f64::consts::TAU * 1_000.0 / f64::from(RATE);
        (0..samples).map(|i| (level * (step * i as f64).sin()) as f32).collect()
    }

    #[test]
    fn a_tone_of_the_standard_has_the_loudness_that_it_says() {
        // EBU Tech 3341: a tone of 1 kHz at -23 dBFS from two speakers is -23 LUFS.
        let tone = sine(10f64.powf(-23.0 / 20.0), 10 * RATE as usize);
        let decibels = 20.0 * f64::from(gain(&tone, RATE, -16.0).unwrap()).log10();
        assert!((decibels - 7.0).abs() < 0.1, "{decibels}");
        assert!((gain(&tone, RATE, -23.0).unwrap() - 1.0).abs() < 0.02);
    }

    #[test]
    fn peaks_hold_the_gain_back() {
        // Two seconds of a quiet tone with one peak of nearly full scale.
        let mut tone = sine(0.02, 2 * RATE as usize);
        tone[RATE as usize..][..24].copy_from_slice(&sine(0.8, 24));
        let gain = gain(&tone, RATE, -16.0).unwrap();
        let loudest = tone.iter().fold(0.0f32, |loudest, sample| loudest.max((sample * gain).abs()));
        assert!((0.8..=0.9).contains(&loudest), "{loudest}");
    }

    #[test]
    fn silence_and_very_short_sounds_stay_as_they_are() {
        assert_eq!(gain(&[0.0; 48_000], RATE, -16.0).unwrap(), 1.0);
        assert_eq!(gain(&sine(0.1, 4_800), RATE, -16.0).unwrap(), 1.0);
        assert_eq!(gain(&[], RATE, -16.0).unwrap(), 1.0);
    }
}
