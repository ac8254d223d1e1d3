//! Rotary position embedding, half-split: element `j` of a head turns with element `j + d/2`.

use super::f32_slice;
use candle_core::{CpuStorage, CustomOp1, Device, Layout, Result, Shape, Tensor};

/// The frequencies `theta^(-2j/d)` of heads of width `d`.
#[derive(Clone, Debug)]
pub struct Rope {
    frequencies: Vec<f32>,
    device: Device,
}

impl Rope {
    /// For heads of `head_dim` (even) on a device.
    ///
    /// # Errors
    /// When `head_dim` is odd.
    pub fn new(head_dim: usize, theta: f64, device: &Device) -> Result<Rope> {
        Ok(Rope { frequencies: frequencies(head_dim, theta)?, device: device.clone() })
    }

    /// The turns of some positions, to be applied in every layer of a step.
    ///
    /// # Errors
    /// When the device refuses.
    pub fn at(&self, positions: &[u32]) -> Result<Angles> {
        let turns = |f: fn(f32) -> f32| -> Vec<f32> {
            positions.iter().flat_map(|p| self.frequencies.iter().map(move |w| f(*p as f32 * w))).collect()
        };
        let shape = (positions.len(), self.frequencies.len());
        if matches!(self.device, Device::Cpu) {
            return Ok(Angles::Cpu { cos: turns(f32::cos), sin: turns(f32::sin), half: shape.1 });
        }
        let table = |f| Tensor::from_vec(turns(f), shape, &self.device);
        Ok(Angles::Device { cos: table(f32::cos)?, sin: table(f32::sin)? })
    }

    /// Turns `x` `[T, heads, d]`, row `t` at `positions[t]`.
    ///
    /// # Errors
    /// When the shapes do not fit.
    pub fn apply(&self, x: &Tensor, positions: &[u32]) -> Result<Tensor> {
        self.at(positions)?.apply(x)
    }
}

/// `theta^(-2j/d)` for each pair of a head.
pub(super) fn frequencies(head_dim: usize, theta: f64) -> Result<Vec<f32>> {
    if !head_dim.is_multiple_of(2) {
        candle_core::bail!("rotary embedding needs an even head_dim, got {head_dim}");
    }
    // As the reference: the exponent and the power in f32.
    let frequency = |j: usize| 1.0 / (theta as f32).powf((2 * j) as f32 / head_dim as f32);
    Ok((0..head_dim / 2).map(frequency).collect())
}

/// Sines and cosines `[T, d/2]` of some positions.
#[derive(Clone, Debug)]
pub enum Angles {
    /// For our own kernel.
    Cpu {
        /// Cosines, row after row.
        cos: Vec<f32>,
        /// Sines, row after row.
        sin: Vec<f32>,
        /// Row width.
        half: usize,
    },
    /// For candle's operations.
    Device {
        /// Cosines.
        cos: Tensor,
        /// Sines.
        sin: Tensor,
    },
}

impl Angles {
    /// Those of `len` positions from the one with the number `start` on.
    ///
    /// # Errors
    /// When there are not so many.
    pub fn narrow(&self, start: usize, len: usize) -> Result<Angles> {
        match self {
            Angles::Cpu { cos, sin, half } => {
                let of = |table: &[f32]| table.get(start * half..(start + len) * half).map(<[f32]>::to_vec);
                match (of(cos), of(sin)) {
                    (Some(cos), Some(sin)) => Ok(Angles::Cpu { cos, sin, half: *half }),
                    _ => candle_core::bail!("rope: there are no positions {start}..{}", start + len),
                }
            }
            Angles::Device { cos, sin } => {
                Ok(Angles::Device { cos: cos.narrow(0, start, len)?, sin: sin.narrow(0, start, len)? })
            }
        }
    }

