//! The audio tower: chunks of log-mel frames go through three convolutions, windows of chunks through
//! a transformer that attends in both directions inside a window and not beyond it.
//!
//! A chunk has `2 * n_window` frames (100); the last one may be shorter, and all are zero padded to the longest one of
//! the call. A window has `13 * n_window_infer / 100` tokens (104 with the published sizes: 8 s) of one clip.
//! transformers 4.57.3 with eager or sdpa ignores the windows and attends across clips; FlashAttention and 5.x are
//! right.

use super::parts::{Layer, Loaded, Norm, linear};
use crate::error::refused;
use crate::hf::{AUDIO_NORM_EPS, AudioTowerConfig, downsampled};
use crate::media::MediaRows;
use crate::weights::Scope;
use crate::{LoadError, ModelError};
use candle_core::{Device, Result, Tensor};
use omni_ops::Linear;
use std::ops::Range;

/// Log-mel frames to embeddings of the thinker.
pub struct AudioTower {
    config: AudioTowerConfig,
    convolutions: [Convolution; 3],
    flatten: Linear,
    /// Sinusoids of the positions of a chunk, `[tokens, d_model]`.
    positions: Tensor,
    layers: Vec<Layer>,
    norm: Norm,
    inner: Linear,
    output: Linear,
}

impl AudioTower {
    pub(crate) fn load(scope: &Scope<'_>, config: &AudioTowerConfig) -> Loaded<AudioTower> {
        let (width, channels) = (config.d_model, config.downsample_hidden_size);
        let flat = channels * downsampled(config.num_mel_bins);
        let convolution = |name: &str, inputs| Convolution::load(&scope.at(name), inputs, channels);
        Ok(AudioTower {
            convolutions: [
                convolution("conv2d1", 1)?,
                convolution("conv2d2", channels)?,
                convolution("conv2d3", channels)?,
            ],
            flatten: Linear::new(scope.at("conv_out").get("weight", &[width, flat])?, None)?,
            positions: positions(config, scope.device())?,
            layers: (0..config.encoder_layers)
                .map(|i| layer(&scope.at("layers").at(i), config))
                .collect::<Loaded<_>>()?,
            norm: Norm::load(&scope.at("ln_post"), width, AUDIO_NORM_EPS)?,
            inner: linear(&scope.at("proj1"), width, width)?,
            output: linear(&scope.at("proj2"), width, config.output_dim)?,
            config: config.clone(),
        })
    }

    /// Sizes.
    pub fn config(&self) -> &AudioTowerConfig {
        &self.config
    }

    /// Embeddings of a clip of `frames` frames.
    pub fn tokens(&self, frames: usize) -> usize {
        self.config.tokens(frames)
    }

    /// The windows of a clip: ranges of frames. They do not see each other, so each can be encoded when its frames are
    /// there.
    pub fn windows(&self, frames: usize) -> impl Iterator<Item = Range<usize>> + use<> {
        let window = self.config.window_frames();
        (0..frames).step_by(window).map(move |start| start..(start + window).min(frames))
    }

    /// Frames that the chunks of a request are padded to with zeros, when its longest clip has `longest` frames: the
    /// last chunk of a clip is not independent of the clips beside it, for the convolutions see the padding.
    pub fn padded_chunk(&self, longest: usize) -> usize {
        self.config.padded_chunk(longest)
    }

    /// Encodes a clip `[bins, frames]` that is a request's only one: [`AudioTower::encode_window`] of every window.
    ///
    /// # Errors
    /// Those of [`AudioTower::encode_window`].
    pub fn encode(&self, features: &Tensor) -> std::result::Result<MediaRows, ModelError> {
        self.encode_beside(features, features.dims().last().copied().unwrap_or(0))
    }

    /// Encodes a clip `[bins, frames]` of a request whose longest clip has `longest` frames.
    ///
    /// # Errors
    /// Those of [`AudioTower::encode_window`].
    pub fn encode_beside(&self, features: &Tensor, longest: usize) -> std::result::Result<MediaRows, ModelError> {
        let frames = self.check(features)?;
        let chunk = self.padded_chunk(longest.max(frames));
        let parts = self
            .windows(frames)
            .map(|window| self.encode_window(&features.narrow(1, window.start, window.len())?, chunk));
        Ok(MediaRows::cat(&parts.collect::<std::result::Result<Vec<_>, _>>()?)?)
    }

    /// Encodes one of the [windows](AudioTower::windows) of a clip, `[bins, frames of the window]`, with chunks
    /// [padded](AudioTower::padded_chunk) to `chunk` frames, to `[tokens(frames), hidden]`.
    ///
    /// # Errors
    /// [`ModelError::Sequence`] for another number of bins, no frames, or more frames than a window has.
    pub fn encode_window(&self, features: &Tensor, chunk: usize) -> std::result::Result<MediaRows, ModelError> {
        let frames = self.check(features)?;
        let (step, window) = (self.config.chunk_frames(), self.config.window_frames());
        if frames > window || chunk > step || chunk < frames.min(step) {
            return refused(format!(
                "a window of {frames} frames, padded to {chunk}: expected at most {window} frames, padded to at most {step}"
            ));
        }
        let chunks = (0..frames).step_by(step).map(|start| {
            let len = step.min(frames - start);
            self.chunk(&features.narrow(1, start, len)?.pad_with_zeros(1, 0, chunk.saturating_sub(len))?, len)
        });
        let x = Tensor::cat(&chunks.collect::<Result<Vec<_>>>()?, 0)?;
        let x = self.layers.iter().try_fold(x, |x, layer| layer.forward(&x, None))?;
        let rows = self.output.forward(&self.inner.forward(&self.norm.forward(&x)?)?.gelu_erf()?)?;
        Ok(MediaRows { rows, deepstack: Vec::new() })
    }

