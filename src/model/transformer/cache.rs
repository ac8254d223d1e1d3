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

/// A copy of the keys and values of some positions.
#[derive(Debug)]
pub struct KvBlock {
    /// `[2 * layers, positions, kv_heads, head_dim]`: keys, then values, layer by layer.
    of_layers: Tensor,
    len: usize,
}

#[cfg(test)]
impl KvBlock {
    /// The bits of all numbers.
    pub fn bits(&self) -> Vec<u32> {
        self.of_layers.flatten_all().unwrap().to_vec1::<f32>().unwrap().into_iter().map(f32::to_bits).collect()
    }
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

    /// Bytes of the keys and values of `count` positions.
    pub fn block_bytes(&self, count: usize) -> usize {
        let of = |cached: &Tensor| cached.elem_count() / self.capacity * cached.dtype().size_in_bytes();
        self.layers.iter().map(|(keys, values)| (of(keys) + of(values)) * count).sum()
    }

    /// A copy of the keys and values of `count` positions from `first` on.
    ///
    /// # Errors
    /// When they are not all cached, and what the device says.
    pub fn block(&self, first: usize, count: usize) -> Result<KvBlock> {
        let Some((keys, _)) = self.layers.first().filter(|_| first + count <= self.len) else {
            candle_core::bail!("positions {first}..{} of a cache of {}", first + count, self.len);
        };
        let (_, heads, dim) = keys.dims3()?;
        let copy = Tensor::zeros((2 * self.layers.len(), count, heads, dim), keys.dtype(), keys.device())?;
        for (at, cached) in self.layers.iter().flat_map(|(keys, values)| [keys, values]).enumerate() {
            copy.slice_set(&cached.narrow(0, first, count)?.unsqueeze(0)?, 0, at)?;
        }
        Ok(KvBlock { of_layers: copy, len: count })
    }

    /// Adds the positions of a block, as if they had been computed here.
    ///
    /// # Errors
    /// For a block of another net, when there is no room, and what the device says; the cache is then as before.
    pub fn append(&mut self, block: &KvBlock) -> Result<()> {
        if block.of_layers.dim(0)? != 2 * self.layers.len() {
            candle_core::bail!("a block of another net: {:?}", block.of_layers.dims());
        }
        self.reserve(block.len)?;
        for (layer, (keys, values)) in self.layers.iter().enumerate() {
            keys.slice_set(&block.of_layers.get(2 * layer)?, 0, self.len)?;
            values.slice_set(&block.of_layers.get(2 * layer + 1)?, 0, self.len)?;
        }
        self.commit(block.len);
        Ok(())
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
    fn a_block_of_one_cache_continues_another() {
        let mut cache = KvCache::new(2, 2, 3, 1000, &Device::Cpu).unwrap();
        cache.reserve(40).unwrap();
        for layer in 0..2 {
            cache.write(layer, &rows(100 * layer, 40), &rows(100 * layer + 50, 40)).unwrap();
        }
        assert!(cache.block(0, 40).is_err(), "nothing is cached before it counts");
        cache.commit(40);
        let mut other = KvCache::new(2, 2, 3, 1000, &Device::Cpu).unwrap();
        for first in [0, 16] {
            other.append(&cache.block(first, 16).unwrap()).unwrap();
        }
        assert_eq!((other.len(), cache.block_bytes(16)), (32, 2 * 2 * 16 * 6 * 4));
        for (mine, others) in cache.layers.iter().zip(&other.layers) {
            for (mine, others) in [(&mine.0, &others.0), (&mine.1, &others.1)] {
                let all = |cached: &Tensor| cached.narrow(0, 0, 32).unwrap().flatten_all().unwrap().to_vec1::<f32>();
                assert_eq!(all(mine).unwrap(), all(others).unwrap());
            }
        }
        assert!(cache.block(30, 16).is_err(), "beyond what is cached");
        assert!(KvCache::new(1, 2, 3, 1000, &Device::Cpu).unwrap().append(&cache.block(0, 16).unwrap()).is_err());
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
