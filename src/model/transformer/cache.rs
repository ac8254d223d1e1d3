//! The keys and values of one sequence.

use candle_core::{DType, Device, Result, Tensor};

/// Positions that the first allocation of a cache holds.
const FIRST_CAPACITY: usize = 32;

/// Keys and values of one sequence, for every layer, position-major: `[capacity, kv_heads, head_dim]`. Capacity doubles
/// when it is used up, so that appending costs the same at any length; dropping the cache frees all of it.
#[derive(Debug)]
pub struct KvCache {
    layers: Vec<(Tensor, Tensor)>,
    len: usize,
    capacity: usize,
    limit: usize,
}

/// The sequence has reached the model's last position.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
#[error("the context is full: {wanted} positions are wanted and the model has {limit} (max_position_embeddings)")]
pub struct ContextFull {
    /// Positions that the sequence would have.
    pub wanted: usize,
    /// Positions that the model has.
    pub limit: usize,
}

impl KvCache {
    /// An empty cache for `layers` layers and at most `limit` positions.
    ///
    /// # Errors
    /// When the device cannot give the memory.
    pub fn new(layers: usize, kv_heads: usize, head_dim: usize, limit: usize, device: &Device) -> Result<KvCache> {
        let capacity = FIRST_CAPACITY.min(limit.max(1));
        let empty = || Tensor::zeros((capacity, kv_heads, head_dim), DType::F32, device);
        let layers = (0..layers).map(|_| Ok((empty()?, empty()?))).collect::<Result<_>>()?;
        Ok(KvCache { layers, len: 0, capacity, limit })
    }

    /// Positions cached so far; also the position of the next one.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Nothing is cached.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Whether `count` more positions fit into the model's context.
    ///
    /// # Errors
    /// [`ContextFull`] when they do not.
    pub fn check_room(&self, count: usize) -> std::result::Result<(), ContextFull> {
        let wanted = self.len + count;
        if wanted > self.limit { Err(ContextFull { wanted, limit: self.limit }) } else { Ok(()) }
    }

    /// Forgets every position and keeps the memory.
    pub fn clear(&mut self) {
        self.len = 0;
    }

    /// Makes room for `count` more positions in every layer.
    pub(super) fn reserve(&mut self, count: usize) -> Result<()> {
        if let Err(full) = self.check_room(count) {
            candle_core::bail!("{full}");
        }
        let needed = self.len + count;
        if needed <= self.capacity {
            return Ok(());
        }
        let capacity = (self.capacity * 2).max(needed).min(self.limit);
        for (keys, values) in &mut self.layers {
            for cached in [keys, values] {
                let (_, heads, dim) = cached.dims3()?;
                let grown = Tensor::zeros((capacity, heads, dim), cached.dtype(), cached.device())?;
                if self.len > 0 {
                    grown.slice_set(&cached.narrow(0, 0, self.len)?, 0, 0)?;
                }
                *cached = grown;
            }
        }
        self.capacity = capacity;
        Ok(())
    }

    /// Writes keys and values `[count, kv_heads, head_dim]` of new positions behind the cached ones and returns the
    /// whole buffers. The positions count only after [`Self::commit`], so that a step that failed halfway can be
    /// repeated.
    pub(super) fn write(&mut self, layer: usize, keys: &Tensor, values: &Tensor) -> Result<(&Tensor, &Tensor)> {
        let (cached_keys, cached_values) = &self.layers[layer];
        cached_keys.slice_set(keys, 0, self.len)?;
        cached_values.slice_set(values, 0, self.len)?;
        Ok((cached_keys, cached_values))
    }

    /// Counts `count` positions that every layer has written.
    pub(super) fn commit(&mut self, count: usize) {
        self.len += count;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rows(from: usize, count: usize) -> Tensor {
        let data: Vec<f32> = (from * 6..(from + count) * 6).map(|i| i as f32).collect();
        Tensor::from_vec(data, (count, 2, 3), &Device::Cpu).unwrap()
    }

    #[test]
    fn growing_keeps_what_was_written() {
        let mut cache = KvCache::new(2, 2, 3, 1000, &Device::Cpu).unwrap();
        let mut at = 0;
        for count in [5, 30, 1, 64] {
            cache.reserve(count).unwrap();
            for layer in 0..2 {
                cache.write(layer, &rows(at, count), &rows(at, count)).unwrap();
            }
            cache.commit(count);
            at += count;
        }
        assert_eq!(cache.len(), 100);
        let kept = cache.layers[1].0.narrow(0, 0, 100).unwrap().flatten_all().unwrap().to_vec1::<f32>().unwrap();
        assert_eq!(kept, rows(0, 100).flatten_all().unwrap().to_vec1::<f32>().unwrap());
    }

    #[test]
    fn the_last_position_is_a_clear_error() {
        let mut cache = KvCache::new(1, 2, 3, 40, &Device::Cpu).unwrap();
        cache.reserve(39).unwrap();
        cache.commit(39);
        assert_eq!(cache.check_room(1), Ok(()));
        assert_eq!(cache.check_room(2), Err(ContextFull { wanted: 41, limit: 40 }));
        assert!(cache.reserve(2).unwrap_err().to_string().contains("max_position_embeddings"));
    }

    #[test]
    fn a_write_counts_only_after_commit() {
        let mut cache = KvCache::new(1, 2, 3, 40, &Device::Cpu).unwrap();
        cache.reserve(1).unwrap();
        cache.write(0, &rows(0, 1), &rows(0, 1)).unwrap();
        assert!(cache.is_empty());
        cache.commit(1);
        cache.clear();
        assert!(cache.is_empty());
    }
}