    /// The transformer's input `[downsampled(frames), d_model]` for the first `frames` of a chunk `[bins, padded]`.
    fn chunk(&self, features: &Tensor, frames: usize) -> Result<Tensor> {
        let x = features.unsqueeze(2)?; // [bins, frames, channels]
        let x = self.convolutions.iter().try_fold(x, |x, convolution| convolution.forward(&x)?.gelu_erf())?;
        let (bins, time, channels) = x.dims3()?;
        let x = x.permute((1, 2, 0))?.contiguous()?.reshape((time, channels * bins))?;
        let tokens = downsampled(frames);
        self.flatten.forward(&x)?.narrow(0, 0, tokens)? + self.positions.narrow(0, 0, tokens)?
    }

    /// The frames of features that this tower takes.
    fn check(&self, features: &Tensor) -> std::result::Result<usize, ModelError> {
        match (features.dims(), self.config.num_mel_bins) {
            (&[bins, frames], wanted) if bins == wanted && frames > 0 => Ok(frames),
            (dims, wanted) => refused(format!("audio features have shape {dims:?}: expected [{wanted}, frames]")),
        }
    }
}

/// A 3 x 3 convolution of stride 2 over `[bins, frames, channels]`, padded by one on all sides.
struct Convolution(Linear);

impl Convolution {
    fn load(scope: &Scope<'_>, inputs: usize, outputs: usize) -> Loaded<Convolution> {
        let weight = scope.get("weight", &[outputs, inputs, 3, 3])?;
        let weight = weight.permute((0, 2, 3, 1))?.contiguous()?.reshape((outputs, 9 * inputs))?;
        Ok(Convolution(Linear::new(weight, Some(scope.get("bias", &[outputs])?))?))
    }

    fn forward(&self, x: &Tensor) -> Result<Tensor> {
        let (height, width, channels) = x.dims3()?;
        let (rows, columns) = (height.div_ceil(2), width.div_ceil(2));
        // Even and odd places apart: a tap then is a range of one of them.
        let x = x.pad_with_zeros(0, 1, 2 * rows + 1 - height)?.pad_with_zeros(1, 1, 2 * columns + 1 - width)?;
        let x = x.reshape((rows + 1, 2, columns + 1, 2, channels))?;
        let taps = (0..9).map(|tap| {
            let (down, right) = (tap / 3, tap % 3);
            let x = x.narrow(0, down / 2, rows)?.narrow(1, down % 2, 1)?;
            x.narrow(2, right / 2, columns)?.narrow(3, right % 2, 1)?.contiguous()?.reshape((rows, columns, channels))
        });
        self.0.forward(&Tensor::cat(&taps.collect::<Result<Vec<_>>>()?, 2)?)
    }
}

fn layer(scope: &Scope<'_>, config: &AudioTowerConfig) -> Loaded<Layer> {
    let (width, inner, attention) = (config.d_model, config.encoder_ffn_dim, scope.at("self_attn"));
    let names = ["q_proj", "k_proj", "v_proj"];
    let [wq, wk, wv] = names.map(|name| attention.at(name).get("weight", &[width, width]));
    let [bq, bk, bv] = names.map(|name| attention.at(name).get("bias", &[width]));
    let norm = |name: &str| Norm::load(&scope.at(name), width, AUDIO_NORM_EPS);
    Ok(Layer {
        attention_norm: norm("self_attn_layer_norm")?,
        qkv: Linear::stacked(&[wq?, wk?, wv?], Some(&[bq?, bk?, bv?])).map_err(LoadError::from)?,
        heads: config.encoder_attention_heads,
        project: linear(&attention.at("out_proj"), width, width)?,
        ffn_norm: norm("final_layer_norm")?,
        expand: linear(&scope.at("fc1"), width, inner)?,
        activation: Tensor::gelu_erf,
        shrink: linear(&scope.at("fc2"), inner, width)?,
    })
}

/// [`chunk_positions`] as a tensor.
fn positions(config: &AudioTowerConfig, device: &Device) -> Result<Tensor> {
    Tensor::from_vec(chunk_positions(config), (downsampled(config.chunk_frames()), config.d_model), device)
}

/// The positions of a chunk, `[tokens, d_model]`: Whisper's sinusoids, in each row the sines of all frequencies, then
/// their cosines.
pub fn chunk_positions(config: &AudioTowerConfig) -> Vec<f32> {
    let half = config.d_model / 2;
    let step = (10_000f64.ln() / (half - 1) as f64) as f32;
    let angle = |at: usize, j: usize| at as f32 * (-step * j as f32).exp();
    let row = |at| (0..half).map(move |j| angle(at, j).sin()).chain((0..half).map(move |j| angle(at, j).cos()));
    (0..downsampled(config.chunk_frames())).flat_map(row).collect()
}
