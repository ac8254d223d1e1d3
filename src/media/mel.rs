//! The log-mel spectrum that the thinker hears, of whole clips and of sound that still arrives.
//!
//! The formula is that of `WhisperFeatureExtractor` in transformers 5.23.0 (`_torch_extract_fbank_features`), computed
//! in f64 and rounded to f32 at the end:
//! 1. The samples are padded by reflection with half a window at both ends. Frame `t` starts at `hop * t` of that; a
//!    periodic Hann window, a Fourier transform, squared magnitudes.
//! 2. Triangles on Slaney's mel scale from 0 to 8000 Hz, each of area 1.
//! 3. `x = log10(max(mel, 1e-10))`, `x = max(x, max of the clip - 8)`, `x = (x + 4) / 4`.

use crate::limits::MediaError;
use crate::slaney;
use realfft::num_complex::Complex;
use realfft::{RealFftPlanner, RealToComplex};
use std::f64::consts::PI;
use std::ops::Range;
use std::sync::Arc;

/// The upper edge of the highest band, Hz.
const TOP_HERTZ: f64 = 8_000.0;
/// What the logarithm is taken of at least.
const LEAST_POWER: f64 = 1e-10;
/// How far below the loudest bin of its clip a bin may be, in powers of ten.
const RANGE: f64 = 8.0;
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

/// Room to compute frames in.
struct Scratch {
    frame: Vec<f64>,
    spectrum: Vec<Complex<f64>>,
    fft: Vec<Complex<f64>>,
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
        self.config.window / 2
    }

    /// The fewest samples that have a spectrum: a reflection needs one more than it mirrors.
    pub fn least_samples(&self) -> usize {
        self.padding() + 1
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
    /// [`MediaError::TooLittle`] when `padded` is below [`LogMel::least_samples`].
    pub fn spectrum(&self, pcm: &[f32], padded: usize) -> Result<Spectrum, MediaError> {
        let (hop, padding) = (self.config.hop, self.padding());
        let padded = padded.max(pcm.len());
        self.check_length(padded)?;
        let at = |i: isize| {
            let last = padded as isize - 1;
            let mirrored = if i < 0 {
                -i
            } else if i > last {
                2 * last - i
            } else {
                i
            };
            pcm.get(mirrored as usize).copied().unwrap_or(0.0)
        };
        // Frames behind those have zeros only.
        let frames = (padded / hop).min((pcm.len() + padding).div_ceil(hop));
        let (mut scratch, mut logs) = (self.scratch(), Vec::with_capacity(frames * self.config.bands));
        for t in 0..frames {
            let start = (t * hop) as isize - padding as isize;
            self.frame((start..).take(self.config.window).map(at), &mut scratch, &mut logs);
        }
        let valid = if pcm.len() == padded { padded / hop } else { pcm.len().div_ceil(hop).min(padded / hop) };
        Ok(Spectrum::new(logs, self.config.bands, valid))
    }

    fn check_length(&self, samples: usize) -> Result<(), MediaError> {
        let (have, least) = (samples as u64, self.least_samples() as u64);
        if have < least {
            return Err(MediaError::TooLittle { media: "audio", unit: "samples at 16 kHz", have, least });
        }
        Ok(())
    }

    /// A spectrum of sound that still arrives.
    pub fn stream(&self) -> MelStream<'_> {
        MelStream { mel: self, tail: Vec::new(), first: 0, logs: Vec::new(), scratch: self.scratch() }
    }
}

/// The frames of one clip.
#[derive(Clone, Debug, PartialEq)]
pub struct Spectrum {
    /// Logarithms, `[frames or more, bands]`: those behind `frames` count for the loudest bin only.
    logs: Vec<f64>,
    bands: usize,
    frames: usize,
    /// What quieter bins are raised to, from the loudest one.
    floor: f64,
}

impl Spectrum {
    fn new(logs: Vec<f64>, bands: usize, frames: usize) -> Spectrum {
        Spectrum { floor: floor(&logs), logs, bands, frames }
    }

