//! Samples as bytes: 16-bit little-endian PCM, bare or behind a RIFF/WAVE header.

/// What a client hears.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum AudioFormat {
    /// RIFF/WAVE, 16 bit, mono.
    Wav,
    /// The same samples without a header.
    Pcm,
}

/// Formats that OpenAI knows and we do not make.
const OTHERS: [&str; 4] = ["mp3", "opus", "aac", "flac"];

impl AudioFormat {
    /// `pcm16` is what chat completions call `pcm`. The error says what is allowed.
    pub fn parse(name: &str) -> Result<AudioFormat, String> {
        match name {
            "wav" => Ok(AudioFormat::Wav),
            "pcm" | "pcm16" => Ok(AudioFormat::Pcm),
            other if OTHERS.contains(&other) => {
                Err(format!("the format {other:?} is not supported by this server; ask for \"wav\" or \"pcm\""))
            }
            other => Err(format!("{other:?} is no audio format; ask for \"wav\" or \"pcm\"")),
        }
    }

    pub fn as_str(self) -> &'static str {
        match self {
            AudioFormat::Wav => "wav",
            AudioFormat::Pcm => "pcm",
        }
    }

    pub fn content_type(self) -> &'static str {
        match self {
            AudioFormat::Wav => "audio/wav",
            AudioFormat::Pcm => "audio/pcm",
        }
    }
}

/// Bytes of a wav header.
pub const WAV_HEADER: usize = 44;

/// A wav header. `data_bytes` is `None` while the length is not known yet: then both sizes are 0xFFFFFFFF, which players
/// and decoders take as "until the end of the stream".
pub fn wav_header(sample_rate: u32, data_bytes: Option<u32>) -> [u8; WAV_HEADER] {
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
    header[28..32].copy_from_slice(&(sample_rate * 2).to_le_bytes()); // bytes per second
    header[32..34].copy_from_slice(&2u16.to_le_bytes()); // bytes per sample of all channels
    header[34..36].copy_from_slice(&16u16.to_le_bytes());
    header[36..40].copy_from_slice(b"data");
    header[40..44].copy_from_slice(&data.to_le_bytes());
    header
}

/// Appends samples in [-1, 1] as PCM16, rounded to the nearest step; what lies outside is clamped.
pub fn push_pcm16(samples: &[f32], out: &mut Vec<u8>) {
    out.reserve(samples.len() * 2);
    for &sample in samples {
        // The cast saturates and turns NaN into silence.
        let step = (sample.clamp(-1.0, 1.0) * 32767.0).round() as i16;
        out.extend_from_slice(&step.to_le_bytes());
    }
}

/// Encodes one answer piece by piece. The first piece of a wav carries the open-ended header.
#[derive(Debug)]
pub(super) struct StreamEncoder {
    header: Option<[u8; WAV_HEADER]>,
}

impl StreamEncoder {
    pub fn new(format: AudioFormat, sample_rate: u32) -> StreamEncoder {
        StreamEncoder { header: (format == AudioFormat::Wav).then(|| wav_header(sample_rate, None)) }
    }

    pub fn encode(&mut self, samples: &[f32]) -> Vec<u8> {
        let mut out = self.header.take().map_or_else(Vec::new, |header| header.to_vec());
        push_pcm16(samples, &mut out);
        out
    }
}

/// A finished answer: PCM16 bytes in, a file of `format` out.
pub(super) fn whole(format: AudioFormat, sample_rate: u32, pcm: Vec<u8>) -> Vec<u8> {
    match format {
        AudioFormat::Pcm => pcm,
        AudioFormat::Wav => {
            // 4 GiB of audio is a day; the request limits end an answer long before.
            let size = u32::try_from(pcm.len()).ok();
            let mut out = wav_header(sample_rate, size).to_vec();
            out.extend_from_slice(&pcm);
            out
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pcm(samples: &[f32]) -> Vec<i16> {
        let mut bytes = Vec::new();
        push_pcm16(samples, &mut bytes);
        bytes.chunks(2).map(|pair| i16::from_le_bytes([pair[0], pair[1]])).collect()
    }

    #[test]
    fn samples_are_rounded_to_nearest_and_clamped() {
        assert_eq!(pcm(&[0.0, 1.0, -1.0, 2.0, -7.5, f32::NAN]), [0, 32767, -32767, 32767, -32767, 0]);
        assert_eq!(pcm(&[1.4 / 32767.0, 1.6 / 32767.0, -1.6 / 32767.0]), [1, 2, -2]);
    }

    #[test]
    fn a_whole_wav_is_read_back_by_another_program() {
        let mut bytes = Vec::new();
        push_pcm16(&[0.0, 0.5, -0.5], &mut bytes);
        let file = whole(AudioFormat::Wav, 24_000, bytes);
        let mut reader = hound::WavReader::new(file.as_slice()).unwrap();
        assert_eq!(reader.spec().sample_rate, 24_000);
        assert_eq!(reader.duration(), 3);
        let samples: Vec<i16> = reader.samples().map(Result::unwrap).collect();
        assert_eq!(samples, [0, 16384, -16384]);
    }

    #[test]
    fn only_the_first_piece_of_a_streamed_wav_has_a_header() {
        let mut encoder = StreamEncoder::new(AudioFormat::Wav, 24_000);
        assert_eq!(encoder.encode(&[0.0; 3]).len(), 44 + 6);
        assert_eq!(encoder.encode(&[0.0; 3]).len(), 6);
        assert_eq!(StreamEncoder::new(AudioFormat::Pcm, 24_000).encode(&[0.0; 3]).len(), 6);
    }

    #[test]
    fn formats_we_do_not_make_are_refused_with_what_we_do() {
        assert!(AudioFormat::parse("mp3").unwrap_err().contains("not supported"));
        assert!(AudioFormat::parse("wave").unwrap_err().contains("\"wav\" or \"pcm\""));
    }
}
