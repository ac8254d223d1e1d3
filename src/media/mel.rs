//! The log-mel spectrum that the thinker hears.
//!
//! The formula is that of `WhisperFeatureExtractor` in transformers 5.23.0 (`_torch_extract_fbank_features`), computed
//! in f64 and rounded to f32 at the end:
//! 1. The samples are padded by reflection with half a window at both ends. Frame `t` starts at `hop * t` of that; a
//!    periodic Hann window, a Fourier transform, squared magnitudes.
//! 2. Triangles on Slaney's mel scale from 0 to 8000 Hz, each of area 1.
//! 3. `x = log10(max(mel, 1e-10))`, `x = max(x, max of the clip - 8)`, `x = (x + 4) / 4`.

use crate::limits::MediaError;
use crate::slaney;
use crate::spectrum::{BLOCK_FRAMES, Block, Spectrum};
use realfft::num_complex::Complex;
use realfft::{RealFftPlanner, RealToComplex};
use std::f64::consts::PI;
use std::ops::Range;
use std::sync::Arc;

/// The upper edge of the highest band, Hz.
const TOP_HERTZ: f64 = 8_000.0;
/// What the logarithm is taken of at least.
pub(crate) const LEAST_POWER: f64 = 1e-10;
/// Frames, bands or samples that a config may ask for: a typo must not become an allocation.
const MOST: usize = 1 << 16;

/// The shape of a spectrum, from `preprocessor_config.json`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MelConfig {
    /// Samples per second (`sampling_rate`).
    pub rate: u32,
    /// Samples of a window, an even number (`n_fft`).
    pub window: usize,
    /// Samples from one window to the next (`hop_length`).
    pub hop: usize,
    /// Bands (`feature_size`).
    pub bands: usize,
}

/// Samples to log-mel frames. Immutable and shared by all requests.
pub struct LogMel {
    config: MelConfig,
    window: Vec<f64>,
    fft: Arc<dyn RealToComplex<f64>>,
    /// Of each band: the first bin, and the weights from there on.
    bands: Vec<(usize, Vec<f64>)>,
}

impl std::fmt::Debug for LogMel {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_tuple("LogMel").field(&self.config).finish()
    }
}

/// How far the frames of a clip reach.
pub(crate) struct Extent {
    /// Samples with the zeros behind them.
    pub padded: usize,
    /// Frames that have more than zeros: those behind `frames` count for the loudest bin only.
    pub computed: usize,
    /// Frames of the clip.
    pub frames: usize,
}

impl Extent {
    /// The sample that stands at `i`, up to half a window in front of the clip or behind it.
    pub fn reflected(&self, i: isize) -> usize {
        let last = self.padded.saturating_sub(1);
        let i = i.unsigned_abs();
        if i > last { 2 * last - i } else { i }
    }
}

/// Room to compute frames in.
struct Scratch {
    frame: Vec<f64>,
    spectrum: Vec<Complex<f64>>,
    fft: Vec<Complex<f64>>,
}

impl MelConfig {
    /// Samples that are reflected at each end.
    fn padding(&self) -> usize {
        self.window / 2
    }

    /// The fewest samples that have a spectrum: a reflection needs one more than it mirrors.
    pub fn least_samples(&self) -> usize {
        self.padding() + 1
    }
}

impl LogMel {
    /// # Errors
    /// [`MediaError::Number`] for a config that describes no spectrum.
    pub fn new(config: MelConfig) -> Result<LogMel, MediaError> {
        let number =
            |field, value: usize, expected| Err(MediaError::Number { field, value: value.to_string(), expected });
        if config.window < 2 || config.window % 2 == 1 || config.window > MOST {
            return number("n_fft", config.window, "an even number from 2 to 65536");
        }
        if config.hop == 0 || config.hop > config.window {
            return number("hop_length", config.hop, "1 to n_fft");
        }
        if config.bands == 0 || config.bands > MOST {
            return number("feature_size", config.bands, "1 to 65536");
        }
        if f64::from(config.rate) < TOP_HERTZ {
            return number("sampling_rate", config.rate as usize, "at least 8000");
        }
        // Periodic, as of a transform: the last sample would be the first of the next period.
        let window = (0..config.window).map(|i| 0.5 - 0.5 * (2.0 * PI * i as f64 / config.window as f64).cos());
        Ok(LogMel {
            config,
            window: window.collect(),
            fft: RealFftPlanner::new().plan_fft_forward(config.window),
            bands: bands(&config),
        })
    }

    /// The shape.
    pub fn config(&self) -> &MelConfig {
        &self.config
    }

    /// The frequency in the middle of each band, Hz, ascending.
    pub fn band_centres(&self) -> Vec<f64> {
        slaney::centres(self.config.bands, TOP_HERTZ)[1..=self.config.bands].to_vec()
    }

    /// Samples that are reflected at each end.
    pub(crate) fn padding(&self) -> usize {
        self.config.padding()
    }

