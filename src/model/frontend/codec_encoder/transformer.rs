//! The transformer over positions: layer norms, attention to what came before, GELU, a learned scale on both residual
//! branches, no norm at the end.

use crate::LoadError;
use crate::hf::CodecTransformerConfig;
use crate::vocoder::{Attention, AttentionSizes};
use crate::weights::Scope;
use candle_core::{Result, Tensor};
use omni_ops::{Angles, Linear, Rope, attention, layer_norm};

type Loaded<T> = std::result::Result<T, LoadError>;

pub(super) struct Transformer {
    layers: Vec<Layer>,
    rope: Rope,
}

struct Layer {
    attention_norm: (Tensor, Tensor),
    attention: Attention,
    ffn_norm: (Tensor, Tensor),
    expand: Linear,
    /// Scaled by the layer scale.
    shrink: Linear,
    eps: f64,
}

impl Transformer {
    pub fn load(scope: &Scope<'_>, config: &CodecTransformerConfig) -> Loaded<Transformer> {
        let layers = scope.at("layers");
        Ok(Transformer {
            layers: (0..config.num_hidden_layers).map(|i| Layer::load(&layers.at(i), config)).collect::<Loaded<_>>()?,
            rope: Rope::new(config.head_dim, config.rope_theta, scope.device())?,
        })
    }

    /// `[n, hidden]` -> `[n, hidden]`, a whole clip; each position sees `window` positions, itself included.
    pub fn forward(&self, x: &Tensor, window: Option<usize>) -> Result<Tensor> {
        let positions: Vec<u32> = (0..x.dim(0)? as u32).collect();
        let angles = self.rope.at(&positions)?;
        self.layers.iter().try_fold(x.clone(), |x, layer| layer.forward(&x, &angles, window))
    }
}

impl Layer {
    fn load(scope: &Scope<'_>, config: &CodecTransformerConfig) -> Loaded<Layer> {
        let (hidden, inner) = (config.hidden_size, config.intermediate_size);
        let ffn = scope.at("mlp");
        let weight = |name: &str, outputs, inputs| ffn.at(name).get("weight", &[outputs, inputs]);
        let norm = |name: &str| -> Loaded<(Tensor, Tensor)> {
            let get = |part: &str| scope.at(name).get(part, &[hidden])?.force_contiguous().map_err(LoadError::from);
            Ok((get("weight")?, get("bias")?))
        };
        let sizes = AttentionSizes {
            hidden,
            heads: config.num_attention_heads,
            kv_heads: config.num_key_value_heads,
            head_dim: config.head_dim,
            bias: false,
        };
        let scale = scope.at("mlp_layer_scale").get("scale", &[hidden])?;
        Ok(Layer {
            attention_norm: norm("input_layernorm")?,
            attention: Attention::load(scope, sizes)?,
            ffn_norm: norm("post_attention_layernorm")?,
            expand: Linear::new(weight("fc1", inner, hidden)?, None)?,
            shrink: Linear::scaled(weight("fc2", hidden, inner)?, None, Some(scale))?,
            eps: config.norm_eps,
        })
    }

    fn forward(&self, x: &Tensor, angles: &Angles, window: Option<usize>) -> Result<Tensor> {
        let normed = self.norm(x, &self.attention_norm)?;
        let attend = |q: &_, k: &_, v: &_, scale| attention(q, k, v, 0, window, scale);
        let x = self.attention.forward(&normed, x, angles, attend)?;
        let inner = self.expand.forward(&self.norm(&x, &self.ffn_norm)?)?.gelu_erf()?;
        self.shrink.forward_add(&inner, &x)
    }

    fn norm(&self, x: &Tensor, (weight, bias): &(Tensor, Tensor)) -> Result<Tensor> {
        layer_norm(x, weight, bias, self.eps)
    }
}
