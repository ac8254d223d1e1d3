//! Self-attention with rotary positions and a learned scale on its output, as the transformers on both sides of the
//! codec have it.

use crate::LoadError;
use crate::weights::Scope;
use candle_core::{D, Result, Tensor};
use omni_ops::{Angles, Linear};

/// Sizes of an attention.
#[derive(Clone, Copy)]
pub(crate) struct AttentionSizes {
    pub hidden: usize,
    pub heads: usize,
    pub kv_heads: usize,
    pub head_dim: usize,
    /// Whether the projections have biases.
    pub bias: bool,
}

pub(crate) struct Attention {
    /// Queries, keys and values in one product.
    qkv: Linear,
    /// Scaled by the layer scale.
    output: Linear,
    sizes: AttentionSizes,
}

impl Attention {
    /// Loads `self_attn` and `self_attn_layer_scale` of a layer.
    pub fn load(layer: &Scope<'_>, sizes: AttentionSizes) -> std::result::Result<Attention, LoadError> {
        let (scope, hidden) = (layer.at("self_attn"), sizes.hidden);
        let (q, kv) = (sizes.heads * sizes.head_dim, sizes.kv_heads * sizes.head_dim);
        let bias = |name: &str, outputs: usize| -> std::result::Result<Option<Tensor>, LoadError> {
            sizes.bias.then(|| scope.at(name).get("bias", &[outputs])).transpose()
        };
        let (mut weights, mut biases) = (Vec::new(), Vec::new());
        for (name, outputs) in [("q_proj", q), ("k_proj", kv), ("v_proj", kv)] {
            weights.push(scope.at(name).get("weight", &[outputs, hidden])?);
            biases.extend(bias(name, outputs)?);
        }
        let output = scope.at("o_proj").get("weight", &[hidden, q])?;
        let scale = layer.at("self_attn_layer_scale").get("scale", &[hidden])?;
        Ok(Attention {
            qkv: Linear::stacked(&weights, sizes.bias.then_some(&biases[..]))?,
            output: Linear::scaled(output, bias("o_proj", hidden)?, Some(scale))?,
            sizes,
        })
    }

    /// `residual` and what `normed` `[n, hidden]` sees. `attend` gets queries `[n, heads, d]`, keys and values
    /// `[n, kv_heads, d]` and the scale of their products, and gives `[n, heads, d]`.
    pub fn forward(
        &self,
        normed: &Tensor,
        residual: &Tensor,
        angles: &Angles,
        attend: impl FnOnce(&Tensor, &Tensor, &Tensor, f32) -> Result<Tensor>,
    ) -> Result<Tensor> {
        let n = normed.dim(0)?;
        let AttentionSizes { heads, kv_heads: kv, head_dim: d, .. } = self.sizes;
        let qkv = self.qkv.forward(normed)?;
        // [n, (heads + 2 kv) * d] -> [n, heads, d] each; queries and keys turn together.
        let turned = angles.apply(&qkv.narrow(D::Minus1, 0, (heads + kv) * d)?.reshape((n, heads + kv, d))?)?;
        let (q, k) = (turned.narrow(1, 0, heads)?, turned.narrow(1, heads, kv)?);
        let v = qkv.narrow(D::Minus1, (heads + kv) * d, kv * d)?.reshape((n, kv, d))?;
        let seen = attend(&q, &k, &v, (d as f32).powf(-0.5))?.reshape((n, heads * d))?;
        self.output.forward_add(&seen, residual)
    }
}
