//! `config.json` of Qwen3-Omni: thinker, talker with code predictor, code2wav, and the ids that tie them together.

use super::decoder::DecoderConfig;
use super::json::{Node, Problems};
use super::vocoder::VocoderConfig;
use serde_json::Value;
use std::collections::BTreeMap;

/// Samples per second of the waveform. The one number that no config of this family holds.
pub const SAMPLE_RATE: u32 = 24_000;

/// Talker ids from `vocab_size - SPECIAL_CODEC_IDS` on are not codes; all but the end are never sampled.
pub const SPECIAL_CODEC_IDS: usize = 1024;

/// The speaker of the reference implementation when a request names none.
const REFERENCE_SPEAKER: &str = "ethan";

/// The whole model.
#[derive(Clone, Debug, PartialEq)]
pub struct OmniConfig {
    /// Text in, text out.
    pub thinker: ThinkerConfig,
    /// Text rows in, codes out.
    pub talker: TalkerConfig,
    /// Codes in, waveform out.
    pub code2wav: VocoderConfig,
    /// Ids of the chat format, in the thinker's vocabulary.
    pub tokens: ChatTokens,
}

/// The thinker. Its audio and vision towers are not described: they are not served yet.
#[derive(Clone, Debug, PartialEq)]
pub struct ThinkerConfig {
    /// The language model.
    pub text: DecoderConfig,
    /// Placeholders of audio, images and video; a prompt with one is refused.
    pub placeholders: Vec<u32>,
}

/// The talker with its code predictor.
#[derive(Clone, Debug, PartialEq)]
pub struct TalkerConfig {
    /// The backbone, over codec ids.
    pub text: DecoderConfig,
    /// The model that fills in groups 1.. of a frame, over codes.
    pub predictor: DecoderConfig,
    /// Codes of a frame.
    pub num_code_groups: usize,
    /// Width of the rows that come from the thinker.
    pub thinker_hidden_size: usize,
    /// Which hidden state of the thinker stands for audio, image and video positions.
    pub accept_hidden_layer: usize,
    /// Ids of the codec format, in the talker's vocabulary.
    pub tokens: CodecTokens,
    /// Codec id of each voice, by lower-case name.
    pub speakers: BTreeMap<String, u32>,
}

/// Ids with a meaning in the thinker's vocabulary.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[expect(missing_docs, reason = "each name says it all")]
pub struct ChatTokens {
    pub im_start: u32,
    pub im_end: u32,
    pub system: u32,
    pub user: u32,
    pub assistant: u32,
    pub tts_pad: u32,
    pub tts_bos: u32,
    pub tts_eos: u32,
}

/// Ids with a meaning in the talker's vocabulary.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[expect(missing_docs, reason = "each name says it all")]
pub struct CodecTokens {
    pub pad: u32,
    pub bos: u32,
    pub eos: u32,
    pub nothink: u32,
    pub think_bos: u32,
    pub think_eos: u32,
}

impl OmniConfig {
    /// Reads and checks a whole config.
    ///
    /// # Errors
    /// Everything that is wrong, one line each, with the path of the field.
    pub fn parse(value: &Value) -> Result<OmniConfig, Vec<String>> {
        let problems = Problems::default();
        let root = Node::root(value, &problems);
        match root.optional_text("model_type") {
            Some("qwen3_omni_moe") => {}
            found => return Err(vec![wrong_family(found)]),
        }
        if root.optional_flag("enable_audio_output") == Some(false) {
            return Err(vec![
                "enable_audio_output = false: this checkpoint has no talker, so it cannot speak; \
                use one of the Instruct checkpoints"
                    .into(),
            ]);
        }
        let config = OmniConfig {
            thinker: ThinkerConfig::read(&root.object("thinker_config")),
            talker: TalkerConfig::read(&root.object("talker_config")),
            code2wav: VocoderConfig::read(&root.object("code2wav_config")),
            tokens: ChatTokens::read(&root),
        };
        // Numbers that stand in for missing ones would only cause complaints that mislead.
        if problems.len() == 0 {
            config.check(&problems);
        }
        let problems = problems.into_vec();
        if problems.is_empty() { Ok(config) } else { Err(problems) }
    }

