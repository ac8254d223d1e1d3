//! Normalisation over the last dimension, row by row.

use super::f32_slice;
use super::math::{dot, load_part, store_part, sum};
use super::simd::{Kernel, LANES, Simd, dispatch};
use candle_core::{CpuStorage, CustomOp2, CustomOp3, DType, Device, Layout, Result, Shape, Tensor};

/// `x / sqrt(mean(x^2) + eps) * weight` over the last dimension, computed in f32.
///
/// # Errors
/// When `weight` is not as wide as the last dimension.
pub fn rms_norm(x: &Tensor, weight: &Tensor, eps: f64) -> Result<Tensor> {
    match x.device() {
        Device::Cpu => x.contiguous()?.apply_op2_no_bwd(weight, &RmsNorm(eps as f32)),
        _ => candle_nn::ops::rms_norm(&x.contiguous()?, weight, eps as f32),
    }
}

/// `(x - mean) / sqrt(variance + eps) * weight + bias` over the last dimension, computed in f32.
///
/// # Errors
/// When `weight` or `bias` are not as wide as the last dimension.
pub fn layer_norm(x: &Tensor, weight: &Tensor, bias: &Tensor, eps: f64) -> Result<Tensor> {
    match x.device() {
        Device::Cpu => x.contiguous()?.apply_op3_no_bwd(weight, bias, &LayerNorm(eps as f32)),
        _ => {
            let wide = x.to_dtype(DType::F32)?;
            let centred = wide.broadcast_sub(&wide.mean_keepdim(candle_core::D::Minus1)?)?;
            let variance = centred.sqr()?.mean_keepdim(candle_core::D::Minus1)?;
            let unit = centred.broadcast_div(&(variance + eps)?.sqrt()?)?.to_dtype(x.dtype())?;
            unit.broadcast_mul(weight)?.broadcast_add(bias)
        }
    }
}

struct RmsNorm(f32);

impl CustomOp2 for RmsNorm {
    fn name(&self) -> &'static str {
        "rms-norm"
    }

    fn cpu_fwd(&self, x: &CpuStorage, xl: &Layout, w: &CpuStorage, wl: &Layout) -> Result<(CpuStorage, Shape)> {
        let (x, weight) = (f32_slice(x, xl)?, f32_slice(w, wl)?);
        check_width("rms_norm", xl, weight)?;
        let mut out = vec![0.0; x.len()];
        dispatch(Rows { x, weight, bias: None, eps: self.0, out: &mut out });
        Ok((CpuStorage::F32(out), xl.shape().clone()))
    }
}

struct LayerNorm(f32);

impl CustomOp3 for LayerNorm {
    fn name(&self) -> &'static str {
        "layer-norm"
    }

    fn cpu_fwd(
        &self,
        x: &CpuStorage,
        xl: &Layout,
        w: &CpuStorage,
        wl: &Layout,
        b: &CpuStorage,
        bl: &Layout,
    ) -> Result<(CpuStorage, Shape)> {
        let (x, weight, bias) = (f32_slice(x, xl)?, f32_slice(w, wl)?, f32_slice(b, bl)?);
        check_width("layer_norm", xl, weight)?;
        check_width("layer_norm", xl, bias)?;
        let mut out = vec![0.0; x.len()];
        dispatch(Rows { x, weight, bias: Some(bias), eps: self.0, out: &mut out });
        Ok((CpuStorage::F32(out), xl.shape().clone()))
    }
}

fn check_width(op: &str, x: &Layout, weight: &[f32]) -> Result<()> {
    match x.dims().last() {
        Some(width) if *width == weight.len() && *width > 0 => Ok(()),
        _ => candle_core::bail!("{op}: weight of {} elements for rows of {:?}", weight.len(), x.shape()),
    }
}

