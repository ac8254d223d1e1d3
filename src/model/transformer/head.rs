//! Output heads: hidden states to logits.

use crate::LoadError;
use crate::hf::DecoderConfig;
use crate::weights::Scope;
use candle_core::Tensor;
use omni_ops::Linear;

/// The weights of an output head: its own, or the embedding table if there are none and the config shares it. As in the
/// reference, stored weights take precedence over the config.
///
/// # Errors
/// What the scope and the device say; tensors that do not fit are reported by the loader.
pub fn output_head(scope: &Scope<'_>, embedding: &Tensor, config: &DecoderConfig) -> Result<Linear, LoadError> {
    let weight = if config.tie_word_embeddings && !scope.has("weight") {
        embedding.clone()
    } else {
        scope.get("weight", &[config.vocab_size, config.hidden_size])?
    };
    Ok(Linear::new(weight, None)?)
}
