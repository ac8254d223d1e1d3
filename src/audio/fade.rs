//! The first milliseconds of an answer.
//!
//! A vocoder begins on nothing: its filters see silence that no recording has, and answer with a step away from zero
//! that dies out within 6 ms. An ear hears a click. The samples of the engine are what the reference makes, so they stay;
//! what a listener gets fades in over that step, which lies before any speech.

use std::time::Duration;

/// Fades in the beginning of a stream of samples.
#[derive(Clone, Copy, Debug)]
pub(super) struct FadeIn {
    /// Samples that fade.
    length: usize,
    /// Samples that have come, up to `length`.
    at: usize,
}

impl FadeIn {
    /// Over this time, at `rate` Hz.
    pub fn new(time: Duration, rate: u32) -> FadeIn {
        FadeIn { length: (time.as_secs_f64() * f64::from(rate)).round() as usize, at: 0 }
    }

    /// Whether samples to come fade.
    pub fn is_over(&self) -> bool {
        self.at == self.length
    }

    /// These samples with a raised cosine over those that fade.
    pub fn apply(&mut self, samples: &[f32]) -> Vec<f32> {
        let mut faded = samples.to_vec();
        for sample in faded.iter_mut().take(self.length - self.at) {
            let part = (self.at as f64 + 0.5) / self.length as f64;
            *sample *= (0.5 - 0.5 * (std::f64::consts::PI * part).cos()) as f32;
            self.at += 1;
        }
        faded
    }
}
