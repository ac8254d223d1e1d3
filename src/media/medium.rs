//! One sound, picture or video of a request, ready for the towers.

use crate::mel::Spectrum;
use crate::patches::Patches;
use sha2::{Digest, Sha256};

/// What a tower encodes: the sizes are known, and the numbers are computed window by window as they are read.
#[derive(Clone, Debug, PartialEq)]
pub enum Medium {
    /// A clip.
    Audio(Spectrum),
    /// A picture: one step in time.
    Image(Patches),
    /// The frames of a video.
    Video {
        /// Its frames.
        frames: Patches,
        /// Seconds from one step of the grid to the next.
        second_per_grid: f64,
        /// Its own sound, where it is heard with the frames.
        sound: Option<Spectrum>,
    },
}

/// A hash of what a tower encodes: equal features have the same, wherever they came from.
pub type MediaHash = [u8; 32];

impl Medium {
    /// What the audio tower hears of it.
    pub fn sound(&self) -> Option<&Spectrum> {
        match self {
            Medium::Audio(sound) => Some(sound),
            Medium::Image(_) => None,
            Medium::Video { sound, .. } => sound.as_ref(),
        }
    }

    /// What the vision tower sees of it.
    pub fn pictures(&self) -> Option<&Patches> {
        match self {
            Medium::Audio(_) => None,
            Medium::Image(frames) | Medium::Video { frames, .. } => Some(frames),
        }
    }

    /// Memory that it takes.
    pub fn bytes(&self) -> usize {
        self.sound().map_or(0, Spectrum::bytes) + self.pictures().map_or(0, Patches::bytes)
    }

    /// The SHA-256 of what one tower encodes of it: of its sound, or of its pictures.
    pub fn hash(&self, sound: bool) -> MediaHash {
        let mut hash = Sha256::new_with_prefix(if sound { b"sound" } else { b"sight" });
        let mut take = |bytes: &[u8]| hash.update(bytes);
        match (sound, self.sound(), self.pictures()) {
            (true, Some(spectrum), _) => spectrum.hash(&mut take),
            (false, _, Some(patches)) => patches.hash(&mut take),
            _ => {}
        }
        hash.finalize().into()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::patches::PatchConfig;
    use crate::picture::Picture;
    use crate::size::{Size, SizeRule};

    fn picture(value: u8) -> Patches {
        let config =
            PatchConfig { patch_size: 2, merge_size: 1, temporal_patch_size: 2, mean: [0.5; 3], std: [0.5; 3] };
        let rule = SizeRule { factor: 2, min_pixels: 1, max_pixels: 1000 };
        Patches::new(vec![Picture::new(Size { height: 4, width: 4 }, vec![value; 48])], &rule, &config).unwrap()
    }

    #[test]
    fn equal_features_have_one_hash_and_others_have_another() {
        let features = [0.5f32, -0.25, 0.125, 0.75];
        let clip = |bands| Medium::Audio(Spectrum::from_features(&features, bands).unwrap());
        assert_eq!(clip(2).hash(true), clip(2).hash(true));
        assert_ne!(clip(2).hash(true), clip(4).hash(true), "the same numbers as other bands");
        let image = |value| Medium::Image(picture(value));
        assert_eq!(image(7).hash(false), image(7).hash(false));
        assert_ne!(image(7).hash(false), image(8).hash(false));
        let sound = Spectrum::from_features(&features, 2).unwrap();
        let video = Medium::Video { frames: picture(7), second_per_grid: 1.0, sound: Some(sound) };
        assert_eq!((video.hash(true), video.hash(false)), (clip(2).hash(true), image(7).hash(false)));
        assert_eq!(video.bytes(), clip(2).bytes() + 48);
    }

    #[test]
    fn features_that_a_front_end_made_come_out_as_they_were() {
        let features: Vec<f32> = (0..12i8).map(|i| 1.0 - f32::from(i) * 0.1).collect();
        let spectrum = Spectrum::from_features(&features, 3).unwrap();
        assert_eq!((spectrum.frames(), spectrum.features()), (4, features.clone()));
        let window = [&features[1..3], &features[5..7], &features[9..11]].concat();
        assert_eq!(spectrum.features_of(1..3), window);
        assert!(Spectrum::from_features(&features, 5).is_err());
        assert!(Spectrum::from_features(&[], 5).is_err());
    }
}
