//! Which family a checkpoint belongs to, and what both families have.

use super::omni::OmniConfig;
use super::talker::TalkerConfig;
use super::tts::TtsConfig;
use super::vocoder::VocoderConfig;
use omni_core::ids::StageName;
use serde_json::Value;
use std::sync::Arc;

/// The config of a checkpoint.
#[derive(Clone, Debug, PartialEq)]
pub enum Family {
    /// Qwen3-Omni: thinker, talker, code2wav.
    Omni(Arc<OmniConfig>),
    /// Qwen3-TTS at 12.5 frames a second: talker, 12 Hz decoder.
    Tts(Arc<TtsConfig>),
}

impl Family {
    /// Reads `config.json` and, for the family that has one, the config of its codec.
    ///
    /// # Errors
    /// Everything that is wrong, one line each, with the path of the field.
    pub fn parse(config: &Value, codec: impl FnOnce() -> Result<Value, Vec<String>>) -> Result<Family, Vec<String>> {
        match config.get("model_type").and_then(Value::as_str) {
            Some("qwen3_omni_moe") => Ok(Family::Omni(OmniConfig::parse(config)?.into())),
            Some("qwen3_tts") => Ok(Family::Tts(TtsConfig::parse(config, &codec()?)?.into())),
            Some(other) => {
                Err(vec![format!("model_type = {other:?} is not served: expected \"qwen3_omni_moe\" or \"qwen3_tts\"")])
            }
            None => Err(vec!["model_type is missing: expected \"qwen3_omni_moe\" or \"qwen3_tts\"".into()]),
        }
    }

    /// Stages that a request of text can need, upstream first.
    pub fn stages(&self) -> &'static [StageName] {
        match self {
            Family::Omni(_) => &StageName::OF_TEXT,
            Family::Tts(_) => &[StageName::Talker, StageName::Vocoder],
        }
    }

    /// The talker.
    pub fn talker(&self) -> &TalkerConfig {
        match self {
            Family::Omni(config) => &config.talker,
            Family::Tts(config) => &config.talker,
        }
    }

    /// The vocoder: code2wav or the 12 Hz decoder.
    pub fn vocoder(&self) -> &VocoderConfig {
        match self {
            Family::Omni(config) => &config.code2wav,
            Family::Tts(config) => &config.codec.decoder,
        }
    }

    /// Ids of text that there are embeddings for.
    pub fn text_vocab_size(&self) -> usize {
        match self {
            Family::Omni(config) => config.thinker.text.vocab_size,
            Family::Tts(config) => config.text_vocab_size,
        }
    }

    /// `<|im_start|>` and `<|im_end|>`.
    pub fn turn_tokens(&self) -> [u32; 2] {
        match self {
            Family::Omni(config) => [config.tokens.im_start, config.tokens.im_end],
            Family::Tts(config) => [config.tokens.im_start, config.tokens.im_end],
        }
    }

    /// What the names of the main weights begin with.
    pub fn weights(&self) -> &'static [&'static str] {
        match self {
            Family::Omni(_) => &["thinker", "talker", "code2wav"],
            Family::Tts(config) if config.speaker_encoder.is_some() => &["talker", "speaker_encoder"],
            Family::Tts(_) => &["talker"],
        }
    }
}