    fn scratch(&self) -> Scratch {
        Scratch {
            frame: vec![0.0; self.config.window],
            spectrum: vec![Complex::default(); self.config.window / 2 + 1],
            fft: self.fft.make_scratch_vec(),
        }
    }

    /// Appends the logarithms of one frame, `[bands]`: step 2 and the first part of step 3.
    fn frame(&self, samples: impl Iterator<Item = f32>, scratch: &mut Scratch, out: &mut Vec<f64>) {
        scratch.frame.iter_mut().zip(samples).zip(&self.window).for_each(|((f, x), w)| *f = f64::from(x) * w);
        // It fails for buffers of other lengths only.
        let done = self.fft.process_with_scratch(&mut scratch.frame, &mut scratch.spectrum, &mut scratch.fft);
        debug_assert!(done.is_ok());
        out.extend(self.bands.iter().map(|(first, weights)| {
            let power: f64 = scratch.spectrum[*first..].iter().zip(weights).map(|(x, w)| x.norm_sqr() * w).sum();
            power.max(LEAST_POWER).log10()
        }));
    }

    /// The spectrum of samples that are padded with zeros to `padded` samples (at least as many as there are), as the
    /// reference pads the clips of one request to the longest: a clip has frames only as far as its sound reaches.
    ///
    /// # Errors
    /// [`MediaError::TooLittle`] when `padded` is below [`MelConfig::least_samples`].
    pub fn spectrum(&self, pcm: &[f32], padded: usize) -> Result<Spectrum, MediaError> {
        self.spectrum_by(pcm, padded, |count, block| (0..count).map(block).collect())
    }

    /// [`LogMel::spectrum`] whose blocks, a second of sound each, `each` has computed, on whichever threads: all of that
    /// number, in their order.
    ///
    /// # Errors
    /// As [`LogMel::spectrum`].
    pub fn spectrum_by(
        &self,
        pcm: &[f32],
        padded: usize,
        each: impl FnOnce(usize, &(dyn Fn(usize) -> Arc<Block> + Sync)) -> Vec<Arc<Block>>,
    ) -> Result<Spectrum, MediaError> {
        let extent = self.extent(pcm.len(), padded)?;
        let at = |i: isize| pcm.get(extent.reflected(i)).copied().unwrap_or(0.0);
        let block = |number: usize| {
            let first = number * BLOCK_FRAMES;
            self.block(at, first..extent.computed.min(first + BLOCK_FRAMES), &mut self.scratch())
        };
        let blocks = each(extent.computed.div_ceil(BLOCK_FRAMES), &block);
        Ok(Spectrum::new(blocks, self.config.bands, extent.frames))
    }

    /// How far the frames of a clip of so many samples reach that is padded to `padded`.
    ///
    /// # Errors
    /// As [`LogMel::spectrum`].
    pub(crate) fn extent(&self, samples: usize, padded: usize) -> Result<Extent, MediaError> {
        let (hop, padding) = (self.config.hop, self.padding());
        let padded = padded.max(samples);
        self.check_length(padded)?;
        // Frames behind those have zeros only.
        let computed = (padded / hop).min((samples + padding).div_ceil(hop));
        let frames = if samples == padded { padded / hop } else { samples.div_ceil(hop).min(padded / hop) };
        Ok(Extent { padded, computed, frames })
    }

    /// The samples that these frames are computed from, which may lie in front of the clip and behind it.
    pub(crate) fn reach(&self, frames: &Range<usize>) -> Range<isize> {
        let start = |frame: usize| (frame * self.config.hop) as isize - self.padding() as isize;
        start(frames.start)..start(frames.end.saturating_sub(1)) + self.config.window as isize
    }

    /// These frames, of which the first begins a block, of a clip with these samples: also those in front of it and
    /// behind it.
    pub(crate) fn blocks(&self, at: impl Fn(isize) -> f32, frames: Range<usize>) -> Vec<Arc<Block>> {
        let mut scratch = self.scratch();
        let block = |first: usize| self.block(&at, first..frames.end.min(first + BLOCK_FRAMES), &mut scratch);
        frames.clone().step_by(BLOCK_FRAMES).map(block).collect()
    }

    /// These frames of one block.
    fn block(&self, at: impl Fn(isize) -> f32, frames: Range<usize>, scratch: &mut Scratch) -> Arc<Block> {
        let mut logs = Vec::with_capacity(frames.len() * self.config.bands);
        for t in frames {
            let start = self.reach(&(t..t + 1)).start;
            self.frame((start..).take(self.config.window).map(&at), scratch, &mut logs);
        }
        Arc::new(Block::new(logs))
    }

    /// # Errors
    /// [`MediaError::TooLittle`] for fewer than [`MelConfig::least_samples`].
    pub(crate) fn check_length(&self, samples: usize) -> Result<(), MediaError> {
        let (have, least) = (samples as u64, self.config.least_samples() as u64);
        if have < least {
            return Err(MediaError::TooLittle { media: "audio", unit: "samples at 16 kHz", have, least });
        }
        Ok(())
    }
}

