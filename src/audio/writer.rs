//! Writes one answer: fades it in, changes its speed, its loudness and its sample rate, then encodes it.

use super::fade::FadeIn;
use super::resample::Resampler;
use super::{AudioError, AudioFormat, Encode, Sound, TimeStretch, encoder, loudness};
use std::time::Duration;

/// Samples of an answer with a loudness that go on together: what waits between the steps stays small.
const PIECE: usize = 4_096;

/// Takes the samples of one answer and gives the bytes of its file, piece by piece. The bytes do not depend on how the
/// samples are cut into pieces, except for where pages of Opus end.
pub struct AudioWriter {
    /// `None` leaves the first samples as they are.
    fade: Option<FadeIn>,
    /// `None` is speed 1, where samples pass untouched.
    stretch: Option<TimeStretch>,
    /// `None` leaves the loudness as it is.
    whole: Option<Whole>,
    output: Output,
    speed: f64,
    spoken: u64,
    spoken_rate: u32,
}

/// An answer whose loudness is known at its end.
struct Whole {
    target: f32,
    samples: Vec<f32>,
}

/// The last steps: they are the same for a stream and for an answer that waited.
struct Output {
    /// `None` is the rate at which it was spoken.
    resampler: Option<Resampler>,
    resampled: Vec<f32>,
    encoder: Box<dyn Encode>,
    /// Samples that are left out at the beginning, and how many of them have come.
    start: u64,
    left_out: u64,
    samples: u64,
    rate: u32,
}

impl Output {
    fn push(&mut self, samples: &[f32], out: &mut Vec<u8>) -> Result<(), AudioError> {
        let Some(resampler) = &mut self.resampler else { return self.encode(samples, out) };
        let mut resampled = std::mem::take(&mut self.resampled);
        resampled.clear();
        resampler.push(samples, &mut resampled)?;
        let encoded = self.encode(&resampled, out);
        self.resampled = resampled;
        encoded
    }

    fn finish(&mut self, out: &mut Vec<u8>) -> Result<(), AudioError> {
        if let Some(resampler) = self.resampler.take() {
            let mut rest = Vec::new();
            resampler.finish(&mut rest)?;
            self.encode(&rest, out)?;
        }
        if self.left_out < self.start {
            return Err(AudioError::BeyondEnd { start: self.start, samples: self.left_out });
        }
        self.encoder.finish(out)
    }

    /// Encodes those of these samples of the file that are not left out.
    fn encode(&mut self, samples: &[f32], out: &mut Vec<u8>) -> Result<(), AudioError> {
        let missing = usize::try_from(self.start - self.left_out).unwrap_or(usize::MAX);
        let (dropped, kept) = samples.split_at(missing.min(samples.len()));
        self.left_out += dropped.len() as u64;
        if self.left_out < self.start {
            return Ok(());
        }
        self.samples += kept.len() as u64;
        self.encoder.push(kept, out)
    }
}

impl std::fmt::Debug for AudioWriter {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("AudioWriter").field("samples", &self.output.samples).finish_non_exhaustive()
    }
}

impl AudioWriter {
    /// A writer for samples of `spoken_rate` Hz. A speed outside of [`MIN_SPEED`](super::MIN_SPEED) to
    /// [`MAX_SPEED`](super::MAX_SPEED) is clamped.
    ///
    /// # Errors
    /// The format cannot carry the sample rate of the answer.
    pub fn new(sound: Sound, spoken_rate: u32) -> Result<AudioWriter, AudioError> {
        let rate = sound.rate(spoken_rate);
        let law = sound.law.filter(|_| sound.format == AudioFormat::Wav);
        let encoder = encoder(sound.format, law, rate)?;
        let resampler = (rate != spoken_rate).then(|| Resampler::new(spoken_rate, rate)).transpose()?;
        Ok(AudioWriter {
            fade: None,
            stretch: (sound.speed != 1.0).then(|| TimeStretch::new(spoken_rate, sound.speed)),
            whole: sound.loudness.map(|target| Whole { target, samples: Vec::new() }),
            output: Output {
                resampler,
                resampled: Vec::new(),
                encoder,
                start: sound.start,
                left_out: 0,
                samples: 0,
                rate,
            },
            speed: f64::from(sound.speed.clamp(super::MIN_SPEED, super::MAX_SPEED)),
            spoken: 0,
            spoken_rate,
        })
    }

