//! What both towers are made of.

use crate::LoadError;
use crate::weights::Scope;
use candle_core::{Device, Result, Tensor};
use omni_ops::{Angles, Linear, attention, layer_norm};
use rayon::prelude::{IntoParallelIterator, ParallelIterator};

pub(super) type Loaded<T> = std::result::Result<T, LoadError>;

/// Least multiply-adds of an attention that several threads share: waking them costs more than a smaller one.
const SHARED_MACS: usize = 32 << 20;

/// Heads are made a multiple of this wide, by zeros that change no product: what is left over beside whole registers
/// costs a kernel more than all that is in them.
const LANES: usize = 16;

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

/// Attention of some positions to all: queries `[n, heads, d]`, keys and values `[all, heads, d]` to `[n, heads * d]`.
/// What a query gets does not depend on the others.
fn attend_to_all(q: &Tensor, k: &Tensor, v: &Tensor) -> Result<Tensor> {
    let ((n, heads, width), all) = (q.dims3()?, k.dim(0)?);
    let d = width.next_multiple_of(LANES);
    let widened = |x: &Tensor| if d > width { x.pad_with_zeros(2, 0, d - width)?.contiguous() } else { Ok(x.clone()) };
    let (q, k, v) = (widened(q)?, widened(k)?, widened(v)?);
    let scale = (width as f32).sqrt().recip();
    // The queries of a head stand at the last position, as if each were a head of its own that shares these keys: so
    // each sees everything.
    let q = q.transpose(0, 1)?.contiguous()?; // [heads, n, d]
    let head = |head: usize, count: usize| {
        let queries = q.narrow(0, head, count)?.reshape((1, count * n, d))?;
        let seen = attention(&queries, &k.narrow(1, head, count)?, &v.narrow(1, head, count)?, all - 1, None, scale)?;
        seen.reshape((count, n, d))
    };
    let shared = matches!(q.device(), Device::Cpu) && 2 * n * all * heads * d >= SHARED_MACS;
    let seen = if shared {
        let each = (0..heads).into_par_iter().map(|i| head(i, 1)).collect::<Result<Vec<_>>>()?;
        Tensor::cat(&each, 0)?
    } else {
        head(0, heads)?
    };
    let seen = seen.narrow(2, 0, width)?.transpose(0, 1)?.contiguous()?;
    seen.reshape((n, heads * width))
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
        let x = self.project.forward_add(&attend_to_all(q, k, v)?, x)?;
        let inner = (self.activation)(&self.expand.forward(&self.ffn_norm.forward(&x)?)?)?;
        self.shrink.forward_add(&inner, &x)
    }
}
