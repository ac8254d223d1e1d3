//! The transformer over frames: windowed causal attention, SwiGLU, a learned scale on both residual branches.

use super::state::Stream;
use crate::model::LoadError;
use crate::model::checkpoint::Scope;
use crate::model::hf::{VocoderConfig, VocoderInput, WindowedTransformerConfig};
use crate::model::ops::{Angles, Linear, Rope, rms_norm, silu_mul};
use candle_core::{D, Result, Tensor};

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
    /// Queries, keys and values in one product.
    qkv: Linear,
    /// Scaled by the layer scale, as `down` is.
    output: Linear,
    ffn_norm: Tensor,
    /// Gate and up in one product.
    gate_up: Linear,
    down: Linear,
    heads: usize,
    kv_heads: usize,
    head_dim: usize,
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
        let q = config.num_attention_heads * config.head_dim;
        let kv = config.num_key_value_heads * config.head_dim;
        let norm = |name: &str| scope.at(name).get("weight", &[hidden])?.force_contiguous().map_err(LoadError::from);
        let attention = scope.at("self_attn");
        let ffn = scope.at("mlp");
        let weight = |scope: &Scope<'_>, name: &str, outputs, inputs| scope.at(name).get("weight", &[outputs, inputs]);
        let bias = |name: &str, outputs: usize| -> std::result::Result<Option<Tensor>, LoadError> {
            config.attention_bias.then(|| attention.at(name).get("bias", &[outputs])).transpose()
        };
        let (mut weights, mut biases) = (Vec::new(), Vec::new());
        for (name, outputs) in [("q_proj", q), ("k_proj", kv), ("v_proj", kv)] {
            weights.push(weight(&attention, name, outputs, hidden)?);
            biases.extend(bias(name, outputs)?);
        }
        let output_scale = scope.at("self_attn_layer_scale").get("scale", &[hidden])?;
        let down_scale = scope.at("mlp_layer_scale").get("scale", &[hidden])?;
        Ok(Layer {
            attention_norm: norm("input_layernorm")?,
            qkv: Linear::stacked(&weights, config.attention_bias.then_some(&biases[..]))?,
            output: Linear::scaled(
                weight(&attention, "o_proj", hidden, q)?,
                bias("o_proj", hidden)?,
                Some(output_scale),
            )?,
            ffn_norm: norm("post_attention_layernorm")?,
            gate_up: Linear::stacked(
                &[weight(&ffn, "gate_proj", inner, hidden)?, weight(&ffn, "up_proj", inner, hidden)?],
                None,
            )?,
            down: Linear::scaled(weight(&ffn, "down_proj", hidden, inner)?, None, Some(down_scale))?,
            heads: config.num_attention_heads,
            kv_heads: config.num_key_value_heads,
            head_dim: config.head_dim,
            eps: config.rms_norm_eps,
        })
    }

    fn forward(&self, x: &Tensor, angles: &Angles, stream: &mut Stream, index: usize) -> Result<Tensor> {
        let n = x.dim(0)?;
        let (heads, kv, d) = (self.heads, self.kv_heads, self.head_dim);
        let qkv = self.qkv.forward(&rms_norm(x, &self.attention_norm, self.eps)?)?;
        // [n, (heads + 2 kv) * d] -> [n, heads, d] each; queries and keys turn together.
        let turned = angles.apply(&qkv.narrow(D::Minus1, 0, (heads + kv) * d)?.reshape((n, heads + kv, d))?)?;
        let (q, k) = (turned.narrow(1, 0, heads)?, turned.narrow(1, heads, kv)?);
        let v = qkv.narrow(D::Minus1, (heads + kv) * d, kv * d)?.reshape((n, kv, d))?;
        let seen = stream.caches[index].attend(&q, &k, &v, (d as f32).powf(-0.5))?.reshape((n, heads * d))?;
        let x = self.output.forward_add(&seen, x)?;
        let inner = silu_mul(&self.gate_up.forward(&rms_norm(&x, &self.ffn_norm, self.eps)?)?)?;
        self.down.forward_add(&inner, &x)
    }
}
