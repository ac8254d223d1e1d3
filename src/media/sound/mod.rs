//! Decodes audio files to mono samples, within limits.
//!
//! Clients send the bytes, so the container is recognized from its first bytes alone and every limit is checked while
//! decoding: a small file that unpacks to hours, or a header that promises terabytes, is refused when it reaches the
//! limit, not when memory runs out.

mod container;
mod decode;
mod vorbis;

#[cfg(test)]
mod tests;

use std::fmt;

/// The sound of a file.
#[derive(Clone, Debug, PartialEq)]
pub struct Clip {
    /// Mono samples, mostly in [-1, 1], all finite.
    pub pcm: Vec<f32>,
    /// Samples per second.
    pub rate: u32,
}

impl Clip {
    /// How long it lasts.
    pub fn seconds(&self) -> f64 {
        self.pcm.len() as f64 / f64::from(self.rate)
    }

    fn peak(&self) -> f32 {
        self.pcm.iter().fold(0f32, |peak, x| peak.max(x.abs()))
    }
}

/// Limits on a file.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct AudioLimits {
    /// Encoded bytes.
    pub max_bytes: usize,
    /// Shortest sound.
    pub min_seconds: f64,
    /// Longest sound. Bounds the memory of a decode too: 4 bytes times this times the sample rate.
    pub max_seconds: f64,
}

impl Default for AudioLimits {
    /// Half a second to a minute; room for a minute of 48 kHz stereo as 24-bit wav.
    fn default() -> AudioLimits {
        AudioLimits { max_bytes: 32 << 20, min_seconds: 0.5, max_seconds: 60.0 }
    }
}

/// Lowest sample rate, in Hz: below telephone quality there is no voice to clone.
pub(crate) const MIN_RATE: u32 = 8_000;
/// Highest sample rate, in Hz, that recorders offer.
pub const MAX_RATE: u32 = 192_000;
/// Most channels: 7.1 surround.
const MAX_CHANNELS: usize = 8;
/// The largest float that a recording may have: an overdriven one reaches 2, larger ones are not scaled to [-1, 1].
const MAX_PEAK: f32 = 8.0;
/// Below -80 dB there is only the noise of an open input.
const MIN_PEAK: f32 = 1e-4;

/// Why a file is refused. The message is one line and says what to do.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub enum AudioError {
    /// No bytes.
    #[error("the audio is empty: send {READ_HERE}")]
    Empty,
    /// More encoded bytes than the limit.
    #[error("the audio has {} MB, at most {} MB are taken: send a shorter or compressed recording", mb(*.bytes), mb(*.limit))]
    TooLarge {
        /// What was sent.
        bytes: usize,
        /// What is taken.
        limit: usize,
    },
    /// A known format that is not audio.
    #[error("this is {0}, not an audio file: send {READ_HERE}")]
    NotAudio(&'static str),
    /// Audio in a container or codec that this program does not read.
    #[error("{0} is not read here: convert it to {READ_HERE}")]
    Unsupported(String),
    /// An unknown format.
    #[error("this is not an audio file: expected {READ_HERE}")]
    Unknown,
    /// The file has a video track.
    #[error("this is a video: send only its sound, as {READ_HERE}")]
    Video,
    /// The container has no audio track.
    #[error("the file has no audio track: send {READ_HERE}")]
    NoAudio,
    /// The bytes do not mean what their format says.
    #[error("the {format} is damaged ({reason}): export or upload it again")]
    Damaged {
        /// Which format.
        format: &'static str,
        /// What is wrong.
        reason: String,
    },
    /// The container promises more sound than there is.
    #[error("the {format} is cut short: {have:.1} of {want:.1} seconds are there: upload it again")]
    CutShort {
        /// Which format.
        format: &'static str,
        /// Seconds that are there.
        have: f64,
        /// Seconds that were promised.
        want: f64,
    },
    /// Too little sound.
    #[error("the audio lasts {seconds:.2} seconds: send at least {limit} seconds")]
    TooShort {
        /// How long it is.
        seconds: f64,
        /// How long it should be.
        limit: f64,
    },
    /// Too much sound. The full length is unknown: decoding stops at the limit.
    #[error("the audio is longer than {limit} seconds: cut it to a few sentences of one speaker")]
    TooLong {
        /// How long it may be.
        limit: f64,
    },
    /// A sample rate that no recorder uses.
    #[error("the audio has {0} samples per second: expected {MIN_RATE} to {MAX_RATE}")]
    Rate(u32),
    /// No channel, or too many.
    #[error("the audio has {0} channels: expected 1 to {MAX_CHANNELS}")]
    Channels(usize),
    /// A float file holds NaN or infinity.
    #[error("the audio holds samples that are not finite numbers (first at {0:.2} s): export it again")]
    NotFinite(f64),
    /// Floats far outside [-1, 1].
    #[error("the audio's samples reach {0:.0}, expected -1 to 1: scale them, or save as 16-bit wav")]
    Unscaled(f32),
    /// Nothing to hear.
    #[error("the audio is silent: check the microphone and record again")]
    Silent,
}

