//! The spectrum of one clip, in blocks of frames that several spectra may share: speech that is heard again, and longer,
//! has the blocks that it had. What the model hears of a frame depends on the rest of its clip by the loudest bin alone.

use crate::limits::MediaError;
use crate::medium::MediaHash;
use crate::mel::LEAST_POWER;
use sha2::{Digest, Sha256};
use std::ops::Range;
use std::sync::{Arc, Mutex, PoisonError};

/// How far below the loudest bin of its clip a bin may be, in powers of ten.
const RANGE: f64 = 8.0;
/// Frames of each block of a spectrum but the last: a second of the published checkpoints.
pub(crate) const BLOCK_FRAMES: usize = 100;
/// The frames of one clip.
#[derive(Clone, Debug, PartialEq)]
pub struct Spectrum {
    /// Each but the last has [`BLOCK_FRAMES`]. Frames behind `frames` count for the loudest bin only.
    blocks: Vec<Arc<Block>>,
    bands: usize,
    frames: usize,
    /// What quieter bins are raised to, from the loudest one.
    floor: f64,
}

/// Frames of a clip, before the rest of it is known.
#[derive(Debug)]
pub struct Block {
    /// Logarithms, `[frames, bands]`.
    logs: Vec<f64>,
    loudest: f64,
    quietest: f64,
    /// The hash of what the model hears of it, as it was asked for last: of which frames, above which floor.
    hash: Mutex<Option<(Range<usize>, u64, MediaHash)>>,
}

impl PartialEq for Block {
    fn eq(&self, other: &Block) -> bool {
        self.logs == other.logs
    }
}

impl Block {
    /// Of logarithms `[frames, bands]`.
    pub(crate) fn new(logs: Vec<f64>) -> Block {
        let loudest = logs.iter().copied().fold(silence(), f64::max);
        let quietest = logs.iter().copied().fold(f64::INFINITY, f64::min);
        Block { logs, loudest, quietest, hash: Mutex::new(None) }
    }

    /// Hands band and frame of each of these frames to `take`, with what the model hears there.
    fn hear(&self, frames: Range<usize>, bands: usize, floor: f64, mut take: impl FnMut(usize, usize, f32)) {
        for t in frames {
            let logs = self.logs[t * bands..].iter().take(bands);
            logs.enumerate().for_each(|(band, log)| take(band, t, feature(*log, floor)));
        }
    }

    /// The SHA-256 of what the model hears of these frames. Blocks outlive their spectra, so it is not computed again for
    /// speech that is heard again.
    fn hash(&self, frames: Range<usize>, bands: usize, floor: f64) -> MediaHash {
        // A floor below all of it changes nothing.
        let above = if floor <= self.quietest { 0 } else { floor.to_bits() };
        let mut known = self.hash.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some((_, _, hash)) = known.as_ref().filter(|known| (&known.0, known.1) == (&frames, above)) {
            return *hash;
        }
        let mut bytes = Vec::with_capacity(frames.len() * bands * size_of::<f32>());
        self.hear(frames.clone(), bands, floor, |_, _, feature| bytes.extend_from_slice(&feature.to_le_bytes()));
        let hash = Sha256::digest(&bytes).into();
        *known = Some((frames, above, hash));
        hash
    }

    /// Memory that it takes.
    pub fn bytes(&self) -> usize {
        self.logs.len() * size_of::<f64>()
    }
}

impl Spectrum {
    /// Of blocks with `frames` frames or more, of so many bands.
    pub(crate) fn new(blocks: Vec<Arc<Block>>, bands: usize, frames: usize) -> Spectrum {
        let loudest = blocks.iter().fold(silence(), |max, block| max.max(block.loudest));
        Spectrum { blocks, bands, frames, floor: loudest - RANGE }
    }

    /// A spectrum whose [`Spectrum::features`] are these, `[bands, frames]`, as a front end made them. Numbers that are
    /// more than two below the largest are raised, as a front end does.
    ///
    /// # Errors
    /// [`MediaError::Number`] for features that are not whole bands of at least one frame.
    pub fn from_features(features: &[f32], bands: usize) -> Result<Spectrum, MediaError> {
        let frames = features.len().checked_div(bands).unwrap_or(0);
        if frames == 0 || frames * bands != features.len() {
            let value = format!("{} numbers of {bands} bands", features.len());
            return Err(MediaError::Number { field: "features", value, expected: "as many numbers of each band" });
        }
        let log = |t: usize, band: usize| f64::from(features[band * frames + t]) * 4.0 - 4.0;
        let logs: Vec<f64> = (0..frames).flat_map(|t| (0..bands).map(move |band| log(t, band))).collect();
        let blocks = logs.chunks(BLOCK_FRAMES * bands).map(|logs| Arc::new(Block::new(logs.to_vec())));
        Ok(Spectrum::new(blocks.collect(), bands, frames))
    }

