//! Formats of sound on the wire, and the wav files that the model hears.

use base64::Engine;
use base64::prelude::BASE64_STANDARD;
use omni_audio::Law;
use serde_json::{Value, json};
use std::sync::Arc;

/// Bytes of the head of a wav file.
pub(crate) const WAV_HEAD: usize = 44;

/// A format of sound. Mono.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum WireFormat {
    /// `audio/pcm`: 16 bits, little-endian, 24,000 samples a second.
    #[default]
    Pcm,
    /// `audio/pcmu`: G.711 mu-law, 8,000 samples a second.
    Mu,
    /// `audio/pcma`: G.711 A-law, 8,000 samples a second.
    A,
}

impl WireFormat {
    /// The format of this media type.
    pub(crate) fn named(kind: &str) -> Option<WireFormat> {
        match kind {
            "audio/pcm" => Some(WireFormat::Pcm),
            "audio/pcmu" => Some(WireFormat::Mu),
            "audio/pcma" => Some(WireFormat::A),
            _ => None,
        }
    }

    /// Samples a second.
    pub fn rate(self) -> u32 {
        match self {
            WireFormat::Pcm => 24_000,
            WireFormat::Mu | WireFormat::A => 8_000,
        }
    }

    /// Bytes of a sample.
    pub(crate) fn width(self) -> usize {
        match self {
            WireFormat::Pcm => 2,
            WireFormat::Mu | WireFormat::A => 1,
        }
    }

    /// As sessions tell it.
    pub(crate) fn object(self) -> Value {
        match self {
            WireFormat::Pcm => json!({"type": "audio/pcm", "rate": 24_000}),
            WireFormat::Mu => json!({"type": "audio/pcmu"}),
            WireFormat::A => json!({"type": "audio/pcma"}),
        }
    }

    /// 16-bit samples of base64.
    ///
    /// # Errors
    /// What is wrong with it.
    pub(crate) fn decode(self, text: &str) -> Result<Vec<i16>, String> {
        let bytes = BASE64_STANDARD.decode(text).map_err(|error| format!("this is not base64: {error}"))?;
        if !bytes.len().is_multiple_of(self.width()) {
            return Err(format!("{} bytes are no whole number of 16-bit samples", bytes.len()));
        }
        Ok(match self {
            WireFormat::Pcm => bytes.chunks_exact(2).map(|pair| i16::from_le_bytes([pair[0], pair[1]])).collect(),
            WireFormat::Mu => bytes.into_iter().map(|code| Law::Mu.decode(code)).collect(),
            WireFormat::A => bytes.into_iter().map(|code| Law::A.decode(code)).collect(),
        })
    }
}

/// A wav file of 16-bit samples.
pub(crate) fn wav(samples: &[i16], rate: u32) -> Arc<[u8]> {
    let data = 2 * samples.len() as u32;
    let mut file = Vec::with_capacity(WAV_HEAD + 2 * samples.len());
    file.extend_from_slice(b"RIFF");
    file.extend_from_slice(&(data + WAV_HEAD as u32 - 8).to_le_bytes());
    file.extend_from_slice(b"WAVEfmt ");
    file.extend_from_slice(&16u32.to_le_bytes());
    file.extend_from_slice(&1u16.to_le_bytes());
    file.extend_from_slice(&1u16.to_le_bytes());
    file.extend_from_slice(&rate.to_le_bytes());
    file.extend_from_slice(&(2 * rate).to_le_bytes());
    file.extend_from_slice(&2u16.to_le_bytes());
    file.extend_from_slice(&16u16.to_le_bytes());
    file.extend_from_slice(b"data");
    file.extend_from_slice(&data.to_le_bytes());
    file.extend(samples.iter().flat_map(|sample| sample.to_le_bytes()));
    file.into()
}

/// Silence behind each turn, milliseconds at least: a window of the spectrum reaches 12.5 ms back from the end, and the
/// filter of the resampler as far as 9 ms.
pub(crate) const REST_MS: u64 = 25;
/// Milliseconds from one window of the spectrum to the next.
const HOP_MS: u64 = 10;

/// Such a file as the model hears it: with silence at its end, up to a whole window. The spectra of a prompt are those
/// of sounds that are padded to the longest of them. A sound that ends like this has the same spectrum beside a longer
/// one as it has alone, so a turn changes nothing of the turns before it, and what was computed of them is of use.
pub(crate) fn at_rest(wav: &[u8]) -> Arc<[u8]> {
    let rested = rested(wav);
    let mut file = wav.to_vec();
    file.resize(WAV_HEAD + 2 * rested as usize, 0);
    let data = 2 * rested as u32;
    for (at, size) in [(4, data + WAV_HEAD as u32 - 8), (WAV_HEAD - 4, data)] {
        file[at..at + 4].copy_from_slice(&size.to_le_bytes());
    }
    file.into()
}

/// Samples of such a file with its silence.
fn rested(wav: &[u8]) -> u64 {
    let (rate, samples) = (u64::from(rate_of(wav)), wav.len().saturating_sub(WAV_HEAD) as u64 / 2);
    (samples + (rate * REST_MS).div_ceil(1000)).next_multiple_of((rate * HOP_MS / 1000).max(1))
}

/// How long such a file sounds [with its silence](at_rest), milliseconds.
pub(crate) fn at_rest_ms(wav: &[u8]) -> u64 {
    (rested(wav) * 1000).div_ceil(u64::from(rate_of(wav)))
}

/// Samples a second of such a file.
fn rate_of(wav: &[u8]) -> u32 {
    wav.get(24..28).map_or(1, |bytes| u32::from_le_bytes([bytes[0], bytes[1], bytes[2], bytes[3]])).max(1)
}

/// How long such a file sounds, milliseconds, rounded up.
pub(crate) fn wav_ms(wav: &[u8]) -> u64 {
    let samples = wav.len().saturating_sub(WAV_HEAD) as u64 / 2;
    (samples * 1000).div_ceil(u64::from(rate_of(wav)))
}

/// Base64 of the samples of such a file.
pub(crate) fn samples_of(wav: &[u8]) -> String {
    BASE64_STANDARD.encode(wav.get(WAV_HEAD..).unwrap_or_default())
}
