//! Activations that are worth fusing.

use super::f32_slice;
use super::math::{exp, load_part, sin_squared, store_part};
use super::simd::{Kernel, LANES, Simd, dispatch};
use candle_core::{CpuStorage, CustomOp1, CustomOp3, D, Device, Layout, Result, Shape, Tensor};

/// The gate of a SwiGLU: `silu(gate) * up` of `[..., 2n]`, gate in the first half, up in the second, as one stacked
/// linear layer gives them. Gives `[..., n]`.
///
/// # Errors
/// When the last dimension is odd.
pub fn silu_mul(gate_up: &Tensor) -> Result<Tensor> {
    match gate_up.device() {
        Device::Cpu => gate_up.contiguous()?.apply_op1_no_bwd(&SiluMul),
        _ => {
            let n = gate_up.dim(D::Minus1)? / 2;
            gate_up.narrow(D::Minus1, 0, n)?.silu()? * gate_up.narrow(D::Minus1, n, n)?
        }
    }
}

/// Snake, `x + sin(a x)^2 * b` for `[T, channels]` with `a` and `b` `[channels]`.
///
/// # Errors
/// When `a` or `b` are not as wide as the last dimension.
pub fn snake(x: &Tensor, a: &Tensor, b: &Tensor) -> Result<Tensor> {
    match x.device() {
        Device::Cpu => x.contiguous()?.apply_op3_no_bwd(a, b, &Snake),
        _ => x + x.broadcast_mul(a)?.sin()?.sqr()?.broadcast_mul(b)?,
    }
}

/// ELU: `x` where it is positive, `e^x - 1` elsewhere.
///
/// # Errors
/// When the device refuses.
pub fn elu(x: &Tensor) -> Result<Tensor> {
    match x.device() {
        Device::Cpu => x.contiguous()?.apply_op1_no_bwd(&Elu),
        _ => x.elu(1.0),
    }
}

struct Elu;

impl CustomOp1 for Elu {
    fn name(&self) -> &'static str {
        "elu"
    }

    fn cpu_fwd(&self, storage: &CpuStorage, layout: &Layout) -> Result<(CpuStorage, Shape)> {
        let x = f32_slice(storage, layout)?;
        let mut out = vec![0.0; x.len()];
        dispatch(EluAll { x, out: &mut out });
        Ok((CpuStorage::F32(out), layout.shape().clone()))
    }
}

struct EluAll<'a> {
    x: &'a [f32],
    out: &'a mut [f32],
}

impl Kernel for EluAll<'_> {
    type Out = ();

    #[inline(always)]
    fn run<S: Simd>(self, s: S) {
        let (zero, one) = (s.splat(0.0), s.splat(1.0));
        for (x, out) in self.x.chunks(LANES).zip(self.out.chunks_mut(LANES)) {
            let x = load_part(s, x);
            // One of the two is zero.
            let below = s.sub(exp(s, s.min(x, zero)), one);
            store_part(s, s.add(s.max(x, zero), below), out);
        }
    }
}

struct SiluMul;

impl CustomOp1 for SiluMul {
    fn name(&self) -> &'static str {
        "silu-mul"
    }

    fn cpu_fwd(&self, storage: &CpuStorage, layout: &Layout) -> Result<(CpuStorage, Shape)> {
        let mut dims = layout.dims().to_vec();
        let Some(width) = dims.last_mut().filter(|n| **n % 2 == 0 && **n > 0) else {
            candle_core::bail!("silu_mul: gate and up have equal widths, got {dims:?}")
        };
        *width /= 2;
        let n = *width;
        let x = f32_slice(storage, layout)?;
        let mut out = vec![0.0; x.len() / 2];
        dispatch(SiluMulRows { x, n, out: &mut out });
        Ok((CpuStorage::F32(out), dims.into()))
    }
}

struct SiluMulRows<'a> {
    x: &'a [f32],
    n: usize,
    out: &'a mut [f32],
}

impl Kernel for SiluMulRows<'_> {
    type Out = ();

    #[inline(always)]
    fn run<S: Simd>(self, s: S) {
        let one = s.splat(1.0);
        for (x, out) in self.x.chunks_exact(2 * self.n).zip(self.out.chunks_exact_mut(self.n)) {
            let (gate, up) = x.split_at(self.n);
            for ((gate, up), out) in gate.chunks(LANES).zip(up.chunks(LANES)).zip(out.chunks_mut(LANES)) {
                let (g, u) = (load_part(s, gate), load_part(s, up));
                let e = exp(s, s.sub(s.splat(0.0), g));
                store_part(s, s.mul(s.div(g, s.add(one, e)), u), out);
            }
        }
    }
}

