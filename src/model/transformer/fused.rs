//! Cutting queries, keys and values out of their common projection, with norm and rotation, in one pass: as separate
//! tensor ops this costs more in calls and allocations than in arithmetic when a batch has few positions.

use candle_core::{CpuStorage, CustomOp2, Layout, Result, Shape, Tensor, bail};
use omni_ops::{Angles, rms_norm};

/// Lanes of the partial sums: fixed, so that the sum has one order and the loop still vectorizes.
const LANES: usize = 16;

/// Cuts `[n, (heads + 2 * kv_heads) * head_dim]` into queries, keys and values, after RMS norm per head and rotation of
/// queries and keys.
#[derive(Clone, Copy, Debug)]
pub(super) struct SplitQkv {
    pub heads: usize,
    pub kv_heads: usize,
    pub head_dim: usize,
    pub eps: f64,
}

/// Queries `[n, heads, head_dim]`, keys and values `[n, kv_heads, head_dim]`, each contiguous.
pub(super) struct Qkv {
    pub queries: Tensor,
    pub keys: Tensor,
    pub values: Tensor,
}

impl SplitQkv {
    /// `norms [2, head_dim]` are the norm weights of queries and keys, `angles` those of the `n` positions.
    pub fn apply(&self, projected: &Tensor, norms: &Tensor, angles: &Angles) -> Result<Qkv> {
        match angles {
            Angles::Cpu { cos, sin, .. } => self.fused(projected, norms, cos, sin),
            Angles::Device { .. } => self.plain(projected, norms, angles),
        }
    }

    fn fused(&self, projected: &Tensor, norms: &Tensor, cos: &[f32], sin: &[f32]) -> Result<Qkv> {
        let n = projected.dim(0)?;
        let (q, kv) = (n * self.heads * self.head_dim, n * self.kv_heads * self.head_dim);
        let flat = projected.apply_op2_no_bwd(norms, &Kernel { sizes: *self, cos, sin })?;
        let heads = |start, len, heads| flat.narrow(0, start, len)?.reshape((n, heads, self.head_dim));
        Ok(Qkv {
            queries: heads(0, q, self.heads)?,
            keys: heads(q, kv, self.kv_heads)?,
            values: heads(q + kv, kv, self.kv_heads)?,
        })
    }

    /// The same out of the device's own operations.
    fn plain(&self, projected: &Tensor, norms: &Tensor, angles: &Angles) -> Result<Qkv> {
        let (n, d) = (projected.dim(0)?, self.head_dim);
        let heads = |start: usize, heads: usize| {
            projected.narrow(1, start * d, heads * d)?.contiguous()?.reshape((n, heads, d))
        };
        let rotated = |x: Tensor, norm: usize| angles.apply(&rms_norm(&x, &norms.get(norm)?, self.eps)?);
        Ok(Qkv {
            queries: rotated(heads(0, self.heads)?, 0)?,
            keys: rotated(heads(self.heads, self.kv_heads)?, 1)?,
            values: heads(self.heads + self.kv_heads, self.kv_heads)?,
        })
    }
}

struct Kernel<'a> {
    sizes: SplitQkv,
    cos: &'a [f32],
    sin: &'a [f32],
}

impl Kernel<'_> {
    /// One head of position `at`: normalized, scaled by `weight`, rotated.
    fn head(&self, at: usize, from: &[f32], weight: &[f32], to: &mut [f32]) {
        let half = self.sizes.head_dim / 2;
        let factor = 1.0 / (sum_of_squares(from) / from.len() as f32 + self.sizes.eps as f32).sqrt();
        let (cos, sin) = (&self.cos[at * half..(at + 1) * half], &self.sin[at * half..(at + 1) * half]);
        let ((from_a, from_b), (weight_a, weight_b)) = (from.split_at(half), weight.split_at(half));
        let (to_a, to_b) = to.split_at_mut(half);
        for j in 0..half {
            let (a, b) = (from_a[j] * factor * weight_a[j], from_b[j] * factor * weight_b[j]);
            to_a[j] = a * cos[j] - b * sin[j];
            to_b[j] = b * cos[j] + a * sin[j];
        }
    }
}

