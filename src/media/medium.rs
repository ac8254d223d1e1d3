//! One sound, picture or video of a request, ready for the towers.

use crate::patches::Patches;
use crate::spectrum::Spectrum;
use sha2::{Digest, Sha256};
use std::ops::Range;

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

    /// The SHA-256 of what the audio tower hears of these frames of its sound, which no other frame changes but by the
    /// loudest bin of the clip.
    pub fn hash_of_sound(&self, frames: Range<usize>) -> MediaHash {
        let mut hash = Sha256::new_with_prefix(b"sound");
        if let Some(spectrum) = self.sound() {
            spectrum.hash(frames, &mut |bytes| hash.update(bytes));
        }
        hash.finalize().into()
    }

    /// The SHA-256 of what the vision tower sees of it.
    pub fn hash_of_pictures(&self) -> MediaHash {
        let mut hash = Sha256::new_with_prefix(b"sight");
        if let Some(patches) = self.pictures() {
            patches.hash(&mut |bytes| hash.update(bytes));
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
        let heard = |bands| clip(bands).hash_of_sound(0..4 / bands);
        assert_eq!(heard(2), heard(2));
        assert_ne!(heard(2), heard(4), "the same numbers as other bands");
        assert_ne!(clip(2).hash_of_sound(0..1), clip(2).hash_of_sound(1..2), "other frames");
        let seen = |value| Medium::Image(picture(value)).hash_of_pictures();
        assert_eq!(seen(7), seen(7));
        assert_ne!(seen(7), seen(8));
        let sound = Spectrum::from_features(&features, 2).unwrap();
        let video = Medium::Video { frames: picture(7), second_per_grid: 1.0, sound: Some(sound) };
        assert_eq!((video.hash_of_sound(0..2), video.hash_of_pictures()), (heard(2), seen(7)));
        assert_eq!(video.bytes(), clip(2).bytes() + 48);
    }

    #[test]
    fn a_window_has_one_hash_while_its_clip_grows_and_another_where_what_comes_changes_its_features() {
        let clip = |logs: &[f32]| Medium::Audio(Spectrum::from_features(logs, 1).unwrap());
        let window = |logs: &[f32]| clip(logs).hash_of_sound(0..3);
        let first = [1.0, -0.5, 0.25];
        let grown = [&first[..], &[1.0, 0.0]].concat();
        assert_eq!(window(&first), window(&grown));
        // A louder bin raises the floor, to 2 below itself: at first no bin of the window is below it.
        let [louder, loudest] = [1.5f32, 2.0].map(|bin| [&first[..], &[bin]].concat());
        assert_eq!(window(&first), window(&louder));
        assert_ne!(window(&first), window(&loudest));
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
