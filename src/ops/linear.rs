//! A linear layer, and the convolutions that are one.

use super::f32_slice;
use super::gemm::{Packed, Windows};
use candle_core::{CpuStorage, CustomOp1, CustomOp2, DType, Device, Layout, Result, Shape, Tensor};
use std::sync::Arc;

/// `y = x W^T + b`. On the CPU the weight is kept packed and every output element has the same bits whatever the number
/// of rows in a call; elsewhere it is kept as it came. Cheap to clone.
#[derive(Clone)]
pub struct Linear {
    kind: Kind,
    inputs: usize,
    outputs: usize,
}

#[derive(Clone)]
enum Kind {
    Cpu(Arc<Packed>),
    /// Weight `[out, in]`, bias and scale `[out]`.
    Device(Tensor, Option<Tensor>, Option<Tensor>),
}

impl Linear {
    /// From `weight` `[out, in]` (any float type on the CPU, where activations are f32) and `bias` `[out]`.
    ///
    /// # Errors
    /// When the shapes do not fit each other.
    pub fn new(weight: Tensor, bias: Option<Tensor>) -> Result<Linear> {
        Linear::scaled(weight, bias, None)
    }

    /// `y = scale * (x W^T + b)` with one factor per output.
    ///
    /// # Errors
    /// When the shapes do not fit each other.
    pub fn scaled(weight: Tensor, bias: Option<Tensor>, scale: Option<Tensor>) -> Result<Linear> {
        let (outputs, inputs) = weight.dims2()?;
        if outputs == 0 || inputs == 0 {
            candle_core::bail!("linear layer of {outputs} x {inputs}");
        }
        for vector in bias.iter().chain(&scale) {
            if vector.dims() != [outputs] {
                candle_core::bail!("bias or scale is {:?}, the weight has {outputs} rows", vector.dims());
            }
        }
        let kind = if matches!(weight.device(), Device::Cpu) {
            let floats = |t: Tensor| t.to_dtype(DType::F32)?.flatten_all()?.to_vec1::<f32>();
            let (bias, scale) = (bias.map(floats).transpose()?, scale.map(floats).transpose()?);
            Kind::Cpu(Arc::new(Packed::new(&floats(weight)?, (outputs, inputs), bias, scale)))
        } else {
            Kind::Device(weight, bias, scale)
        };
        Ok(Linear { kind, inputs, outputs })
    }

    /// Several layers with the same input as one, outputs in the order given: one call instead of several.
    ///
    /// # Errors
    /// When the inputs differ, or only some have a bias.
    pub fn stacked(weights: &[Tensor], biases: Option<&[Tensor]>) -> Result<Linear> {
        Linear::new(Tensor::cat(weights, 0)?, biases.map(|b| Tensor::cat(b, 0)).transpose()?)
    }

    /// A convolution over `[time, in]`, for [`Linear::conv`], from torch's `[out, in, taps]`.
    ///
    /// # Errors
    /// When the shapes do not fit each other.
    pub fn from_conv(weight: &Tensor, bias: Option<Tensor>) -> Result<Linear> {
        let (outputs, channels, taps) = weight.dims3()?;
        Linear::new(weight.transpose(1, 2)?.contiguous()?.reshape((outputs, taps * channels))?, bias)
    }

    /// A transposed convolution of the given stride over `[time, in]`, from torch's `[in, out, kernel]`, as a
    /// convolution of `ceil(kernel / stride)` taps whose output row is `stride` consecutive time steps: apply
    /// [`Linear::conv`], then reshape `[t, stride * out]` to `[t * stride, out]`. The first row needs `taps - 1` rows of
    /// history (zeros at the start of a stream).
    ///
    /// # Errors
    /// When the shapes do not fit each other.
    pub fn from_transposed_conv(weight: &Tensor, bias: &Tensor, stride: usize) -> Result<Linear> {
        let (channels, outputs, kernel) = weight.dims3()?;
        let taps = kernel.div_ceil(stride);
        // y[t * stride + p] = sum_j x[t - j] w[p + j * stride]; tap i reads x[t - (taps - 1 - i)].
        let padded = weight.pad_with_zeros(2, 0, taps * stride - kernel)?;
        let taps_of = (0..taps).rev().map(|j| padded.narrow(2, j * stride, stride)?.permute((2, 1, 0))?.unsqueeze(2));
        let stacked = Tensor::cat(&taps_of.collect::<Result<Vec<_>>>()?, 2)?; // [stride, out, taps, in]
        let weight = stacked.contiguous()?.reshape((stride * outputs, taps * channels))?;
        Linear::new(weight, Some(bias.repeat(stride)?))
    }

