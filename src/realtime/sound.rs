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

/// Silence behind each turn, milliseconds at least: a window of the spectrum reaches 12.5 ms back from the end, and the
/// filter of the resampler as far as 9 ms.
pub(crate) const REST_MS: u64 = 25;
/// Milliseconds from one window of the spectrum to the next.
const HOP_MS: u64 = 10;

/// What a user said, as the model hears it: a wav file of 16-bit samples with silence at its end, up to a whole window.
/// It is written once, and shared by all prompts that it is part of.
///
/// The spectra of a prompt are those of sounds that are padded to the longest of them. A sound that ends like this has
/// the same spectrum beside a longer one as it has alone, so a turn changes nothing of the turns before it, and what was
/// computed of them is of use.
#[derive(Clone, PartialEq)]
pub(crate) struct UserSound {
    file: Arc<[u8]>,
    /// Samples without the silence.
    said: usize,
    rate: u32,
}

impl std::fmt::Debug for UserSound {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        // Never the bytes: they are long, and private.
        write!(f, "sound of {} bytes", self.file.len())
    }
}

impl UserSound {
    /// Of samples at this rate.
    pub fn new(samples: &[i16], rate: u32) -> UserSound {
        let rest = (rate * REST_MS as u32).div_ceil(1000) as usize;
        let rested = (samples.len() + rest).next_multiple_of((rate * HOP_MS as u32 / 1000).max(1) as usize);
        UserSound { file: wav(samples, rested, rate).into(), said: samples.len(), rate }
    }

    /// The file.
    pub fn file(&self) -> Arc<[u8]> {
        Arc::clone(&self.file)
    }

    /// How long it sounds, milliseconds, rounded up.
    pub fn ms(&self) -> u64 {
        self.as_ms(self.bytes().saturating_sub(WAV_HEAD) / 2)
    }

    /// The same without the silence.
    pub fn said_ms(&self) -> u64 {
        self.as_ms(self.said)
    }

    fn as_ms(&self, samples: usize) -> u64 {
        (samples as u64 * 1000).div_ceil(u64::from(self.rate))
    }

    /// A file without the silence.
    pub fn said(&self) -> Arc<[u8]> {
        let pairs = self.samples().chunks_exact(2);
        let samples: Vec<i16> = pairs.map(|pair| i16::from_le_bytes([pair[0], pair[1]])).collect();
        wav(&samples, self.said, self.rate).into()
    }

    /// Base64 of its samples.
    pub fn base64(&self) -> String {
        BASE64_STANDARD.encode(self.samples())
    }

    /// Bytes that it takes.
    pub fn bytes(&self) -> usize {
        self.file.len()
    }

    fn samples(&self) -> &[u8] {
        self.file.get(WAV_HEAD..WAV_HEAD + 2 * self.said).unwrap_or_default()
    }
}

/// A wav file of 16-bit samples, and of silence behind them up to `all` samples.
fn wav(samples: &[i16], all: usize, rate: u32) -> Vec<u8> {
    let data = 2 * all as u32;
    let mut file = Vec::with_capacity(WAV_HEAD + data as usize);
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
    file.resize(WAV_HEAD + data as usize, 0);
    file
}
