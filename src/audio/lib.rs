//! Encodes speech: samples become the bytes of a format, piece by piece, at another speed, loudness or sample rate where
//! the client asks for it.
//!
//! | file | what |
//! | --- | --- |
//! | `sound` | what a client asks for |
//! | `writer` | one answer: fade, speed, loudness, sample rate, then format |
//! | `fade` | the first milliseconds |
//! | `stretch` | other speeds at the same pitch |
//! | `loudness` | the gain of a whole answer |
//! | `resample` | other sample rates |
//! | `g711` | the 8 bits of telephones |
//! | `pcm` | 16-bit samples or those of G.711, bare or in a wav |
//! | `flac`, `mp3`, `opus` | the compressed formats; the last two are features of the build |
//!
//! Everything here is mono and pure. It must never read a clock or do I/O, and its bytes must not depend on how the
//! samples are cut into pieces.

#![forbid(unsafe_code)]
#![cfg_attr(test, allow(clippy::unwrap_used))]

mod fade;
mod flac;
mod g711;
mod loudness;
#[cfg(feature = "mp3")]
mod mp3;
#[cfg(feature = "opus")]
mod opus;
mod pcm;
mod resample;
mod sound;
mod stretch;
mod writer;

pub use g711::Law;
pub use loudness::{MAX_LOUDNESS, MIN_LOUDNESS};
pub use resample::Resampler;
pub use sound::{SAMPLE_RATES, Sound};
pub use stretch::{MAX_SPEED, MIN_SPEED, TimeStretch};
pub use writer::AudioWriter;

use std::path::Path;

/// An audio format.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AudioFormat {
    /// RIFF/WAVE, 16 bit.
    Wav,
    /// The same samples without a header.
    Pcm,
    /// Lossless: the same samples, about half the bytes.
    Flac,
    /// MPEG-1, 2 or 2.5 Layer III at 96 kbit/s.
    Mp3,
    /// Opus at about 64 kbit/s, in Ogg.
    Opus,
    /// G.711, 8 bits for each sample and no header; at 8 kHz what telephones take.
    G711(Law),
}

/// Formats of OpenAI's API that are not served.
const OTHERS: [&str; 1] = ["aac"];

impl AudioFormat {
    /// All of them, in the order in which messages list them.
    pub const ALL: [AudioFormat; 7] = [
        AudioFormat::Wav,
        AudioFormat::Pcm,
        AudioFormat::Flac,
        AudioFormat::Mp3,
        AudioFormat::Opus,
        AudioFormat::G711(Law::Mu),
        AudioFormat::G711(Law::A),
    ];

    /// Other names that APIs give formats: chat completions, and telephony.
    pub const ALIASES: [(&str, AudioFormat); 4] = [
        ("pcm16", AudioFormat::Pcm),
        ("ulaw", AudioFormat::G711(Law::Mu)),
        ("g711_ulaw", AudioFormat::G711(Law::Mu)),
        ("g711_alaw", AudioFormat::G711(Law::A)),
    ];

    /// A format by the name that APIs give it.
    ///
    /// # Errors
    /// The error names the formats that are served.
    pub fn parse(name: &str) -> Result<AudioFormat, String> {
        let alias = AudioFormat::ALIASES.into_iter().find(|(alias, _)| *alias == name).map(|(_, format)| format);
        let named = AudioFormat::ALL.into_iter().find(|format| format.as_str() == name).or(alias);
        match named {
            Some(format) if format.is_built() => Ok(format),
            Some(_) => Err(format!("this server was built without the format {name:?}; ask for one of {}", names())),
            None if OTHERS.contains(&name) => {
                Err(format!("the format {name:?} is not supported by this server; ask for one of {}", names()))
            }
            None => Err(format!("{name:?} is no audio format; ask for one of {}", names())),
        }
    }

    /// Those that this build has, in the same order.
    pub fn built() -> impl Iterator<Item = AudioFormat> {
        AudioFormat::ALL.into_iter().filter(|format| format.is_built())
    }

    fn is_built(self) -> bool {
        match self {
            AudioFormat::Wav | AudioFormat::Pcm | AudioFormat::Flac | AudioFormat::G711(_) => true,
            AudioFormat::Mp3 => cfg!(feature = "mp3"),
            AudioFormat::Opus => cfg!(feature = "opus"),
        }
    }

    /// The format of a file with this name; `None` if its ending says nothing.
    pub fn of_file(path: &Path) -> Option<AudioFormat> {
        match path.extension()?.to_str()?.to_ascii_lowercase().as_str() {
            "ogg" | "oga" => Some(AudioFormat::Opus),
            "raw" => Some(AudioFormat::Pcm),
            "ulaw" | "ul" => Some(AudioFormat::G711(Law::Mu)),
            "al" => Some(AudioFormat::G711(Law::A)),
            ending => AudioFormat::ALL.into_iter().find(|format| format.as_str() == ending),
        }
    }