/// With a bias: layer norm; without: RMS norm.
struct Rows<'a> {
    x: &'a [f32],
    weight: &'a [f32],
    bias: Option<&'a [f32]>,
    eps: f32,
    out: &'a mut [f32],
}

impl Kernel for Rows<'_> {
    type Out = ();

    #[inline(always)]
    fn run<S: Simd>(self, s: S) {
        let width = self.weight.len();
        let zeros = s.splat(0.0);
        for (x, out) in self.x.chunks_exact(width).zip(self.out.chunks_exact_mut(width)) {
            let mean = if self.bias.is_some() { total(s, x) / width as f32 } else { 0.0 };
            let squares = if self.bias.is_some() { squares_around(s, x, mean) } else { dot(s, x, x) };
            let (mean, factor) = (s.splat(mean), s.splat(1.0 / (squares / width as f32 + self.eps).sqrt()));
            for (c, out) in out.chunks_mut(LANES).enumerate() {
                let from = c * LANES;
                let range = from..from + out.len();
                let unit = s.mul(s.sub(load_part(s, &x[range.clone()]), mean), factor);
                let bias = self.bias.map_or(zeros, |b| load_part(s, &b[range.clone()]));
                store_part(s, s.fma(unit, load_part(s, &self.weight[range]), bias), out);
            }
        }
    }
}

#[inline(always)]
fn total<S: Simd>(s: S, x: &[f32]) -> f32 {
    let mut acc = s.splat(0.0);
    for x in x.chunks(LANES) {
        acc = s.add(acc, load_part(s, x));
    }
    sum(s, acc)
}

/// Sum of (x - mean)^2; the last, shorter chunk is padded with the mean.
#[inline(always)]
fn squares_around<S: Simd>(s: S, x: &[f32], mean: f32) -> f32 {
    let mut acc = s.splat(0.0);
    let m = s.splat(mean);
    for x in x.chunks(LANES) {
        let mut padded = [mean; LANES];
        for (to, from) in padded.iter_mut().zip(x) {
            *to = *from;
        }
        let off = s.sub(s.load(&padded), m);
        acc = s.fma(off, off, acc);
    }
    sum(s, acc)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rows(width: usize) -> Tensor {
        let data: Vec<f32> = (0..5 * width).map(|i| ((i * 31) % 17) as f32 * 0.3 - 2.0).collect();
        Tensor::from_vec(data, (5, width), &Device::Cpu).unwrap()
    }

    fn flat(t: &Tensor) -> Vec<f32> {
        t.flatten_all().unwrap().to_vec1().unwrap()
    }

    #[test]
    fn the_kernels_agree_with_the_formulas() {
        for width in [1, 7, 16, 40] {
            let x = rows(width);
            let (w, b) = (rows(width).get(1).unwrap(), rows(width).get(2).unwrap());
            let (rms, layer) = (rms_norm(&x, &w, 1e-5).unwrap(), layer_norm(&x, &w, &b, 1e-6).unwrap());
            let (w, b) = (flat(&w), flat(&b));
            for (r, x) in flat(&x).chunks(width).enumerate() {
                let mean = x.iter().sum::<f32>() / width as f32;
                let square = x.iter().map(|x| x * x).sum::<f32>() / width as f32;
                let variance = x.iter().map(|x| (x - mean).powi(2)).sum::<f32>() / width as f32;
                for c in 0..width {
                    let want_rms = x[c] / (square + 1e-5).sqrt() * w[c];
                    let want_layer = (x[c] - mean) / (variance + 1e-6).sqrt() * w[c] + b[c];
                    assert!((flat(&rms)[r * width + c] - want_rms).abs() < 1e-4);
                    assert!((flat(&layer)[r * width + c] - want_layer).abs() < 1e-4);
                }
            }
        }
    }

    #[test]
    fn a_weight_of_the_wrong_width_is_refused() {
        assert!(rms_norm(&rows(8), &rows(7).get(0).unwrap(), 1e-5).is_err());
    }
}
