//! The transformer over frames: windowed causal attention, SwiGLU, a learned scale on both residual branches.

use super::attention::{Attention, AttentionSizes};
use super::state::Stream;
use crate::LoadError;
use crate::hf::{VocoderConfig, VocoderInput, WindowedTransformerConfig};
use crate::weights::Scope;
use candle_core::{Result, Tensor};
use omni_ops::{Angles, Linear, Rope, rms_norm, silu_mul};

pub(super) struct Transformer {
    /// Projections into it and out of it again, where the width outside is another.
    around: Option<(Linear, Linear)>,
    layers: Vec<Layer>,
    norm: Tensor,
    rope: Rope,
    eps: f64,
}

struct Layer {
    attention_norm: Tensor,
    attention: Attention,
    ffn_norm: Tensor,
    /// Gate and up in one product.
    gate_up: Linear,
    /// Scaled by the layer scale.
    down: Linear,
    eps: f64,
}

impl Transformer {
    pub fn load(scope: &Scope<'_>, config: &VocoderConfig) -> std::result::Result<Transformer, LoadError> {
        let (layers, outside) = (scope.at("layers"), config.latent_width());
        let projected = matches!(config.input, VocoderInput::Residual { .. });
        let config = &config.transformer;
        let projection = |name: &str, inputs, outputs| -> std::result::Result<Linear, LoadError> {
            let scope = scope.at(name);
            Ok(Linear::new(scope.get("weight", &[outputs, inputs])?, Some(scope.get("bias", &[outputs])?))?)
        };
        let around = if projected {
            let inward = projection("input_proj", outside, config.hidden_size)?;
            Some((inward, projection("output_proj", config.hidden_size, outside)?))
        } else {
            None
        };
        Ok(Transformer {
            around,
            layers: (0..config.num_hidden_layers)
                .map(|i| Layer::load(&layers.at(i), config))
                .collect::<std::result::Result<_, _>>()?,
            norm: scope.at("norm").get("weight", &[config.hidden_size])?.force_contiguous()?,
            rope: Rope::new(config.head_dim, config.rope_theta, scope.device())?,
            eps: config.rms_norm_eps,
        })
    }

    /// The stream's next frames: `[n, latent]` -> `[n, latent]`. The stream's position moves on.
    pub fn forward(&self, x: &Tensor, stream: &mut Stream) -> Result<Tensor> {
        let n = x.dim(0)? as u32;
        let positions: Vec<u32> = (stream.position..stream.position + n).collect();
        let angles = self.rope.at(&positions)?;
        let mut x = match &self.around {
            Some((inward, _)) => inward.forward(x)?,
            None => x.clone(),
        };
        for (i, layer) in self.layers.iter().enumerate() {
            x = layer.forward(&x, &angles, stream, i)?;
        }
        stream.position += n;
        let x = rms_norm(&x, &self.norm, self.eps)?;
        match &self.around {
            Some((_, outward)) => outward.forward(&x),
            None => Ok(x),
        }
    }
}

impl Layer {
    fn load(scope: &Scope<'_>, config: &WindowedTransformerConfig) -> std::result::Result<Layer, LoadError> {
        let (hidden, inner) = (config.hidden_size, config.intermediate_size);
        let norm = |name: &str| scope.at(name).get("weight", &[hidden])?.force_contiguous().map_err(LoadError::from);
        let ffn = scope.at("mlp");
        let weight = |name: &str, outputs, inputs| ffn.at(name).get("weight", &[outputs, inputs]);
        let sizes = AttentionSizes {
            hidden,
            heads: config.num_attention_heads,
            kv_heads: config.num_key_value_heads,
            head_dim: config.head_dim,
            bias: config.attention_bias,
        };
        let down_scale = scope.at("mlp_layer_scale").get("scale", &[hidden])?;
        Ok(Layer {
            attention_norm: norm("input_layernorm")?,
            attention: Attention::load(scope, sizes)?,
            ffn_norm: norm("post_attention_layernorm")?,
            gate_up: Linear::stacked(&[weight("gate_proj", inner, hidden)?, weight("up_proj", inner, hidden)?], None)?,
            down: Linear::scaled(weight("down_proj", hidden, inner)?, None, Some(down_scale))?,
            eps: config.rms_norm_eps,
        })
    }

    fn forward(&self, x: &Tensor, angles: &Angles, stream: &mut Stream, index: usize) -> Result<Tensor> {
        let normed = rms_norm(x, &self.attention_norm, self.eps)?;
        let cache = &mut stream.caches[index];
        let x = self.attention.forward(&normed, x, angles, |q, k, v, scale| cache.attend(q, k, v, scale))?;
        let inner = silu_mul(&self.gate_up.forward(&rms_norm(&x, &self.ffn_norm, self.eps)?)?)?;
        self.down.forward_add(&inner, &x)
    }
}
