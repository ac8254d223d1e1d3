//! Recordings of voices, made of tones.
#![allow(dead_code, reason = "each test binary uses its own part")]

use base64::Engine as _;
use base64::prelude::BASE64_STANDARD;

/// A data URL.
pub fn data_url(bytes: &[u8]) -> String {
    format!("data:audio/wav;base64,{}", BASE64_STANDARD.encode(bytes))
}

/// What the header of a wav says.
#[derive(Clone, Copy)]
pub struct Wav {
    /// 1 is integers, 3 floats.
    pub format: u16,
    pub channels: u16,
    pub rate: u32,
    pub bits: u16,
    /// Instead of the true number of bytes.
    pub claims: Option<u32>,
}

pub const PCM: Wav = Wav { format: 1, channels: 1, rate: 16_000, bits: 16, claims: None };
pub const FLOAT: Wav = Wav { format: 3, bits: 32, ..PCM };

impl Wav {
    pub fn with(self, data: &[u8]) -> Vec<u8> {
        let frame = u32::from(self.channels) * u32::from(self.bits / 8);
        let size = self.claims.unwrap_or(data.len() as u32);
        let mut file = b"RIFF".to_vec();
        file.extend_from_slice(&size.saturating_add(36).to_le_bytes());
        file.extend_from_slice(b"WAVEfmt \x10\0\0\0");
        file.extend_from_slice(&self.format.to_le_bytes());
        file.extend_from_slice(&self.channels.to_le_bytes());
        file.extend_from_slice(&self.rate.to_le_bytes());
        file.extend_from_slice(&self.rate.wrapping_mul(frame).to_le_bytes());
        file.extend_from_slice(&(frame as u16).to_le_bytes());
        file.extend_from_slice(&self.bits.to_le_bytes());
        file.extend_from_slice(b"data");
        file.extend_from_slice(&size.to_le_bytes());
        file.extend_from_slice(data);
        file
    }

    /// Floats; the format must be theirs.
    pub fn floats(self, samples: &[f32]) -> Vec<u8> {
        self.with(&samples.iter().flat_map(|sample| sample.to_le_bytes()).collect::<Vec<_>>())
    }
}

/// A hum of this many samples at 16 kHz, as 16-bit integers; another voice for every number.
pub fn hum(number: u32, samples: u32) -> Vec<u8> {
    let sample = |i: u32| {
        let t = f64::from(i) / 16_000.0;
        let tone = |n: f64| (std::f64::consts::TAU * (90.0 + 17.0 * f64::from(number)) * n * t).sin() / n;
        ((tone(1.0) + tone(2.0) + tone(3.0 + f64::from(number % 3))) * 6000.0) as i16
    };
    (0..samples).flat_map(|i| sample(i).to_le_bytes()).collect()
}

/// A recording as it should be: one second.
pub fn good(number: u32) -> Vec<u8> {
    PCM.with(&hum(number, 16_000))
}
