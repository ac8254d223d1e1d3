//! The weights of the towers on the device.

use super::products::Linear;
use crate::weights::{Uploader, Weight};
use crate::{Buffer, Gpu};
use candle_core::Tensor;
use omni_config::Precision;
use omni_model::hf::{
    AUDIO_NORM_EPS, AudioTowerConfig, ThinkerConfig, VISION_NORM_EPS, VisionTowerConfig, downsampled,
};
use omni_model::towers::{cannot_hear, cannot_see, chunk_positions, turn_frequencies};
use omni_model::weights::{Loader, Scope};
use omni_model::{LoadError, ModelError};

type Loaded<T> = Result<T, LoadError>;

/// Widest heads that the kernels take.
const WIDEST_HEAD: usize = 256;

/// The towers that a checkpoint has.
pub struct TowersNet {
    pub(super) gpu: Gpu,
    pub(super) precision: Precision,
    pub(super) config: ThinkerConfig,
    audio: Option<AudioNet>,
    vision: Option<VisionNet>,
}

/// A layer norm.
pub(super) struct Norm {
    pub gain: Weight,
    pub bias: Weight,
    pub eps: f32,
}

/// A layer of a tower's transformer.
pub(super) struct Layer {
    pub attention_norm: Norm,
    pub qkv: Linear,
    pub project: Linear,
    pub ffn_norm: Norm,
    pub expand: Linear,
    pub shrink: Linear,
}

/// The audio tower.
pub(super) struct AudioNet {
    pub config: AudioTowerConfig,
    /// As products of the nine taps; inputs are padded to a multiple of 8.
    pub convolutions: [Linear; 3],
    pub flatten: Linear,
    /// `[tokens of a chunk, d_model]`.
    pub positions: Buffer<f32>,
    pub layers: Vec<Layer>,
    pub norm: Norm,
    pub inner: Linear,
    pub output: Linear,
}

/// The vision tower.
pub(super) struct VisionNet {
    pub config: VisionTowerConfig,
    pub patch: Linear,
    /// Learned positions of a square grid.
    pub table: Weight,
    /// Of each pair of a head.
    pub frequencies: Buffer<f32>,
    pub layers: Vec<Layer>,
    pub merger: Merger,
    /// In the order of `deepstack_visual_indexes`.
    pub deepstack: Vec<Merger>,
}

/// Makes one embedding of the patches of a merge block.
pub(super) struct Merger {
    pub norm: Norm,
    /// Whether the patches of a block are normed together.
    pub together: bool,
    pub inner: Linear,
    pub output: Linear,
}

impl TowersNet {
    /// Loads what `config` describes and the weights hold; a checkpoint may lack either. The caller finishes the loader,
    /// which should own `thinker.audio_tower` and `thinker.visual`.
    ///
    /// # Errors
    /// When the file cannot be read, the device has no room, or heads are wider than the kernels take; tensors that do
    /// not fit are reported by [`Loader::finish`].
    pub fn load(gpu: &Gpu, precision: Precision, loader: &Loader, config: &ThinkerConfig) -> Loaded<TowersNet> {
        let up = Uploader::new(gpu, precision)?;
        let (audio, vision) = (loader.scope("thinker.audio_tower"), loader.scope("thinker.visual"));
        let audio = match &config.audio {
            Some(config) if audio.at("conv_out").offers("weight") => Some(AudioNet::load(&up, &audio, config)?),
            _ => None,
        };
        let vision = match &config.vision {
            Some(config) if vision.at("patch_embed.proj").offers("weight") => {
                Some(VisionNet::load(&up, &vision, config)?)
            }
            _ => None,
        };
        up.finish()?;
        Ok(TowersNet { gpu: gpu.clone(), precision, config: config.clone(), audio, vision })
    }

    /// The audio tower.
    ///
    /// # Errors
    /// When the checkpoint has none.
    pub(super) fn audio(&self) -> Result<&AudioNet, ModelError> {
        self.audio.as_ref().map_or_else(cannot_hear, Ok)
    }

    /// The vision tower.
    ///
    /// # Errors
    /// When the checkpoint has none.
    pub(super) fn vision(&self) -> Result<&VisionNet, ModelError> {
        self.vision.as_ref().map_or_else(cannot_see, Ok)
    }
}

fn check_head(width: usize) -> Loaded<()> {
    if width <= WIDEST_HEAD {
        return Ok(());
    }
    let reason =
        format!("a tower has heads of {width}, and the GPU engine takes {WIDEST_HEAD}: set [device] kind = \"cpu\"");
    Err(LoadError::Invalid { file: "config.json".into(), reason })
}

impl Norm {
    fn load(up: &Uploader, scope: &Scope<'_>, width: usize, eps: f64) -> Loaded<Norm> {
        let get = |name| up.tensor(scope, name, &[width]);
        Ok(Norm { gain: get("weight")?, bias: get("bias")?, eps: eps as f32 })
    }
}