/// The formats, for messages.
#[derive(Clone, Copy)]
struct ReadHere;
const READ_HERE: ReadHere = ReadHere;

impl fmt::Display for ReadHere {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("wav, flac, mp3, ogg vorbis, m4a (aac) or aiff")
    }
}

/// Megabytes, with one decimal below ten.
fn mb(bytes: usize) -> String {
    let mb = bytes as f64 / f64::from(1 << 20);
    if mb < 10.0 { format!("{mb:.1}") } else { format!("{mb:.0}") }
}

/// Decodes a recording of a voice: wav (integers of 8 to 32 bits, floats, A-law, mu-law), aiff, flac, mp3, Ogg Vorbis,
/// Ogg FLAC, AAC in m4a or ADTS. Channels are averaged.
///
/// # Errors
/// [`AudioError`] for everything that is not such a file within `limits`, and for silence.
pub fn decode_audio(bytes: &[u8], limits: &AudioLimits) -> Result<Clip, AudioError> {
    check_clip(decode_sound(bytes, limits)?, limits)
}

/// Decodes what a model listens to: [`decode_audio`], except that silence is sound too.
///
/// # Errors
/// [`AudioError`] for everything that is not such a file within `limits`.
pub fn decode_sound(bytes: &[u8], limits: &AudioLimits) -> Result<Clip, AudioError> {
    if bytes.is_empty() {
        return Err(AudioError::Empty);
    }
    if bytes.len() > limits.max_bytes {
        return Err(AudioError::TooLarge { bytes: bytes.len(), limit: limits.max_bytes });
    }
    let found = container::recognise(bytes)?;
    let clip = decode::decode(found.container, &bytes[found.start..], limits)?;
    check_sound(clip, limits)
}

/// The checks that need all samples: rate, length and peak. A clip that [`decode_audio`] returned passes them again.
///
/// # Errors
/// [`AudioError`] for what is not within `limits`, and for silence.
pub fn check_clip(clip: Clip, limits: &AudioLimits) -> Result<Clip, AudioError> {
    let clip = check_sound(clip, limits)?;
    if clip.peak() < MIN_PEAK {
        return Err(AudioError::Silent);
    }
    Ok(clip)
}

/// [`check_clip`] for [`decode_sound`].
///
/// # Errors
/// [`AudioError`] for what is not within `limits`.
pub fn check_sound(clip: Clip, limits: &AudioLimits) -> Result<Clip, AudioError> {
    if !(MIN_RATE..=MAX_RATE).contains(&clip.rate) {
        return Err(AudioError::Rate(clip.rate));
    }
    let seconds = clip.seconds();
    if clip.pcm.len() as f64 > limits.max_seconds * f64::from(clip.rate) {
        return Err(AudioError::TooLong { limit: limits.max_seconds });
    }
    if seconds < limits.min_seconds || clip.pcm.is_empty() {
        return Err(AudioError::TooShort { seconds, limit: limits.min_seconds });
    }
    if let Some(at) = clip.pcm.iter().position(|sample| !sample.is_finite()) {
        return Err(AudioError::NotFinite(at as f64 / f64::from(clip.rate)));
    }
    let peak = clip.peak();
    if peak > MAX_PEAK {
        return Err(AudioError::Unscaled(peak));
    }
    Ok(clip)
}
