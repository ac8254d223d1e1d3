//! The encoders of Qwen3-Omni: sound and pictures to embeddings of the thinker (spec section 4).
//!
//! Both work in pieces that do not see each other, so that their caller can do something else in between: the
//! audio tower in windows of some seconds, the vision tower in temporal slices, and those layer by layer.
//!
//! Invariant: a piece gives the same bits whatever else is encoded and in which order.

mod audio;
mod parts;
mod vision;

pub use audio::{AudioTower, chunk_positions};
pub use vision::{Slice, SliceLayout, VisionTower, side_places, steps_of_a_layer, turn_frequencies};
pub(crate) use vision::{layers_in_a_unit, patches_in_a_step};

use crate::error::refused;
use crate::hf::ThinkerConfig;
use crate::weights::Loader;
use crate::{LoadError, ModelError};

/// The towers that a checkpoint has.
pub struct Towers {
    audio: Option<AudioTower>,
    vision: Option<VisionTower>,
}

impl Towers {
    /// Loads what `config` describes and the weights hold; a checkpoint may lack either. The caller finishes the
    /// loader, which should own `thinker.audio_tower` and `thinker.visual`.
    ///
    /// # Errors
    /// When the file cannot be read; tensors that do not fit are reported by [`Loader::finish`].
    pub fn load(loader: &Loader, config: &ThinkerConfig) -> Result<Towers, LoadError> {
        let (audio, vision) = (loader.scope("thinker.audio_tower"), loader.scope("thinker.visual"));
        Ok(Towers {
            audio: match &config.audio {
                Some(config) if audio.at("conv_out").offers("weight") => Some(AudioTower::load(&audio, config)?),
                _ => None,
            },
            vision: match &config.vision {
                Some(config) if vision.at("patch_embed.proj").offers("weight") => {
                    Some(VisionTower::load(&vision, config)?)
                }
                _ => None,
            },
        })
    }

    /// The audio tower.
    ///
    /// # Errors
    /// [`ModelError::Sequence`] when the checkpoint has none.
    pub fn audio(&self) -> Result<&AudioTower, ModelError> {
        match &self.audio {
            Some(tower) => Ok(tower),
            None => cannot_hear(),
        }
    }

    /// The vision tower.
    ///
    /// # Errors
    /// [`ModelError::Sequence`] when the checkpoint has none.
    pub fn vision(&self) -> Result<&VisionTower, ModelError> {
        match &self.vision {
            Some(tower) => Ok(tower),
            None => cannot_see(),
        }
    }
}

/// The answer of a checkpoint without an audio tower.
///
/// # Errors
/// Always.
pub fn cannot_hear<T>() -> Result<T, ModelError> {
    refused("this checkpoint cannot hear: it has no audio tower (audio_config, thinker.audio_tower.*)")
}

/// The answer of a checkpoint without a vision tower.
///
/// # Errors
/// Always.
pub fn cannot_see<T>() -> Result<T, ModelError> {
    refused("this checkpoint cannot see: it has no vision tower (vision_config, thinker.visual.*)")
}
