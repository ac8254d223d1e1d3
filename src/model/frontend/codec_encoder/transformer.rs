//! The transformer over positions: layer norms, attention to what came before, GELU, a learned scale on both residual
//! branches, no norm at the end.

use crate::model::LoadError;
use crate::model::checkpoint::Scope;
use crate::model::hf::CodecTransformerConfig;
use crate::model::ops::{Angles, Linear, Rope, attention, layer_norm};
use candle_core::{D, Result, Tensor};

type Loaded<T> = std::result::Result<T, LoadError>;

pub(super) struct Transformer {
    layers: Vec<Layer>,
    rope: Rope,
}

struct Layer {
    attention_norm: (Tensor, Tensor),
    /// Queries, keys and values in one product.
    qkv: Linear,
    /// Scaled by the layer scale, as `shrink` is.
    output: Linear,
    ffn_norm: (Tensor, Tensor),
    expand: Linear,
    shrink: Linear,
    heads: usize,
    kv_heads: usize,
    head_dim: usize,
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
        let q = config.num_attention_heads * config.head_dim;
        let kv = config.num_key_value_heads * config.head_dim;
        let (attention, ffn) = (scope.at("self_attn"), scope.at("mlp"));
        let weight = |scope: &Scope<'_>, name: &str, outputs, inputs| scope.at(name).get("weight", &[outputs, inputs]);
        let scale = |name: &str| scope.at(name).get("scale", &[hidden]).map(Some);
        let norm = |name: &str| -> Loaded<(Tensor, Tensor)> {
            let get = |part: &str| scope.at(name).get(part, &[hidden])?.force_contiguous().map_err(LoadError::from);
            Ok((get("weight")?, get("bias")?))
        };
        let stacked = [("q_proj", q), ("k_proj", kv), ("v_proj", kv)]
            .into_iter()
            .map(|(name, outputs)| weight(&attention, name, outputs, hidden))
            .collect::<Loaded<Vec<_>>>()?;
        let output = weight(&attention, "o_proj", hidden, q)?;
        let shrink = weight(&ffn, "fc2", hidden, inner)?;
        Ok(Layer {
            attention_norm: norm("input_layernorm")?,
            qkv: Linear::stacked(&stacked, None)?,
            output: Linear::scaled(output, None, scale("self_attn_layer_scale")?)?,
            ffn_norm: norm("post_attention_layernorm")?,
            expand: Linear::new(weight(&ffn, "fc1", inner, hidden)?, None)?,
            shrink: Linear::scaled(shrink, None, scale("mlp_layer_scale")?)?,
            heads: config.num_attention_heads,
            kv_heads: config.num_key_value_heads,
            head_dim: config.head_dim,
            eps: config.norm_eps,
        })
    }

    fn forward(&self, x: &Tensor, angles: &Angles, window: Option<usize>) -> Result<Tensor> {
        let n = x.dim(0)?;
        let (heads, kv, d) = (self.heads, self.kv_heads, self.head_dim);
        let qkv = self.qkv.forward(&self.norm(x, &self.attention_norm)?)?;
        // [n, (heads + 2 kv) * d] -> [n, heads, d] each; queries and keys turn together.
        let turned = angles.apply(&qkv.narrow(D::Minus1, 0, (heads + kv) * d)?.reshape((n, heads + kv, d))?)?;
        let (q, k) = (turned.narrow(1, 0, heads)?, turned.narrow(1, heads, kv)?);
        let v = qkv.narrow(D::Minus1, (heads + kv) * d, kv * d)?.reshape((n, kv, d))?;
        let seen = attention(&q, &k, &v, 0, window, (d as f32).powf(-0.5))?.reshape((n, heads * d))?;
        let x = self.output.forward_add(&seen, x)?;
        let inner = self.expand.forward(&self.norm(&x, &self.ffn_norm)?)?.gelu_erf()?;
        self.shrink.forward_add(&inner, &x)
    }

    fn norm(&self, x: &Tensor, (weight, bias): &(Tensor, Tensor)) -> Result<Tensor> {
        layer_norm(x, weight, bias, self.eps)
    }
}
