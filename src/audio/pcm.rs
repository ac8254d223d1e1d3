//! 16-bit little-endian samples or those of G.711, bare or behind a RIFF/WAVE header.

use super::{AudioError, Encode, Law};

/// Bytes of the longest wav header; that of 16-bit samples has 44.
const WAV_HEADER: usize = 58;

/// A sample in [-1, 1] as 16 bits, rounded to the nearest step; what lies outside is clamped, NaN is silence.
pub(super) fn to_i16(sample: f32) -> i16 {
    // The cast saturates and turns NaN into 0.
    (sample.clamp(-1.0, 1.0) * 32767.0).round() as i16
}

/// Wav, or no header at all.
pub(super) struct Pcm {
    /// `None` is bare.
    wav_rate: Option<u32>,
    /// `None` is linear: 16 bits for each sample.
    law: Option<Law>,
    begun: bool,
    bytes: usize,
}

impl Pcm {
    pub fn wav(sample_rate: u32, law: Option<Law>) -> Pcm {
        Pcm { wav_rate: Some(sample_rate), law, begun: false, bytes: 0 }
    }

    pub fn bare(law: Option<Law>) -> Pcm {
        Pcm { wav_rate: None, law, begun: false, bytes: 0 }
    }

    /// A wav header. `data_bytes` is `None` while the length is not known yet: then all sizes are 0xFFFFFFFF, which
    /// players and decoders take as "until the end of the stream".
    fn header(&self, sample_rate: u32, data_bytes: Option<u32>) -> Vec<u8> {
        let (tag, width) = self.law.map_or((1, 2), |law| (law.wav_tag(), 1));
        let mut format = Vec::with_capacity(18);
        format.extend_from_slice(&u16::to_le_bytes(tag));
        format.extend_from_slice(&1u16.to_le_bytes()); // channels
        format.extend_from_slice(&sample_rate.to_le_bytes());
        format.extend_from_slice(&sample_rate.saturating_mul(width).to_le_bytes()); // bytes per second
        format.extend_from_slice(&(width as u16).to_le_bytes()); // bytes per sample of all channels
        format.extend_from_slice(&(width as u16 * 8).to_le_bytes());
        let mut header = Vec::with_capacity(WAV_HEADER);
        header.extend_from_slice(b"RIFF\xff\xff\xff\xffWAVEfmt ");
        if self.law.is_some() {
            format.extend_from_slice(&0u16.to_le_bytes()); // bytes of an extension, which coded samples must say
        }
        header.extend_from_slice(&(format.len() as u32).to_le_bytes());
        header.append(&mut format);
        if self.law.is_some() {
            header.extend_from_slice(b"fact");
            header.extend_from_slice(&4u32.to_le_bytes());
            header.extend_from_slice(&data_bytes.unwrap_or(u32::MAX).to_le_bytes()); // samples
        }
        header.extend_from_slice(b"data");
        header.extend_from_slice(&data_bytes.unwrap_or(u32::MAX).to_le_bytes());
        if let Some(bytes) = data_bytes {
            let riff = bytes.saturating_add(bytes % 2).saturating_add(header.len() as u32 - 8);
            header[4..8].copy_from_slice(&riff.to_le_bytes());
        }
        header
    }
}

impl Encode for Pcm {
    fn push(&mut self, samples: &[f32], out: &mut Vec<u8>) -> Result<(), AudioError> {
        if let (Some(rate), false) = (self.wav_rate, self.begun) {
            out.extend_from_slice(&self.header(rate, None));
        }
        self.begun = true;
        let before = out.len();
        match self.law {
            None => {
                out.reserve(samples.len() * 2);
                out.extend(samples.iter().flat_map(|&sample| to_i16(sample).to_le_bytes()));
            }
            Some(law) => out.extend(samples.iter().map(|&sample| law.encode(to_i16(sample)))),
        }
        self.bytes += out.len() - before;
        Ok(())
    }

    fn finish(&mut self, out: &mut Vec<u8>) -> Result<(), AudioError> {
        self.push(&[], out)?;
        // Chunks of RIFF end at even places. A player of an open-ended stream plays the padding, so it is silent.
        if let (Some(_), Some(law), 1) = (self.wav_rate, self.law, self.bytes % 2) {
            out.push(law.encode(0));
        }
        Ok(())
    }

    fn front(&self) -> Option<Vec<u8>> {
        // 4 GiB of audio is a day; the limits on requests end an answer long before.
        let size = u32::try_from(self.bytes).ok();
        self.wav_rate.map(|rate| self.header(rate, size))
    }
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
        let mut wav = Pcm::wav(24_000, None);
        let mut out = Vec::new();
        wav.push(&[0.0; 3], &mut out).unwrap();
        assert_eq!(out.len(), 44 + 6);
        assert_eq!(out[40..44], [0xff; 4]);
        wav.push(&[0.0; 3], &mut out).unwrap();
        wav.finish(&mut out).unwrap();
        assert_eq!(out.len(), 44 + 12);
    }

    #[test]
    fn a_wav_of_coded_samples_says_how_many_there_are_and_ends_at_an_even_place() {
        let mut wav = Pcm::wav(8_000, Some(Law::Mu));
        let mut out = Vec::new();
        wav.push(&[0.0, 1.0, -1.0], &mut out).unwrap();
        assert_eq!((out.len(), &out[58..]), (61, &[0xff, 0x80, 0x00][..]));
        wav.finish(&mut out).unwrap();
        assert_eq!(out[61..], [0xff]);
        let front = wav.front().unwrap();
        assert_eq!(front.len(), 58);
        assert_eq!((&front[20..22], &front[34..36], &front[46..50]), (&[7, 0][..], &[8, 0][..], &[3, 0, 0, 0][..]));
        assert_eq!((&front[54..58], front[4]), (&[3, 0, 0, 0][..], 54));
    }
}
