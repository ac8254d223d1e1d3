//! A piece of an encoder's input.

use omni_media::Medium;
use omni_media::patches::Patches;
use std::fmt;
use std::ops::Range;
use std::sync::Arc;

/// Numbers for a tower: a handle to a range of a medium, or the numbers themselves where they have travelled.
#[derive(Clone)]
pub enum Features {
    /// Frames of a sound, or patches of pictures. The numbers take up to 24 times the memory of the medium.
    Of {
        /// All of the medium.
        medium: Arc<Medium>,
        /// Whether its sound is meant, and not its pictures.
        sound: bool,
        /// Frames, or patches.
        range: Range<usize>,
    },
    /// The numbers.
    Numbers(Vec<f32>),
}

impl Features {
    /// How many numbers it is.
    pub fn len(&self) -> usize {
        match self {
            Features::Numbers(numbers) => numbers.len(),
            Features::Of { medium, sound: true, range } => {
                range.len() * medium.sound().map_or(0, omni_media::spectrum::Spectrum::bands)
            }
            Features::Of { medium, sound: false, range } => range.len() * medium.pictures().map_or(0, Patches::row),
        }
    }

    /// Whether it is none.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Size of the numbers.
    pub fn bytes(&self) -> usize {
        self.len() * size_of::<f32>()
    }

    /// The pictures that these are patches of, and which, where they are a handle.
    pub fn patches(&self) -> Option<(&Patches, Range<usize>)> {
        match self {
            Features::Of { medium, sound: false, range } => Some((medium.pictures()?, range.clone())),
            Features::Of { .. } | Features::Numbers(_) => None,
        }
    }

    /// The numbers: `[bands, frames]` of sound, `[patches, row]` of pictures.
    pub fn numbers(self) -> Vec<f32> {
        match self {
            Features::Numbers(numbers) => numbers,
            Features::Of { medium, sound: true, range } => {
                medium.sound().map(|spectrum| spectrum.features_of(range)).unwrap_or_default()
            }
            Features::Of { medium, sound: false, range } => {
                medium.pictures().map(|patches| patches.rows(range)).unwrap_or_default()
            }
        }
    }
}

impl fmt::Debug for Features {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Features::Of { sound, range, .. } => write!(f, "Features of {range:?} (sound: {sound})"),
            Features::Numbers(numbers) => write!(f, "Features of {} numbers", numbers.len()),
        }
    }
}