    /// Turns `x` `[T, heads, d]`.
    ///
    /// # Errors
    /// When the shapes do not fit.
    pub fn apply(&self, x: &Tensor) -> Result<Tensor> {
        match self {
            Angles::Cpu { .. } => x.contiguous()?.apply_op1_no_bwd(self),
            Angles::Device { cos, sin } => {
                let half = x.dim(2)? / 2;
                let (cos, sin) = (cos.to_dtype(x.dtype())?.unsqueeze(1)?, sin.to_dtype(x.dtype())?.unsqueeze(1)?);
                let (a, b) = (x.narrow(2, 0, half)?, x.narrow(2, half, half)?);
                let first = (a.broadcast_mul(&cos)? - b.broadcast_mul(&sin)?)?;
                let second = (b.broadcast_mul(&cos)? + a.broadcast_mul(&sin)?)?;
                Tensor::cat(&[first, second], 2)
            }
        }
    }
}

impl CustomOp1 for Angles {
    fn name(&self) -> &'static str {
        "rope"
    }

    fn cpu_fwd(&self, storage: &CpuStorage, layout: &Layout) -> Result<(CpuStorage, Shape)> {
        let Angles::Cpu { cos, sin, half } = self else { candle_core::bail!("rope: angles are not on the cpu") };
        let (t, heads, d) = layout.shape().dims3()?;
        if d != 2 * half || t * half != cos.len() {
            candle_core::bail!(
                "rope: {} positions of head_dim {}, got {:?}",
                cos.len() / half,
                2 * half,
                layout.shape()
            );
        }
        let mut out = f32_slice(storage, layout)?.to_vec();
        for ((row, cos), sin) in
            out.chunks_exact_mut(heads * d).zip(cos.chunks_exact(*half)).zip(sin.chunks_exact(*half))
        {
            for head in row.chunks_exact_mut(d) {
                let (a, b) = head.split_at_mut(*half);
                for (((a, b), cos), sin) in a.iter_mut().zip(b).zip(cos).zip(sin) {
                    (*a, *b) = (*a * cos - *b * sin, *b * cos + *a * sin);
                }
            }
        }
        Ok((CpuStorage::F32(out), layout.shape().clone()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_kernel_agrees_with_plain_operations() {
        let data: Vec<f32> = (0..3 * 2 * 8).map(|i| i as f32 * 0.1 - 2.0).collect();
        let x = Tensor::from_vec(data, (3, 2, 8), &Device::Cpu).unwrap();
        let angles = Rope::new(8, 1e4, &Device::Cpu).unwrap().at(&[5, 900, 12_345]).unwrap();
        let Angles::Cpu { cos, sin, half } = &angles else { unreachable!() };
        let table = |t: &Vec<f32>| Tensor::from_slice(t, (3, *half), &Device::Cpu).unwrap();
        let plain = Angles::Device { cos: table(cos), sin: table(sin) };
        let flat = |t: Tensor| t.flatten_all().unwrap().to_vec1::<f32>().unwrap();
        for (g, w) in flat(angles.apply(&x).unwrap()).iter().zip(flat(plain.apply(&x).unwrap())) {
            assert!((g - w).abs() < 1e-6, "{g}, not {w}");
        }
    }

    #[test]
    fn position_zero_changes_nothing_and_scores_depend_on_distance_only() {
        let x =
            Tensor::from_vec((0..16).map(|i| (i as f32).sin()).collect::<Vec<_>>(), (1, 1, 16), &Device::Cpu).unwrap();
        let rope = Rope::new(16, 1e4, &Device::Cpu).unwrap();
        let at = |p: u32| rope.apply(&x, &[p]).unwrap().flatten_all().unwrap().to_vec1::<f32>().unwrap();
        assert_eq!(at(0), x.flatten_all().unwrap().to_vec1::<f32>().unwrap());
        let score = |a: u32, b: u32| at(a).iter().zip(at(b)).map(|(x, y)| x * y).sum::<f32>();
        assert!((score(3, 10) - score(103, 110)).abs() < 1e-4);
    }

    #[test]
    fn positions_and_rows_must_fit() {
        let x = Tensor::zeros((2, 1, 8), candle_core::DType::F32, &Device::Cpu).unwrap();
        let rope = Rope::new(8, 1e4, &Device::Cpu).unwrap();
        assert!(rope.apply(&x, &[1]).is_err());
        assert!(Rope::new(7, 1e4, &Device::Cpu).is_err());
    }
}
