//! Another sample rate than the model's, as a stream: samples leave 12 ms after they came.

use super::AudioError;
use rubato::audioadapter_buffers::direct::SequentialSlice;
use rubato::{
    Async, FixedAsync, Indexing, Resampler as _, SincInterpolationParameters, SincInterpolationType, WindowFunction,
};
use std::sync::{Mutex, PoisonError};

/// Input samples that go through the filter together: 5 ms at 24 kHz.
const CHUNK: usize = 120;
/// Least length of the filter, input samples: 13 ms at 24 kHz. From 24 to 8 kHz it passes what a telephone carries, up
/// to 3.4 kHz, and stops what would be aliased by 90 dB.
const TAPS: usize = 320;
/// Half of the transition from what passes to what is stopped, of a filter of one second, Hz: the main lobe of the
/// window of Blackman and Harris.
const HALF_TRANSITION: f64 = 4.0;
/// Filters between two input samples; positions between them are interpolated with cubics.
const OVERSAMPLING: usize = 64;

/// A stream of samples on its way to another rate. Sample `i` of its output is the sound at `i / to` seconds, and all of
/// it together is `round(n * to / from)` samples long.
pub struct Resampler {
    /// Never locked: it lets a writer be shared, which the library's boxes do not.
    filter: Mutex<Async<f32>>,
    from: u64,
    to: u64,
    /// Input of less than a chunk.
    waiting: Vec<f32>,
    /// One chunk of output.
    chunk: Vec<f32>,
    /// Samples at the beginning of the output that stand for the time before the sound.
    early: usize,
    taken: u64,
    given: u64,
}

impl Resampler {
    /// From `from` to `to` Hz.
    ///
    /// # Errors
    /// Rates that are 0, or so far apart that the filter cannot be made.
    pub fn new(from: u32, to: u32) -> Result<Resampler, AudioError> {
        let failed = |reason: String| AudioError::Resampler { from, to, reason };
        let common = gcd(from, to);
        if common == 0 || from == 0 || to == 0 {
            return Err(failed("a rate is 0".to_owned()));
        }
        // Half of the filter is whole periods of both rates, so that the delay is a whole number of output samples; and
        // the library rounds its length up to 8.
        let period = (from / common) as usize;
        let step = 2 * period * 8 / gcd(8, 2 * period as u32) as usize;
        let taps = TAPS.next_multiple_of(step);
        // The filter's band of transition ends where the lower rate's spectrum does.
        let lower = f64::from(from.min(to)) / 2.0;
        let cutoff = 1.0 - HALF_TRANSITION * f64::from(from) / taps as f64 / lower;
        let parameters = SincInterpolationParameters::new(taps, WindowFunction::BlackmanHarris)
            .f_cutoff(cutoff as f32)
            .oversampling_factor(OVERSAMPLING)
            .interpolation(SincInterpolationType::Cubic);
        let ratio = f64::from(to) / f64::from(from);
        let filter = Async::new_sinc(ratio, 1.0, &parameters, CHUNK, 1, FixedAsync::Input);
        let filter = filter.map_err(|error| failed(error.to_string()))?;
        let chunk = vec![0.0; filter.output_frames_max()];
        // The first sample that the filter gives is one output period later than half of the filter before the sound.
        let early = taps / 2 * (to / common) as usize / period - 1;
        let waiting = Vec::with_capacity(CHUNK);
        let filter = Mutex::new(filter);
        Ok(Resampler { filter, from: from.into(), to: to.into(), waiting, chunk, early, taken: 0, given: 0 })
    }

    /// Appends the output that these samples complete. What is not a number becomes silence, for it would spread.
    ///
    /// # Errors
    /// A bug of the library.
    pub fn push(&mut self, samples: &[f32], out: &mut Vec<f32>) -> Result<(), AudioError> {
        self.taken += samples.len() as u64;
        let before = out.len();
        for &sample in samples {
            self.waiting.push(if sample.is_nan() { 0.0 } else { sample.clamp(-1.0, 1.0) });
            if self.waiting.len() == CHUNK {
                self.filter_chunk(out)?;
            }
        }
        self.given += (out.len() - before) as u64;
        Ok(())
    }

    /// Appends the rest.
    ///
    /// # Errors
    /// A bug of the library.
    pub fn finish(mut self, out: &mut Vec<f32>) -> Result<(), AudioError> {
        let total = (self.taken * self.to * 2 + self.from) / (self.from * 2);
        let rest = total.saturating_sub(self.given) as usize;
        let end = out.len() + rest;
        while out.len() < end {
            self.waiting.resize(CHUNK, 0.0);
            self.filter_chunk(out)?;
        }
        out.truncate(end);
        Ok(())
    }

    fn filter_chunk(&mut self, out: &mut Vec<f32>) -> Result<(), AudioError> {
        let room = self.chunk.len();
        let failed = |reason: String| AudioError::Resampler { from: self.from as u32, to: self.to as u32, reason };
        let input = SequentialSlice::new(&self.waiting[..], 1, CHUNK).map_err(|error| failed(error.to_string()))?;
        let mut output =
            SequentialSlice::new_mut(&mut self.chunk[..], 1, room).map_err(|error| failed(error.to_string()))?;
        let done = self.filter.get_mut().unwrap_or_else(PoisonError::into_inner).process_into_buffer(
            &input,
            &mut output,
            None::<&Indexing>,
        );
        let (_, made) = done.map_err(|error| failed(error.to_string()))?;
        self.waiting.clear();
        let dropped = self.early.min(made);
        self.early -= dropped;
        out.extend_from_slice(&self.chunk[dropped..made]);
        Ok(())
    }
}

