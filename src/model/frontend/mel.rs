//! The log-mel spectrum that the speaker encoder reads.
//!
//! Samples at 24 kHz, 384 more at both ends by reflection, a Fourier transform of 1024 every 256 with a periodic Hann
//! window and no centring, magnitudes `sqrt(re^2 + im^2 + 1e-9)`, 128 triangles on Slaney's mel scale from 0 to 12000
//! Hz with Slaney's norm, the logarithm of at least 1e-5.

use candle_core::{Device, Result, Tensor};
use omni_media::slaney;
use omni_ops::Linear;
use realfft::RealToComplex;
use realfft::num_complex::Complex;
use std::f64::consts::PI;
use std::sync::Arc;

/// Samples of a window, which is also the length of its transform.
const WINDOW: usize = 1024;
/// Samples from one window to the next.
const HOP: usize = 256;
/// Samples that are mirrored at both ends, so that there is about one window for each hop.
const PADDING: usize = (WINDOW - HOP) / 2;
const BINS: usize = WINDOW / 2 + 1;
/// Smaller magnitudes count as silence.
const FLOOR: f32 = 1e-5;

/// Samples to a log-mel spectrum.
pub(super) struct MelSpectrum {
    window: Vec<f32>,
    fft: Arc<dyn RealToComplex<f32>>,
    /// `[bands, BINS]`.
    filters: Linear,
    device: Device,
}

impl MelSpectrum {
    /// With `bands` bands from 0 Hz to half of `rate`.
    pub fn new(bands: usize, rate: u32, device: &Device) -> Result<MelSpectrum> {
        // Periodic, as of a transform: the last sample would be the first of the next period.
        let window = (0..WINDOW).map(|i| (0.5 - 0.5 * (2.0 * PI * i as f64 / WINDOW as f64).cos()) as f32).collect();
        let filters = Tensor::from_vec(filters(bands, f64::from(rate)), (bands, BINS), device)?;
        Ok(MelSpectrum {
            window,
            fft: omni_media::fft::forward(WINDOW),
            filters: Linear::new(filters, None)?,
            device: device.clone(),
        })
    }

    /// `[frames, bands]`.
    pub fn of(&self, pcm: &[f32]) -> Result<Tensor> {
        if pcm.len() <= PADDING {
            candle_core::bail!("{} samples are too few for a spectrum: expected more than {PADDING}", pcm.len());
        }
        let padded = mirrored(pcm);
        let mut magnitudes = Vec::with_capacity((pcm.len() / HOP + 1) * BINS);
        let mut spectrum = vec![Complex::default(); BINS];
        let mut scratch = self.fft.make_scratch_vec();
        let mut frame = vec![0f32; WINDOW];
        for samples in padded.windows(WINDOW).step_by(HOP) {
            frame.iter_mut().zip(samples).zip(&self.window).for_each(|((f, x), w)| *f = x * w);
            self.fft.process_with_scratch(&mut frame, &mut spectrum, &mut scratch).map_err(candle_core::Error::wrap)?;
            magnitudes.extend(spectrum.iter().map(|c| (c.re * c.re + c.im * c.im + 1e-9).sqrt()));
        }
        let frames = magnitudes.len() / BINS;
        let magnitudes = Tensor::from_vec(magnitudes, (frames, BINS), &self.device)?;
        self.filters.forward(&magnitudes)?.clamp(FLOOR, f32::INFINITY)?.log()
    }
}

/// The samples with [`PADDING`] mirrored ones at both ends; the outermost samples are not repeated. There are more
/// samples than that.
fn mirrored(pcm: &[f32]) -> Vec<f32> {
    let mut padded = Vec::with_capacity(pcm.len() + 2 * PADDING);
    padded.extend(pcm[1..=PADDING].iter().rev());
    padded.extend_from_slice(pcm);
    padded.extend(pcm[pcm.len() - 1 - PADDING..pcm.len() - 1].iter().rev());
    padded
}

/// Triangles of equal area, each from the centre of the band below to that of the band above. The centres are equally
/// far apart on Slaney's mel scale, linear up to 1 kHz and logarithmic above.
fn filters(bands: usize, rate: f64) -> Vec<f32> {
    let nyquist = rate / 2.0;
    let centres = slaney::centres(bands, nyquist);
    let mut weights = Vec::with_capacity(bands * BINS);
    for band in centres.windows(3) {
        let [low, centre, high] = [band[0], band[1], band[2]];
        for bin in 0..BINS {
            let f = nyquist * bin as f64 / (BINS - 1) as f64;
            let triangle = ((f - low) / (centre - low)).min((high - f) / (high - centre)).max(0.0);
            weights.push((triangle * 2.0 / (high - low)) as f32);
        }
    }
    weights
}

#[cfg(test)]
mod tests {
    use super::*;
    use omni_media::slaney::{hertz, mel};

    #[test]
    fn a_tone_is_loudest_in_the_band_around_it() {
        let spectrum = MelSpectrum::new(128, 24_000, &Device::Cpu).unwrap();
        for tone in [250.0, 1_000.0, 5_000.0] {
            let pcm: Vec<f32> = (0..24_000).map(|i| (2.0 * PI * tone * f64::from(i) / 24e3).sin() as f32).collect();
            let rows = spectrum.of(&pcm).unwrap().to_vec2::<f32>().unwrap();
            assert_eq!(rows.len(), (24_000 + 2 * PADDING - WINDOW) / HOP + 1);
            let loudest = rows[40].iter().enumerate().max_by(|a, b| a.1.total_cmp(b.1)).unwrap().0;
            let centre = hertz(mel(12e3) * (loudest + 1) as f64 / 129.0);
            assert!((centre / tone - 1.0).abs() < 0.1, "{tone} Hz is in the band of {centre} Hz");
        }
    }

    #[test]
    fn silence_is_the_floor_and_too_few_samples_are_refused() {
        let spectrum = MelSpectrum::new(8, 24_000, &Device::Cpu).unwrap();
        assert!(spectrum.of(&[0.0; PADDING]).is_err());
        let least = spectrum.of(&[0.0; PADDING + 1]).unwrap();
        assert_eq!(least.dims(), [1, 8]);
        // The square root of 1e-9, weighted by triangles of area 1 over bins 23 Hz apart.
        assert!(least.flatten_all().unwrap().to_vec1::<f32>().unwrap().iter().all(|x| *x < -9.0));
    }

    #[test]
    fn mirroring_leaves_the_outermost_samples_alone() {
        let pcm: Vec<f32> = (0..1_000).map(|i| i as f32).collect();
        let padded = mirrored(&pcm);
        assert_eq!(padded.len(), 1_000 + 2 * PADDING);
        assert_eq!(padded[PADDING - 1..PADDING + 2], [1.0, 0.0, 1.0]);
        assert_eq!(padded[PADDING + 998..PADDING + 1_001], [998.0, 999.0, 998.0]);
    }

    #[test]
    fn the_scale_is_slaneys() {
        // From librosa.hz_to_mel.
        for (hz, want) in [(60.0, 0.9), (1_000.0, 15.0), (6_400.0, 42.0), (12_000.0, 51.143)] {
            assert!((mel(hz) - want).abs() < 1e-3, "{hz} Hz is {} mel", mel(hz));
            assert!((hertz(mel(hz)) / hz - 1.0).abs() < 1e-12);
        }
    }
}
