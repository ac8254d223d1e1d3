//! The thinker's weights on the device.

use crate::Gpu;
use crate::decoder::Stack;
use crate::linear::Linear;
use crate::weights::{Uploader, Weight};
use omni_config::Precision;
use omni_model::LoadError;
use omni_model::hf::{DecoderConfig, ThinkerConfig};
use omni_model::media::MediaKind;
use omni_model::weights::Loader;

/// The weights, shared by all sequences.
pub struct ThinkerNet {
    pub(super) config: DecoderConfig,
    /// Sizes of the towers, too.
    pub(super) whole: ThinkerConfig,
    pub(super) precision: Precision,
    pub(super) gpu: Gpu,
    pub(super) stack: Stack,
    pub(super) head: Linear,
    /// Embeddings of the vocabulary.
    pub(super) table: Weight,
}

impl ThinkerNet {
    /// Loads the language model under `thinker`. The caller finishes the loader.
    ///
    /// # Errors
    /// When the file cannot be read or the device has no room; tensors that do not fit are reported by
    /// [`Loader::finish`].
    pub fn load(
        gpu: &Gpu,
        precision: Precision,
        loader: &Loader,
        config: &ThinkerConfig,
    ) -> Result<ThinkerNet, LoadError> {
        let up = Uploader::new(gpu, precision)?;
        let (scope, whole, config) = (loader.scope("thinker"), config.clone(), config.text.clone());
        let (model, shape) = (scope.at("model"), [config.vocab_size, config.hidden_size]);
        let (embedding, head) = (model.at("embed_tokens"), scope.at("lm_head"));
        // As in the reference, stored weights take precedence over the config.
        let tied = config.tie_word_embeddings && !head.has("weight");
        let head = up.tensor(if tied { &embedding } else { &head }, "weight", &shape)?;
        let net = ThinkerNet {
            table: up.tensor(&embedding, "weight", &shape)?,
            head: Linear::new(head, None, config.vocab_size, config.hidden_size),
            stack: Stack::load(&up, &config, &model)?,
            precision,
            gpu: gpu.clone(),
            config,
            whole,
        };
        up.finish()?;
        Ok(net)
    }

    /// Whether prompts may have media, by its config.
    pub(super) fn takes_media(&self) -> bool {
        self.whole.audio.is_some() || self.whole.vision.is_some()
    }

    /// Floats of the widest embedding of media: the embedding, and the levels of what is seen.
    pub(super) fn media_width(&self) -> usize {
        self.whole.media_width(MediaKind::Image)
    }

    /// Elements of an embedding for the talker.
    pub fn width(&self) -> usize {
        self.config.hidden_size
    }

    /// Tokens that have an embedding: `0..vocabulary()`.
    pub fn vocabulary(&self) -> u32 {
        self.config.vocab_size as u32
    }
}