struct Snake;

impl CustomOp3 for Snake {
    fn name(&self) -> &'static str {
        "snake"
    }

    fn cpu_fwd(
        &self,
        x: &CpuStorage,
        xl: &Layout,
        a: &CpuStorage,
        al: &Layout,
        b: &CpuStorage,
        bl: &Layout,
    ) -> Result<(CpuStorage, Shape)> {
        let (x, a, b) = (f32_slice(x, xl)?, f32_slice(a, al)?, f32_slice(b, bl)?);
        if xl.dims().last() != Some(&a.len()) || a.len() != b.len() || a.is_empty() {
            candle_core::bail!("snake: {} and {} coefficients for {:?}", a.len(), b.len(), xl.shape());
        }
        let mut out = vec![0.0; x.len()];
        dispatch(SnakeRows { x, a, b, out: &mut out });
        Ok((CpuStorage::F32(out), xl.shape().clone()))
    }
}

struct SnakeRows<'a> {
    x: &'a [f32],
    a: &'a [f32],
    b: &'a [f32],
    out: &'a mut [f32],
}

impl Kernel for SnakeRows<'_> {
    type Out = ();

    #[inline(always)]
    fn run<S: Simd>(self, s: S) {
        // Coefficients repeated to whole vectors: 24 channels are three vectors for two rows.
        let width = self.a.len();
        let period = width / gcd(width, LANES) * LANES;
        let spread = |c: &[f32]| -> Vec<f32> { c.iter().copied().cycle().take(period).collect() };
        let (a, b) = (spread(self.a), spread(self.b));
        for (x, out) in self.x.chunks(period).zip(self.out.chunks_mut(period)) {
            let coefficients = a.as_chunks::<LANES>().0.iter().zip(b.as_chunks::<LANES>().0);
            for ((x, out), (a, b)) in x.chunks(LANES).zip(out.chunks_mut(LANES)).zip(coefficients) {
                let x = load_part(s, x);
                let wave = sin_squared(s, s.mul(x, s.load(a)));
                store_part(s, s.fma(wave, s.load(b), x), out);
            }
        }
    }
}

fn gcd(a: usize, b: usize) -> usize {
    if b == 0 { a } else { gcd(b, a % b) }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rows(width: usize) -> Tensor {
        let data: Vec<f32> = (0..5 * width).map(|i| ((i * 31) % 17) as f32 * 0.7 - 5.0).collect();
        Tensor::from_vec(data, (5, width), &Device::Cpu).unwrap()
    }

    fn flat(t: &Tensor) -> Vec<f32> {
        t.flatten_all().unwrap().to_vec1().unwrap()
    }

    #[test]
    fn silu_mul_agrees_with_the_formula() {
        for n in [1, 16, 23] {
            let got = flat(&silu_mul(&rows(2 * n)).unwrap());
            for (x, got) in flat(&rows(2 * n)).chunks(2 * n).zip(got.chunks(n)) {
                for c in 0..n {
                    let want = x[c] / (1.0 + (-x[c]).exp()) * x[n + c];
                    assert!((got[c] - want).abs() < 1e-5, "{}, not {want}", got[c]);
                }
            }
        }
        assert!(silu_mul(&rows(3)).is_err());
    }

    #[test]
    fn elu_agrees_with_the_formula() {
        for n in [1, 16, 23] {
            for (x, got) in flat(&rows(n)).iter().zip(flat(&elu(&rows(n)).unwrap())) {
                let want = if *x > 0.0 { *x } else { x.exp_m1() };
                assert!((got - want).abs() < 2e-7, "{got}, not {want}");
            }
        }
    }

    #[test]
    fn snake_agrees_with_the_formula() {
        for n in [1, 16, 23] {
            let (a, b) = (rows(n).get(1).unwrap(), rows(n).get(3).unwrap());
            let got = flat(&snake(&rows(n), &a, &b).unwrap());
            let (a, b) = (flat(&a), flat(&b));
            for (i, (x, got)) in flat(&rows(n)).iter().zip(got).enumerate() {
                let want = x + (a[i % n] * x).sin().powi(2) * b[i % n];
                assert!((got - want).abs() < 1e-5, "{got}, not {want}");
            }
        }
    }
}
