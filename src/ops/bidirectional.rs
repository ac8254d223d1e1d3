//! Attention in both directions, as encoders have it: every query sees all keys.
//!
//! Two products for each block of keys, with a softmax between them that is corrected when a later block has a larger
//! score (Milakov and Gimelshein, "Online normalizer calculation for softmax", 2018). Blocks begin at multiples of
//! [`KEYS`], so what a query gets does not depend on which others are in the call.

use super::attention::Heads;
use super::math::{exp, store_part, sum};
use super::simd::{Kernel, LANES, Simd, dispatch};
use super::tile::{Acc, Banded, TALLEST, chains, in_bands};
use candle_core::{CpuStorage, CustomOp3, D, DType, Device, Layout, Result, Shape, Tensor};
use rayon::prelude::{IntoParallelIterator, ParallelIterator};
use std::ops::Range;

/// Keys of a block: its keys and values stay in the second cache, a band's scores in the first.
const KEYS: usize = 256;

/// Least multiply-adds of an attention that several threads share: waking them costs more than a smaller one.
const SHARED_MACS: usize = 32 << 20;

/// Least queries of a job: each packs all keys of its head, which costs as much as looking at them a few times.
const JOB_QUERIES: usize = 64;

/// Attention of `n` positions to all: queries `[n, heads, d]`, keys and values `[all, heads, d]`, to `[n, heads, d]`.
/// On the CPU a query's result does not depend on which others are in the call.
///
/// # Errors
/// When the shapes do not fit, or there are no keys.
pub fn attention_to_all(q: &Tensor, k: &Tensor, v: &Tensor, scale: f32) -> Result<Tensor> {
    let ((_, heads, d), (all, ..)) = (q.dims3()?, k.dims3()?);
    if k.dims() != [all, heads, d] || v.dims() != k.dims() || all == 0 {
        candle_core::bail!("attention to all: q {:?}, k {:?}, v {:?} do not fit", q.dims(), k.dims(), v.dims());
    }
    match q.device() {
        Device::Cpu => q.apply_op3_no_bwd(k, v, &ToAll { scale }),
        _ => plain(q, k, v, scale),
    }
}

/// The same from candle's operations.
fn plain(q: &Tensor, k: &Tensor, v: &Tensor, scale: f32) -> Result<Tensor> {
    let by_head = |x: &Tensor| x.transpose(0, 1)?.contiguous();
    let scores = (by_head(q)?.matmul(&by_head(k)?.transpose(D::Minus1, D::Minus2)?)? * f64::from(scale))?;
    let weights = candle_nn::ops::softmax_last_dim(&scores.to_dtype(DType::F32)?)?.to_dtype(v.dtype())?;
    weights.matmul(&by_head(v)?)?.transpose(0, 1)?.contiguous()
}

struct ToAll {
    scale: f32,
}

impl CustomOp3 for ToAll {
    fn name(&self) -> &'static str {
        "attention-to-all"
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
        let ((n, heads, d), all) = (ql.shape().dims3()?, kl.dims()[0]);
        let call = Call {
            q: Heads::new(q, ql)?,
            k: Heads::new(k, kl)?,
            v: Heads::new(v, vl)?,
            size: Size { n, all, heads, d },
            scale: self.scale,
        };
        let shared = 2 * n * all * heads * d >= SHARED_MACS;
        let threads = if shared { rayon::current_num_threads() } else { 1 };
        Ok((CpuStorage::F32(call.run(threads)), ql.shape().clone()))
    }
}

#[derive(Clone, Copy)]
struct Size {
    n: usize,
    all: usize,
    heads: usize,
    d: usize,
}

#[derive(Clone, Copy)]
struct Call<'a> {
    q: Heads<'a>,
    k: Heads<'a>,
    v: Heads<'a>,
    size: Size,
    scale: f32,
}

impl Call<'_> {
    /// `[n, heads, d]`. The result does not depend on the number of threads.
    fn run(self, threads: usize) -> Vec<f32> {
        let Size { n, heads, d, .. } = self.size;
        let parts = if threads > 1 { (2 * threads).div_ceil(heads).min(n / JOB_QUERIES).max(1) } else { 1 };
        let job = |i: usize| {
            let (head, part) = (i / parts, i % parts);
            let queries = n * part / parts..n * (part + 1) / parts;
            let seen = dispatch(Job { call: self, head, queries: queries.clone() });
            (head, queries, seen)
        };
        let jobs = 0..heads * parts;
        let done: Vec<_> = if threads > 1 { jobs.into_par_iter().map(job).collect() } else { jobs.map(job).collect() };
        let mut out = vec![0.0; n * heads * d];
        for (head, queries, seen) in done {
            for (query, seen) in queries.zip(seen.chunks_exact(d)) {
                let start = (query * heads + head) * d;
                out[start..start + d].copy_from_slice(seen);
            }
        }
        out
    }
}

