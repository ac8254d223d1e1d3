//! The thinker: text in, text out (spec section 4).

use crate::LoadError;
use crate::hf::ThinkerConfig;
use crate::transformer::{DecoderStack, output_head};
use crate::weights::Loader;
use candle_core::{Result, Tensor};
use omni_ops::Linear;

/// Embedding table, decoder stack, head.
pub struct Thinker {
    embedding: Tensor,
    stack: DecoderStack,
    head: Linear,
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
        Ok(Thinker { embedding, stack: DecoderStack::load(text, &scope.at("model"))?, head })
    }

    /// The layers.
    pub fn stack(&self) -> &DecoderStack {
        &self.stack
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

    /// Logits `[n, vocabulary]` from the residual stream `[n, hidden]`.
    ///
    /// # Errors
    /// What the device says.
    pub fn logits(&self, residual: &Tensor) -> Result<Tensor> {
        self.head.forward(&self.stack.norm(residual)?)
    }
}
