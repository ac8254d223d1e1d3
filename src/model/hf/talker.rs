//! Config of the talker, which both families share: a causal model over codec ids with a code predictor behind it.

use super::decoder::DecoderConfig;
use super::json::{Node, Problems};
use super::vocoder::VocoderConfig;
use std::collections::BTreeMap;

/// Talker ids from `vocab_size - SPECIAL_CODEC_IDS` on are not codes; all but the end are never sampled.
pub const SPECIAL_CODEC_IDS: usize = 1024;

/// The speaker of the reference implementation when a request names none.
const REFERENCE_SPEAKER: &str = "ethan";

/// The talker with its code predictor.
#[derive(Clone, Debug, PartialEq)]
pub struct TalkerConfig {
    /// The backbone, over codec ids.
    pub text: DecoderConfig,
    /// The model that fills in groups 1.. of a frame, over codes.
    pub predictor: DecoderConfig,
    /// Codes of a frame.
    pub num_code_groups: usize,
    /// Width of embeddings of text before they are projected: the thinker's, or that of the talker's own table of text.
    pub text_hidden_size: usize,
    /// Inner width of the projection of text.
    pub text_projection_size: usize,
    /// Ids of the codec format, in the talker's vocabulary.
    pub tokens: CodecTokens,
    /// Codec id of each voice that the checkpoint was trained with, by lower-case name. Empty where voices are
    /// described or cloned.
    pub speakers: BTreeMap<String, u32>,
}

/// Ids with a meaning in the talker's vocabulary.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[expect(missing_docs, reason = "each name says it all")]
pub struct CodecTokens {
    pub pad: u32,
    pub bos: u32,
    pub eos: u32,
    /// Begins a prompt that names its language; Qwen3-TTS only.
    pub think: Option<u32>,
    pub nothink: u32,
    pub think_bos: u32,
    pub think_eos: u32,
}

impl TalkerConfig {
    /// Reads the `talker_config` of Qwen3-Omni.
    pub(super) fn read_omni(node: &Node<'_>) -> TalkerConfig {
        let mut text = DecoderConfig::read(&node.object("text_config"));
        text.tie_word_embeddings |= tied_outside(node);
        if let Some(moe) = &mut text.moe {
            // Every layer of the talker has experts, whatever its config inherited (spec section 3).
            moe.decoder_sparse_step = 1;
            moe.mlp_only_layers.clear();
        }
        let inner = text.intermediate_size;
        let config = TalkerConfig::read(node, text, node.size("thinker_hidden_size"), inner, "speaker_id");
        let problems = node.problems();
        let (hidden, width) = (config.text.hidden_size, config.predictor.hidden_size);
        problems.require(hidden == width, || {
            let path = node.path_of("code_predictor_config.hidden_size");
            format!("{path} = {width} differs from talker_config.text_config.hidden_size = {hidden}")
        });
        problems.require(!config.speakers.is_empty(), || {
            format!("{} is empty: expected the codec id of at least one voice", node.path_of("speaker_id"))
        });
        config
    }

    /// Reads the `talker_config` of Qwen3-TTS, whose decoder fields are not nested.
    pub(super) fn read_tts(node: &Node<'_>) -> TalkerConfig {
        let width = node.size("text_hidden_size");
        TalkerConfig::read(node, DecoderConfig::read(node), width, width, "spk_id")
    }

    fn read(node: &Node<'_>, text: DecoderConfig, text_width: usize, inner: usize, speakers: &str) -> TalkerConfig {
        let before = node.problems().len();
        let predictor = node.object("code_predictor_config");
        let config = TalkerConfig {
            text,
            predictor: DecoderConfig::read(&predictor),
            num_code_groups: node.size("num_code_groups"),
            text_hidden_size: text_width,
            text_projection_size: inner,
            tokens: CodecTokens::read(node),
            speakers: node.id_map(speakers).into_iter().map(|(name, id)| (name.to_lowercase(), id)).collect(),
        };
        if node.problems().len() == before {
            let groups = predictor.optional_size("num_code_groups").unwrap_or(config.num_code_groups);
            config.check(node, groups, speakers);
        }
        config
    }