    /// Its name, which is also the usual ending of its files.
    pub fn as_str(self) -> &'static str {
        match self {
            AudioFormat::Wav => "wav",
            AudioFormat::Pcm => "pcm",
            AudioFormat::Flac => "flac",
            AudioFormat::Mp3 => "mp3",
            AudioFormat::Opus => "opus",
            AudioFormat::G711(law) => law.name(),
        }
    }

    /// Its media type.
    pub fn content_type(self) -> &'static str {
        match self {
            AudioFormat::Wav => "audio/wav",
            AudioFormat::Pcm => "audio/pcm",
            AudioFormat::Flac => "audio/flac",
            AudioFormat::Mp3 => "audio/mpeg",
            AudioFormat::Opus => "audio/ogg",
            AudioFormat::G711(Law::Mu) => "audio/PCMU",
            AudioFormat::G711(Law::A) => "audio/PCMA",
        }
    }

    /// Whether a file says in front how long it is. Such a file is exact only if it is sent when it is complete.
    pub fn tells_length(self) -> bool {
        matches!(self, AudioFormat::Wav | AudioFormat::Flac)
    }

    /// Whether the bytes of a file depend on its samples alone, not on how they were cut into pieces.
    pub fn is_reproducible(self) -> bool {
        !matches!(self, AudioFormat::Opus)
    }

    /// Whether the format can carry this sample rate, Hz.
    pub fn carries(self, sample_rate: u32) -> bool {
        match self {
            AudioFormat::Wav | AudioFormat::Pcm | AudioFormat::Flac | AudioFormat::G711(_) => true,
            #[cfg(feature = "mp3")]
            AudioFormat::Mp3 => mp3::RATES.contains(&sample_rate),
            #[cfg(feature = "opus")]
            AudioFormat::Opus => opus::RATES.contains(&sample_rate),
            #[cfg(not(all(feature = "mp3", feature = "opus")))]
            _ => {
                let _not_built = sample_rate;
                false
            }
        }
    }
}

/// The names of all formats, for messages.
fn names() -> String {
    AudioFormat::built().map(|format| format!("{:?}", format.as_str())).collect::<Vec<_>>().join(", ")
}

/// Why samples could not be encoded.
#[derive(Debug, thiserror::Error)]
pub enum AudioError {
    /// The format cannot carry this sample rate.
    #[error("{format} cannot carry {rate} samples per second; ask for \"wav\", \"pcm\" or \"flac\"")]
    Rate {
        /// The format's name.
        format: &'static str,
        /// Hz.
        rate: u32,
    },
    /// The library cannot change the rate; no pair of rates that is served has this.
    #[error("sound of {from} samples per second cannot be given {to}: {reason}")]
    Resampler {
        /// Hz.
        from: u32,
        /// Hz.
        to: u32,
        /// Its message.
        reason: String,
    },
    /// The library that measures loudness refused; a bug of ours or of the library.
    #[error("the loudness could not be measured: {0}")]
    Loudness(String),
    /// The build lacks it.
    #[error("this program was built without the format {0:?}; ask for one of {built}", built = names())]
    NotBuilt(&'static str),
    /// An answer that was to begin behind its end.
    #[error("the answer has {samples} samples and cannot begin at sample {start}")]
    BeyondEnd {
        /// Where it was to begin.
        start: u64,
        /// How many there are.
        samples: u64,
    },
    /// The library refused; a bug of ours or of the library.
    #[error("the {format} encoder failed: {reason}")]
    Encoder {
        /// The format's name.
        format: &'static str,
        /// Its message.
        reason: String,
    },
}

/// Writes a file of one format. Bytes come out as soon as the format allows; joined in order they are the file.
trait Encode: Send + Sync {
    /// Takes samples in [-1, 1] (others are clamped, NaN is silence) and appends the bytes that are complete. The first
    /// call brings the header, samples or not.
    fn push(&mut self, samples: &[f32], out: &mut Vec<u8>) -> Result<(), AudioError>;

    /// Appends the rest. It must be the last call that appends.
    fn finish(&mut self, out: &mut Vec<u8>) -> Result<(), AudioError>;

    /// After `finish`: the first bytes of the file as they are right now that its length is known, as many as were
    /// written. The caller writes them over those. `None` if those were right.
    fn front(&self) -> Option<Vec<u8>>;
}

/// An encoder of `format` at `rate` Hz; a wav may have samples of G.711.
fn encoder(format: AudioFormat, law: Option<Law>, rate: u32) -> Result<Box<dyn Encode>, AudioError> {
    if !format.is_built() {
        return Err(AudioError::NotBuilt(format.as_str()));
    }
    if !format.carries(rate) {
        return Err(AudioError::Rate { format: format.as_str(), rate });
    }
    Ok(match format {
        AudioFormat::Wav => Box::new(pcm::Pcm::wav(rate, law)),
        AudioFormat::Pcm => Box::new(pcm::Pcm::bare(None)),
        AudioFormat::G711(law) => Box::new(pcm::Pcm::bare(Some(law))),
        AudioFormat::Flac => Box::new(flac::Flac::new(rate)?),
        #[cfg(feature = "mp3")]
        AudioFormat::Mp3 => Box::new(mp3::Mp3::new(rate)),
        #[cfg(feature = "opus")]
        AudioFormat::Opus => Box::new(opus::Opus::new(rate)?),
        #[cfg(not(all(feature = "mp3", feature = "opus")))]
        lacking => return Err(AudioError::NotBuilt(lacking.as_str())),
    })
}

/// A sample as a lossy encoder takes it.
#[cfg(any(feature = "mp3", feature = "opus"))]
fn sane(sample: f32) -> f32 {
    if sample.is_nan() { 0.0 } else { sample.clamp(-1.0, 1.0) }
}

#[cfg(all(test, feature = "mp3", feature = "opus"))]
mod tests;

#[cfg(all(test, not(feature = "mp3")))]
mod without_mp3 {
    use super::*;

    #[test]
    fn a_format_that_the_build_lacks_is_refused_and_no_other() {
        let told = AudioFormat::parse("mp3").unwrap_err();
        assert!(told.contains("built without the format \"mp3\"") && told.contains("\"flac\""), "{told}");
        assert!(!told.ends_with("\"mp3\""), "{told}");
        assert!(matches!(Sound::from(AudioFormat::Mp3).writer(24_000), Err(AudioError::NotBuilt("mp3"))));
        assert!(Sound::from(AudioFormat::Flac).writer(24_000).is_ok());
    }
}