    /// Fades the first samples in.
    #[must_use]
    pub fn fading_in(self, time: Duration) -> AudioWriter {
        AudioWriter { fade: Some(FadeIn::new(time, self.spoken_rate)), ..self }
    }

    /// The bytes that these samples complete; the first samples that are not left out bring the header. Nothing where
    /// the loudness was asked for.
    ///
    /// # Errors
    /// A bug of an encoder.
    pub fn push(&mut self, samples: &[f32]) -> Result<Vec<u8>, AudioError> {
        let mut out = Vec::new();
        let faded = self.fade.as_mut().filter(|fade| !fade.is_over()).map(|fade| fade.apply(samples));
        let samples = faded.as_deref().unwrap_or(samples);
        match &mut self.stretch {
            None => self.pass(samples, &mut out)?,
            Some(stretch) => {
                let stretched = stretch.push(samples);
                self.pass(&stretched, &mut out)?;
            }
        }
        Ok(out)
    }

    /// Takes samples at their final speed.
    fn pass(&mut self, samples: &[f32], out: &mut Vec<u8>) -> Result<(), AudioError> {
        self.spoken += samples.len() as u64;
        match &mut self.whole {
            None => self.output.push(samples, out),
            Some(whole) => {
                whole.samples.extend_from_slice(samples);
                Ok(())
            }
        }
    }

    /// The rest of the file. It must be the last call that writes.
    ///
    /// # Errors
    /// There were fewer samples than are left out, or a bug of an encoder.
    pub fn finish(&mut self) -> Result<Vec<u8>, AudioError> {
        let mut out = Vec::new();
        if let Some(stretch) = self.stretch.take() {
            self.pass(&stretch.finish(), &mut out)?;
        }
        if let Some(Whole { target, mut samples }) = self.whole.take() {
            let gain = loudness::gain(&samples, self.spoken_rate, target)?;
            for piece in samples.chunks_mut(PIECE) {
                piece.iter_mut().for_each(|sample| *sample *= gain);
                self.output.push(piece, &mut out)?;
            }
        }
        self.output.finish(&mut out)?;
        Ok(out)
    }

    /// After [`finish`](AudioWriter::finish): the first bytes of the file as they are right now that its length is
    /// known, to be written over those that came first. `None` if those were right.
    pub fn front(&self) -> Option<Vec<u8>> {
        self.output.encoder.front()
    }

    /// The first sample of the answer that is written, counted as [`samples`](AudioWriter::samples) are.
    pub fn start(&self) -> u64 {
        self.output.start
    }

    /// Samples written so far, at the speed at which they are heard and at [`sample_rate`](AudioWriter::sample_rate),
    /// without those that are left out.
    pub fn samples(&self) -> u64 {
        self.output.samples
    }

    /// Hz, of the file.
    pub fn sample_rate(&self) -> u32 {
        self.output.rate
    }

    /// The sample of the answer in which sample `spoken` of the speech is heard, counted from the beginning of the answer
    /// as [`start`](AudioWriter::start) is. Another speed moves it by up to 10 ms.
    pub fn heard_at(&self, spoken: u64) -> u64 {
        let seconds = spoken as f64 / f64::from(self.spoken_rate.max(1)) / self.speed;
        (seconds * f64::from(self.output.rate)).round() as u64
    }

    /// Samples taken so far, at the speed at which they are heard and at the rate at which they were spoken.
    pub fn heard(&self) -> u64 {
        self.spoken
    }

    /// Bytes of memory for samples that wait for the end of the answer, and for the file that becomes of them.
    pub fn waiting_bytes(&self) -> usize {
        // A sample of 4 bytes becomes up to two samples of 16 bits; the file may be twice as long while it grows.
        self.whole.as_ref().map_or(0, |whole| whole.samples.capacity().saturating_mul(4 + 2 * 4))
    }

    /// Finishes a file whose earlier bytes are all in `file`: appends the rest and corrects its beginning.
    ///
    /// # Errors
    /// Those of [`finish`](AudioWriter::finish).
    pub fn complete(&mut self, file: &mut Vec<u8>) -> Result<(), AudioError> {
        file.append(&mut self.finish()?);
        if let Some(front) = self.front()
            && let Some(begin) = file.get_mut(..front.len())
        {
            begin.copy_from_slice(&front);
        }
        Ok(())
    }
}
