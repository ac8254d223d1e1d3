//! What both towers are made of.

use crate::LoadError;
use crate::weights::Scope;
use candle_core::{Result, Tensor};
use omni_ops::{Angles, Linear, attention_to_all, layer_norm};

pub(super) type Loaded<T> = std::result::Result<T, LoadError>;

/// A layer norm.
pub(super) struct Norm {
    weight: Tensor,
    bias: Tensor,
    eps: f64,
}

impl Norm {
    pub fn load(scope: &Scope<'_>, width: usize, eps: f64) -> Loaded<Norm> {
        let get = |name| scope.get(name, &[width])?.force_contiguous().map_err(LoadError::from);
        Ok(Norm { weight: get("weight")?, bias: get("bias")?, eps })
    }

    pub fn forward(&self, x: &Tensor) -> Result<Tensor> {
        layer_norm(x, &self.weight, &self.bias, self.eps)
    }
}

/// A linear layer with bias.
pub(super) fn linear(scope: &Scope<'_>, inputs: usize, outputs: usize) -> Loaded<Linear> {
    Ok(Linear::new(scope.get("weight", &[outputs, inputs])?, Some(scope.get("bias", &[outputs])?))?)
}

/// A layer of a tower's transformer: attention of all positions to all, then a feed-forward net, a norm before each.
pub(super) struct Layer {
    pub attention_norm: Norm,
    /// Queries, keys and values in one product.
    pub qkv: Linear,
    pub heads: usize,
    pub project: Linear,
    pub ffn_norm: Norm,
    pub expand: Linear,
    /// Of the feed-forward net.
    pub activation: fn(&Tensor) -> Result<Tensor>,
    pub shrink: Linear,
}

/// Queries, keys and values of some positions, each `[n, heads, d]`.
pub(super) struct Seen {
    pub q: Tensor,
    pub k: Tensor,
    pub v: Tensor,
}

impl Layer {
    /// `[n, width]` of positions that see each other, whose queries and keys turn by `angles`.
    pub fn forward(&self, x: &Tensor, angles: Option<&Angles>) -> Result<Tensor> {
        let Seen { q, k, v } = self.look(x, angles)?;
        self.attend(x, &q, &k, &v)
    }

    /// Queries, keys and values of some of the positions: the same bits for some as for all.
    pub fn look(&self, x: &Tensor, angles: Option<&Angles>) -> Result<Seen> {
        let ((n, width), heads) = (x.dims2()?, self.heads);
        let qkv = self.qkv.forward(&self.attention_norm.forward(x)?)?.reshape((n, 3 * heads, width / heads))?;
        let mut qk = qkv.narrow(1, 0, 2 * heads)?;
        if let Some(angles) = angles {
            qk = angles.apply(&qk)?;
        }
        Ok(Seen { q: qk.narrow(1, 0, heads)?, k: qk.narrow(1, heads, heads)?, v: qkv.narrow(1, 2 * heads, heads)? })
    }

    /// What some of the positions, `[n, width]` with the queries `q`, become when they see all keys and values.
    pub fn attend(&self, x: &Tensor, q: &Tensor, k: &Tensor, v: &Tensor) -> Result<Tensor> {
        let (_, _, width) = q.dims3()?;
        let seen = attention_to_all(q, k, v, (width as f32).sqrt().recip())?.flatten_from(1)?;
        let x = self.project.forward_add(&seen, x)?;
        let inner = (self.activation)(&self.expand.forward(&self.ffn_norm.forward(&x)?)?)?;
        self.shrink.forward_add(&inner, &x)
    }
}