/// Some queries of a head; gives `[queries, d]`.
struct Job<'a> {
    call: Call<'a>,
    head: usize,
    queries: Range<usize>,
}

impl Kernel for Job<'_> {
    type Out = Vec<f32>;

    #[inline(always)]
    fn run<S: Simd>(self, s: S) -> Vec<f32> {
        let Job { call: Call { q, k, v, size: Size { all, d, .. }, scale }, head, queries } = self;
        let (n, panels) = (queries.len(), d.div_ceil(LANES));
        let mut work = Work {
            q: queries.flat_map(|i| q.at(i, head, d)).map(|x| x * scale).collect(),
            d,
            len: 0,
            keys: vec![[0.0; LANES]; KEYS / LANES * d],
            values: vec![[0.0; LANES]; KEYS * panels],
            scores: vec![0.0; TALLEST * KEYS],
            tops: vec![f32::NEG_INFINITY; n],
            totals: vec![[0.0; LANES]; n],
            sums: vec![[0.0; LANES]; n * panels],
        };
        for start in (0..all).step_by(KEYS) {
            let block = start..all.min(start + KEYS);
            work.pack(block.clone().map(|j| k.at(j, head, d)), block.map(|j| v.at(j, head, d)));
            in_bands(s, 0..n, &mut work);
        }
        let mut out = vec![0.0; n * d];
        for ((out, sums), total) in out.chunks_exact_mut(d).zip(work.sums.chunks_exact(panels)).zip(&work.totals) {
            let total = s.splat(sum(s, s.load(total)));
            for (out, of) in out.chunks_mut(LANES).zip(sums) {
                store_part(s, s.div(s.load(of), total), out);
            }
        }
        out
    }
}

/// The queries of a job, a block of keys, and what the queries have seen so far.
struct Work {
    /// Scaled, `[n, d]`.
    q: Vec<f32>,
    d: usize,
    /// Keys of the block.
    len: usize,
    /// `[KEYS / 16][d]`, a lane for each of 16 keys.
    keys: Vec<[f32; LANES]>,
    /// `[ceil(d / 16)][KEYS]`, a lane for each of 16 elements of a value.
    values: Vec<[f32; LANES]>,
    /// Of a band with the block, then their exponentials: `[TALLEST][KEYS]`.
    scores: Vec<f32>,
    /// The largest score of each query.
    tops: Vec<f32>,
    /// Sums of e^(score - top) of each query, 16 lanes side by side.
    totals: Vec<[f32; LANES]>,
    /// Sums of e^(score - top) times value, `[n][ceil(d / 16)]`.
    sums: Vec<[f32; LANES]>,
}