impl AudioNet {
    fn load(up: &Uploader, scope: &Scope<'_>, config: &AudioTowerConfig) -> Loaded<AudioNet> {
        check_head(config.head_dim())?;
        let (width, channels) = (config.d_model, config.downsample_hidden_size);
        let flat = channels * downsampled(config.num_mel_bins);
        let convolution = |name: &str, inputs| convolution(up, &scope.at(name), inputs, channels);
        Ok(AudioNet {
            convolutions: [
                convolution("conv2d1", 1)?,
                convolution("conv2d2", channels)?,
                convolution("conv2d3", channels)?,
            ],
            flatten: Linear::new(up.tensor(&scope.at("conv_out"), "weight", &[width, flat])?, None, width, flat),
            positions: up.gpu().upload("positions", &chunk_positions(config))?,
            layers: (0..config.encoder_layers)
                .map(|i| audio_layer(up, &scope.at("layers").at(i), config))
                .collect::<Loaded<_>>()?,
            norm: Norm::load(up, &scope.at("ln_post"), width, AUDIO_NORM_EPS)?,
            inner: Linear::load(up, &scope.at("proj1"), width, width)?,
            output: Linear::load(up, &scope.at("proj2"), width, config.output_dim)?,
            config: config.clone(),
        })
    }
}

/// A 3 x 3 convolution as a product of its nine taps, channel after channel, with zeros up to a multiple of 8.
fn convolution(up: &Uploader, scope: &Scope<'_>, inputs: usize, outputs: usize) -> Loaded<Linear> {
    let weight = scope.get("weight", &[outputs, inputs, 3, 3])?;
    let taps = weight.permute((0, 2, 3, 1))?.contiguous()?.reshape((outputs, 9 * inputs))?;
    let wide = (9 * inputs).next_multiple_of(8);
    let none = Tensor::zeros((outputs, wide - 9 * inputs), taps.dtype(), taps.device())?;
    let weight = up.host(&Tensor::cat(&[taps, none], 1)?)?;
    Ok(Linear::new(weight, Some(up.tensor(scope, "bias", &[outputs])?), outputs, wide))
}

fn audio_layer(up: &Uploader, scope: &Scope<'_>, config: &AudioTowerConfig) -> Loaded<Layer> {
    let (width, inner, attention) = (config.d_model, config.encoder_ffn_dim, scope.at("self_attn"));
    let [q, k, v] = ["q_proj", "k_proj", "v_proj"].map(|name| attention.at(name));
    let all = |name, shape: &[usize]| up.stacked(&[(&q, name), (&k, name), (&v, name)], shape);
    let norm = |name: &str| Norm::load(up, &scope.at(name), width, AUDIO_NORM_EPS);
    Ok(Layer {
        attention_norm: norm("self_attn_layer_norm")?,
        qkv: Linear::new(all("weight", &[width, width])?, Some(all("bias", &[width])?), 3 * width, width),
        project: Linear::load(up, &attention.at("out_proj"), width, width)?,
        ffn_norm: norm("final_layer_norm")?,
        expand: Linear::load(up, &scope.at("fc1"), width, inner)?,
        shrink: Linear::load(up, &scope.at("fc2"), inner, width)?,
    })
}

impl VisionNet {
    fn load(up: &Uploader, scope: &Scope<'_>, config: &VisionTowerConfig) -> Loaded<VisionNet> {
        check_head(config.head_dim())?;
        let (hidden, side) = (config.hidden_size, config.grid_side);
        let (frames, pixels) = (config.temporal_patch_size, config.patch_size);
        let patch = scope.at("patch_embed.proj");
        let kernel = up.tensor(&patch, "weight", &[hidden, config.in_channels, frames, pixels, pixels])?;
        let bias = up.tensor(&patch, "bias", &[hidden])?;
        let mergers = scope.at("merger_list");
        Ok(VisionNet {
            patch: Linear::new(kernel, Some(bias), hidden, config.patch_width()),
            table: up.tensor(&scope.at("pos_embed"), "weight", &[side * side, hidden])?,
            frequencies: up.gpu().upload("frequencies", &turn_frequencies(config)?)?,
            layers: (0..config.depth)
                .map(|i| vision_layer(up, &scope.at("blocks").at(i), config))
                .collect::<Loaded<_>>()?,
            merger: Merger::load(up, &scope.at("merger"), config, false)?,
            deepstack: (0..config.deepstack_visual_indexes.len())
                .map(|i| Merger::load(up, &mergers.at(i), config, true))
                .collect::<Loaded<_>>()?,
            config: config.clone(),
        })
    }
}

fn vision_layer(up: &Uploader, scope: &Scope<'_>, config: &VisionTowerConfig) -> Loaded<Layer> {
    let (hidden, inner) = (config.hidden_size, config.intermediate_size);
    let norm = |name: &str| Norm::load(up, &scope.at(name), hidden, VISION_NORM_EPS);
    Ok(Layer {
        attention_norm: norm("norm1")?,
        qkv: Linear::load(up, &scope.at("attn.qkv"), hidden, 3 * hidden)?,
        project: Linear::load(up, &scope.at("attn.proj"), hidden, hidden)?,
        ffn_norm: norm("norm2")?,
        expand: Linear::load(up, &scope.at("mlp.linear_fc1"), hidden, inner)?,
        shrink: Linear::load(up, &scope.at("mlp.linear_fc2"), inner, hidden)?,
    })
}

impl Merger {
    fn load(up: &Uploader, scope: &Scope<'_>, config: &VisionTowerConfig, together: bool) -> Loaded<Merger> {
        let width = config.hidden_size * config.merge_unit();
        let normed = if together { width } else { config.hidden_size };
        Ok(Merger {
            norm: Norm::load(up, &scope.at("ln_q"), normed, VISION_NORM_EPS)?,
            together,
            inner: Linear::load(up, &scope.at("mlp.0"), width, width)?,
            output: Linear::load(up, &scope.at("mlp.2"), width, config.out_hidden_size)?,
        })
    }
}
