//! Causal convolutions that remember their last inputs.

use super::state::{HistoryPlan, Plan, Stream};
use crate::LoadError;
use crate::weights::Scope;
use candle_core::{Result, Tensor};
use omni_ops::{Linear, depthwise_conv};

/// A convolution of stride 1 that sees the past only.
pub(crate) struct CausalConv {
    layer: Linear,
    dilation: usize,
    /// Inputs before the current one that an output sees.
    past: u64,
    history: usize,
}

impl CausalConv {
    pub fn load(
        scope: &Scope<'_>,
        (inputs, outputs): (usize, usize),
        (taps, dilation): (usize, usize),
        plan: &mut Plan,
    ) -> std::result::Result<CausalConv, LoadError> {
        let scope = scope.at("conv");
        let layer =
            Linear::from_conv(&scope.get("weight", &[outputs, inputs, taps])?, Some(scope.get("bias", &[outputs])?))?;
        let past = (taps - 1) * dilation;
        let history = plan.add(HistoryPlan { rows: past, channels: inputs, trim: 0 });
        Ok(CausalConv { layer, dilation, past: past as u64, history })
    }

    /// The first correct output if the inputs are correct from row `right` on.
    pub fn right_from(&self, right: u64) -> u64 {
        right + self.past
    }

    /// `[n, inputs]` -> `[n, outputs]`.
    pub fn forward(&self, x: &Tensor, stream: &mut Stream) -> Result<Tensor> {
        self.layer.conv(&stream.histories[self.history].extend(x)?, self.dilation)
    }
}

/// A convolution of one tap, which needs no past.
pub(crate) fn load_pointwise(
    scope: &Scope<'_>,
    inputs: usize,
    outputs: usize,
) -> std::result::Result<Linear, LoadError> {
    let scope = scope.at("conv");
    Ok(Linear::from_conv(&scope.get("weight", &[outputs, inputs, 1])?, Some(scope.get("bias", &[outputs])?))?)
}

/// A causal convolution with one filter per channel.
pub(super) struct CausalDepthwise {
    /// `[taps, channels]`.
    weight: Tensor,
    bias: Tensor,
    past: u64,
    history: usize,
}

impl CausalDepthwise {
    pub fn load(
        scope: &Scope<'_>,
        channels: usize,
        taps: usize,
        plan: &mut Plan,
    ) -> std::result::Result<CausalDepthwise, LoadError> {
        let scope = scope.at("conv");
        let weight = scope.get("weight", &[channels, 1, taps])?.squeeze(1)?.t()?.force_contiguous()?;
        let bias = scope.get("bias", &[channels])?.force_contiguous()?;
        let history = plan.add(HistoryPlan { rows: taps - 1, channels, trim: 0 });
        Ok(CausalDepthwise { weight, bias, past: taps as u64 - 1, history })
    }

    /// The first correct output if the inputs are correct from row `right` on.
    pub fn right_from(&self, right: u64) -> u64 {
        right + self.past
    }

    /// `[n, channels]` -> `[n, channels]`.
    pub fn forward(&self, x: &Tensor, stream: &mut Stream) -> Result<Tensor> {
        depthwise_conv(&stream.histories[self.history].extend(x)?, &self.weight, &self.bias)
    }
}

/// A transposed convolution that gives `stride` outputs per input as soon as the input is there.
///
/// The reference trims `kernel - stride` outputs on the right of a whole sequence. These are the outputs that the next
/// input would still change, so a stream has not computed them yet. That of Qwen3-Omni trims as many on the left: they
/// are dropped once.
pub(super) struct CausalTransposedConv {
    layer: Linear,
    stride: usize,
    outputs: usize,
    trim: usize,
    /// Inputs before the current one that an output sees.
    past: u64,
    history: Option<usize>,
}

impl CausalTransposedConv {
    pub fn load(
        scope: &Scope<'_>,
        (inputs, outputs): (usize, usize),
        (kernel, stride): (usize, usize),
        plan: &mut Plan,
    ) -> std::result::Result<CausalTransposedConv, LoadError> {
        let scope = scope.at("conv");
        let weight = scope.get("weight", &[inputs, outputs, kernel])?;
        let layer = Linear::from_transposed_conv(&weight, &scope.get("bias", &[outputs])?, stride)?;
        let (rows, trim) = (kernel.div_ceil(stride) - 1, if plan.drops_start { kernel - stride } else { 0 });
        let history = (rows > 0).then(|| plan.add(HistoryPlan { rows, channels: inputs, trim }));
        Ok(CausalTransposedConv { layer, stride, outputs, trim, past: rows as u64, history })
    }

    /// Outputs in all after so many inputs.
    pub fn outputs_after(&self, inputs: u64) -> u64 {
        (inputs * self.stride as u64).saturating_sub(self.trim as u64)
    }

    /// The first correct output if the inputs are correct from row `right` on and nothing is dropped.
    pub fn right_from(&self, right: u64) -> u64 {
        (right + self.past) * self.stride as u64
    }

    /// `[n, inputs]` -> `[n * stride, outputs]`, fewer at the start of a stream; `None` instead of no rows.
    pub fn forward(&self, x: &Tensor, stream: &mut Stream) -> Result<Option<Tensor>> {
        let rows = x.dim(0)? * self.stride;
        let Some(history) = self.history.map(|i| &mut stream.histories[i]) else {
            return self.layer.forward(x)?.reshape((rows, self.outputs)).map(Some);
        };
        let y = self.layer.conv(&history.extend(x)?, 1)?.reshape((rows, self.outputs))?;
        let drop = history.trim.min(rows);
        history.trim -= drop;
        if drop == rows { Ok(None) } else { y.narrow(0, drop, rows - drop).map(Some) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use candle_core::Device;

    /// Kernel 4, stride 2, one channel in and out.
    fn doubling(plan: &mut Plan) -> CausalTransposedConv {
        let weight = Tensor::new(&[[[1f32, 2., 3., 4.]]], &Device::Cpu).unwrap();
        let bias = Tensor::new(&[0.5f32], &Device::Cpu).unwrap();
        let layer = Linear::from_transposed_conv(&weight, &bias, 2).unwrap();
        let history = plan.add(HistoryPlan { rows: 1, channels: 1, trim: 2 });
        CausalTransposedConv { layer, stride: 2, outputs: 1, trim: 2, past: 1, history: Some(history) }
    }

    #[test]
    fn the_start_of_a_stream_is_trimmed_once_even_if_nothing_is_left() {
        let mut plan = Plan::empty();
        let conv = doubling(&mut plan);
        let mut stream = plan.stream(&Device::Cpu).unwrap();
        let mut feed = |x: &[f32]| {
            let y = conv.forward(&Tensor::from_slice(x, (x.len(), 1), &Device::Cpu).unwrap(), &mut stream).unwrap();
            y.map(|y| y.flatten_all().unwrap().to_vec1::<f32>().unwrap())
        };
        assert_eq!(feed(&[1.0]), None);
        assert_eq!(feed(&[10.0]), Some(vec![13.5, 24.5]));
        assert_eq!(feed(&[0.0, 1.0]), Some(vec![30.5, 40.5, 1.5, 2.5]));
        assert_eq!([0, 1, 2, 4].map(|n| conv.outputs_after(n)), [0, 0, 2, 6]);
    }
}
