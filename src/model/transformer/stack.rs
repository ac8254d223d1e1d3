//! A stack of decoder layers.

use super::attention::Attention;
use super::cache::KvCache;
use super::ffn::Ffn;
use crate::LoadError;
use crate::hf::DecoderConfig;
use crate::weights::Scope;
use candle_core::{Device, Result, Tensor};
use omni_ops::{Angles, AxialRope, Rope, rms_norm};

/// One sequence's share of a flattened batch: its cache and how many of the new positions are its own.
#[derive(Debug)]
pub struct Segment<'a> {
    /// The sequence's cache; its length is the first new position.
    pub cache: &'a mut KvCache,
    /// New positions.
    pub len: usize,
}

/// What media in the prompts of a batch change in its forward, beside the embeddings; the default changes nothing.
#[derive(Debug, Default)]
pub struct MediaInput {
    /// Positions of all new tokens of the batch on the axes time, height and width; `None`: those of the caches.
    pub positions: Option<[Vec<f32>; 3]>,
    /// Places in the batch of the tokens that stand for pictures.
    pub visual: Vec<u32>,
    /// `[visual.len(), hidden]` each: level `k` is added to their residual streams behind layer `k` (deepstack).
    pub levels: Vec<Tensor>,
}

impl MediaInput {
    /// Adds the level of layer `layer`.
    fn deepen(&self, layer: usize, x: Tensor) -> Result<Tensor> {
        match self.levels.get(layer) {
            Some(level) => x.index_add(&Tensor::new(self.visual.as_slice(), x.device())?, level, 0),
            None => Ok(x),
        }
    }
}

/// A decoder stack with its final norm.
pub struct DecoderStack {
    config: DecoderConfig,
    layers: Vec<Layer>,
    norm: Tensor,
    rope: Rope,
    /// Of positions on three axes, where the model has them.
    axial: Option<AxialRope>,
    device: Device,
}

struct Layer {
    attention_norm: Tensor,
    attention: Attention,
    ffn_norm: Tensor,
    ffn: Ffn,
}

impl DecoderStack {
    /// Loads `layers.*` and `norm` below `scope`.
    ///
    /// # Errors
    /// What the scope and the device say; tensors that do not fit are reported by the loader.
    pub fn load(config: &DecoderConfig, scope: &Scope<'_>) -> std::result::Result<DecoderStack, LoadError> {
        let weight = |scope: Scope<'_>| scope.get("weight", &[config.hidden_size]);
        let layer = |i| {
            let scope = scope.at("layers").at(i);
            Ok(Layer {
                attention_norm: weight(scope.at("input_layernorm"))?,
                attention: Attention::load(config, &scope.at("self_attn"))?,
                ffn_norm: weight(scope.at("post_attention_layernorm"))?,
                ffn: Ffn::load(config, i, &scope.at("mlp"))?,
            })
        };
        Ok(DecoderStack {
            layers: (0..config.num_hidden_layers).map(layer).collect::<std::result::Result<_, LoadError>>()?,
            norm: weight(scope.at("norm"))?,
            rope: Rope::new(config.head_dim, config.rope_theta, scope.device())?,
            axial: config
                .mrope_section
                .map(|section| AxialRope::interleaved(config.head_dim, config.rope_theta, section, scope.device()))
                .transpose()?,
            device: scope.device().clone(),
            config: config.clone(),
        })
    }

    /// Sizes.
    pub fn config(&self) -> &DecoderConfig {
        &self.config
    }

    /// Where the weights are.
    pub fn device(&self) -> &Device {
        &self.device
    }

    /// An empty cache for one sequence.
    ///
    /// # Errors
    /// When the device cannot give the memory.
    pub fn new_cache(&self) -> Result<KvCache> {
        let c = &self.config;
        KvCache::new(c.num_hidden_layers, c.num_key_value_heads, c.head_dim, c.max_position_embeddings, &self.device)
    }

    /// Runs the layers over `x [n, hidden]`, the new positions of all segments one behind the other, and appends to
    /// their caches. Returns the residual stream `[n, hidden]` *before* the final norm; see [`Self::norm`].
    ///
    /// # Errors
    /// What the device says; caches are then as before.
    pub fn forward(&self, x: &Tensor, segments: &mut [Segment<'_>]) -> Result<Tensor> {
        self.forward_media(x, segments, &MediaInput::default(), |_, _| {})
    }

    /// [`Self::forward`] of a batch with media, showing the hidden states as the reference counts them: 0 is the input,
    /// `i` the output of layer `i - 1` before its deepstack level is added; the last one, which is normed, is not shown.
    ///
    /// # Errors
    /// As [`Self::forward`]; also for positions on three axes if the model has one.
    pub fn forward_media(
        &self,
        x: &Tensor,
        segments: &mut [Segment<'_>],
        media: &MediaInput,
        mut tap: impl FnMut(usize, &Tensor),
    ) -> Result<Tensor> {
        for segment in &mut *segments {
            segment.cache.reserve(segment.len)?;
        }
        let angles = match (&media.positions, &self.axial) {
            (None, _) => self.angles(segments)?,
            (Some(axes), Some(rope)) => rope.at(&axes.each_ref().map(Vec::as_slice))?,
            (Some(_), None) => candle_core::bail!("the model has no mrope_section: its positions have one axis"),
        };
        let eps = self.config.rms_norm_eps;
        let mut x = x.clone();
        for (i, layer) in self.layers.iter().enumerate() {
            tap(i, &x);
            x = if i > 0 { media.deepen(i - 1, x)? } else { x };
            let mixed = layer.attention.forward(i, &rms_norm(&x, &layer.attention_norm, eps)?, &angles, segments)?;
            x = (x + mixed)?;
            let fed = layer.ffn.forward(&rms_norm(&x, &layer.ffn_norm, eps)?)?;
            x = (x + fed)?;
        }
        for segment in segments {
            segment.cache.commit(segment.len);
        }
        media.deepen(self.layers.len().saturating_sub(1), x)
    }

    /// The final norm, for the positions that need it.
    ///
    /// # Errors
    /// What the device says.
    pub fn norm(&self, x: &Tensor) -> Result<Tensor> {
        rms_norm(x, &self.norm, self.config.rms_norm_eps)
    }

    /// The rotations of all new positions. Text and speech have one position for all axes of the interleaved M-RoPE,
    /// which then is the plain rotation.
    fn angles(&self, segments: &[Segment<'_>]) -> Result<Angles> {
        let positions = segments.iter().flat_map(|s| (s.cache.len()..s.cache.len() + s.len).map(|p| p as u32));
        self.rope.at(&positions.collect::<Vec<_>>())
    }
}