    /// Bands of each frame.
    pub fn bands(&self) -> usize {
        self.bands
    }

    /// Memory that it takes, with what it shares.
    pub fn bytes(&self) -> usize {
        self.blocks.iter().map(|block| block.bytes()).sum()
    }

    /// Hands what tells the [features](Spectrum::features_of) of these frames from others to `hash`, with their shape.
    pub(crate) fn hash(&self, frames: Range<usize>, hash: &mut dyn FnMut(&[u8])) {
        [self.bands, frames.len()].iter().for_each(|n| hash(&(*n as u64).to_le_bytes()));
        for (block, some, _) in self.blocks_of(&frames) {
            hash(&block.hash(some, self.bands, self.floor));
        }
    }

    /// The blocks with these frames: which of its own each has, and where they stand among these.
    fn blocks_of(&self, frames: &Range<usize>) -> impl Iterator<Item = (&Block, Range<usize>, usize)> {
        let (start, end) = (frames.start, frames.end);
        self.blocks.iter().enumerate().filter_map(move |(number, block)| {
            let (first, len) = (number * BLOCK_FRAMES, block.logs.len() / self.bands.max(1));
            let some = start.max(first)..end.min(first + len);
            (!some.is_empty()).then(|| (&**block, some.start - first..some.end - first, some.start - start))
        })
    }

    /// Frames of the clip, `L`.
    pub fn frames(&self) -> usize {
        self.frames
    }

    /// What the thinker hears, `[bands, L]`.
    pub fn features(&self) -> Vec<f32> {
        self.features_of(0..self.frames)
    }

    /// Columns of a batch, `[bands, range]`, also those behind [`Spectrum::frames`], which are padding: step 3 of
    /// [`LogMel`](crate::mel::LogMel), transposed.
    pub fn features_of(&self, range: Range<usize>) -> Vec<f32> {
        // Frames behind the last one are silent.
        let mut features = vec![feature(silence(), self.floor); self.bands * range.len()];
        for (block, some, at) in self.blocks_of(&range) {
            let first = some.start;
            let place = |band: usize, t: usize| band * range.len() + at + t - first;
            block.hear(some, self.bands, self.floor, |band, t, feature| features[place(band, t)] = feature);
        }
        features
    }
}

/// What the model hears of a logarithm.
fn feature(log: f64, floor: f64) -> f32 {
    ((log.max(floor) + 4.0) / 4.0) as f32
}

/// The logarithm of the least power.
fn silence() -> f64 {
    LEAST_POWER.log10()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn hashed(spectrum: &Spectrum, frames: Range<usize>) -> Vec<u8> {
        let mut bytes = Vec::new();
        spectrum.hash(frames, &mut |part| bytes.extend_from_slice(part));
        bytes
    }

    #[test]
    fn frames_of_several_blocks_have_the_features_and_the_hash_that_they_have_alone() {
        let features: Vec<f32> = (0..250u16).map(|t| 1.0 - f32::from(t % 190) / 100.0).collect();
        let whole = Spectrum::from_features(&features, 1).unwrap();
        assert_eq!((whole.features(), whole.blocks.len()), (features.clone(), 3));
        assert_eq!(whole.features_of(90..210), features[90..210]);
        assert_eq!(whole.features_of(248..252)[2..], [-1.0; 2], "silence behind the end");
        for frames in [0..250, 90..210, 100..200, 3..4] {
            let again = Spectrum::from_features(&features, 1).unwrap();
            assert_eq!(hashed(&whole, frames.clone()), hashed(&again, frames.clone()), "{frames:?}");
            let mut other = features.clone();
            other[frames.end - 1] += 0.125;
            let other = Spectrum::from_features(&other, 1).unwrap();
            assert_ne!(hashed(&whole, frames.clone()), hashed(&other, frames.clone()), "{frames:?}");
        }
    }

    #[test]
    fn a_hash_that_is_known_is_that_of_the_floor() {
        let block = Arc::new(Block::new(vec![-8.0, 0.0, -3.0]));
        let of = |loudest: f64| {
            let blocks = vec![Arc::new(Block::new(vec![loudest; BLOCK_FRAMES])), Arc::clone(&block)];
            Spectrum::new(blocks, 1, BLOCK_FRAMES + 3)
        };
        let window = |loudest: f64| hashed(&of(loudest), BLOCK_FRAMES..BLOCK_FRAMES + 3);
        let quiet = window(0.0);
        // Up to a loudest bin of 0 the floor is below all of it.
        assert_eq!((window(-1.0), window(0.0)), (quiet.clone(), quiet.clone()));
        assert!(window(0.5) != quiet && window(0.5) != window(0.7));
        assert_eq!(window(0.0), quiet);
    }
}