    /// A spectrum whose [`Spectrum::features`] are these, `[bands, frames]`, as a front end made them. Numbers that are
    /// more than two below the largest are raised, as a front end does.
    ///
    /// # Errors
    /// [`MediaError::Number`] for features that are not whole bands of at least one frame.
    pub fn from_features(features: &[f32], bands: usize) -> Result<Spectrum, MediaError> {
        let frames = features.len().checked_div(bands).unwrap_or(0);
        if frames == 0 || frames * bands != features.len() {
            let value = format!("{} numbers of {bands} bands", features.len());
            return Err(MediaError::Number { field: "features", value, expected: "as many numbers of each band" });
        }
        let log = |t: usize, band: usize| f64::from(features[band * frames + t]) * 4.0 - 4.0;
        let logs = (0..frames).flat_map(|t| (0..bands).map(move |band| log(t, band))).collect();
        Ok(Spectrum::new(logs, bands, frames))
    }

    /// Bands of each frame.
    pub fn bands(&self) -> usize {
        self.bands
    }

    /// Memory that it takes.
    pub fn bytes(&self) -> usize {
        self.logs.len() * size_of::<f64>()
    }

    /// Hands the [features](Spectrum::features_of) of these frames to `hash`, with their shape.
    pub(crate) fn hash(&self, frames: Range<usize>, hash: &mut dyn FnMut(&[u8])) {
        [self.bands, frames.len()].iter().for_each(|n| hash(&(*n as u64).to_le_bytes()));
        let bytes: Vec<u8> = self.features_of(frames).into_iter().flat_map(f32::to_le_bytes).collect();
        hash(&bytes);
    }

    /// Frames of the clip, `L`.
    pub fn frames(&self) -> usize {
        self.frames
    }

    /// What the thinker hears, `[bands, L]`.
    pub fn features(&self) -> Vec<f32> {
        self.features_of(0..self.frames)
    }

    /// Columns of a batch, `[bands, range]`, also those behind [`Spectrum::frames`], which are padding.
    pub fn features_of(&self, range: Range<usize>) -> Vec<f32> {
        normalised(&self.logs, self.bands, range, self.floor)
    }
}

/// What bins are raised to: eight powers of ten below the loudest one.
fn floor(logs: &[f64]) -> f64 {
    logs.iter().fold(LEAST_POWER.log10(), |max, x| max.max(*x)) - RANGE
}

/// Step 3 on frames `range` of `[frames, bands]`, transposed; frames behind the last one are silent.
fn normalised(logs: &[f64], bands: usize, range: Range<usize>, floor: f64) -> Vec<f32> {
    let silence = LEAST_POWER.log10();
    let one = |band: usize, t: usize| {
        let x = logs.get(t * bands + band).copied().unwrap_or(silence);
        ((x.max(floor) + 4.0) / 4.0) as f32
    };
    (0..bands).flat_map(|band| range.clone().map(move |t| one(band, t))).collect()
}

/// A spectrum of sound that still arrives.
///
/// Step 3 needs the loudest bin of the whole clip, so a window that is asked for before the end is normalised by the
/// loudest bin *so far*: its bins are those of the whole clip wherever they are less than 8 powers of ten below the
/// clip's loudest one, and too low, by at most what the loudest bin still rises, where they are not. A caller that
/// encodes windows as they come hears the same speech, and not bit for bit the same features; [`MelStream::finish`]
/// has those.
pub struct MelStream<'a> {
    mel: &'a LogMel,
    /// Samples from number `first` on.
    tail: Vec<f32>,
    first: usize,
    /// Logarithms of the frames that are complete, `[frames, bands]`.
    logs: Vec<f64>,
    scratch: Scratch,
}

