//! Frames to samples: ConvNeXt upsampling at the frame rate, then decoder blocks of Snake, transposed convolution and
//! dilated residual units.

use super::Probe;
use super::conv::{CausalConv, CausalDepthwise, CausalTransposedConv, load_pointwise};
use super::state::{Plan, Stream};
use crate::LoadError;
use crate::hf::VocoderConfig;
use crate::weights::Scope;
use candle_core::{Result, Tensor};
use omni_ops::{Linear, layer_norm, snake};

type Loaded<T> = std::result::Result<T, LoadError>;

/// Taps of every convolution that has more than one; not in the config of these models.
const TAPS: usize = 7;
/// Dilations of the residual units of a block.
const DILATIONS: [usize; 3] = [1, 3, 9];
/// Epsilon of ConvNeXt's layer norm; not in the config either.
const CONVNEXT_EPS: f64 = 1e-6;

pub(super) struct Decoder {
    upsamples: Vec<(CausalTransposedConv, ConvNext)>,
    first: CausalConv,
    blocks: Vec<Block>,
    last_snake: Snake,
    last: CausalConv,
}

impl Decoder {
    pub fn load(scope: &Scope<'_>, config: &VocoderConfig, plan: &mut Plan) -> Loaded<Decoder> {
        let (hidden, dim) = (config.latent_width(), config.decoder_dim);
        let mut upsamples = Vec::new();
        for (i, ratio) in config.upsampling_ratios.iter().enumerate() {
            let scope = scope.at("upsample").at(i);
            let up = CausalTransposedConv::load(&scope.at(0), (hidden, hidden), (*ratio, *ratio), plan)?;
            upsamples.push((up, ConvNext::load(&scope.at(1), hidden, plan)?));
        }
        let scope = scope.at("decoder");
        let first = CausalConv::load(&scope.at(0), (hidden, dim), (TAPS, 1), plan)?;
        let mut blocks = Vec::new();
        for (i, rate) in config.upsample_rates.iter().enumerate() {
            blocks.push(Block::load(&scope.at(i + 1).at("block"), dim >> i, *rate, plan)?);
        }
        let (n, channels) = (blocks.len(), dim >> blocks.len());
        let last_snake = Snake::load(&scope.at(n + 1), channels)?;
        let last = CausalConv::load(&scope.at(n + 2), (channels, 1), (TAPS, 1), plan)?;
        Ok(Decoder { upsamples, first, blocks, last_snake, last })
    }

    /// Samples in all after so many frames.
    pub fn samples(&self, frames: u64) -> u64 {
        let ups = self.upsamples.iter().map(|(up, _)| up).chain(self.blocks.iter().map(|b| &b.up));
        ups.fold(frames, |n, up| up.outputs_after(n))
    }

    /// Frames after which the state before them no longer matters: from then on, the outputs of the last layer, each of
    /// which sees some inputs back, depend on these frames alone.
    pub fn reach(&self, samples_per_frame: usize) -> u64 {
        let mut right = 0;
        for (up, convnext) in &self.upsamples {
            right = convnext.depthwise.right_from(up.right_from(right));
        }
        right = self.first.right_from(right);
        for block in &self.blocks {
            right = block.units.iter().fold(block.up.right_from(right), |right, unit| unit.wide.right_from(right));
        }
        self.last.right_from(right).div_ceil(samples_per_frame as u64)
    }

    /// `[frames, hidden]` -> `[samples, 1]`; `None` while the start of the stream is trimmed away.
    pub fn forward(&self, mut x: Tensor, stream: &mut Stream, probe: Probe<'_>) -> Result<Option<Tensor>> {
        for (i, (up, convnext)) in self.upsamples.iter().enumerate() {
            let Some(y) = up.forward(&x, stream)? else { return Ok(None) };
            probe(format_args!("upsample.{i}.0"), &y);
            x = convnext.forward(&y, stream)?;
            probe(format_args!("upsample.{i}.1"), &x);
        }
        x = self.first.forward(&x, stream)?;
        probe(format_args!("decoder.0"), &x);
        for (i, block) in self.blocks.iter().enumerate() {
            let Some(y) = block.forward(&x, stream, i + 1, probe)? else { return Ok(None) };
            x = y;
            probe(format_args!("decoder.{}", i + 1), &x);
        }
        let n = self.blocks.len();
        x = self.last_snake.forward(&x)?;
        probe(format_args!("decoder.{}", n + 1), &x);
        x = self.last.forward(&x, stream)?;
        probe(format_args!("decoder.{}", n + 2), &x);
        Ok(Some(x))
    }
}