impl Work {
    /// Takes the next block. Keys beyond the last one keep what stood there: what they would give is left out.
    fn pack<'a>(&mut self, keys: impl ExactSizeIterator<Item = &'a [f32]>, values: impl Iterator<Item = &'a [f32]>) {
        self.len = keys.len();
        for (j, key) in keys.enumerate() {
            let panel = &mut self.keys[j / LANES * self.d..][..self.d];
            for (to, x) in panel.iter_mut().zip(key) {
                to[j % LANES] = *x;
            }
        }
        for (j, value) in values.enumerate() {
            for (panel, part) in value.chunks(LANES).enumerate() {
                self.values[panel * KEYS + j][..part.len()].copy_from_slice(part);
            }
        }
    }

    /// The scores of `ROWS` queries with `PANELS` times 16 keys.
    #[inline(always)]
    fn score<S: Simd, const ROWS: usize, const PANELS: usize>(&mut self, s: S, row: usize, panel: usize) {
        let d = self.d;
        let mut acc: Acc<S::V, ROWS, PANELS> = [[s.splat(0.0); PANELS]; ROWS];
        let (q, keys) = (&self.q[row * d..(row + ROWS) * d], &self.keys[panel * d..(panel + PANELS) * d]);
        // SAFETY: the slices are as long as they have to be.
        unsafe { chains(s, &mut acc, (q.as_ptr(), d), (keys.as_ptr(), d), d) };
        for (scores, acc) in self.scores.chunks_exact_mut(KEYS).zip(&acc) {
            let (scores, _) = scores[panel * LANES..].as_chunks_mut();
            for (scores, acc) in scores.iter_mut().zip(acc) {
                s.store(*acc, scores);
            }
        }
    }

    /// The exponentials of a query's scores, which are those of row `r` of the band; gives the factor for what the query
    /// has summed up so far.
    #[inline(always)]
    fn weigh<S: Simd>(&mut self, s: S, query: usize, r: usize) -> f32 {
        let scores = &mut self.scores[r * KEYS..][..self.len.next_multiple_of(LANES)];
        // Then e^-87: no part of a sum that is at least 1.
        scores[self.len..].fill(f32::NEG_INFINITY);
        let (scores, _) = scores.as_chunks_mut::<LANES>();
        let mut tops = s.splat(self.tops[query]);
        for scores in scores.iter() {
            tops = s.max(tops, s.load(scores));
        }
        let mut lanes = [0.0; LANES];
        s.store(tops, &mut lanes);
        let top = lanes.into_iter().fold(f32::NEG_INFINITY, f32::max);
        let kept = exp(s, s.splat(self.tops[query] - top));
        let mut total = s.mul(s.load(&self.totals[query]), kept);
        let tops = s.splat(top);
        for scores in scores {
            let e = exp(s, s.sub(s.load(scores), tops));
            total = s.add(total, e);
            s.store(e, scores);
        }
        s.store(total, &mut self.totals[query]);
        s.store(kept, &mut lanes);
        self.tops[query] = top;
        lanes[0]
    }

    /// Adds the block's values to `PANELS` times 16 elements of the sums of `ROWS` queries.
    #[inline(always)]
    fn add<S: Simd, const ROWS: usize, const PANELS: usize>(
        &mut self,
        s: S,
        row: usize,
        panel: usize,
        kept: &[f32; ROWS],
    ) {
        let panels = self.d.div_ceil(LANES);
        let mut acc: Acc<S::V, ROWS, PANELS> = [[s.splat(0.0); PANELS]; ROWS];
        let queries = self.sums[row * panels..(row + ROWS) * panels].chunks_exact(panels);
        for ((acc, sums), kept) in acc.iter_mut().zip(queries).zip(kept) {
            for (acc, sum) in acc.iter_mut().zip(&sums[panel..]) {
                *acc = s.mul(s.load(sum), s.splat(*kept));
            }
        }
        let (scores, values) = (&self.scores[..ROWS * KEYS], &self.values[panel * KEYS..(panel + PANELS) * KEYS]);
        // SAFETY: the slices are as long as they have to be, and `len` is at most `KEYS`.
        unsafe { chains(s, &mut acc, (scores.as_ptr(), KEYS), (values.as_ptr(), KEYS), self.len) };
        let queries = self.sums[row * panels..(row + ROWS) * panels].chunks_exact_mut(panels);
        for (acc, sums) in acc.iter().zip(queries) {
            for (acc, sum) in acc.iter().zip(&mut sums[panel..]) {
                s.store(*acc, sum);
            }
        }
    }
}

impl Banded for Work {
    #[inline(always)]
    fn band<S: Simd, const ROWS: usize, const PANELS: usize>(&mut self, s: S, row: usize) {
        let (panels, mut panel) = (self.len.div_ceil(LANES), 0);
        while panel + PANELS <= panels {
            self.score::<S, ROWS, PANELS>(s, row, panel);
            panel += PANELS;
        }
        while panel < panels {
            self.score::<S, ROWS, 1>(s, row, panel);
            panel += 1;
        }
        let mut kept = [0.0; ROWS];
        for (r, kept) in kept.iter_mut().enumerate() {
            *kept = self.weigh(s, row + r, r);
        }
        let (panels, mut panel) = (self.d.div_ceil(LANES), 0);
        while panel + PANELS <= panels {
            self.add::<S, ROWS, PANELS>(s, row, panel, &kept);
            panel += PANELS;
        }
        while panel < panels {
            self.add::<S, ROWS, 1>(s, row, panel, &kept);
            panel += 1;
        }
    }
}

#[cfg(test)]
mod tests;
