//! The thinker: text and embeddings of media in, text out (spec section 4).

use crate::LoadError;
use crate::hf::ThinkerConfig;
use crate::transformer::{DecoderStack, MediaInput, Segment, output_head};
use crate::weights::Loader;
use candle_core::{Result, Tensor};
use omni_ops::Linear;

/// Embedding table, decoder stack, head.
pub struct Thinker {
    embedding: Tensor,
    stack: DecoderStack,
    head: Linear,
    config: ThinkerConfig,
}

impl Thinker {
    /// Loads the language model under `thinker`. The caller finishes the loader.
    ///
    /// # Errors
    /// When the file cannot be read; tensors that do not fit are reported by [`Loader::finish`].
    pub fn load(loader: &Loader, config: &ThinkerConfig) -> std::result::Result<Thinker, LoadError> {
        let (scope, text) = (loader.scope("thinker"), &config.text);
        let shape = [text.vocab_size, text.hidden_size];
        let embedding = scope.at("model").at("embed_tokens").get("weight", &shape)?;
        let head = output_head(&scope.at("lm_head"), &embedding, text)?;
        Ok(Thinker { embedding, stack: DecoderStack::load(text, &scope.at("model"))?, head, config: config.clone() })
    }

    /// The layers.
    pub fn stack(&self) -> &DecoderStack {
        &self.stack
    }

    /// Sizes of the thinker and its towers.
    pub fn config(&self) -> &ThinkerConfig {
        &self.config
    }

    /// Tokens that have an embedding: `0..vocabulary()`.
    pub fn vocabulary(&self) -> u32 {
        self.embedding.dims()[0] as u32
    }

    /// Embeddings `[tokens.len(), hidden]`: `hidden_states[0]`, which is all that the talker takes from text.
    ///
    /// # Errors
    /// When a token is outside the vocabulary.
    pub fn embed(&self, tokens: &[u32]) -> Result<Tensor> {
        self.embedding.index_select(&Tensor::new(tokens, self.embedding.device())?, 0)
    }

    /// The residual stream `[n, hidden]` of a batch with media; `accepted` becomes the hidden states `[n, hidden]` that
    /// the talker takes at media positions.
    ///
    /// # Errors
    /// Those of [`DecoderStack::forward_media`].
    pub fn forward_media(
        &self,
        x: &Tensor,
        segments: &mut [Segment<'_>],
        media: &MediaInput,
        accepted: &mut Option<Tensor>,
    ) -> Result<Tensor> {
        let accept = self.config.accept_hidden_layer;
        let residual = self.stack.forward_media(x, segments, media, |i, state| {
            if i == accept {
                *accepted = Some(state.clone());
            }
        })?;
        if accept == self.config.text.num_hidden_layers {
            *accepted = Some(self.stack.norm(&residual)?);
        }
        Ok(residual)
    }

    /// Logits `[n, vocabulary]` from the residual stream `[n, hidden]`.
    ///
    /// # Errors
    /// What the device says.
    pub fn logits(&self, residual: &Tensor) -> Result<Tensor> {
        self.head.forward(&self.stack.norm(residual)?)
    }
}
