//! `config.json` of Qwen3-TTS (12 Hz): a talker that reads text itself, and a codec in a folder of its own.

use super::codec_encoder::CodecEncoderConfig;
use super::json::{Node, Problems};
use super::omni::SAMPLE_RATE;
use super::speaker_encoder::SpeakerEncoderConfig;
use super::talker::TalkerConfig;
use super::vocoder::VocoderConfig;
use serde_json::Value;
use std::collections::BTreeMap;

/// The whole model.
#[derive(Clone, Debug, PartialEq)]
pub struct TtsConfig {
    /// Text in, codes out.
    pub talker: TalkerConfig,
    /// Ids of the talker's table of text.
    pub text_vocab_size: usize,
    /// Which ways of asking for a voice the checkpoint was trained for.
    pub variant: Variant,
    /// Whether instructions have an effect: the reference drops those for the 0.6B CustomVoice model, and Base models
    /// were not trained with any.
    pub follows_instructions: bool,
    /// Codec id of each language, by lower-case name; dialects are not among them.
    pub languages: BTreeMap<String, u32>,
    /// Codec id of the dialect of each speaker that has one, by the speaker's lower-case name.
    pub dialects: BTreeMap<String, u32>,
    /// Whether the checkpoint has a speaker encoder, and its config.
    pub speaker_encoder: Option<SpeakerEncoderConfig>,
    /// Codes to waveform and back.
    pub codec: CodecConfig,
    /// Ids of the prompt format, in the vocabulary of text.
    pub tokens: TtsTokens,
}

/// What a Qwen3-TTS checkpoint was trained for (`tts_model_type`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Variant {
    /// Speakers by name.
    CustomVoice,
    /// Voices by description.
    VoiceDesign,
    /// Voices by example.
    Base,
}

impl Variant {
    /// As requests name it (`task_type`).
    pub fn as_str(self) -> &'static str {
        match self {
            Variant::CustomVoice => "CustomVoice",
            Variant::VoiceDesign => "VoiceDesign",
            Variant::Base => "Base",
        }
    }
}

impl std::fmt::Display for Variant {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(self.as_str())
    }
}

/// `config.json` of the codec.
#[derive(Clone, Debug, PartialEq)]
pub struct CodecConfig {
    /// Codes to waveform.
    pub decoder: VocoderConfig,
    /// Waveform to codes.
    pub encoder: CodecEncoderConfig,
    /// Codebooks of the encoder that are used at most; the first ones.
    pub encoder_valid_num_quantizers: usize,
}

/// Ids with a meaning in the vocabulary of text.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[expect(missing_docs, reason = "each name says it all")]
pub struct TtsTokens {
    pub im_start: u32,
    pub im_end: u32,
    pub tts_pad: u32,
    pub tts_bos: u32,
    pub tts_eos: u32,
}

impl TtsConfig {
    /// Reads and checks `config.json` and the config of the codec.
    ///
    /// # Errors
    /// Everything that is wrong, one line each, with the path of the field.
    pub fn parse(config: &Value, codec: &Value) -> Result<TtsConfig, Vec<String>> {
        let (problems, codec_problems) = (Problems::default(), Problems::default());
        let (root, codec) = (Node::root(config, &problems), Node::root(codec, &codec_problems));
        if let Some(other) = root.optional_text("tokenizer_type").filter(|kind| *kind != "qwen3_tts_tokenizer_12hz") {
            return Err(vec![format!(
                "tokenizer_type = {other:?} is not served: use one of the 12Hz checkpoints (\"qwen3_tts_tokenizer_12hz\")"
            )]);
        }
        let variant = variant(&root);
        let node = root.object("talker_config");
        let talker = TalkerConfig::read_tts(&node);
        let ids = node.id_map("codec_language_id");
        let dialects = dialects(&node, &ids);
        let config = TtsConfig {
            text_vocab_size: node.size("text_vocab_size"),
            variant,
            follows_instructions: match variant {
                Variant::VoiceDesign => true,
                Variant::CustomVoice => root.optional_text("tts_model_size") != Some("0b6"),
                Variant::Base => false,
            },
            languages: ids
                .into_iter()
                .map(|(name, id)| (name.to_lowercase(), id))
                .filter(|(name, _)| !name.ends_with("dialect"))
                .collect(),
            dialects,
            // The other variants say `{}`.
            speaker_encoder: (variant == Variant::Base)
                .then(|| SpeakerEncoderConfig::read(&root.object("speaker_encoder_config"))),
            codec: CodecConfig::read(&codec),
            tokens: TtsTokens::read(&root),
            talker,
        };
        if problems.len() == 0 && codec_problems.len() == 0 {
            config.check(&problems);
        }
        let mut all = problems.into_vec();
        all.extend(codec_problems.into_vec().into_iter().map(|line| format!("speech_tokenizer/config.json: {line}")));
        if all.is_empty() { Ok(config) } else { Err(all) }
    }

