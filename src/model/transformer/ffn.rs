//! The feed-forward half of a decoder layer.

use super::moe::Moe;
use crate::LoadError;
use crate::hf::DecoderConfig;
use crate::weights::Scope;
use candle_core::{Result, Tensor};
use omni_ops::{Linear, silu_mul};

/// What a layer has: one block, or experts.
pub(super) enum Ffn {
    Dense(SwiGlu),
    Moe(Moe),
}

impl Ffn {
    pub fn load(config: &DecoderConfig, layer: usize, scope: &Scope<'_>) -> std::result::Result<Ffn, LoadError> {
        let hidden = config.hidden_size;
        Ok(match &config.moe {
            Some(moe) if config.is_sparse(layer) => Ffn::Moe(Moe::load(moe, hidden, scope)?),
            _ => Ffn::Dense(SwiGlu::load(hidden, config.intermediate_size, scope)?),
        })
    }

    /// `[n, hidden]` to `[n, hidden]`.
    pub fn forward(&self, x: &Tensor) -> Result<Tensor> {
        match self {
            Ffn::Dense(block) => block.forward(x),
            Ffn::Moe(moe) => moe.forward(x),
        }
    }
}

/// `down(silu(gate x) * up x)`.
pub(super) struct SwiGlu {
    /// Gate and up in one product.
    gate_up: Linear,
    down: Linear,
}

impl SwiGlu {
    pub fn load(hidden: usize, intermediate: usize, scope: &Scope<'_>) -> std::result::Result<SwiGlu, LoadError> {
        let gate = scope.at("gate_proj").get("weight", &[intermediate, hidden])?;
        let up = scope.at("up_proj").get("weight", &[intermediate, hidden])?;
        let down = scope.at("down_proj").get("weight", &[hidden, intermediate])?;
        Ok(SwiGlu { gate_up: Linear::stacked(&[gate, up], None)?, down: Linear::new(down, None)? })
    }

    pub fn forward(&self, x: &Tensor) -> Result<Tensor> {
        self.down.forward(&silu_mul(&self.gate_up.forward(x)?)?)
    }
}
