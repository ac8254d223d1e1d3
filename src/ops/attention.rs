//! Causal grouped-query attention over a cache.

use super::math::{dot, exp, load_part, store_part, sum};
use super::simd::{Kernel, LANES, Simd, dispatch};
use candle_core::{CpuStorage, CustomOp3, DType, Device, Layout, Result, Shape, Tensor};

/// Attention of `T` new positions over a cache that already holds their keys and values.
///
/// `q` is `[T, heads, d]`, of absolute positions `past..past + T`; `k` and `v` are `[capacity, kv_heads, d]` with
/// position `i` in row `i`. Query `i` sees keys `j` with `0 <= i - j`, and with a window `w` only those with `i - j <
/// w`. Gives `[T, heads, d]`. On the CPU a query's result does not depend on which others are in the call.
///
/// # Errors
/// When the shapes do not fit, or the cache has fewer rows than `past + T`.
pub fn attention(q: &Tensor, k: &Tensor, v: &Tensor, past: usize, window: Option<usize>, scale: f32) -> Result<Tensor> {
    let (t, heads, d) = q.dims3()?;
    let (capacity, kv_heads, kd) = k.dims3()?;
    if v.dims() != k.dims() || kd != d || heads % kv_heads != 0 || past + t > capacity || window == Some(0) {
        candle_core::bail!(
            "attention: q {:?}, k {:?}, v {:?}, past {past}, window {window:?} do not fit",
            q.dims(),
            k.dims(),
            v.dims()
        );
    }
    match q.device() {
        Device::Cpu => q.contiguous()?.apply_op3_no_bwd(k, v, &Attention { past, window, scale }),
        _ => plain(q, k, v, past, window, scale),
    }
}

/// The same from candle's operations.
fn plain(q: &Tensor, k: &Tensor, v: &Tensor, past: usize, window: Option<usize>, scale: f32) -> Result<Tensor> {
    let (t, heads, _) = q.dims3()?;
    let groups = heads / k.dim(1)?;
    let first = window.map_or(0, |w| (past + 1).saturating_sub(w));
    let len = past + t - first;
    // [rows, kv, d] -> [heads, rows, d], each kv head repeated for its group.
    let spread = |x: &Tensor| -> Result<Tensor> {
        let (_, kv, d) = x.dims3()?;
        let x = x.narrow(0, first, len)?.transpose(0, 1)?.unsqueeze(1)?;
        x.broadcast_as((kv, groups, len, d))?.contiguous()?.reshape((heads, len, d))
    };
    let scores = (q.transpose(0, 1)?.contiguous()?.matmul(&spread(k)?.t()?)? * f64::from(scale))?;
    let sees = |i: usize, j: usize| j <= i && window.is_none_or(|w| i - j < w);
    let mask: Vec<f32> = (past..past + t)
        .flat_map(|i| (first..past + t).map(move |j| if sees(i, j) { 0.0 } else { f32::NEG_INFINITY }))
        .collect();
    let mask = Tensor::from_vec(mask, (t, len), q.device())?;
    let scores = scores.to_dtype(DType::F32)?.broadcast_add(&mask)?;
    let weights = candle_nn::ops::softmax_last_dim(&scores)?.to_dtype(v.dtype())?;
    weights.matmul(&spread(v)?)?.transpose(0, 1)?.contiguous()
}

struct Attention {
    past: usize,
    window: Option<usize>,
    scale: f32,
}

impl CustomOp3 for Attention {
    fn name(&self) -> &'static str {
        "attention"
    }

    fn cpu_fwd(
        &self,
        q: &CpuStorage,
        ql: &Layout,
        k: &CpuStorage,
        kl: &Layout,
        v: &CpuStorage,
        vl: &Layout,
    ) -> Result<(CpuStorage, Shape)> {
        let (t, heads, d) = ql.shape().dims3()?;
        let mut out = vec![0.0; t * heads * d];
        dispatch(Rows {
            op: self,
            q: super::f32_slice(q, ql)?,
            k: Heads::new(k, kl)?,
            v: Heads::new(v, vl)?,
            heads,
            d,
            group: heads / kl.dims()[1],
            out: &mut out,
        });
        Ok((CpuStorage::F32(out), ql.shape().clone()))
    }
}

/// Vectors `[rows, heads, d]`, as those of a cache; views with any strides but that of the last dimension.
#[derive(Clone, Copy)]
pub(super) struct Heads<'a> {
    data: &'a [f32],
    row: usize,
    head: usize,
}

impl<'a> Heads<'a> {
    pub fn new(storage: &'a CpuStorage, layout: &Layout) -> Result<Heads<'a>> {
        let &[row, head, 1] = layout.stride() else { candle_core::bail!("attention: layout {layout:?}") };
        match storage {
            CpuStorage::F32(data) => Ok(Heads { data: &data[layout.start_offset()..], row, head }),
            _ => candle_core::bail!("attention: expected f32 on the cpu"),
        }
    }

    /// Those that stand one behind the other.
    #[cfg(test)]
    pub fn packed(data: &'a [f32], heads: usize, d: usize) -> Heads<'a> {
        Heads { data, row: heads * d, head: d }
    }

    #[inline(always)]
    pub fn at(&self, position: usize, head: usize, d: usize) -> &'a [f32] {
        let start = position * self.row + head * self.head;
        &self.data[start..start + d]
    }
}

struct Rows<'a> {
    op: &'a Attention,
    q: &'a [f32],
    k: Heads<'a>,
    v: Heads<'a>,
    heads: usize,
    d: usize,
    group: usize,
    out: &'a mut [f32],
}