    fn check(&self, problems: &Problems) {
        for (name, id) in self.tokens.named() {
            problems.require((id as usize) < self.text_vocab_size, || {
                format!("{name} = {id} is outside the vocabulary of text, {}", self.text_vocab_size)
            });
        }
        for (name, id) in self.languages.iter().chain(&self.dialects) {
            self.talker.check_id(&format!("talker_config.codec_language_id ({name})"), *id, problems);
        }
        problems.require(self.talker.tokens.think.is_some(), || "talker_config.codec_think_id is missing".into());
        problems.require(self.variant != Variant::CustomVoice || !self.talker.speakers.is_empty(), || {
            "talker_config.spk_id is empty: expected the codec id of at least one voice".into()
        });
        self.talker.check_vocoder(&self.codec.decoder, "speech_tokenizer decoder_config", problems);
        let encoder = &self.codec.encoder;
        // The talker has an embedding for every code of the decoder, so an encoder may have fewer codes, not more.
        let (found, most) = (encoder.codebook_size, self.codec.decoder.codebook_size);
        problems.require(found <= most, || {
            format!("speech_tokenizer encoder_config: codebook_size = {found} is more than {most} of decoder_config")
        });
        let (found, expected) = (encoder.samples_per_frame(), self.codec.decoder.samples_per_frame());
        problems.require(found == expected, || {
            format!(
                "speech_tokenizer encoder_config: samples per frame = {found} differs from {expected} of decoder_config"
            )
        });
        if let Some(encoder) = &self.speaker_encoder {
            let (width, hidden) = (encoder.enc_dim, self.talker.text.hidden_size);
            problems.require(width == hidden, || {
                format!("speaker_encoder_config.enc_dim = {width} differs from talker_config.hidden_size = {hidden}")
            });
        }
    }
}

fn variant(root: &Node<'_>) -> Variant {
    match root.optional_text("tts_model_type") {
        Some("custom_voice") => Variant::CustomVoice,
        Some("voice_design") => Variant::VoiceDesign,
        Some("base") => Variant::Base,
        found => {
            let found = found.map_or("is missing".into(), |text| format!("= {text:?}"));
            root.problems()
                .add(format!("tts_model_type {found}: expected \"custom_voice\", \"voice_design\" or \"base\""));
            Variant::CustomVoice
        }
    }
}

/// `spk_is_dialect` has `false` or the name of a language for each speaker.
fn dialects(node: &Node<'_>, languages: &BTreeMap<String, u32>) -> BTreeMap<String, u32> {
    let entries = node.value("spk_is_dialect").and_then(Value::as_object);
    let named = entries.into_iter().flatten().filter_map(|(name, dialect)| Some((name, dialect.as_str()?)));
    let mut found = BTreeMap::new();
    for (name, dialect) in named {
        match languages.get(dialect) {
            Some(id) => drop(found.insert(name.to_lowercase(), *id)),
            None => node.problems().add(format!(
                "{} = {dialect:?} is not in codec_language_id",
                node.path_of(&format!("spk_is_dialect.{name}"))
            )),
        }
    }
    found
}

impl CodecConfig {
    /// Codes per frame that the encoder makes. Where the talker reads another number, only the x-vector of a voice can
    /// be used: the reference fails if a transcript is given.
    pub fn encoder_groups(&self) -> usize {
        self.encoder_valid_num_quantizers.min(self.encoder.num_quantizers)
    }

    fn read(node: &Node<'_>) -> CodecConfig {
        let before = node.problems().len();
        let decoder = VocoderConfig::read_12hz(&node.object("decoder_config"));
        if node.problems().len() == before {
            // Speech would come at the wrong pitch, or be cut.
            let samples = decoder.samples_per_frame();
            for (key, want) in [("output_sample_rate", SAMPLE_RATE as usize), ("decode_upsample_rate", samples)] {
                let found = node.optional_size(key).unwrap_or(want);
                node.problems().require(found == want, || format!("{key} = {found}: expected {want}"));
            }
        }
        CodecConfig {
            decoder,
            encoder: CodecEncoderConfig::read(&node.object("encoder_config")),
            encoder_valid_num_quantizers: node.size("encoder_valid_num_quantizers"),
        }
    }
}

impl TtsTokens {
    fn read(node: &Node<'_>) -> TtsTokens {
        TtsTokens {
            im_start: node.id("im_start_token_id"),
            im_end: node.id("im_end_token_id"),
            tts_pad: node.id("tts_pad_token_id"),
            tts_bos: node.id("tts_bos_token_id"),
            tts_eos: node.id("tts_eos_token_id"),
        }
    }

    fn named(&self) -> [(&'static str, u32); 5] {
        [
            ("im_start_token_id", self.im_start),
            ("im_end_token_id", self.im_end),
            ("tts_pad_token_id", self.tts_pad),
            ("tts_bos_token_id", self.tts_bos),
            ("tts_eos_token_id", self.tts_eos),
        ]
    }
}
