//! The spectrum of one clip, in blocks of frames that several spectra may share: speech that is heard again, and longer,
//! has the blocks that it had. What the model hears of a frame depends on the rest of its clip by the loudest bin alone.

use crate::limits::MediaError;
use crate::mel::LEAST_POWER;
use std::ops::Range;
use std::sync::Arc;

/// How far below the loudest bin of its clip a bin may be, in powers of ten.
const RANGE: f64 = 8.0;
/// Frames of each block of a spectrum but the last: a second of the published checkpoints.
pub(crate) const BLOCK_FRAMES: usize = 100;
/// Features that are hashed at once.
const HASHED: usize = 1024;

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
#[derive(Debug, PartialEq)]
pub struct Block {
    /// Logarithms, `[frames, bands]`.
    logs: Vec<f64>,
    loudest: f64,
}

impl Block {
    /// Of logarithms `[frames, bands]`.
    pub(crate) fn new(logs: Vec<f64>) -> Block {
        Block { loudest: logs.iter().copied().fold(silence(), f64::max), logs }
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

    /// Hands the [features](Spectrum::features_of) of these frames to `hash`, with their shape.
    pub(crate) fn hash(&self, frames: Range<usize>, hash: &mut dyn FnMut(&[u8])) {
        [self.bands, frames.len()].iter().for_each(|n| hash(&(*n as u64).to_le_bytes()));
        let mut bytes = [0; HASHED * size_of::<f32>()];
        for features in self.features_of(frames).chunks(HASHED) {
            let taken = &mut bytes[..size_of_val(features)];
            let places = taken.as_chunks_mut().0.iter_mut();
            places.zip(features).for_each(|(place, feature)| *place = feature.to_le_bytes());
            hash(taken);
        }
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
        let feature = |log: f64| ((log.max(self.floor) + 4.0) / 4.0) as f32;
        // Frames behind the last one are silent.
        let mut features = vec![feature(silence()); self.bands * range.len()];
        let mut first = 0;
        for block in &self.blocks {
            let frames = block.logs.len() / self.bands.max(1);
            for t in range.start.max(first)..range.end.min(first + frames) {
                let logs = &block.logs[(t - first) * self.bands..][..self.bands];
                let column = features[t - range.start..].iter_mut().step_by(range.len().max(1));
                column.zip(logs).for_each(|(place, log)| *place = feature(*log));
            }
            first += frames;
        }
        features
    }
}

/// The logarithm of the least power.
fn silence() -> f64 {
    LEAST_POWER.log10()
}
