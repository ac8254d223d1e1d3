//! Writes one answer: changes its speed, then encodes it.

use super::{AudioError, AudioFormat, Encode, TimeStretch, encoder};

/// The format and the speed of an answer, and where it begins.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Sound {
    /// The format.
    pub format: AudioFormat,
    /// How many times as fast as it was spoken, [`MIN_SPEED`](super::MIN_SPEED) to [`MAX_SPEED`](super::MAX_SPEED);
    /// 1 costs nothing.
    pub speed: f32,
    /// Samples that are left out at its beginning, counted at the speed at which they are heard.
    pub start: u64,
}

impl Sound {
    /// A writer of one answer of `sample_rate` Hz.
    ///
    /// # Errors
    /// The format cannot carry this sample rate.
    pub fn writer(self, sample_rate: u32) -> Result<AudioWriter, AudioError> {
        let writer = AudioWriter::new(self.format, sample_rate, self.speed)?;
        Ok(AudioWriter { start: self.start, left_out: 0, ..writer })
    }
}

impl From<AudioFormat> for Sound {
    /// All of it, at the speed at which it was spoken.
    fn from(format: AudioFormat) -> Sound {
        Sound { format, speed: 1.0, start: 0 }
    }
}

/// Takes the samples of one answer and gives the bytes of its file, piece by piece. The bytes do not depend on how the
/// samples are cut into pieces, except for where pages of Opus end.
pub struct AudioWriter {
    /// `None` is speed 1, where samples pass untouched.
    stretch: Option<TimeStretch>,
    encoder: Box<dyn Encode>,
    /// Samples that are left out at the beginning, and how many of them have come.
    start: u64,
    left_out: u64,
    samples: u64,
}

impl std::fmt::Debug for AudioWriter {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("AudioWriter").field("samples", &self.samples).finish_non_exhaustive()
    }
}

impl AudioWriter {
    /// A writer for samples of `sample_rate` Hz, played `speed` times as fast (clamped to
    /// [`MIN_SPEED`](super::MIN_SPEED) and [`MAX_SPEED`](super::MAX_SPEED)).
    ///
    /// # Errors
    /// The format cannot carry this sample rate.
    pub fn new(format: AudioFormat, sample_rate: u32, speed: f32) -> Result<AudioWriter, AudioError> {
        let stretch = (speed != 1.0).then(|| TimeStretch::new(sample_rate, speed));
        Ok(AudioWriter { stretch, encoder: encoder(format, sample_rate)?, start: 0, left_out: 0, samples: 0 })
    }

    /// The bytes that these samples complete; the first samples that are not left out bring the header.
    ///
    /// # Errors
    /// A bug of an encoder.
    pub fn push(&mut self, samples: &[f32]) -> Result<Vec<u8>, AudioError> {
        let mut out = Vec::new();
        match &mut self.stretch {
            None => self.encode(samples, &mut out)?,
            Some(stretch) => {
                let stretched = stretch.push(samples);
                self.encode(&stretched, &mut out)?;
            }
        }
        Ok(out)
    }

    /// Encodes those of these samples, at the speed at which they are heard, that are not left out.
    fn encode(&mut self, heard: &[f32], out: &mut Vec<u8>) -> Result<(), AudioError> {
        let missing = usize::try_from(self.start - self.left_out).unwrap_or(usize::MAX);
        let (dropped, kept) = heard.split_at(missing.min(heard.len()));
        self.left_out += dropped.len() as u64;
        if self.left_out < self.start {
            return Ok(());
        }
        self.samples += kept.len() as u64;
        self.encoder.push(kept, out)
    }

    /// The rest of the file. It must be the last call that writes.
    ///
    /// # Errors
    /// There were fewer samples than are left out, or a bug of an encoder.
    pub fn finish(&mut self) -> Result<Vec<u8>, AudioError> {
        let mut out = Vec::new();
        if let Some(stretch) = self.stretch.take() {
            let rest = stretch.finish();
            self.encode(&rest, &mut out)?;
        }
        if self.left_out < self.start {
            return Err(AudioError::BeyondEnd { start: self.start, samples: self.left_out });
        }
        self.encoder.finish(&mut out)?;
        Ok(out)
    }

    /// After [`finish`](AudioWriter::finish): the first bytes of the file as they are right now that its length is
    /// known, to be written over those that came first. `None` if those were right.
    pub fn front(&self) -> Option<Vec<u8>> {
        self.encoder.front()
    }

    /// The first sample of the answer that is written, counted at the speed at which they are heard.
    pub fn start(&self) -> u64 {
        self.start
    }

    /// Samples written so far, at the speed at which they are heard, without those that are left out.
    pub fn samples(&self) -> u64 {
        self.samples
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
