//! Samples to positions of the transformer: causal convolutions, each downsampling behind residual blocks.

use crate::LoadError;
use crate::hf::CodecEncoderConfig;
use crate::vocoder::{CausalConv, HistoryPlan, Plan, Stream, load_pointwise};
use crate::weights::Scope;
use candle_core::{Device, Result, Tensor};
use omni_ops::{Linear, elu};

type Loaded<T> = std::result::Result<T, LoadError>;

/// Positions that go through the convolutions together: 0.4 s. What lies between two layers then takes megabytes.
const POSITIONS_AT_ONCE: usize = 10;

pub(super) struct SeaNet {
    first: CausalConv,
    stages: Vec<Stage>,
    last: CausalConv,
    plan: Plan,
    hop: usize,
}

struct Stage {
    blocks: Vec<Block>,
    down: StridedConv,
}

impl SeaNet {
    pub fn load(scope: &Scope<'_>, config: &CodecEncoderConfig) -> Loaded<SeaNet> {
        let layers = scope.at("layers");
        let mut plan = Plan::empty();
        let mut channels = config.num_filters;
        let first = CausalConv::load(&layers.at(0), (1, channels), (config.kernel_size, 1), &mut plan)?;
        // Activations take an index in the checkpoint's list of layers, as convolutions do.
        let mut number = 1;
        let mut stages = Vec::new();
        for stride in config.upsampling_ratios.iter().rev() {
            let mut blocks = Vec::new();
            for i in 0..config.num_residual_layers {
                let dilation = config.dilation_growth_rate.pow(i as u32);
                blocks.push(Block::load(&layers.at(number), channels, dilation, config, &mut plan)?);
                number += 1;
            }
            let down = StridedConv::load(&layers.at(number + 1), (channels, 2 * channels), *stride, &mut plan)?;
            stages.push(Stage { blocks, down });
            number += 2;
            channels *= 2;
        }
        let hidden = config.transformer.hidden_size;
        let taps = (config.last_kernel_size, 1);
        let last = CausalConv::load(&layers.at(number + 1), (channels, hidden), taps, &mut plan)?;
        Ok(SeaNet { first, stages, last, plan, hop: config.hop() })
    }

    /// `[samples]` -> `[ceil(samples / hop), hidden]`.
    pub fn forward(&self, pcm: &[f32], device: &Device) -> Result<Tensor> {
        self.forward_in(pcm, POSITIONS_AT_ONCE, device)
    }

    /// [`SeaNet::forward`] in pieces of so many positions. The result does not depend on it.
    fn forward_in(&self, pcm: &[f32], positions: usize, device: &Device) -> Result<Tensor> {
        let mut stream = self.plan.stream(device)?;
        let pieces = pcm.chunks(positions * self.hop).map(|piece| {
            let mut x = self.first.forward(&Tensor::from_slice(piece, (piece.len(), 1), device)?, &mut stream)?;
            for stage in &self.stages {
                for block in &stage.blocks {
                    x = block.forward(&x, &mut stream)?;
                }
                x = stage.down.forward(&elu(&x)?, &mut stream)?;
            }
            self.last.forward(&elu(&x)?, &mut stream)
        });
        Tensor::cat(&pieces.collect::<Result<Vec<_>>>()?, 0)
    }
}

/// `x + point(elu(wide(elu(x))))`, narrower in between.
struct Block {
    wide: CausalConv,
    point: Linear,
}

impl Block {
    fn load(
        scope: &Scope<'_>,
        channels: usize,
        dilation: usize,
        config: &CodecEncoderConfig,
        plan: &mut Plan,
    ) -> Loaded<Block> {
        let (scope, inner) = (scope.at("block"), channels / config.compress);
        let taps = (config.residual_kernel_size, dilation);
        Ok(Block {
            wide: CausalConv::load(&scope.at(1), (channels, inner), taps, plan)?,
            point: load_pointwise(&scope.at(3), inner, channels)?,
        })
    }

    fn forward(&self, x: &Tensor, stream: &mut Stream) -> Result<Tensor> {
        let h = self.wide.forward(&elu(x)?, stream)?;
        self.point.forward_add(&elu(&h)?, x)
    }
}

/// A causal convolution that gives one output for `stride` inputs and sees twice as many.
struct StridedConv {
    layer: Linear,
    stride: usize,
    history: usize,
}

impl StridedConv {
    fn load(
        scope: &Scope<'_>,
        (inputs, outputs): (usize, usize),
        stride: usize,
        plan: &mut Plan,
    ) -> Loaded<StridedConv> {
        let scope = scope.at("conv");
        let weight = scope.get("weight", &[outputs, inputs, 2 * stride])?;
        let layer = Linear::from_conv(&weight, Some(scope.get("bias", &[outputs])?))?;
        let history = plan.add(HistoryPlan { rows: stride, channels: inputs, trim: 0 });
        Ok(StridedConv { layer, stride, history })
    }

    /// `[n, inputs]` -> `[ceil(n / stride), outputs]`; only the last piece of a stream may have an `n` that is no
    /// multiple, and the zeros behind it are the reference's.
    fn forward(&self, x: &Tensor, stream: &mut Stream) -> Result<Tensor> {
        let n = x.dim(0)?;
        let whole = x.pad_with_zeros(0, 0, n.next_multiple_of(self.stride) - n)?;
        strided(&self.layer, &stream.extend(self.history, &whole)?, self.stride)
    }
}

/// A convolution of stride `stride` over rows of a multiple of it, and with a multiple of taps: one of stride 1 over
/// rows that are `stride` times as wide.
pub(super) fn strided(layer: &Linear, x: &Tensor, stride: usize) -> Result<Tensor> {
    let (rows, width) = x.dims2()?;
    layer.conv(&x.reshape((rows / stride, stride * width))?, 1)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Checkpoint;
    use std::path::Path;

    #[test]
    fn a_clip_has_the_same_bits_however_it_is_cut_and_as_many_positions_as_begin_in_it() {
        let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/fixtures/qwen3_tts/base");
        let checkpoint = Checkpoint::open(&folder).unwrap();
        let config = &checkpoint.tts().unwrap().codec.encoder;
        let loader = checkpoint.codec_loader(&[], &Device::Cpu).unwrap();
        let net = SeaNet::load(&loader.scope("encoder").at("encoder"), config).unwrap();
        loader.finish().unwrap();
        let flat = |t: Tensor| t.flatten_all().unwrap().to_vec1::<f32>().unwrap();
        for samples in [1usize, 959, 960, 961, 5_000, 30_480] {
            let pcm: Vec<f32> = (0..samples).map(|i| ((i * 37) % 101) as f32 / 101.0 - 0.5).collect();
            let whole = net.forward_in(&pcm, 100, &Device::Cpu).unwrap();
            assert_eq!(whole.dims(), [samples.div_ceil(960), config.transformer.hidden_size]);
            let whole = flat(whole);
            for positions in [1, 3, 10] {
                let pieces = flat(net.forward_in(&pcm, positions, &Device::Cpu).unwrap());
                assert_eq!(pieces, whole, "{samples} samples, {positions} positions at once");
            }
        }
    }
}
