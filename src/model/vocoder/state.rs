//! The state that a stream carries from one chunk to the next.

use crate::hf::VocoderConfig;
use candle_core::{DType, Device, Result, Tensor};
use omni_ops::attention;

/// State of one stream. Bounded, however long the stream is.
pub struct Stream {
    /// Frames decoded so far: the absolute position of the next one.
    pub(super) position: u32,
    pub(super) caches: Vec<KvWindow>,
    pub(super) histories: Vec<History>,
}

impl Stream {
    /// Frames decoded so far.
    pub fn frames(&self) -> u32 {
        self.position
    }

    /// A second stream that continues from the same place.
    ///
    /// # Errors
    /// When the device has no room.
    pub fn fork(&self) -> Result<Stream> {
        let caches = self.caches.iter().map(KvWindow::fork).collect::<Result<_>>()?;
        Ok(Stream { position: self.position, caches, histories: self.histories.clone() })
    }

    /// Memory of this stream.
    pub fn bytes(&self) -> usize {
        let caches = self.caches.iter().flat_map(|cache| [&cache.k, &cache.v]);
        let tensors = caches.chain(self.histories.iter().map(|history| &history.rows));
        tensors.map(|tensor| tensor.elem_count() * tensor.dtype().size_in_bytes()).sum()
    }

    /// `x` `[n, channels]` behind the rows that a convolution has seen last: `[rows + n, channels]`.
    pub(crate) fn extend(&mut self, history: usize, x: &Tensor) -> Result<Tensor> {
        self.histories[history].extend(x)
    }
}

/// The layout of every stream of a net, collected while the net is loaded.
pub(crate) struct Plan {
    layers: usize,
    window: usize,
    /// Keys or values of one position: heads and width.
    kv: (usize, usize),
    /// Whether transposed convolutions drop the start of a stream.
    pub drops_start: bool,
    histories: Vec<HistoryPlan>,
}

/// Size of one [`History`].
#[derive(Clone, Copy)]
pub(crate) struct HistoryPlan {
    pub rows: usize,
    pub channels: usize,
    pub trim: usize,
}

impl Plan {
    pub fn new(config: &VocoderConfig) -> Plan {
        let transformer = &config.transformer;
        Plan {
            layers: transformer.num_hidden_layers,
            window: transformer.sliding_window,
            kv: (transformer.num_key_value_heads, transformer.head_dim),
            drops_start: config.drops_start(),
            histories: Vec::new(),
        }
    }

    /// No layers, and no convolutions yet.
    pub fn empty() -> Plan {
        Plan { layers: 0, window: 1, kv: (1, 2), drops_start: true, histories: Vec::new() }
    }

    /// Adds a history; returns its index in every stream.
    pub fn add(&mut self, history: HistoryPlan) -> usize {
        self.histories.push(history);
        self.histories.len() - 1
    }

    pub fn stream(&self, device: &Device) -> Result<Stream> {
        Ok(Stream {
            position: 0,
            caches: (0..self.layers).map(|_| KvWindow::new(self.window, self.kv, device)).collect::<Result<_>>()?,
            histories: self.histories.iter().map(|h| History::new(*h, device)).collect::<Result<_>>()?,
        })
    }
}

/// The last inputs of a causal convolution, zeros at the start.
#[derive(Clone)]
pub(super) struct History {
    /// `[rows, channels]`, oldest first. Replaced, never written to.
    rows: Tensor,
    /// Outputs at the start of the stream that are still to be dropped.
    pub trim: usize,
}

impl History {
    pub fn new(plan: HistoryPlan, device: &Device) -> Result<History> {
        Ok(History { rows: Tensor::zeros((plan.rows, plan.channels), DType::F32, device)?, trim: plan.trim })
    }

    /// `x` `[n, channels]` behind the history: `[rows + n, channels]`. The history moves on.
    pub fn extend(&mut self, x: &Tensor) -> Result<Tensor> {
        let keep = self.rows.dim(0)?;
        let all = Tensor::cat(&[&self.rows, x], 0)?;
        // A copy: a view would keep the whole chunk alive.
        self.rows = all.narrow(0, x.dim(0)?, keep)?.force_contiguous()?;
        Ok(all)
    }
}

/// Keys and values of the last positions of one layer.
///
/// A buffer of twice the window: when it is full, the part that is still seen moves to the front, so that a frame costs
/// a constant amount on average and positions stay in order.
pub(super) struct KvWindow {
    window: usize,
    /// `[capacity, kv_heads, head_dim]`.
    k: Tensor,
    v: Tensor,
    /// Rows in use.
    len: usize,
}

impl KvWindow {
    pub fn new(window: usize, (heads, width): (usize, usize), device: &Device) -> Result<KvWindow> {
        let zeros = || Tensor::zeros((2 * window, heads, width), DType::F32, device);
        Ok(KvWindow { window, k: zeros()?, v: zeros()?, len: 0 })
    }

    fn fork(&self) -> Result<KvWindow> {
        // Buffers are written to: they need copies.
        Ok(KvWindow { window: self.window, k: self.k.copy()?, v: self.v.copy()?, len: self.len })
    }

    /// Appends `k` and `v` `[n, kv_heads, head_dim]` and attends with `q` `[n, heads, head_dim]`.
    pub fn attend(&mut self, q: &Tensor, k: &Tensor, v: &Tensor, scale: f32) -> Result<Tensor> {
        let n = k.dim(0)?;
        if self.len + n > self.k.dim(0)? {
            let keep = self.len.min(self.window - 1);
            let moved = |old: &Tensor| -> Result<Tensor> {
                let (_, heads, width) = old.dims3()?;
                let new = Tensor::zeros((2 * self.window.max(keep + n), heads, width), old.dtype(), old.device())?;
                if keep > 0 {
                    new.slice_set(&old.narrow(0, self.len - keep, keep)?.contiguous()?, 0, 0)?;
                }
                Ok(new)
            };
            (self.k, self.v, self.len) = (moved(&self.k)?, moved(&self.v)?, keep);
        }
        self.k.slice_set(&k.contiguous()?, 0, self.len)?;
        self.v.slice_set(&v.contiguous()?, 0, self.len)?;
        let past = self.len;
        self.len += n;
        attention(q, &self.k, &self.v, past, Some(self.window), scale)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_cache_stays_small_and_sees_exactly_its_window() {
        let window = 5;
        let row = |i: usize, n: usize| {
            let data: Vec<f32> = (0..n * 4).map(|j| (((i * 4 + j) * 37) % 101) as f32 / 50.0 - 1.0).collect();
            Tensor::from_vec(data, (n, 1, 4), &Device::Cpu).unwrap()
        };
        let mut cache = KvWindow::new(window, (1, 4), &Device::Cpu).unwrap();
        let all = row(0, 60);
        let mut at = 0;
        for n in [1, 1, 3, 1, 20, 1, 2, 1, 1, 4, 1, 1, 1, 1, 1, 2, 3, 1, 1, 1, 12] {
            let x = row(at, n);
            let got = cache.attend(&x, &x, &x, 0.5).unwrap();
            let want = attention(&x, &all, &all, at, Some(window), 0.5).unwrap();
            let flat = |t: &Tensor| t.flatten_all().unwrap().to_vec1::<f32>().unwrap();
            assert_eq!(flat(&got), flat(&want), "positions {at} to {}", at + n);
            assert!(cache.k.dim(0).unwrap() <= 2 * (window - 1 + 20));
            at += n;
        }
    }
}
