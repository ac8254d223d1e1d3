//! One sound, picture or video of a request, ready for the towers.

use crate::mel::Spectrum;
use crate::patches::Patches;

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
