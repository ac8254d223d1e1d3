//! What a client asks for: format, speed, sample rate, loudness, and where it begins.

use super::{AudioError, AudioFormat, AudioWriter, Law};
use std::borrow::Cow;

/// Sample rates that a client may ask for, Hz, as far as the format carries them.
pub const SAMPLE_RATES: [u32; 6] = [8_000, 16_000, 22_050, 24_000, 44_100, 48_000];
/// The rate of G.711, Hz, unless a client asks for another.
const TELEPHONE: u32 = 8_000;

/// The format of an answer, and how it sounds.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Sound {
    /// The format.
    pub format: AudioFormat,
    /// How many times as fast as it was spoken, [`MIN_SPEED`](super::MIN_SPEED) to [`MAX_SPEED`](super::MAX_SPEED);
    /// 1 costs nothing.
    pub speed: f32,
    /// Hz, one of [`SAMPLE_RATES`]; `None` is the model's rate, for G.711 8000.
    pub sample_rate: Option<u32>,
    /// How the samples of a wav are coded; `None` is 16 bits, linear. Other formats ignore it.
    pub law: Option<Law>,
    /// The integrated loudness of the whole answer, LUFS, [`MIN_LOUDNESS`](super::MIN_LOUDNESS) to
    /// [`MAX_LOUDNESS`](super::MAX_LOUDNESS); the answer then comes at its end. `None` leaves it as it is.
    pub loudness: Option<f32>,
    /// Samples of the file that are left out at its beginning.
    pub start: u64,
}

impl Sound {
    /// A writer of one answer that was spoken at `spoken_rate` Hz.
    ///
    /// # Errors
    /// The format cannot carry the sample rate.
    pub fn writer(self, spoken_rate: u32) -> Result<AudioWriter, AudioError> {
        AudioWriter::new(self, spoken_rate)
    }

    /// The sample rate of the answer, Hz, of a model that speaks at `spoken_rate` Hz.
    pub fn rate(&self, spoken_rate: u32) -> u32 {
        let telephone = self.law.is_some() || matches!(self.format, AudioFormat::G711(_));
        self.sample_rate.unwrap_or(if telephone { TELEPHONE } else { spoken_rate })
    }

    /// The media type. A bare format at another rate than its usual one tells the rate.
    pub fn content_type(&self, spoken_rate: u32) -> Cow<'static, str> {
        let rate = self.rate(spoken_rate);
        let usual = match self.format {
            AudioFormat::Pcm => spoken_rate,
            AudioFormat::G711(_) => TELEPHONE,
            _ => rate,
        };
        let name = self.format.content_type();
        if rate == usual { name.into() } else { format!("{name};rate={rate};channels=1").into() }
    }
}

impl From<AudioFormat> for Sound {
    /// As it was spoken.
    fn from(format: AudioFormat) -> Sound {
        Sound { format, speed: 1.0, sample_rate: None, law: None, loudness: None, start: 0 }
    }
}

#[cfg(all(test, feature = "mp3", feature = "opus"))]
mod tests;