impl CustomOp2 for Kernel<'_> {
    fn name(&self) -> &'static str {
        "split-qkv"
    }

    fn cpu_fwd(
        &self,
        projected: &CpuStorage,
        projected_layout: &Layout,
        norms: &CpuStorage,
        norms_layout: &Layout,
    ) -> Result<(CpuStorage, Shape)> {
        let SplitQkv { heads, kv_heads, head_dim: d, .. } = self.sizes;
        let (projected, norms) = (contiguous(projected, projected_layout)?, contiguous(norms, norms_layout)?);
        let width = (heads + 2 * kv_heads) * d;
        let n = self.cos.len() / (d / 2);
        if projected.len() != n * width || norms.len() != 2 * d {
            bail!("split-qkv: {n} positions of width {width}, got {:?}", projected_layout.shape());
        }
        let (query_norm, key_norm) = norms.split_at(d);
        let mut out = vec![0f32; projected.len()];
        let (queries, rest) = out.split_at_mut(n * heads * d);
        let (keys, values) = rest.split_at_mut(n * kv_heads * d);
        for (at, position) in projected.chunks_exact(width).enumerate() {
            let (q, kv) = position.split_at(heads * d);
            let (k, v) = kv.split_at(kv_heads * d);
            let to = queries[at * q.len()..(at + 1) * q.len()].chunks_exact_mut(d);
            q.chunks_exact(d).zip(to).for_each(|(from, to)| self.head(at, from, query_norm, to));
            let to = keys[at * k.len()..(at + 1) * k.len()].chunks_exact_mut(d);
            k.chunks_exact(d).zip(to).for_each(|(from, to)| self.head(at, from, key_norm, to));
            values[at * v.len()..(at + 1) * v.len()].copy_from_slice(v);
        }
        Ok((CpuStorage::F32(out), Shape::from(projected.len())))
    }
}

fn contiguous<'a>(storage: &'a CpuStorage, layout: &Layout) -> Result<&'a [f32]> {
    let Some((start, end)) = layout.contiguous_offsets() else { bail!("split-qkv: expected a contiguous tensor") };
    Ok(&storage.as_slice::<f32>()?[start..end])
}

fn sum_of_squares(values: &[f32]) -> f32 {
    let mut sums = [0f32; LANES];
    let (chunks, rest) = values.as_chunks::<LANES>();
    for chunk in chunks {
        for (sum, v) in sums.iter_mut().zip(chunk) {
            *sum += v * v;
        }
    }
    sums.iter().sum::<f32>() + rest.iter().map(|v| v * v).sum::<f32>()
}

#[cfg(test)]
mod tests {
    use super::*;
    use candle_core::Device;
    use omni_ops::Rope;

    #[test]
    fn the_kernel_agrees_with_plain_operations() {
        let split = SplitQkv { heads: 4, kv_heads: 2, head_dim: 20, eps: 1e-6 };
        let data: Vec<f32> = (0..3 * 160).map(|i| ((i * 7919) % 1009) as f32 / 300.0 - 1.6).collect();
        let projected = Tensor::from_vec(data, (3, 160), &Device::Cpu).unwrap();
        let weights: Vec<f32> = (0..40).map(|i| 0.5 + i as f32 * 0.03).collect();
        let norms = Tensor::from_vec(weights, (2, 20), &Device::Cpu).unwrap();
        let angles = Rope::new(20, 1e4, &Device::Cpu).unwrap().at(&[0, 5, 900]).unwrap();
        let fused = split.apply(&projected, &norms, &angles).unwrap();
        let plain = split.plain(&projected, &norms, &angles).unwrap();
        let pairs = [(fused.queries, plain.queries), (fused.keys, plain.keys), (fused.values, plain.values)];
        for (got, want) in pairs {
            assert_eq!(got.dims(), want.dims());
            assert!(got.is_contiguous());
            let off = (got - want).unwrap().abs().unwrap().flatten_all().unwrap().max(0).unwrap();
            assert!(off.to_scalar::<f32>().unwrap() < 1e-5);
        }
    }
}
