//! 16-bit little-endian samples, bare or behind a RIFF/WAVE header.

use super::{AudioError, Encode};

/// Bytes of a wav header.
const WAV_HEADER: usize = 44;

/// A sample in [-1, 1] as 16 bits, rounded to the nearest step; what lies outside is clamped, NaN is silence.
pub(super) fn to_i16(sample: f32) -> i16 {
    // The cast saturates and turns NaN into 0.
    (sample.clamp(-1.0, 1.0) * 32767.0).round() as i16
}

/// Wav, or no header at all.
pub(super) struct Pcm {
    /// `None` is bare.
    wav_rate: Option<u32>,
    begun: bool,
    bytes: usize,
}

impl Pcm {
    pub fn wav(sample_rate: u32) -> Pcm {
        Pcm { wav_rate: Some(sample_rate), begun: false, bytes: 0 }
    }

    pub fn bare() -> Pcm {
        Pcm { wav_rate: None, begun: false, bytes: 0 }
    }
}

impl Encode for Pcm {
    fn push(&mut self, samples: &[f32], out: &mut Vec<u8>) -> Result<(), AudioError> {
        if let (Some(rate), false) = (self.wav_rate, self.begun) {
            out.extend_from_slice(&wav_header(rate, None));
        }
        self.begun = true;
        self.bytes += samples.len() * 2;
        out.reserve(samples.len() * 2);
        out.extend(samples.iter().flat_map(|&sample| to_i16(sample).to_le_bytes()));
        Ok(())
    }

    fn finish(&mut self, out: &mut Vec<u8>) -> Result<(), AudioError> {
        self.push(&[], out)
    }

    fn front(&self) -> Option<Vec<u8>> {
        // 4 GiB of audio is a day; the limits on requests end an answer long before.
        let size = u32::try_from(self.bytes).ok();
        self.wav_rate.map(|rate| wav_header(rate, size).to_vec())
    }
}

/// A wav header. `data_bytes` is `None` while the length is not known yet: then both sizes are 0xFFFFFFFF, which
/// players and decoders take as "until the end of the stream".
fn wav_header(sample_rate: u32, data_bytes: Option<u32>) -> [u8; WAV_HEADER] {
    let data = data_bytes.unwrap_or(u32::MAX);
    let riff = data_bytes.map_or(u32::MAX, |bytes| bytes.saturating_add(WAV_HEADER as u32 - 8));
    let mut header = [0; WAV_HEADER];
    header[0..4].copy_from_slice(b"RIFF");
    header[4..8].copy_from_slice(&riff.to_le_bytes());
    header[8..16].copy_from_slice(b"WAVEfmt ");
    header[16..20].copy_from_slice(&16u32.to_le_bytes());
    header[20..22].copy_from_slice(&1u16.to_le_bytes()); // integer PCM
    header[22..24].copy_from_slice(&1u16.to_le_bytes()); // channels
    header[24..28].copy_from_slice(&sample_rate.to_le_bytes());
    header[28..32].copy_from_slice(&sample_rate.saturating_mul(2).to_le_bytes()); // bytes per second
    header[32..34].copy_from_slice(&2u16.to_le_bytes()); // bytes per sample of all channels
    header[34..36].copy_from_slice(&16u16.to_le_bytes());
    header[36..40].copy_from_slice(b"data");
    header[40..44].copy_from_slice(&data.to_le_bytes());
    header
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn samples_are_rounded_to_nearest_and_clamped() {
        assert_eq!([0.0, 1.0, -1.0, 2.0, -7.5, f32::NAN].map(to_i16), [0, 32767, -32767, 32767, -32767, 0]);
        assert_eq!([1.4 / 32767.0, 1.6 / 32767.0, -1.6 / 32767.0].map(to_i16), [1, 2, -2]);
    }

    #[test]
    fn only_the_first_piece_of_a_wav_has_a_header_and_its_length_is_open() {
        let mut wav = Pcm::wav(24_000);
        let mut out = Vec::new();
        wav.push(&[0.0; 3], &mut out).unwrap();
        assert_eq!(out.len(), 44 + 6);
        assert_eq!(out[40..44], [0xff; 4]);
        wav.push(&[0.0; 3], &mut out).unwrap();
        wav.finish(&mut out).unwrap();
        assert_eq!(out.len(), 44 + 12);
    }
}