fn gcd(a: u32, b: u32) -> u32 {
    if b == 0 { a } else { gcd(b, a % b) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::SAMPLE_RATES;

    const MODEL: u32 = 24_000;

    fn sine(hz: f64, rate: u32, samples: usize) -> Vec<f32> {
        (0..samples).map(|i| (0.5 * (std::f64::consts::TAU * hz * i as f64 / f64::from(rate)).sin()) as f32).collect()
    }

    fn resampled(input: &[f32], to: u32, pieces: impl IntoIterator<Item = usize>) -> Vec<f32> {
        let mut resampler = Resampler::new(MODEL, to).unwrap();
        let (mut out, mut rest) = (Vec::new(), input);
        for piece in pieces {
            let (now, later) = rest.split_at(piece.min(rest.len()));
            resampler.push(now, &mut out).unwrap();
            rest = later;
        }
        resampler.push(rest, &mut out).unwrap();
        resampler.finish(&mut out).unwrap();
        out
    }

    fn rms(values: impl Iterator<Item = f64>) -> f64 {
        let (count, sum) = values.fold((0, 0.0), |(count, sum), value| (count + 1, sum + value * value));
        (sum / f64::from(count)).sqrt()
    }

    /// Decibels of what differs over what is wanted, away from the ends.
    fn difference(got: &[f32], want: &[f32]) -> f64 {
        let middle = want.len() / 8..want.len() * 7 / 8;
        let (got, want) = (&got[middle.clone()], &want[middle]);
        let error = rms(got.iter().zip(want).map(|(a, b)| f64::from(a - b)));
        20.0 * (error / rms(want.iter().map(|value| f64::from(*value)))).log10()
    }

    #[test]
    fn the_length_is_that_of_the_speech_to_the_nearest_sample() {
        for to in SAMPLE_RATES {
            for samples in [0, 1, 2, 119, 120, 121, 1920, 24_000, 41_685] {
                let want = (samples as f64 * f64::from(to) / f64::from(MODEL)).round() as usize;
                assert_eq!(resampled(&sine(200.0, MODEL, samples), to, []).len(), want, "{samples} samples to {to}");
            }
        }
    }

    #[test]
    fn every_sample_keeps_its_time_and_its_level() {
        for to in SAMPLE_RATES {
            for hz in [100.0, 440.0, 1_000.0, 3_000.0] {
                let got = resampled(&sine(hz, MODEL, MODEL as usize), to, []);
                // The library's filters lie a 64th of a sample, 0.65 us, beside the place where they should be.
                let limit = 20.0 * (std::f64::consts::TAU * hz * 0.7e-6).log10();
                let found = difference(&got, &sine(hz, to, to as usize));
                assert!(found < limit.max(-90.0), "{hz} Hz to {to}: {found:.1} dB, at most {limit:.1}");
            }
        }
    }

    #[test]
    fn what_the_lower_rate_cannot_carry_is_gone() {
        for (to, hz) in [(8_000, 4_100.0), (8_000, 7_000.0), (16_000, 8_200.0), (22_050, 11_300.0)] {
            let got = resampled(&sine(hz, MODEL, MODEL as usize), to, []);
            let left = rms(got[got.len() / 8..got.len() * 7 / 8].iter().map(|value| f64::from(*value)));
            let left = 20.0 * (left / (0.5 / 2f64.sqrt())).log10();
            assert!(left < -75.0, "{hz} Hz to {to}: {left:.1} dB");
        }
    }

    #[test]
    fn the_end_is_not_cut_off() {
        // A click in the last sample is heard at the end of the output.
        for to in SAMPLE_RATES {
            let mut input = vec![0.0; 4_800];
            input[4_799] = 0.9;
            let out = resampled(&input, to, []);
            let loudest = (0..out.len()).max_by(|a, b| out[*a].abs().total_cmp(&out[*b].abs())).unwrap();
            assert!(out.len() - loudest <= 1 + to as usize / MODEL as usize, "{to}: {loudest} of {}", out.len());
            assert!(out[loudest].abs() > 0.08, "{to}: {}", out[loudest]);
        }
    }

    #[test]
    fn what_is_not_a_number_does_not_spread() {
        let mut input = sine(300.0, MODEL, 2_400);
        input[7] = f32::NAN;
        input[9] = f32::INFINITY;
        assert!(resampled(&input, 8_000, []).iter().all(|sample| sample.is_finite() && sample.abs() < 1.5));
    }

    #[test]
    fn the_first_sound_leaves_within_a_frame() {
        for to in SAMPLE_RATES {
            let (mut resampler, mut out) = (Resampler::new(MODEL, to).unwrap(), Vec::new());
            resampler.push(&[0.1; 1_920], &mut out).unwrap();
            // 80 ms came; all but 12 ms of it leave.
            assert!(out.len() * 1000 >= 68 * to as usize - 2_000, "{to}: {} samples", out.len());
        }
    }

    proptest::proptest! {
        #![proptest_config(proptest::prelude::ProptestConfig::with_cases(32))]
        #[test]
        fn the_pieces_change_nothing(
            to in proptest::sample::select(&SAMPLE_RATES[..]),
            pieces in proptest::collection::vec(0usize..700, 0..12),
            noise in proptest::collection::vec(-1.0f32..1.0, 3_000),
        ) {
            proptest::prop_assert_eq!(resampled(&noise, to, pieces), resampled(&noise, to, []));
        }
    }
}