    /// What has to agree between the parts.
    fn check(&self, problems: &Problems) {
        let (thinker, talker, vocoder) = (&self.thinker.text, &self.talker, &self.code2wav);
        for (name, id) in self.tokens.named() {
            problems.require((id as usize) < thinker.vocab_size, || {
                format!("{name} = {id} is outside the thinker's vocabulary of {}", thinker.vocab_size)
            });
        }
        problems.require(talker.thinker_hidden_size == thinker.hidden_size, || {
            format!(
                "talker_config.thinker_hidden_size = {} differs from thinker_config.text_config.hidden_size = {}",
                talker.thinker_hidden_size, thinker.hidden_size
            )
        });
        problems.require(talker.accept_hidden_layer <= thinker.num_hidden_layers, || {
            format!(
                "talker_config.accept_hidden_layer = {} is beyond the thinker's {} layers",
                talker.accept_hidden_layer, thinker.num_hidden_layers
            )
        });
        problems.require(talker.num_code_groups == vocoder.num_quantizers, || {
            format!(
                "talker_config.num_code_groups = {} differs from code2wav_config.num_quantizers = {}",
                talker.num_code_groups, vocoder.num_quantizers
            )
        });
        let (codes, book) = (talker.predictor.vocab_size, vocoder.codebook_size);
        problems.require(codes <= book, || {
            format!(
                "talker_config.code_predictor_config.vocab_size = {codes} is more than code2wav_config.codebook_size = {book}"
            )
        });
        let codes = talker.text.vocab_size.saturating_sub(SPECIAL_CODEC_IDS);
        problems.require((1..=book).contains(&codes), || {
            format!(
                "talker_config.text_config.vocab_size = {} leaves {codes} codes below the {SPECIAL_CODEC_IDS} special ids: \
                 expected 1 to code2wav_config.codebook_size = {book}",
                talker.text.vocab_size
            )
        });
    }
}

impl ThinkerConfig {
    fn read(node: &Node<'_>) -> ThinkerConfig {
        let keys = ["audio_token_id", "image_token_id", "video_token_id"];
        let mut text = DecoderConfig::read(&node.object("text_config"));
        text.tie_word_embeddings |= tied_outside(node);
        if let Some(moe) = &mut text.moe {
            // The thinker has none, whatever its config inherited (spec section 3).
            moe.shared_expert_intermediate_size = None;
        }
        ThinkerConfig { text, placeholders: keys.iter().filter_map(|key| node.optional_id(key)).collect() }
    }
}

impl TalkerConfig {
    fn read(node: &Node<'_>) -> TalkerConfig {
        let before = node.problems().len();
        let predictor = node.object("code_predictor_config");
        let mut text = DecoderConfig::read(&node.object("text_config"));
        text.tie_word_embeddings |= tied_outside(node);
        if let Some(moe) = &mut text.moe {
            // Every layer of the talker has experts, whatever its config inherited (spec section 3).
            moe.decoder_sparse_step = 1;
            moe.mlp_only_layers.clear();
        }
        let config = TalkerConfig {
            text,
            predictor: DecoderConfig::read(&predictor),
            num_code_groups: node.size("num_code_groups"),
            thinker_hidden_size: node.size("thinker_hidden_size"),
            accept_hidden_layer: node.count("accept_hidden_layer"),
            tokens: CodecTokens::read(node),
            speakers: node.id_map("speaker_id").into_iter().map(|(name, id)| (name.to_lowercase(), id)).collect(),
        };
        if node.problems().len() == before {
            let inner = predictor.optional_size("num_code_groups").unwrap_or(config.num_code_groups);
            config.check(node, inner);
        }
        config
    }

    fn check(&self, node: &Node<'_>, predictor_groups: usize) {
        let (problems, groups) = (node.problems(), self.num_code_groups);
        problems
            .require(groups >= 2, || format!("{} = {groups}: expected at least 2", node.path_of("num_code_groups")));
        problems.require(predictor_groups == groups, || {
            let path = node.path_of("code_predictor_config.num_code_groups");
            format!("{path} = {predictor_groups} differs from talker_config.num_code_groups = {groups}")
        });
        let (hidden, inner) = (self.text.hidden_size, self.predictor.hidden_size);
        problems.require(hidden == inner, || {
            let path = node.path_of("code_predictor_config.hidden_size");
            format!("{path} = {inner} differs from talker_config.text_config.hidden_size = {hidden}")
        });
        problems.require(!self.speakers.is_empty(), || {
            format!("{} is empty: expected the codec id of at least one voice", node.path_of("speaker_id"))
        });
        let speakers = self.speakers.iter().map(|(name, id)| (format!("speaker_id.{name}"), *id));
        let tokens = self.tokens.named().map(|(name, id)| (name.to_owned(), id));
        for (name, id) in speakers.chain(tokens) {
            problems.require((id as usize) < self.text.vocab_size, || {
                let path = node.path_of(&name);
                format!("{path} = {id} is outside the talker's vocabulary of {}", self.text.vocab_size)
            });
        }
    }