    fn check(&self, node: &Node<'_>, predictor_groups: usize, speakers: &str) {
        let (problems, groups) = (node.problems(), self.num_code_groups);
        problems
            .require(groups >= 2, || format!("{} = {groups}: expected at least 2", node.path_of("num_code_groups")));
        problems.require(predictor_groups == groups, || {
            let path = node.path_of("code_predictor_config.num_code_groups");
            format!("{path} = {predictor_groups} differs from talker_config.num_code_groups = {groups}")
        });
        let speakers = self.speakers.iter().map(|(name, id)| (format!("{speakers}.{name}"), *id));
        let tokens = self.tokens.named().into_iter().map(|(name, id)| (name.to_owned(), id));
        for (name, id) in speakers.chain(tokens) {
            self.check_id(&node.path_of(&name), id, problems);
        }
    }

    /// Records an id that the talker does not have.
    pub(super) fn check_id(&self, path: &str, id: u32, problems: &Problems) {
        problems.require((id as usize) < self.text.vocab_size, || {
            format!("{path} = {id} is outside the talker's vocabulary of {}", self.text.vocab_size)
        });
    }

    /// What has to agree with the vocoder, whose config stands at `path`.
    pub(super) fn check_vocoder(&self, vocoder: &VocoderConfig, path: &str, problems: &Problems) {
        problems.require(self.num_code_groups == vocoder.num_quantizers, || {
            format!(
                "talker_config.num_code_groups = {} differs from {path}.num_quantizers = {}",
                self.num_code_groups, vocoder.num_quantizers
            )
        });
        let (codes, book) = (self.predictor.vocab_size, vocoder.codebook_size);
        problems.require(codes <= book, || {
            format!(
                "talker_config.code_predictor_config.vocab_size = {codes} is more than {path}.codebook_size = {book}"
            )
        });
        let codes = self.text.vocab_size.saturating_sub(SPECIAL_CODEC_IDS);
        problems.require((1..=book).contains(&codes), || {
            format!(
                "the talker's vocab_size = {} leaves {codes} codes below the {SPECIAL_CODEC_IDS} special ids: \
                 expected 1 to {path}.codebook_size = {book}",
                self.text.vocab_size
            )
        });
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

/// There is no voice of this name.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("no voice {name:?}; the voices are: {}", .known.join(", "))]
pub struct UnknownSpeaker {
    /// The name in the request.
    pub name: String,
    /// The names of the voices.
    pub known: Vec<String>,
}

impl CodecTokens {
    fn read(node: &Node<'_>) -> CodecTokens {
        CodecTokens {
            pad: node.id("codec_pad_id"),
            bos: node.id("codec_bos_id"),
            eos: node.id("codec_eos_token_id"),
            think: node.optional_id("codec_think_id"),
            nothink: node.id("codec_nothink_id"),
            think_bos: node.id("codec_think_bos_id"),
            think_eos: node.id("codec_think_eos_id"),
        }
    }

    fn named(&self) -> Vec<(&'static str, u32)> {
        let always = [
            ("codec_pad_id", self.pad),
            ("codec_bos_id", self.bos),
            ("codec_eos_token_id", self.eos),
            ("codec_nothink_id", self.nothink),
            ("codec_think_bos_id", self.think_bos),
            ("codec_think_eos_id", self.think_eos),
        ];
        always.into_iter().chain(self.think.map(|id| ("codec_think_id", id))).collect()
    }
}

/// The reference looks at the entry around `text_config` to decide whether a head that is not in the weights is the
/// embedding table.
pub(super) fn tied_outside(node: &Node<'_>) -> bool {
    node.optional_flag("tie_word_embeddings").unwrap_or(false)
}
