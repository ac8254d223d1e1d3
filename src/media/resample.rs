//! Band-limited change of the sample rate.

use crate::sound::{AudioError, MAX_RATE, MIN_RATE};
use rubato::audioadapter_buffers::direct::SequentialSlice;
use rubato::{Fft, FixedSync, Resampler, WindowFunction};

/// Frames of the lower rate that go through one transform. The anti-aliasing filter is as long: with 1024 its
/// transition takes the uppermost twentieth of the band.
const BLOCK: usize = 1024;

/// Length of `samples` samples at the new rate: as many as the reference makes, which multiplies with the rounded
/// quotient of the rates and rounds up. (So 8 s at 44.1 kHz become 192 001 samples at 24 kHz, and 101 frames of codes.)
pub fn resampled_len(samples: usize, from: u32, to: u32) -> usize {
    (samples as f64 * (f64::from(to) / f64::from(from))).ceil() as usize
}

/// `pcm` of rate `from` at rate `to`, [`resampled_len`] samples. Frequencies above half the lower rate are removed;
/// those below 9/10 of it are unchanged. Samples keep their time: sample `i` of the result is at `i / to` seconds.
/// Beyond its ends, `pcm` counts as silent.
///
/// # Errors
/// [`AudioError::Rate`] for a rate that decoding refuses.
pub fn resample(pcm: &[f32], from: u32, to: u32) -> Result<Vec<f32>, AudioError> {
    if let Some(rate) = [from, to].into_iter().find(|rate| !(MIN_RATE..=MAX_RATE).contains(rate)) {
        return Err(AudioError::Rate(rate));
    }
    if from == to || pcm.is_empty() {
        return Ok(pcm.to_vec());
    }
    let (rate_in, rate_out) = (from as usize, to as usize);
    // Whole periods of the ratio, and an even number of them: the resampler centres its filter on a sample of both
    // rates only if both its blocks are even.
    let period = rate_in / gcd(rate_in, rate_out);
    let block = BLOCK.max(BLOCK * rate_in / rate_out).div_ceil(period).next_multiple_of(2) * period;
    let window = WindowFunction::BlackmanHarris2;
    // The resampler fails for rates and blocks of 0, which were excluded, and for buffers that are too small, which it
    // sized itself.
    let resampled = Fft::<f32>::new_custom(rate_in, rate_out, block, 1, 1, window, FixedSync::Input)
        .ok()
        .zip(SequentialSlice::new(pcm, 1, pcm.len()).ok())
        .and_then(|(mut resampler, input)| resampler.process_all(&input, pcm.len(), None).ok());
    let mut out = resampled.ok_or(AudioError::Rate(from))?.take_data();
    out.resize(resampled_len(pcm.len(), from, to), 0.0);
    Ok(out)
}

fn gcd(a: usize, b: usize) -> usize {
    if b == 0 { a } else { gcd(b, a % b) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::f64::consts::TAU;

    fn sine(hz: f64, rate: u32, samples: usize) -> Vec<f32> {
        (0..samples).map(|i| (0.5 * (TAU * hz * i as f64 / f64::from(rate)).sin()) as f32).collect()
    }

    fn resampled(pcm: &[f32], from: u32, to: u32) -> Vec<f32> {
        resample(pcm, from, to).unwrap()
    }

    fn db(ratio: f64) -> f64 {
        20.0 * ratio.log10()
    }

    fn rms(x: impl Iterator<Item = f64>) -> f64 {
        let (n, sum) = x.fold((0, 0.0), |(n, sum), x| (n + 1, sum + x * x));
        (sum / f64::from(n)).sqrt()
    }

    /// The middle of a signal, away from the effects of its ends.
    fn middle(x: &[f32]) -> &[f32] {
        &x[x.len() / 4..x.len() * 3 / 4]
    }

    const PAIRS: [(u32, u32); 11] = [
        (11_025, 24_000),
        (23_999, 24_000),
        (8_000, 24_000),
        (16_000, 24_000),
        (22_050, 24_000),
        (32_000, 24_000),
        (44_100, 24_000),
        (48_000, 24_000),
        (96_000, 24_000),
        (192_000, 24_000),
        (24_000, 16_000),
    ];

    #[test]
    fn what_both_rates_can_carry_is_unchanged_in_level_and_time() {
        for (from, to) in PAIRS {
            for part in [0.01, 0.1, 0.5, 0.8, 0.9] {
                let hz = part * f64::from(from.min(to)) / 2.0;
                let got = resampled(&sine(hz, from, from as usize), from, to);
                let want = sine(hz, to, to as usize);
                let error = rms(middle(&got).iter().zip(middle(&want)).map(|(a, b)| f64::from(a - b)));
                let error = db(error / rms(want.iter().map(|x| f64::from(*x))));
                assert!(error < -90.0, "{from} to {to}, {hz} Hz: {error:.1} dB");
            }
        }
    }

    #[test]
    fn what_the_lower_rate_cannot_carry_is_gone() {
        for (from, to) in PAIRS.into_iter().filter(|(from, to)| from > to) {
            for part in [1.01, 1.05, 1.2, 1.5, 1.9] {
                let hz = part * f64::from(to) / 2.0;
                if hz >= f64::from(from) / 2.0 {
                    continue;
                }
                let tone = sine(hz, from, from as usize);
                let left = rms(middle(&resampled(&tone, from, to)).iter().map(|x| f64::from(*x)));
                let left = db(left / rms(tone.iter().map(|x| f64::from(*x))));
                assert!(left < -100.0, "{from} to {to}, {hz} Hz: {left:.1} dB");
            }
        }
    }

    #[test]
    fn images_above_the_old_band_do_not_appear() {
        // 3 kHz at 8 kHz would have an image at 5 kHz.
        let got = resampled(&sine(3_000.0, 8_000, 8_000), 8_000, 24_000);
        let want = sine(3_000.0, 24_000, 24_000);
        let image = rms(middle(&got).iter().zip(middle(&want)).map(|(a, b)| f64::from(a - b)));
        assert!(db(image) < -100.0, "{}", db(image));
    }

    #[test]
    fn equal_rates_change_nothing_and_senseless_ones_are_refused() {
        let x = sine(440.0, 24_000, 1_001);
        assert_eq!(resampled(&x, 24_000, 24_000), x);
        assert!(resampled(&[], 44_100, 24_000).is_empty());
        assert_eq!(resample(&x, 0, 24_000), Err(AudioError::Rate(0)));
        assert_eq!(resample(&x, 24_000, u32::MAX), Err(AudioError::Rate(u32::MAX)));
    }

    #[test]
    fn lengths_are_those_of_the_reference() {
        // From librosa 0.11.0: resample(np.zeros(n), orig_sr=from, target_sr=24000).
        for (n, from, want) in
            [(44_100, 44_100, 24_001), (352_800, 44_100, 192_001), (1, 48_000, 1), (30_011, 16_000, 45_017)]
        {
            assert_eq!(resampled_len(n, from, 24_000), want, "{n} samples of {from}");
        }
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(24))]

        #[test]
        fn any_rate_and_any_length_work(from in 8_000u32..=192_000, n in 1usize..3_000) {
            let got = resampled(&vec![0.25; n], from, 24_000);
            prop_assert_eq!(got.len(), resampled_len(n, from, 24_000));
            prop_assert!(got.iter().all(|x| x.abs() < 0.35), "a constant overshoots by the filter's ripple only");
        }
    }
}