impl MelStream<'_> {
    /// Takes samples. Memory grows by 8 bytes per band and frame: the caller bounds how much sound arrives.
    pub fn push(&mut self, pcm: &[f32]) {
        self.tail.extend_from_slice(pcm);
        let (hop, padding) = (self.mel.config.hop, self.mel.padding());
        while self.samples() > padding && self.frames() * hop + padding <= self.samples() {
            self.next_frame(usize::MAX);
        }
        // The reflection at the end reads half a window back, the next frame as well.
        let keep = (self.frames() * hop).saturating_sub(padding).min(self.samples().saturating_sub(padding + 1));
        if keep > self.first + self.mel.config.window {
            self.tail.drain(..keep - self.first);
            self.first = keep;
        }
    }

    /// Samples so far.
    pub fn samples(&self) -> usize {
        self.first + self.tail.len()
    }

    /// Frames that are complete: half a window behind the samples.
    pub fn frames(&self) -> usize {
        self.logs.len() / self.mel.config.bands
    }

    /// Complete frames as the thinker hears them, `[bands, range]`, normalised by the loudest bin so far.
    ///
    /// # Panics
    /// When `range` ends behind [`MelStream::frames`].
    pub fn window(&self, range: Range<usize>) -> Vec<f32> {
        assert!(range.end <= self.frames(), "frames {range:?} of {}", self.frames());
        normalised(&self.logs, self.mel.config.bands, range, floor(&self.logs))
    }

    /// The whole clip, the same bits as [`LogMel::spectrum`] of all its samples.
    ///
    /// # Errors
    /// [`MediaError::TooLittle`] for fewer samples than [`LogMel::least_samples`].
    pub fn finish(mut self) -> Result<Spectrum, MediaError> {
        let samples = self.samples();
        self.mel.check_length(samples)?;
        let frames = samples / self.mel.config.hop;
        while self.frames() < frames {
            self.next_frame(samples);
        }
        self.logs.truncate(frames * self.mel.config.bands);
        Ok(Spectrum::new(self.logs, self.mel.config.bands, frames))
    }

    /// Computes one more frame of a clip of `samples` samples.
    fn next_frame(&mut self, samples: usize) {
        let start = (self.frames() * self.mel.config.hop) as isize - self.mel.padding() as isize;
        let (first, tail) = (self.first, &self.tail);
        let at = |i: isize| {
            let i = i.unsigned_abs();
            let i = if i >= samples { 2 * (samples - 1) - i } else { i };
            tail[i - first]
        };
        self.mel.frame((start..).take(self.mel.config.window).map(at), &mut self.scratch, &mut self.logs);
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
    use proptest::prelude::*;
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
        let mut stream = mel.stream();
        stream.push(&[0.1; 200]);
        assert!(stream.finish().is_err());
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

    #[test]
    fn a_window_before_the_end_differs_only_where_the_clip_gets_louder() {
        let mel = LogMel::new(CONFIG).unwrap();
        let (mut early, whole) = (mel.stream(), mel.spectrum(&noise(16_000), 0).unwrap());
        early.push(&noise(16_000)[..8_000]);
        assert_eq!(early.frames(), 49);
        assert_eq!(early.window(0..49).len(), 128 * 49);
        // Noise of one level has no bin 8 powers of ten below another.
        assert_eq!(early.window(0..49), whole.features_of(0..49));
        let mut loud = vec![0.0; 8_000];
        loud.extend(noise(8_000));
        let (mut early, whole) = (mel.stream(), mel.spectrum(&loud, 0).unwrap());
        early.push(&loud[..8_000]);
        let (early, late) = (early.window(0..49), whole.features_of(0..49));
        assert_eq!(early, vec![-1.5; 128 * 49]);
        assert!(early.iter().zip(&late).all(|(early, late)| early <= late) && late[0] > -1.5);
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(24))]
        #[test]
        fn sound_that_arrives_in_pieces_has_the_bits_of_the_whole(
            length in 201usize..6_000, pieces in proptest::collection::vec(0usize..900, 0..12),
        ) {
            let mel = LogMel::new(CONFIG).unwrap();
            let pcm = noise(length);
            let (mut stream, mut rest) = (mel.stream(), &pcm[..]);
            for piece in pieces {
                let (now, later) = rest.split_at(piece.min(rest.len()));
                stream.push(now);
                rest = later;
            }
            stream.push(rest);
            prop_assert_eq!(stream.samples(), length);
            let (stream, whole) = (stream.finish().unwrap(), mel.spectrum(&pcm, 0).unwrap());
            prop_assert_eq!(stream.features(), whole.features());
        }
    }
}
