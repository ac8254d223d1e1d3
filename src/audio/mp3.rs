//! MP3: frames of 24 ms (at 24 kHz) at a constant bit rate, behind a frame that tells players what to cut off.

use super::{AudioError, Encode, sane};
use rusty_mp3::{Mp3Encoder, Mp3EncoderConfig};

/// Sample rates of Layer III, Hz.
pub(super) const RATES: [u32; 9] = [8_000, 11_025, 12_000, 16_000, 22_050, 24_000, 32_000, 44_100, 48_000];
/// kbit/s; speech of 24 kHz gains nothing audible above it.
const BIT_RATE: u32 = 96;

pub(super) struct Mp3 {
    encoder: Mp3Encoder,
    rate: u32,
    clean: Vec<f32>,
}

impl Mp3 {
    pub fn new(rate: u32) -> Mp3 {
        let config = Mp3EncoderConfig { bitrate_kbps: BIT_RATE, vbr_quality: None };
        Mp3 { encoder: Mp3Encoder::new(config), rate, clean: Vec::new() }
    }

    fn drain(&mut self, out: &mut Vec<u8>) {
        // An error only means that no more bytes are ready.
        while let Ok(frame) = self.encoder.next_packet() {
            out.extend_from_slice(&frame);
        }
    }
}

impl Encode for Mp3 {
    fn push(&mut self, samples: &[f32], out: &mut Vec<u8>) -> Result<(), AudioError> {
        self.clean.clear();
        self.clean.extend(samples.iter().copied().map(sane));
        self.encoder
            .push_pcm_f32(&self.clean, 1, self.rate)
            .map_err(|error| AudioError::Encoder { format: "mp3", reason: error.to_string() })?;
        self.drain(out);
        Ok(())
    }

    fn finish(&mut self, out: &mut Vec<u8>) -> Result<(), AudioError> {
        self.push(&[], out)?;
        self.encoder.finish();
        self.drain(out);
        Ok(())
    }

    fn front(&self) -> Option<Vec<u8>> {
        self.encoder.lame_tag_frame().map(<[u8]>::to_vec)
    }
}
