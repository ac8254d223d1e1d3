//! Depthwise convolution over `[time, channels]`: every channel has its own few taps.

use super::f32_slice;
use super::math::{load_part, store_part};
use super::simd::{Kernel, LANES, Simd, dispatch};
use candle_core::{CpuStorage, CustomOp3, Device, Layout, Result, Shape, Tensor};

/// `y[t] = bias + sum_i x[t + i] * weight[i]` for `x` `[time, channels]`, `weight` `[taps, channels]` and `bias`
/// `[channels]`. Gives `[time - taps + 1, channels]`.
///
/// # Errors
/// When the shapes do not fit, or there are fewer rows than taps.
pub fn depthwise_conv(x: &Tensor, weight: &Tensor, bias: &Tensor) -> Result<Tensor> {
    let ((time, channels), (taps, width)) = (x.dims2()?, weight.dims2()?);
    if width != channels || bias.dims() != [channels] || time < taps || taps == 0 {
        candle_core::bail!(
            "depthwise convolution: x {:?}, weight {:?}, bias {:?}",
            x.dims(),
            weight.dims(),
            bias.dims()
        );
    }
    if let Device::Cpu = x.device() {
        return x.contiguous()?.apply_op3_no_bwd(weight, bias, &Depthwise);
    }
    let mut y = bias.broadcast_as((time - taps + 1, channels))?.contiguous()?;
    for tap in 0..taps {
        y = (y + x.narrow(0, tap, time - taps + 1)?.broadcast_mul(&weight.narrow(0, tap, 1)?)?)?;
    }
    Ok(y)
}

struct Depthwise;

impl CustomOp3 for Depthwise {
    fn name(&self) -> &'static str {
        "depthwise-conv"
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
        let (time, channels) = xl.shape().dims2()?;
        let rows = time + 1 - wl.dims()[0];
        let mut out = vec![0.0; rows * channels];
        dispatch(Rows { x: f32_slice(x, xl)?, weight: f32_slice(w, wl)?, bias: f32_slice(b, bl)?, out: &mut out });
        Ok((CpuStorage::F32(out), (rows, channels).into()))
    }
}

struct Rows<'a> {
    x: &'a [f32],
    weight: &'a [f32],
    bias: &'a [f32],
    out: &'a mut [f32],
}

impl Kernel for Rows<'_> {
    type Out = ();

    #[inline(always)]
    fn run<S: Simd>(self, s: S) {
        let channels = self.bias.len();
        for (t, out) in self.out.chunks_exact_mut(channels).enumerate() {
            for (c, out) in out.chunks_mut(LANES).enumerate() {
                let range = c * LANES..c * LANES + out.len();
                let mut acc = load_part(s, &self.bias[range.clone()]);
                for (tap, w) in self.weight.chunks_exact(channels).enumerate() {
                    let x = &self.x[(t + tap) * channels..][range.clone()];
                    acc = s.fma(load_part(s, x), load_part(s, &w[range.clone()]), acc);
                }
                store_part(s, acc, out);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_agrees_with_candle() {
        for channels in [1, 16, 21] {
            let numbers = |n: usize, k: usize| (0..n).map(|i| ((i * k) % 23) as f32 * 0.2 - 2.0).collect::<Vec<f32>>();
            let x = Tensor::from_vec(numbers(12 * channels, 7), (12, channels), &Device::Cpu).unwrap();
            let w = Tensor::from_vec(numbers(7 * channels, 5), (7, channels), &Device::Cpu).unwrap();
            let b = Tensor::from_vec(numbers(channels, 3), channels, &Device::Cpu).unwrap();
            let got = depthwise_conv(&x, &w, &b).unwrap();
            let torch = w.t().unwrap().unsqueeze(1).unwrap().contiguous().unwrap();
            let signal = x.t().unwrap().unsqueeze(0).unwrap().contiguous().unwrap();
            let want = signal.conv1d(&torch, 0, 1, 1, channels).unwrap().squeeze(0).unwrap().t().unwrap();
            let want = want.broadcast_add(&b).unwrap();
            assert_eq!(got.dims(), [6, channels]);
            let worst = (got - want).unwrap().abs().unwrap().max_all().unwrap().to_scalar::<f32>().unwrap();
            assert!(worst < 1e-5, "{worst}");
            assert!(depthwise_conv(&x.narrow(0, 0, 6).unwrap(), &w, &b).is_err());
        }
    }
}