/// `x + gamma * mlp(norm(depthwise(x)))`.
struct ConvNext {
    depthwise: CausalDepthwise,
    norm: (Tensor, Tensor),
    expand: Linear,
    /// Scaled by gamma.
    shrink: Linear,
}

impl ConvNext {
    fn load(scope: &Scope<'_>, width: usize, plan: &mut Plan) -> Loaded<ConvNext> {
        let linear = |name: &str, inputs, outputs, scale| -> Loaded<Linear> {
            let scope = scope.at(name);
            Ok(Linear::scaled(scope.get("weight", &[outputs, inputs])?, Some(scope.get("bias", &[outputs])?), scale)?)
        };
        let norm = |name: &str| scope.at("norm").get(name, &[width])?.force_contiguous().map_err(LoadError::from);
        Ok(ConvNext {
            depthwise: CausalDepthwise::load(&scope.at("dwconv"), width, TAPS, plan)?,
            norm: (norm("weight")?, norm("bias")?),
            expand: linear("pwconv1", width, 4 * width, None)?,
            shrink: linear("pwconv2", 4 * width, width, Some(scope.get("gamma", &[width])?))?,
        })
    }

    fn forward(&self, x: &Tensor, stream: &mut Stream) -> Result<Tensor> {
        let h = self.depthwise.forward(x, stream)?;
        let h = layer_norm(&h, &self.norm.0, &self.norm.1, CONVNEXT_EPS)?;
        self.shrink.forward_add(&self.expand.forward(&h)?.gelu_erf()?, x)
    }
}

/// `x + sin(e^alpha x)^2 / (e^beta + 1e-9)`, both per channel.
struct Snake {
    a: Tensor,
    b: Tensor,
}

impl Snake {
    fn load(scope: &Scope<'_>, channels: usize) -> Loaded<Snake> {
        let (alpha, beta) = (scope.get("alpha", &[channels])?, scope.get("beta", &[channels])?);
        Ok(Snake { a: alpha.exp()?.force_contiguous()?, b: (beta.exp()? + 1e-9)?.recip()?.force_contiguous()? })
    }

    fn forward(&self, x: &Tensor) -> Result<Tensor> {
        snake(x, &self.a, &self.b)
    }
}

/// One upsampling by `rate`, channels halved.
struct Block {
    snake: Snake,
    up: CausalTransposedConv,
    units: Vec<Unit>,
}

impl Block {
    fn load(scope: &Scope<'_>, channels: usize, rate: usize, plan: &mut Plan) -> Loaded<Block> {
        let half = channels / 2;
        let snake = Snake::load(&scope.at(0), channels)?;
        let up = CausalTransposedConv::load(&scope.at(1), (channels, half), (2 * rate, rate), plan)?;
        let mut units = Vec::new();
        for (i, dilation) in DILATIONS.into_iter().enumerate() {
            units.push(Unit::load(&scope.at(i + 2), half, dilation, plan)?);
        }
        Ok(Block { snake, up, units })
    }

    fn forward(&self, x: &Tensor, stream: &mut Stream, n: usize, probe: Probe<'_>) -> Result<Option<Tensor>> {
        let x = self.snake.forward(x)?;
        probe(format_args!("decoder.{n}.block.0"), &x);
        let Some(mut x) = self.up.forward(&x, stream)? else { return Ok(None) };
        probe(format_args!("decoder.{n}.block.1"), &x);
        for (i, unit) in self.units.iter().enumerate() {
            x = unit.forward(&x, stream)?;
            probe(format_args!("decoder.{n}.block.{}", i + 2), &x);
        }
        Ok(Some(x))
    }
}

/// `x + conv1(snake(conv7(snake(x))))`.
struct Unit {
    snakes: [Snake; 2],
    wide: CausalConv,
    point: Linear,
}

impl Unit {
    fn load(scope: &Scope<'_>, channels: usize, dilation: usize, plan: &mut Plan) -> Loaded<Unit> {
        Ok(Unit {
            snakes: [Snake::load(&scope.at("act1"), channels)?, Snake::load(&scope.at("act2"), channels)?],
            wide: CausalConv::load(&scope.at("conv1"), (channels, channels), (TAPS, dilation), plan)?,
            point: load_pointwise(&scope.at("conv2"), channels, channels)?,
        })
    }

    fn forward(&self, x: &Tensor, stream: &mut Stream) -> Result<Tensor> {
        let h = self.wide.forward(&self.snakes[0].forward(x)?, stream)?;
        self.point.forward_add(&self.snakes[1].forward(&h)?, x)
    }
}