impl Kernel for Rows<'_> {
    type Out = ();

    #[inline(always)]
    fn run<S: Simd>(self, s: S) {
        let Attention { past, window, scale } = *self.op;
        let mut weights = Vec::new();
        for (n, (q, out)) in self.q.chunks_exact(self.d).zip(self.out.chunks_exact_mut(self.d)).enumerate() {
            let (position, head) = (past + n / self.heads, n % self.heads / self.group);
            let first = window.map_or(0, |w| (position + 1).saturating_sub(w));
            weights.clear();
            let mut top = f32::NEG_INFINITY;
            for j in first..=position {
                let score = dot(s, q, self.k.at(j, head, self.d)) * scale;
                top = top.max(score);
                weights.push(score);
            }
            let total = softmax_numerators(s, &mut weights, top);
            for (c, out) in out.chunks_mut(LANES).enumerate() {
                let mut acc = s.splat(0.0);
                for (j, w) in (first..).zip(&weights) {
                    let v = &self.v.at(j, head, self.d)[c * LANES..];
                    let v = if let Some(v) = v.first_chunk() { s.load(v) } else { load_part(s, v) };
                    acc = s.fma(s.splat(*w), v, acc);
                }
                store_part(s, s.div(acc, s.splat(total)), out);
            }
        }
    }
}

/// `x = exp(x - top)` in place; returns the sum, 16 lanes side by side.
#[inline(always)]
fn softmax_numerators<S: Simd>(s: S, x: &mut [f32], top: f32) -> f32 {
    let top = s.splat(top);
    let mut total = s.splat(0.0);
    let (chunks, rest) = x.as_chunks_mut::<LANES>();
    for chunk in chunks {
        let e = exp(s, s.sub(s.load(chunk), top));
        total = s.add(total, e);
        s.store(e, chunk);
    }
    let mut total = sum(s, total);
    if !rest.is_empty() {
        let e = exp(s, s.sub(load_part(s, rest), top));
        store_part(s, e, rest);
        for e in rest {
            total += *e;
        }
    }
    total
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn tensor(shape: (usize, usize, usize), seed: usize) -> Tensor {
        let n = shape.0 * shape.1 * shape.2;
        let data: Vec<f32> = (0..n).map(|i| ((i * 7919 + seed * 104_729) % 1009) as f32 / 300.0 - 1.6).collect();
        Tensor::from_vec(data, shape, &Device::Cpu).unwrap()
    }

    fn flat(t: &Tensor) -> Vec<f32> {
        t.flatten_all().unwrap().to_vec1().unwrap()
    }

    proptest! {
        #[test]
        fn the_kernel_agrees_with_plain_operations(
            t in 1usize..12, past in 0usize..40, spare in 0usize..3, kv in 1usize..4, group in 1usize..4, d in 1usize..40,
            window in proptest::option::of(1usize..30),
        ) {
            let (q, k, v) = (tensor((t, kv * group, d), 1), tensor((past + t + spare, kv, d), 2), tensor((past + t + spare, kv, d), 3));
            let scale = (d as f32).powf(-0.5);
            let got = attention(&q, &k, &v, past, window, scale).unwrap();
            let want = plain(&q, &k, &v, past, window, scale).unwrap();
            for (g, w) in flat(&got).iter().zip(flat(&want)) {
                prop_assert!((g - w).abs() < 1e-5, "{g}, not {w}");
            }
        }

        #[test]
        fn a_sequence_fed_in_two_parts_has_the_same_bits(cut in 1usize..20, window in proptest::option::of(1usize..30)) {
            let (q, k, v) = (tensor((20, 4, 32), 1), tensor((24, 2, 32), 2), tensor((24, 2, 32), 3));
            let whole = flat(&attention(&q, &k, &v, 4, window, 0.2).unwrap());
            let head = attention(&q.narrow(0, 0, cut).unwrap(), &k, &v, 4, window, 0.2).unwrap();
            let tail = attention(&q.narrow(0, cut, 20 - cut).unwrap(), &k, &v, 4 + cut, window, 0.2).unwrap();
            prop_assert_eq!([flat(&head), flat(&tail)].concat(), whole);
        }
    }

    #[test]
    fn a_cache_that_is_a_view_needs_no_copy() {
        let (q, kv) = (tensor((2, 4, 16), 1), tensor((9, 4, 16), 2));
        let (k, v) = (kv.narrow(1, 0, 2).unwrap(), kv.narrow(1, 2, 2).unwrap());
        let got = attention(&q, &k, &v, 5, None, 0.3).unwrap();
        let copied = attention(&q, &k.contiguous().unwrap(), &v.contiguous().unwrap(), 5, None, 0.3).unwrap();
        assert_eq!(flat(&got), flat(&copied));
    }

    #[test]
    fn a_cache_that_is_too_short_is_refused() {
        let (q, k) = (tensor((2, 2, 4), 1), tensor((5, 2, 4), 2));
        assert!(attention(&q, &k, &k, 4, None, 1.0).is_err());
    }
}