    /// Width of the input; for a convolution, taps times channels.
    pub fn inputs(&self) -> usize {
        self.inputs
    }

    /// Width of the output.
    pub fn outputs(&self) -> usize {
        self.outputs
    }

    /// `[..., in]` -> `[..., out]`.
    ///
    /// # Errors
    /// When the last dimension is not `in`, or on the CPU the type is not f32.
    pub fn forward(&self, x: &Tensor) -> Result<Tensor> {
        self.rows_of(x, None)
    }

    /// `residual + forward(x)`, `residual` being `[..., out]`, in one pass on the CPU.
    ///
    /// # Errors
    /// Those of [`Linear::forward`], and when `residual` has another shape.
    pub fn forward_add(&self, x: &Tensor, residual: &Tensor) -> Result<Tensor> {
        self.rows_of(x, Some(residual))
    }

    fn rows_of(&self, x: &Tensor, residual: Option<&Tensor>) -> Result<Tensor> {
        let mut dims = x.dims().to_vec();
        match dims.last_mut() {
            Some(last) if *last == self.inputs => *last = self.outputs,
            _ => candle_core::bail!("linear layer of {} inputs got {:?}", self.inputs, x.dims()),
        }
        if let Some(r) = residual.filter(|r| r.dims() != dims) {
            candle_core::bail!("residual {:?} for a result {dims:?}", r.dims());
        }
        let rows = x.elem_count() / self.inputs;
        match &self.kind {
            Kind::Cpu(packed) => {
                let op = Product { packed, windows: Windows::rows(rows, self.inputs), shape: dims.into() };
                match residual {
                    Some(r) => x.contiguous()?.apply_op2_no_bwd(&r.contiguous()?, &op),
                    None => x.contiguous()?.apply_op1_no_bwd(&op),
                }
            }
            Kind::Device(..) => {
                let y = self.on_device(&x.reshape((rows, self.inputs))?)?.reshape(dims)?;
                residual.map_or(Ok(y.clone()), |r| r + y)
            }
        }
    }

    /// A convolution without padding over `[time, channels]`, taps `dilation` rows apart, giving
    /// `[time - (taps - 1) * dilation, out]`, where `taps = in / channels`.
    ///
    /// # Errors
    /// When the channels do not divide the inputs, or there are fewer rows than one output needs.
    pub fn conv(&self, x: &Tensor, dilation: usize) -> Result<Tensor> {
        let (time, channels) = x.dims2()?;
        let taps = self.inputs / channels.max(1);
        let Some(rows) =
            time.checked_sub(taps.saturating_sub(1) * dilation).filter(|n| *n > 0 && taps * channels == self.inputs)
        else {
            candle_core::bail!("convolution of {} inputs, dilation {dilation}, got {:?}", self.inputs, x.dims())
        };
        match &self.kind {
            Kind::Cpu(packed) => {
                let windows = Windows { rows, step: channels, taps, tap_step: dilation * channels, width: channels };
                x.contiguous()?.apply_op1_no_bwd(&Product { packed, windows, shape: (rows, self.outputs).into() })
            }
            Kind::Device(..) => {
                let taps: Vec<Tensor> = (0..taps).map(|t| x.narrow(0, t * dilation, rows)).collect::<Result<_>>()?;
                self.on_device(&Tensor::cat(&taps, 1)?)
            }
        }
    }