/// Triangles, each from the centre of the band below to that of the band above.
fn bands(config: &MelConfig) -> Vec<(usize, Vec<f64>)> {
    let bins = config.window / 2 + 1;
    let bin_hertz = f64::from(config.rate) / config.window as f64;
    let band = |band: &[f64]| {
        let [low, centre, high] = [band[0], band[1], band[2]];
        let weight = |bin: usize| {
            let f = bin as f64 * bin_hertz;
            let triangle = ((f - low) / (centre - low)).min((high - f) / (high - centre)).max(0.0);
            // The reference keeps its weights in f32.
            f64::from((triangle * 2.0 / (high - low)) as f32)
        };
        let first = ((low / bin_hertz).floor() as usize).min(bins);
        let end = ((high / bin_hertz).ceil() as usize + 1).min(bins);
        (first, (first..end).map(weight).collect())
    };
    slaney::centres(config.bands, TOP_HERTZ).windows(3).map(band).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::f64::consts::TAU;

    const CONFIG: MelConfig = MelConfig { rate: 16_000, window: 400, hop: 160, bands: 128 };

    fn noise(samples: usize) -> Vec<f32> {
        (0..samples as u32).map(|i| (i.wrapping_mul(2_654_435_761) >> 8) as f32 / 2f32.powi(24) - 0.5).collect()
    }

    #[test]
    fn silence_is_minus_one_and_a_half_everywhere() {
        let spectrum = LogMel::new(CONFIG).unwrap().spectrum(&[0.0; 1_600], 0).unwrap();
        assert_eq!((spectrum.frames(), spectrum.features()), (10, vec![-1.5; 1_280]));
    }

    #[test]
    fn a_tone_is_loudest_in_the_band_around_it() {
        let mel = LogMel::new(CONFIG).unwrap();
        for tone in [250.0, 1_000.0, 5_000.0] {
            let pcm: Vec<f32> = (0..8_000).map(|i| (TAU * tone * f64::from(i) / 16e3).sin() as f32).collect();
            let features = mel.spectrum(&pcm, 0).unwrap().features();
            let loudest = (0..128).max_by(|a, b| features[a * 50 + 20].total_cmp(&features[b * 50 + 20])).unwrap();
            let centre = slaney::hertz(slaney::mel(8e3) * (loudest + 1) as f64 / 129.0);
            assert!((centre / tone - 1.0).abs() < 0.1, "{tone} Hz is in the band of {centre} Hz");
        }
    }

    #[test]
    fn fewer_samples_than_a_reflection_needs_are_refused() {
        let mel = LogMel::new(CONFIG).unwrap();
        let error = mel.spectrum(&[0.1; 200], 0).unwrap_err().to_string();
        assert_eq!(error, "the audio has 200 samples at 16 kHz, at least 201 are needed");
        assert_eq!(mel.spectrum(&[0.1; 201], 0).unwrap().frames(), 1);
    }

    #[test]
    fn a_clip_that_is_padded_may_have_a_frame_more() {
        let mel = LogMel::new(CONFIG).unwrap();
        let pcm = noise(15_370);
        assert_eq!(mel.spectrum(&pcm, 0).unwrap().frames(), 96);
        assert_eq!(mel.spectrum(&pcm, 40_208).unwrap().frames(), 97);
        assert_eq!(mel.spectrum(&pcm[..100], 40_208).unwrap().frames(), 1);
    }

    #[test]
    fn a_clip_that_ends_in_silence_is_the_same_alone_and_padded() {
        let mel = LogMel::new(CONFIG).unwrap();
        let hashed = |spectrum: &Spectrum| {
            let mut bytes = Vec::new();
            spectrum.hash(0..spectrum.frames(), &mut |part| bytes.extend_from_slice(part));
            bytes
        };
        let mut pcm = noise(15_000);
        for (silence, same) in [(0usize, false), (200, true)] {
            pcm.truncate(15_000);
            pcm.resize((15_000 + silence).next_multiple_of(160), 0.0);
            pcm.truncate(if same { usize::MAX } else { 15_000 });
            let (alone, beside) = (mel.spectrum(&pcm, 0).unwrap(), mel.spectrum(&pcm, 40_208).unwrap());
            assert_eq!(alone.features() == beside.features(), same, "{silence} samples of silence");
            assert_eq!(hashed(&alone) == hashed(&beside), same, "{silence} samples of silence");
        }
    }

    #[test]
    fn configs_without_a_spectrum_are_refused_by_name() {
        for (config, says) in [
            (MelConfig { window: 401, ..CONFIG }, "n_fft = 401: expected an even number from 2 to 65536"),
            (MelConfig { hop: 0, ..CONFIG }, "hop_length = 0: expected 1 to n_fft"),
            (MelConfig { bands: 1 << 20, ..CONFIG }, "feature_size = 1048576: expected 1 to 65536"),
            (MelConfig { rate: 100, ..CONFIG }, "sampling_rate = 100: expected at least 8000"),
        ] {
            assert_eq!(LogMel::new(config).unwrap_err().to_string(), says);
        }
    }
}
