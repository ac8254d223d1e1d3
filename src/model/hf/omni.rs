//! `config.json` of Qwen3-Omni: thinker, talker with code predictor, code2wav, and the ids that tie them together.

use super::decoder::DecoderConfig;
use super::json::{Node, Problems};
use super::talker::{TalkerConfig, tied_outside};
use super::towers::{AudioTowerConfig, VisionTowerConfig};
use super::vocoder::VocoderConfig;
use serde_json::Value;

/// Samples per second of the waveform. The one number that no config of this family holds.
pub const SAMPLE_RATE: u32 = 24_000;

/// The whole model.
#[derive(Clone, Debug, PartialEq)]
pub struct OmniConfig {
    /// Text in, text out.
    pub thinker: ThinkerConfig,
    /// Embeddings of text in, codes out.
    pub talker: TalkerConfig,
    /// Codes in, waveform out.
    pub code2wav: VocoderConfig,
    /// Ids of the chat format, in the thinker's vocabulary.
    pub tokens: ChatTokens,
}

/// The thinker.
#[derive(Clone, Debug, PartialEq)]
pub struct ThinkerConfig {
    /// The language model.
    pub text: DecoderConfig,
    /// Which hidden state stands for media in the talker's prompt: 0 is the embeddings, `i` the output of layer `i - 1`,
    /// the last one is normed.
    pub accept_hidden_layer: usize,
    /// The audio tower; `None` for a model that cannot hear.
    pub audio: Option<AudioTowerConfig>,
    /// The vision tower; `None` for a model that cannot see.
    pub vision: Option<VisionTowerConfig>,
    /// Placeholders of audio, images and video; a prompt of text with one is refused.
    pub placeholders: Vec<u32>,
    /// The same by kind.
    pub media: Placeholders,
}

/// Ids that stand for embeddings of the towers, in the thinker's vocabulary.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[expect(missing_docs, reason = "each name says it all")]
pub struct Placeholders {
    pub audio: Option<u32>,
    pub image: Option<u32>,
    pub video: Option<u32>,
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

impl OmniConfig {
    /// Reads and checks a whole config.
    ///
    /// # Errors
    /// Everything that is wrong, one line each, with the path of the field.
    pub fn parse(value: &Value) -> Result<OmniConfig, Vec<String>> {
        let problems = Problems::default();
        let root = Node::root(value, &problems);
        if root.optional_flag("enable_audio_output") == Some(false) {
            return Err(vec![
                "enable_audio_output = false: this checkpoint has no talker, so it cannot speak; \
                use one of the Instruct checkpoints"
                    .into(),
            ]);
        }
        let config = OmniConfig {
            thinker: ThinkerConfig {
                accept_hidden_layer: root.object("talker_config").count("accept_hidden_layer"),
                ..ThinkerConfig::read(&root.object("thinker_config"))
            },
            talker: TalkerConfig::read_omni(&root.object("talker_config")),
            code2wav: VocoderConfig::read(&root.object("code2wav_config")),
            tokens: ChatTokens::read(&root),
        };
        // Placeholders for missing numbers would cause misleading complaints.
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
        problems.require(talker.text_hidden_size == thinker.hidden_size, || {
            format!(
                "talker_config.thinker_hidden_size = {} differs from thinker_config.text_config.hidden_size = {}",
                talker.text_hidden_size, thinker.hidden_size
            )
        });
        problems.require(self.thinker.accept_hidden_layer <= thinker.num_hidden_layers, || {
            format!(
                "talker_config.accept_hidden_layer = {} is beyond the thinker's {} layers",
                self.thinker.accept_hidden_layer, thinker.num_hidden_layers
            )
        });
        talker.check_vocoder(vocoder, "code2wav_config", problems);
        self.thinker.check_towers(problems);
    }
}

impl ThinkerConfig {
    fn read(node: &Node<'_>) -> ThinkerConfig {
        let media = Placeholders {
            audio: node.optional_id("audio_token_id"),
            image: node.optional_id("image_token_id"),
            video: node.optional_id("video_token_id"),
        };
        let mut text = DecoderConfig::read(&node.object("text_config"));
        text.tie_word_embeddings |= tied_outside(node);
        if let Some(moe) = &mut text.moe {
            // The thinker has none, whatever its config inherited (spec section 3).
            moe.shared_expert_intermediate_size = None;
        }
        ThinkerConfig {
            text,
            accept_hidden_layer: 0,
            audio: node.optional_object("audio_config").map(|node| AudioTowerConfig::read(&node)),
            vision: node.optional_object("vision_config").map(|node| VisionTowerConfig::read(&node)),
            placeholders: [media.audio, media.image, media.video].into_iter().flatten().collect(),
            media,
        }
    }

    /// What has to agree between the towers and the language model.
    fn check_towers(&self, problems: &Problems) {
        let audio = self.audio.as_ref().map(|audio| ("audio_config.output_dim", audio.output_dim));
        let vision = self.vision.as_ref().map(|vision| ("vision_config.out_hidden_size", vision.out_hidden_size));
        let hidden = self.text.hidden_size;
        for (name, width) in audio.into_iter().chain(vision) {
            problems.require(width == hidden, || {
                format!(
                    "thinker_config.{name} = {width} differs from thinker_config.text_config.hidden_size = {hidden}"
                )
            });
        }
        let levels = self.vision.as_ref().map_or(0, |vision| vision.deepstack_visual_indexes.len());
        let layers = self.text.num_hidden_layers;
        problems.require(levels <= layers, || {
            format!(
                "thinker_config.vision_config.deepstack_visual_indexes has {levels} entries: expected at most \
                 num_hidden_layers = {layers}"
            )
        });
    }
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