    /// `[rows, in]` -> `[rows, out]` with the device's own product.
    fn on_device(&self, x: &Tensor) -> Result<Tensor> {
        let Kind::Device(weight, bias, scale) = &self.kind else {
            candle_core::bail!("packed weights are for the cpu")
        };
        let mut y = x.matmul(&weight.t()?)?;
        if let Some(b) = bias {
            y = y.broadcast_add(b)?;
        }
        match scale {
            Some(s) => y.broadcast_mul(s),
            None => Ok(y),
        }
    }
}

/// The product of one call.
struct Product<'a> {
    packed: &'a Packed,
    windows: Windows,
    shape: Shape,
}

impl CustomOp1 for Product<'_> {
    fn name(&self) -> &'static str {
        "packed-linear"
    }

    fn cpu_fwd(&self, storage: &CpuStorage, layout: &Layout) -> Result<(CpuStorage, Shape)> {
        let out = self.packed.product(f32_slice(storage, layout)?, self.windows, None);
        Ok((CpuStorage::F32(out), self.shape.clone()))
    }
}

impl CustomOp2 for Product<'_> {
    fn name(&self) -> &'static str {
        "packed-linear-add"
    }

    fn cpu_fwd(&self, x: &CpuStorage, xl: &Layout, r: &CpuStorage, rl: &Layout) -> Result<(CpuStorage, Shape)> {
        let out = self.packed.product(f32_slice(x, xl)?, self.windows, Some(f32_slice(r, rl)?));
        Ok((CpuStorage::F32(out), self.shape.clone()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// Repeatable numbers in [-1, 1).
    fn numbers(n: usize, seed: u64) -> Vec<f32> {
        let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
        (0..n)
            .map(|_| {
                state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
                (state >> 40) as f32 / (1u64 << 23) as f32 - 1.0
            })
            .collect()
    }

    fn tensor(shape: impl Into<Shape>, seed: u64) -> Tensor {
        let shape = shape.into();
        Tensor::from_vec(numbers(shape.elem_count(), seed), shape, &Device::Cpu).unwrap()
    }

    fn bf16_exact(t: &Tensor) -> Tensor {
        t.to_dtype(DType::BF16).unwrap().to_dtype(DType::F32).unwrap()
    }

    fn flat(t: &Tensor) -> Vec<f32> {
        t.flatten_all().unwrap().to_vec1().unwrap()
    }

    fn assert_close(got: &Tensor, want: &Tensor, tolerance: f32) {
        assert_eq!(got.dims(), want.dims());
        let scale = flat(want).iter().fold(1f32, |a, x| a.max(x.abs()));
        for (i, (g, w)) in flat(got).iter().zip(flat(want)).enumerate() {
            assert!((g - w).abs() <= tolerance * scale, "element {i}: {g}, not {w}");
        }
    }

    /// The same layer as other devices compute it.
    fn plain(weight: &Tensor, bias: Option<&Tensor>, scale: Option<&Tensor>) -> Linear {
        let (outputs, inputs) = weight.dims2().unwrap();
        Linear { kind: Kind::Device(weight.clone(), bias.cloned(), scale.cloned()), inputs, outputs }
    }

    proptest! {
        #[test]
        fn the_packed_product_agrees_with_the_plain_one(
            rows in 1usize..40, inputs in 1usize..130, outputs in 1usize..100, bf16: bool, extras: bool, seed: u64,
        ) {
            let (x, mut w) = (tensor((rows, inputs), seed), tensor((outputs, inputs), seed ^ 1));
            if bf16 {
                w = bf16_exact(&w);
            }
            let (bias, scale) = (extras.then(|| tensor(outputs, seed ^ 2)), extras.then(|| tensor(outputs, seed ^ 3)));
            let got = Linear::scaled(w.clone(), bias.clone(), scale.clone()).unwrap();
            let want = plain(&w, bias.as_ref(), scale.as_ref());
            assert_close(&got.forward(&x).unwrap(), &want.forward(&x).unwrap(), 1e-5);
            let residual = tensor((rows, outputs), seed ^ 4);
            let (got, want) = (got.forward_add(&x, &residual).unwrap(), want.forward_add(&x, &residual).unwrap());
            assert_close(&got, &want, 1e-5);
        }

        #[test]
        fn a_packed_convolution_agrees_with_the_plain_one(
            time in 1usize..30, channels in 1usize..20, outputs in 1usize..40, taps in 1usize..5, dilation in 1usize..4,
            seed: u64,
        ) {
            let x = tensor((time + (taps - 1) * dilation, channels), seed);
            let w = tensor((outputs, channels, taps), seed ^ 1);
            let got = Linear::from_conv(&w, None).unwrap().conv(&x, dilation).unwrap();
            let signal = x.t().unwrap().unsqueeze(0).unwrap();
            let want = signal.conv1d(&w, 0, 1, dilation, 1).unwrap().squeeze(0).unwrap().t().unwrap();
            assert_close(&got, &want, 1e-5);
            let rows = w.transpose(1, 2).unwrap().reshape((outputs, taps * channels)).unwrap();
            assert_close(&plain(&rows, None, None).conv(&x, dilation).unwrap(), &want, 1e-5);
        }

        #[test]
        fn a_transposed_convolution_agrees_with_candle(
            time in 1usize..12, channels in 1usize..20, outputs in 1usize..20, stride in 1usize..6, extra in 0usize..8,
            seed: u64,
        ) {
            let kernel = stride + extra;
            let (x, w, b) =
                (tensor((time, channels), seed), tensor((channels, outputs, kernel), seed ^ 1), tensor(outputs, 3));
            let layer = Linear::from_transposed_conv(&w, &b, stride).unwrap();
            let taps = kernel.div_ceil(stride);
            let got = layer.conv(&x.pad_with_zeros(0, taps - 1, 0).unwrap(), 1).unwrap();
            let got = got.reshape((time * stride, outputs)).unwrap();
            let signal = x.t().unwrap().unsqueeze(0).unwrap().contiguous().unwrap();
            let want = signal.conv_transpose1d(&w, 0, 0, stride, 1, 1).unwrap().squeeze(0).unwrap().t().unwrap();
            let want = want.narrow(0, 0, time * stride).unwrap().broadcast_add(&b).unwrap();
            assert_close(&got, &want, 1e-5);
        }
    }

    #[test]
    fn a_row_has_the_same_bits_whatever_stands_beside_it() {
        for (inputs, outputs) in [(64, 64), (33, 70), (257, 16), (100, 1)] {
            let w = tensor((outputs, inputs), 7);
            for w in [bf16_exact(&w), w] {
                let layer = Linear::new(w, Some(tensor(outputs, 8))).unwrap();
                let x = tensor((17, inputs), 9);
                let alone: Vec<f32> =
                    (0..17).flat_map(|r| flat(&layer.forward(&x.narrow(0, r, 1).unwrap()).unwrap())).collect();
                for rows in 1..=17 {
                    let together = flat(&layer.forward(&x.narrow(0, 0, rows).unwrap()).unwrap());
                    assert_eq!(together, alone[..rows * outputs], "{rows} rows of {inputs} x {outputs}");
                }
            }
        }
    }

    #[test]
    fn wrong_widths_are_refused() {
        let layer = Linear::new(tensor((4, 6), 1), None).unwrap();
        assert!(layer.forward(&tensor((2, 5), 1)).is_err());
        assert!(layer.conv(&tensor((2, 4), 1), 1).is_err());
        assert!(layer.conv(&tensor((2, 2), 1), 1).is_err());
        assert!(layer.forward_add(&tensor((2, 6), 1), &tensor((1, 4), 1)).is_err());
        assert!(Linear::new(tensor((4, 6), 1), Some(tensor(5, 1))).is_err());
    }
}