    /// Names of the voices, in the order of their codec ids.
    pub fn speaker_names(&self) -> Vec<&str> {
        let mut names: Vec<_> = self.speakers.iter().map(|(name, id)| (*id, name.as_str())).collect();
        names.sort_unstable();
        names.into_iter().map(|(_, name)| name).collect()
    }

    /// Codec id of a voice, whatever the case of its name. The error lists the voices.
    ///
    /// # Errors
    /// [`UnknownSpeaker`] when no voice is called that.
    pub fn speaker(&self, name: &str) -> Result<u32, UnknownSpeaker> {
        self.speakers.get(&name.trim().to_lowercase()).copied().ok_or_else(|| UnknownSpeaker {
            name: name.chars().take(64).collect(),
            known: self.speaker_names().into_iter().map(str::to_owned).collect(),
        })
    }

    /// The voice of requests that name none: the reference's, or the one with the lowest codec id.
    pub fn default_speaker(&self) -> &str {
        if self.speakers.contains_key(REFERENCE_SPEAKER) {
            return REFERENCE_SPEAKER;
        }
        self.speaker_names().first().copied().unwrap_or_default()
    }
}

/// No voice of this name.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("no voice {name:?}; the voices are: {}", .known.join(", "))]
pub struct UnknownSpeaker {
    /// What was asked for.
    pub name: String,
    /// What there is.
    pub known: Vec<String>,
}

impl ChatTokens {
    fn read(node: &Node<'_>) -> ChatTokens {
        ChatTokens {
            im_start: node.id("im_start_token_id"),
            im_end: node.id("im_end_token_id"),
            system: node.id("system_token_id"),
            user: node.id("user_token_id"),
            assistant: node.id("assistant_token_id"),
            tts_pad: node.id("tts_pad_token_id"),
            tts_bos: node.id("tts_bos_token_id"),
            tts_eos: node.id("tts_eos_token_id"),
        }
    }

    fn named(&self) -> [(&'static str, u32); 8] {
        [
            ("im_start_token_id", self.im_start),
            ("im_end_token_id", self.im_end),
            ("system_token_id", self.system),
            ("user_token_id", self.user),
            ("assistant_token_id", self.assistant),
            ("tts_pad_token_id", self.tts_pad),
            ("tts_bos_token_id", self.tts_bos),
            ("tts_eos_token_id", self.tts_eos),
        ]
    }
}

impl CodecTokens {
    fn read(node: &Node<'_>) -> CodecTokens {
        CodecTokens {
            pad: node.id("codec_pad_id"),
            bos: node.id("codec_bos_id"),
            eos: node.id("codec_eos_token_id"),
            nothink: node.id("codec_nothink_id"),
            think_bos: node.id("codec_think_bos_id"),
            think_eos: node.id("codec_think_eos_id"),
        }
    }

    fn named(&self) -> [(&'static str, u32); 6] {
        [
            ("codec_pad_id", self.pad),
            ("codec_bos_id", self.bos),
            ("codec_eos_token_id", self.eos),
            ("codec_nothink_id", self.nothink),
            ("codec_think_bos_id", self.think_bos),
            ("codec_think_eos_id", self.think_eos),
        ]
    }
}

/// The reference looks at the entry around `text_config` to decide whether a head that is not in the weights is the
/// embedding table.
fn tied_outside(node: &Node<'_>) -> bool {
    node.optional_flag("tie_word_embeddings").unwrap_or(false)
}

fn wrong_family(found: Option<&str>) -> String {
    match found {
        None => "model_type is missing: expected \"qwen3_omni_moe\"".into(),
        Some(tts) if tts.starts_with("qwen3_tts") => {
            format!("model_type = {tts:?} is not served yet: use a \"qwen3_omni_moe\" checkpoint")
        }
        Some(other) => format!("model_type = {other:?} is not served: expected \"qwen3_omni_moe\""),
    }
}
