//! What the JSON files of a Hugging Face checkpoint say. Every number comes from the file: the class defaults of the
//! reference implementation differ from the real models in many places, so a missing field is an error.

mod decoder;
mod generation;
mod json;
mod omni;
mod vocoder;

pub use decoder::{DecoderConfig, MoeConfig};
pub use generation::GenerationDefaults;
pub use omni::{
    ChatTokens, CodecTokens, OmniConfig, SAMPLE_RATE, SPECIAL_CODEC_IDS, TalkerConfig, ThinkerConfig, UnknownSpeaker,
};
pub use vocoder::{VocoderConfig, WindowedTransformerConfig};
