//! Grouped-query self-attention with per-head norms and rotary positions.

use super::fused::SplitQkv;
use super::stack::Segment;
use crate::LoadError;
use crate::hf::DecoderConfig;
use crate::weights::Scope;
use candle_core::{Result, Tensor};
use omni_ops::{Angles, Linear, attention};

/// The attention half of a decoder layer.
pub(super) struct Attention {
    /// Queries, keys and values in one product.
    qkv: Linear,
    split: SplitQkv,
    /// Norm weights of queries and keys, `[2, head_dim]`.
    norms: Tensor,
    output: Linear,
    scale: f32,
}

impl Attention {
    pub fn load(config: &DecoderConfig, scope: &Scope<'_>) -> std::result::Result<Attention, LoadError> {
        let d = config.head_dim;
        let (q, kv, hidden) = (config.num_attention_heads * d, config.num_key_value_heads * d, config.hidden_size);
        let parts = [("q_proj", q), ("k_proj", kv), ("v_proj", kv)];
        let [wq, wk, wv] = parts.map(|(name, out)| scope.at(name).get("weight", &[out, hidden]));
        let (biases, output_bias) = if config.attention_bias {
            let [bq, bk, bv] = parts.map(|(name, out)| scope.at(name).get("bias", &[out]));
            (Some([bq?, bk?, bv?]), Some(scope.at("o_proj").get("bias", &[hidden])?))
        } else {
            (None, None)
        };
        let norms = [scope.at("q_norm").get("weight", &[d])?, scope.at("k_norm").get("weight", &[d])?];
        Ok(Attention {
            qkv: Linear::stacked(&[wq?, wk?, wv?], biases.as_ref().map(<[_; 3]>::as_slice))?,
            split: SplitQkv {
                heads: config.num_attention_heads,
                kv_heads: config.num_key_value_heads,
                head_dim: d,
                eps: config.rms_norm_eps,
            },
            norms: Tensor::stack(&norms, 0)?,
            output: Linear::new(scope.at("o_proj").get("weight", &[hidden, q])?, output_bias)?,
            scale: (d as f32).sqrt().recip(),
        })
    }

    /// `x [n, hidden]` normed, with the angles of its positions; `[n, hidden]`.
    pub fn forward(&self, layer: usize, x: &Tensor, angles: &Angles, segments: &mut [Segment<'_>]) -> Result<Tensor> {
        let n = x.dim(0)?;
        let new = self.split.apply(&self.qkv.forward(x)?, &self.norms, angles)?;
        let mut at = 0;
        let mut outputs = Vec::with_capacity(segments.len());
        for segment in segments {
            let past = segment.cache.len();
            let (keys, values) = segment.cache.write(
                layer,
                &new.keys.narrow(0, at, segment.len)?,
                &new.values.narrow(0, at, segment.len)?,
            )?;
            let queries = new.queries.narrow(0, at, segment.len)?;
            outputs.push(attention(&queries, keys, values, past, None, self.scale)?);
            at += segment.len;
        }
        let mixed = if outputs.len() == 1 { outputs.swap_remove(0) } else { Tensor::cat(&outputs, 0)? };
        self.output.forward(&mixed.reshape((n, self.split.heads * self.split.head_dim))?)
    }
}
