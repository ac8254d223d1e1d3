//! The speaker encoder of Qwen3-TTS Base: an ECAPA-TDNN from a spectrum to an x-vector. All convolutions keep the
//! length by reflection and have a ReLU behind them; the variance of the pooling is at least 1e-12 before its root.

use super::mel::MelSpectrum;
use crate::LoadError;
use crate::hf::{SAMPLE_RATE, SpeakerEncoderConfig};
use crate::weights::{Loader, Scope};
use candle_core::{D, Device, Result, Tensor};
use omni_ops::Linear;

type Loaded<T> = std::result::Result<T, LoadError>;

/// Least variance: a channel that never changes.
const MIN_VARIANCE: f64 = 1e-12;

/// The net. Activations are `[time, channels]`.
pub struct SpeakerEncoder {
    spectrum: MelSpectrum,
    first: TimeDelay,
    blocks: Vec<Block>,
    /// Brings the outputs of the blocks together.
    aggregate: TimeDelay,
    pooling: Pooling,
    last: Linear,
    device: Device,
}

impl SpeakerEncoder {
    /// Loads everything under `speaker_encoder`. The caller finishes the loader.
    ///
    /// # Errors
    /// When the file cannot be read; tensors that do not fit are reported by [`Loader::finish`].
    pub fn load(loader: &Loader, config: &SpeakerEncoderConfig) -> Loaded<SpeakerEncoder> {
        let scope = loader.scope("speaker_encoder");
        let layer = |i: usize| (config.kernel_sizes[i], config.dilations[i]);
        let (width, last) = (config.channels[0], config.channels.len() - 1);
        let wide = config.channels[last];
        let layers = scope.at("blocks");
        Ok(SpeakerEncoder {
            spectrum: MelSpectrum::new(config.mel_dim, SAMPLE_RATE, scope.device())?,
            first: TimeDelay::load(&layers.at(0), (config.mel_dim, width), layer(0))?,
            blocks: (1..last).map(|i| Block::load(&layers.at(i), width, layer(i), config)).collect::<Loaded<_>>()?,
            aggregate: TimeDelay::load(&scope.at("mfa"), (wide, wide), layer(last))?,
            pooling: Pooling::load(&scope.at("asp"), wide, config.attention_channels)?,
            last: pointwise(&scope.at("fc"), (2 * wide, config.enc_dim))?,
            device: scope.device().clone(),
        })
    }

    /// The x-vector of 24 kHz samples: `enc_dim` numbers.
    ///
    /// # Errors
    /// When there are too few samples (less than a tenth of a second), or the device fails.
    pub fn encode(&self, pcm: &[f32]) -> Result<Vec<f32>> {
        self.embed(&self.spectrum(pcm)?)
    }

    /// The spectrum `[frames, mel_dim]` that [`SpeakerEncoder::encode`] makes of samples.
    ///
    /// # Errors
    /// Those of [`SpeakerEncoder::encode`].
    pub fn spectrum(&self, pcm: &[f32]) -> Result<Tensor> {
        self.spectrum.of(pcm)
    }

    /// The x-vector of a spectrum.
    ///
    /// # Errors
    /// Those of [`SpeakerEncoder::encode`].
    pub fn embed(&self, spectrum: &Tensor) -> Result<Vec<f32>> {
        let mut x = self.first.forward(spectrum)?;
        let mut outputs = Vec::with_capacity(self.blocks.len());
        for block in &self.blocks {
            x = block.forward(&x)?;
            outputs.push(x.clone());
        }
        let x = self.aggregate.forward(&Tensor::cat(&outputs, 1)?)?;
        self.last.forward(&self.pooling.forward(&x)?)?.flatten_all()?.to_device(&Device::Cpu)?.to_vec1()
    }

    /// Where it computes.
    pub fn device(&self) -> &Device {
        &self.device
    }
}

fn pointwise(scope: &Scope<'_>, (inputs, outputs): (usize, usize)) -> Loaded<Linear> {
    Ok(Linear::from_conv(&scope.get("weight", &[outputs, inputs, 1])?, Some(scope.get("bias", &[outputs])?))?)
}

/// A convolution over time that sees as far ahead as back, the ends mirrored, and ReLU.
struct TimeDelay {
    layer: Linear,
    dilation: usize,
    /// Rows that are missing at the start and at the end.
    padding: (usize, usize),
}

impl TimeDelay {
    fn load(
        scope: &Scope<'_>,
        (inputs, outputs): (usize, usize),
        (taps, dilation): (usize, usize),
    ) -> Loaded<TimeDelay> {
        let scope = scope.at("conv");
        let weight = scope.get("weight", &[outputs, inputs, taps])?;
        let all = (taps - 1) * dilation;
        Ok(TimeDelay {
            layer: Linear::from_conv(&weight, Some(scope.get("bias", &[outputs])?))?,
            dilation,
            padding: (all / 2, all - all / 2),
        })
    }

    /// `[t, inputs]` -> `[t, outputs]`.
    fn forward(&self, x: &Tensor) -> Result<Tensor> {
        self.layer.conv(&mirrored(x, self.padding)?, self.dilation)?.relu()
    }
}

/// Rows in front and behind that mirror the others; the outermost rows are not repeated.
fn mirrored(x: &Tensor, (front, behind): (usize, usize)) -> Result<Tensor> {
    let rows = x.dim(0)?;
    if front.max(behind) >= rows {
        candle_core::bail!("{rows} frames of a spectrum are too few: expected more than {}", front.max(behind));
    }
    if front + behind == 0 {
        return Ok(x.clone());
    }
    let order = (1..=front).rev().chain(0..rows).chain((0..rows - 1).rev().take(behind)).map(|i| i as u32);
    x.index_select(&Tensor::from_vec(order.collect(), front + rows + behind, x.device())?, 0)
}

