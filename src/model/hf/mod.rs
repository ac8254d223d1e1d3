//! What the JSON files of a Hugging Face checkpoint say. Every number comes from the file: the class defaults of the
//! reference implementation differ from the real models in many places, so a missing field is an error.

mod codec_encoder;
mod cost;
mod decoder;
mod family;
mod forced_aligner;
mod generation;
mod json;
mod media;
mod omni;
mod speaker_encoder;
mod talker;
mod towers;
mod tts;
mod vocoder;

pub use codec_encoder::{CodecEncoderConfig, CodecTransformerConfig};
pub use cost::FrameCost;
pub use decoder::{DecoderConfig, MoeConfig};
pub use family::Family;
pub use forced_aligner::ForcedAlignerConfig;
pub use generation::GenerationDefaults;
pub use media::{MediaConfig, MediaTokens};
pub use omni::{ChatTokens, OmniConfig, Placeholders, SAMPLE_RATE, ThinkerConfig};
pub use speaker_encoder::SpeakerEncoderConfig;
pub use talker::{CodecTokens, SPECIAL_CODEC_IDS, TalkerConfig, UnknownSpeaker};
pub use towers::{
    AUDIO_NORM_EPS, AudioTowerConfig, VISION_NORM_EPS, VISION_ROPE_THETA, VisionTowerConfig, downsampled,
};
pub use tts::{CodecConfig, TtsConfig, TtsTokens, Variant};
pub use vocoder::{VocoderConfig, VocoderInput, WindowedTransformerConfig};
