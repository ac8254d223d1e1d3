//! Encodes a recording of a speaker into what a cloned voice needs.
//!
//! A file is decoded to mono samples ([`decode_audio`]) and brought to 24 kHz ([`resample()`]) by omni-media; of these, the
//! [`SpeakerEncoder`] makes an x-vector and the [`CodecEncoder`] frames of codes. All of it is pure: bytes or samples
//! in, numbers out, no clock and no files, and every number in a client's file is checked against a limit before the
//! program acts on it.

mod codec_encoder;
mod mel;
mod speaker_encoder;

pub use codec_encoder::CodecEncoder;
pub use omni_media::resample::{resample, resampled_len};
pub use omni_media::sound::{AudioError, AudioLimits, Clip, MAX_RATE, check_clip, decode_audio};
pub use speaker_encoder::SpeakerEncoder;

use crate::hf::SAMPLE_RATE;
use crate::{Checkpoint, LoadError};
use candle_core::Device;

/// Both encoders of a Qwen3-TTS Base checkpoint.
pub struct VoiceEncoder {
    /// Samples to an x-vector.
    pub speaker: SpeakerEncoder,
    /// Samples to code frames.
    pub codec: CodecEncoder,
}

impl VoiceEncoder {
    /// Loads both; `None` when the checkpoint clones no voices.
    ///
    /// # Errors
    /// [`LoadError`] when this is no Qwen3-TTS checkpoint, a file cannot be read, or its tensors are not those of the
    /// config.
    pub fn load(checkpoint: &Checkpoint, device: &Device) -> Result<Option<VoiceEncoder>, LoadError> {
        let config = checkpoint.tts()?;
        let Some(speaker) = &config.speaker_encoder else { return Ok(None) };
        let loader = checkpoint.loader(&["speaker_encoder"], device);
        let speaker = SpeakerEncoder::load(&loader, speaker)?;
        loader.finish()?;
        let loader = checkpoint.codec_loader(&["encoder"], device)?;
        let codec = CodecEncoder::load(&loader, &config.codec.encoder, config.codec.encoder_groups())?;
        loader.finish()?;
        Ok(Some(VoiceEncoder { speaker, codec }))
    }

    /// The samples of a clip as both encoders take them: 24 kHz.
    ///
    /// # Errors
    /// [`AudioError::Rate`] for a rate that decoding refuses.
    pub fn samples(clip: &Clip) -> Result<Vec<f32>, AudioError> {
        resample(&clip.pcm, clip.rate, SAMPLE_RATE)
    }
}
