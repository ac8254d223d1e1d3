//! Writes one answer: changes its speed, then encodes it.

use super::{AudioError, AudioFormat, Encode, TimeStretch, encoder};

/// The format and the speed of an answer.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Sound {
    /// The format.
    pub format: AudioFormat,
    /// How many times as fast as it was spoken, [`MIN_SPEED`](super::MIN_SPEED) to [`MAX_SPEED`](super::MAX_SPEED);
    /// 1 costs nothing.
    pub speed: f32,
}

impl Sound {
    /// A writer of one answer of `sample_rate` Hz.
    ///
    /// # Errors
    /// The format cannot carry this sample rate.
    pub fn writer(self, sample_rate: u32) -> Result<AudioWriter, AudioError> {
        AudioWriter::new(self.format, sample_rate, self.speed)
    }
}

impl From<AudioFormat> for Sound {
    /// At the speed at which it was spoken.
    fn from(format: AudioFormat) -> Sound {
        Sound { format, speed: 1.0 }
    }
}

/// Takes the samples of one answer and gives the bytes of its file, piece by piece. The bytes do not depend on how the
/// samples are cut into pieces, except for where pages of Opus end.
pub struct AudioWriter {
    /// `None` is speed 1, where samples pass untouched.
    stretch: Option<TimeStretch>,
    encoder: Box<dyn Encode>,
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
        Ok(AudioWriter { stretch, encoder: encoder(format, sample_rate)?, samples: 0 })
    }

    /// The bytes that these samples complete; the first call brings the header.
    ///
    /// # Errors
    /// A bug of an encoder.
    pub fn push(&mut self, samples: &[f32]) -> Result<Vec<u8>, AudioError> {
        let mut out = Vec::new();
        match &mut self.stretch {
            None => {
                self.samples += samples.len() as u64;
                self.encoder.push(samples, &mut out)?;
            }
            Some(stretch) => {
                let stretched = stretch.push(samples);
                self.samples += stretched.len() as u64;
                self.encoder.push(&stretched, &mut out)?;
            }
        }
        Ok(out)
    }

    /// The rest of the file. It must be the last call that writes.
    ///
    /// # Errors
    /// A bug of an encoder.
    pub fn finish(&mut self) -> Result<Vec<u8>, AudioError> {
        let mut out = Vec::new();
        if let Some(stretch) = self.stretch.take() {
            let rest = stretch.finish();
            self.samples += rest.len() as u64;
            self.encoder.push(&rest, &mut out)?;
        }
        self.encoder.finish(&mut out)?;
        Ok(out)
    }

    /// After [`finish`](AudioWriter::finish): the first bytes of the file as they are right now that its length is
    /// known, to be written over those that came first. `None` if those were right.
    pub fn front(&self) -> Option<Vec<u8>> {
        self.encoder.front()
    }

    /// Samples written so far, at the speed at which they are heard.
    pub fn samples(&self) -> u64 {
        self.samples
    }

    /// Finishes a file whose earlier bytes are all in `file`: appends the rest and corrects its beginning.
    ///
    /// # Errors
    /// A bug of an encoder.
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