/// SE-Res2Net: `x + excite(wide(res2net(narrow(x))))`.
struct Block {
    before: TimeDelay,
    parts: Vec<TimeDelay>,
    after: TimeDelay,
    squeeze: Linear,
    excite: Linear,
}

impl Block {
    fn load(scope: &Scope<'_>, width: usize, taps: (usize, usize), config: &SpeakerEncoderConfig) -> Loaded<Block> {
        let part = width / config.res2net_scale;
        let parts = scope.at("res2net_block").at("blocks");
        let gate = scope.at("se_block");
        Ok(Block {
            before: TimeDelay::load(&scope.at("tdnn1"), (width, width), (1, 1))?,
            parts: (0..config.res2net_scale - 1)
                .map(|i| TimeDelay::load(&parts.at(i), (part, part), taps))
                .collect::<Loaded<_>>()?,
            after: TimeDelay::load(&scope.at("tdnn2"), (width, width), (1, 1))?,
            squeeze: pointwise(&gate.at("conv1"), (width, config.se_channels))?,
            excite: pointwise(&gate.at("conv2"), (config.se_channels, width))?,
        })
    }

    fn forward(&self, x: &Tensor) -> Result<Tensor> {
        let h = self.before.forward(x)?;
        // The first part stays as it is; each one after it is convolved together with the result of the one before.
        let part = h.dim(1)? / (self.parts.len() + 1);
        let mut results = vec![h.narrow(1, 0, part)?];
        for (i, layer) in self.parts.iter().enumerate() {
            let own = h.narrow(1, (i + 1) * part, part)?;
            let input = if i == 0 { own.contiguous()? } else { (own + &results[i])? };
            results.push(layer.forward(&input)?);
        }
        let h = self.after.forward(&Tensor::cat(&results, 1)?)?;
        let gate = self.excite.forward(&self.squeeze.forward(&h.mean_keepdim(0)?)?.relu()?)?;
        x + h.broadcast_mul(&candle_nn::ops::sigmoid(&gate)?)?
    }
}

/// Mean and deviation over time, each channel weighted by an attention of its own.
struct Pooling {
    /// The attention's view of a frame,
    own: Linear,
    /// and of the whole: mean and deviation of each channel.
    whole: Linear,
    attend: Linear,
}

impl Pooling {
    fn load(scope: &Scope<'_>, channels: usize, inner: usize) -> Loaded<Pooling> {
        let conv = scope.at("tdnn").at("conv");
        let weight = conv.get("weight", &[inner, 3 * channels, 1])?.squeeze(2)?;
        let whole = weight.narrow(1, channels, 2 * channels)?.contiguous()?;
        Ok(Pooling {
            own: Linear::new(weight.narrow(1, 0, channels)?.contiguous()?, None)?,
            whole: Linear::new(whole, Some(conv.get("bias", &[inner])?))?,
            attend: pointwise(&scope.at("conv"), (inner, channels))?,
        })
    }

    /// `[t, channels]` -> `[1, 2 * channels]`.
    fn forward(&self, x: &Tensor) -> Result<Tensor> {
        let even = Tensor::full(1f32 / x.dim(0)? as f32, x.dims(), x.device())?;
        let view = self.own.forward(x)?.broadcast_add(&self.whole.forward(&statistics(x, &even)?)?)?;
        let scores = self.attend.forward(&view.relu()?.tanh()?)?;
        let weights = candle_nn::ops::softmax_last_dim(&scores.t()?.contiguous()?)?.t()?;
        statistics(x, &weights)
    }
}

/// Mean and deviation over time of each channel, `[1, 2 * channels]`; the weights of a channel add up to 1.
fn statistics(x: &Tensor, weights: &Tensor) -> Result<Tensor> {
    let mean = (x * weights)?.sum_keepdim(0)?;
    let variance = (x.broadcast_sub(&mean)?.sqr()? * weights)?.sum_keepdim(0)?;
    Tensor::cat(&[mean, variance.clamp(MIN_VARIANCE, f64::INFINITY)?.sqrt()?], D::Minus1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn mirrored_rows_leave_the_outermost_ones_alone() {
        let x = Tensor::new(&[[0f32], [1.], [2.], [3.]], &Device::Cpu).unwrap();
        let rows = |pad| mirrored(&x, pad).unwrap().flatten_all().unwrap().to_vec1::<f32>().unwrap();
        assert_eq!(rows((2, 3)), [2., 1., 0., 1., 2., 3., 2., 1., 0.]);
        assert_eq!(rows((0, 0)), [0., 1., 2., 3.]);
        assert!(mirrored(&x, (4, 4)).is_err());
    }

    #[test]
    fn statistics_are_weighted_means_and_deviations() {
        let x = Tensor::new(&[[1f32, 5.], [3., 5.]], &Device::Cpu).unwrap();
        let w = Tensor::new(&[[0.25f32, 0.5], [0.75, 0.5]], &Device::Cpu).unwrap();
        let got = statistics(&x, &w).unwrap().flatten_all().unwrap().to_vec1::<f32>().unwrap();
        assert_eq!(got[..2], [2.5, 5.0]);
        assert!((got[2] - 0.75f32.sqrt()).abs() < 1e-6 && (got[3] - 1e-6).abs() < 1e-9, "{got:?}");
    }
}
