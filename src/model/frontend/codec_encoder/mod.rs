//! The encoder of the 12 Hz codec (Mimi): samples to `ceil(samples / 1920)` code frames.
//!
//! SEANet has the ratios 4, 5, 6, 8; the transformer 8 layers with a window of 250 (in transformers 4.57.3 only with
//! FlashAttention: eager and sdpa differ for references of more than 10 s); the last convolution, of kernel 4 and
//! stride 2, pads by *replication*. The semantic codebook and the 31 acoustic ones are fed the same vector; a codebook
//! is `embed_sum / cluster_usage`, the nearest entry by Euclidean distance counts, and the first 16 codes are kept. The
//! reference resamples with librosa.
//!
//! Causal convolutions down to two positions per frame, a transformer over them, a last convolution that makes one of
//! two, and residual codebooks. The convolutions run over a clip piece by piece, with the last inputs of each kept as
//! in the vocoder: the activations of a minute at the sample rate would take a gigabyte.

mod quantizer;
mod seanet;
mod transformer;

use crate::LoadError;
use crate::hf::CodecEncoderConfig;
use crate::weights::Loader;
use candle_core::{Device, Result, Tensor};
use omni_ops::Linear;
use quantizer::Quantizer;
use seanet::SeaNet;
use transformer::Transformer;

/// Positions of the transformer that become one frame.
const POSITIONS_PER_FRAME: usize = 2;

/// The net. Activations are `[time, channels]`.
pub struct CodecEncoder {
    config: CodecEncoderConfig,
    seanet: SeaNet,
    transformer: Transformer,
    downsample: Linear,
    quantizer: Quantizer,
    device: Device,
}

impl CodecEncoder {
    /// Loads what the first `valid_quantizers` codebooks need of everything under `encoder`, and declares the rest. The
    /// caller finishes the loader.
    ///
    /// # Errors
    /// When the file cannot be read; tensors that do not fit are reported by [`Loader::finish`].
    pub fn load(
        loader: &Loader,
        config: &CodecEncoderConfig,
        valid_quantizers: usize,
    ) -> std::result::Result<CodecEncoder, LoadError> {
        let scope = loader.scope("encoder");
        let hidden = config.transformer.hidden_size;
        let weight = scope.at("downsample").at("conv").get("weight", &[hidden, hidden, 2 * POSITIONS_PER_FRAME])?;
        Ok(CodecEncoder {
            seanet: SeaNet::load(&scope.at("encoder"), config)?,
            transformer: Transformer::load(&scope.at("encoder_transformer"), &config.transformer)?,
            downsample: Linear::from_conv(&weight, None)?,
            quantizer: Quantizer::load(&scope.at("quantizer"), config, valid_quantizers)?,
            config: config.clone(),
            device: scope.device().clone(),
        })
    }

    /// The sizes.
    pub fn config(&self) -> &CodecEncoderConfig {
        &self.config
    }

    /// Frames of so many samples; the last one may be partly filled.
    pub fn frames(&self, samples: usize) -> usize {
        samples.div_ceil(self.config.samples_per_frame())
    }

    /// The codes of 24 kHz samples, frame after frame, the valid quantizers of each; [`CodecEncoder::frames`] of them.
    ///
    /// A position of the transformer sees the window of the config. That is how the codec was trained and what the
    /// reference computes with FlashAttention; with its other attentions it sees everything before it, which differs
    /// for clips longer than the window (10 seconds).
    ///
    /// # Errors
    /// When there are no samples, or the device fails.
    pub fn encode(&self, pcm: &[f32]) -> Result<Vec<u32>> {
        self.encode_seeing(pcm, self.config.transformer.sliding_window)
    }

    /// [`CodecEncoder::encode`] with another window, `None` for all positions before.
    ///
    /// # Errors
    /// Those of [`CodecEncoder::encode`].
    pub fn encode_seeing(&self, pcm: &[f32], window: Option<usize>) -> Result<Vec<u32>> {
        if pcm.is_empty() {
            candle_core::bail!("no samples to encode");
        }
        let x = self.seanet.forward(pcm, &self.device)?;
        let x = self.transformer.forward(&x, window)?;
        self.quantizer.codes(&self.halve(&x)?)
    }

    /// Two positions to one. Unlike the other convolutions this one has its first and last input repeated where others
    /// have zeros.
    fn halve(&self, x: &Tensor) -> Result<Tensor> {
        let rows = x.dim(0)?;
        let missing = rows.next_multiple_of(POSITIONS_PER_FRAME) - rows;
        let (first, last) = (x.narrow(0, 0, 1)?, x.narrow(0, rows - 1, 1)?);
        let parts = [vec![&first; POSITIONS_PER_FRAME], vec![x], vec![&last; missing]].concat();
        seanet::strided(&self.downsample, &Tensor::cat(&parts, 0)?, POSITIONS_PER_FRAME)
    }
}
