//! Pictures and frames of a video to the rows that a vision tower reads.
//!
//! A frame is cut into patches of `patch_size` pixels; `temporal_patch_size` frames make one row. Rows go by grid step,
//! block row, block column, row in the block, column in the block, where a block is `merge_size` patches wide and
//! becomes one token. Inside a row: channel, frame, y, x (`Qwen2VLImageProcessor` in transformers 5.23.0).

use crate::bicubic::resize;
use crate::limits::MediaError;
use crate::picture::Picture;
use crate::size::{Size, SizeRule};
use std::ops::Range;

const CHANNELS: usize = 3;

/// How pictures are cut, from `preprocessor_config.json`.
#[derive(Clone, Debug, PartialEq)]
pub struct PatchConfig {
    /// Pixels of a patch's side.
    pub patch_size: usize,
    /// Patches of a block's side.
    pub merge_size: usize,
    /// Frames of a row.
    pub temporal_patch_size: usize,
    /// What is taken off each channel, of 0 to 1.
    pub mean: [f64; CHANNELS],
    /// What each channel is divided by.
    pub std: [f64; CHANNELS],
}

/// Patches of an image or video: steps in time, rows, columns.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Grid {
    /// Steps in time; 1 for an image.
    pub t: usize,
    /// Patches from top to bottom.
    pub h: usize,
    /// Patches from left to right.
    pub w: usize,
}

impl Grid {
    /// Rows of pixel values.
    pub fn patches(&self) -> usize {
        self.t * self.h * self.w
    }

    /// Tokens of the prompt: one for a block.
    pub fn tokens(&self, merge_size: usize) -> usize {
        self.t * (self.h / merge_size) * (self.w / merge_size)
    }
}

impl PatchConfig {
    /// The multiple that both sides of a picture are resized to.
    pub fn factor(&self) -> usize {
        self.patch_size * self.merge_size
    }

    /// Values of a row.
    pub fn row(&self) -> usize {
        CHANNELS * self.temporal_patch_size * self.patch_size * self.patch_size
    }
}

/// An image or video that was resized. Its rows are computed where they are read, for they take 24 times the memory.
#[derive(Clone, Debug, PartialEq)]
pub struct Patches {
    config: PatchConfig,
    grid: Grid,
    /// All of one size. Where there are too few for the grid, the last one stands for the rest.
    frames: Vec<Picture>,
    /// Value -> normalised value, of each channel.
    levels: [Levels; CHANNELS],
}

/// A normalised value for each value of a pixel.
pub type Levels = [f32; 256];

/// The pixels that rows of one step of a grid follow from, for those who compute the rows themselves.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Lines<'a> {
    /// Of each frame of the step the same lines, `[lines, width, 3]`. The last frame stands for those that are missing.
    pub frames: Vec<&'a [u8]>,
    /// Rows of the first block in these lines that come before the range.
    pub before: usize,
}

impl Patches {
    /// Resizes frames and cuts them; an image is one frame. An odd number of frames repeats the last one.
    ///
    /// # Errors
    /// [`MediaError::TooLittle`] without frames, [`MediaError::Aspect`] for a size that has no other,
    /// [`MediaError::Number`] for frames of different sizes or a config without a patch.
    pub fn new(frames: Vec<Picture>, rule: &SizeRule, config: &PatchConfig) -> Result<Patches, MediaError> {
        let Some(first) = frames.first().map(Picture::size) else {
            return Err(MediaError::TooLittle { media: "video", unit: "frames", have: 0, least: 1 });
        };
        if let Some(other) = frames.iter().map(Picture::size).find(|size| *size != first) {
            let value = format!("{} x {} beside {} x {}", other.width, other.height, first.width, first.height);
            return Err(MediaError::Number { field: "frames", value, expected: "frames of one size" });
        }
        if config.factor() == 0 || config.temporal_patch_size == 0 || rule.factor != config.factor() {
            let value = format!("{config:?}");
            return Err(MediaError::Number { field: "patch_size", value, expected: "sizes of at least 1" });
        }
        let size = rule.resized(first)?;
        let grid = Grid {
            t: frames.len().div_ceil(config.temporal_patch_size),
            h: size.height / config.patch_size,
            w: size.width / config.patch_size,
        };
        let levels = std::array::from_fn(|channel| levels(config.mean[channel], config.std[channel]));
        let frames = frames.into_iter().map(|frame| resize(frame, size)).collect();
        Ok(Patches { config: config.clone(), grid, frames, levels })
    }

    /// Steps, rows and columns.
    pub fn grid(&self) -> Grid {
        self.grid
    }

    /// Tokens of the prompt.
    pub fn tokens(&self) -> usize {
        self.grid.tokens(self.config.merge_size)
    }

    /// Values of a row.
    pub fn row(&self) -> usize {
        self.config.row()
    }

    /// The size of the frames that are cut.
    pub fn size(&self) -> Size {
        self.frames[0].size()
    }

    /// The frames that are cut, resized.
    pub fn frames(&self) -> &[Picture] {
        &self.frames
    }

    /// Memory that it takes.
    pub fn bytes(&self) -> usize {
        self.frames.iter().map(|frame| frame.rgb().len()).sum()
    }

    /// Hands everything that its rows follow from to `hash`, of frames their hashes, so that equal patches, and they
    /// alone, hand over equal bytes.
    pub(crate) fn hash(&self, hash: &mut dyn FnMut(&[u8])) {
        let PatchConfig { patch_size, merge_size, temporal_patch_size, .. } = self.config;
        let Size { height, width } = self.size();
        let sizes = [patch_size, merge_size, temporal_patch_size, self.grid.t, height, width, self.frames.len()];
        sizes.iter().for_each(|size| hash(&(*size as u64).to_le_bytes()));
        self.config.mean.iter().chain(&self.config.std).for_each(|n| hash(&n.to_le_bytes()));
        self.frames.iter().for_each(|frame| hash(frame.hash()));
    }

    /// Rows `range` of [`Grid::patches`], `[range, row]`.
    ///
    /// # Panics
    /// When `range` ends behind the last row.
    pub fn rows(&self, range: Range<usize>) -> Vec<f32> {
        assert!(range.end <= self.grid.patches(), "rows {range:?} of {:?}", self.grid);
        let mut out = vec![0.0; range.len() * self.row()];
        range.zip(out.chunks_exact_mut(self.row())).for_each(|(row, out)| self.fill_row(row, out));
        out
    }

    /// How they are cut.
    pub fn config(&self) -> &PatchConfig {
        &self.config
    }

    /// A normalised value for each value of a pixel, of each channel.
    pub fn levels(&self) -> &[Levels; CHANNELS] {
        &self.levels
    }

    /// The lines of pixels that rows `range` follow from. They begin with a row of blocks.
    ///
    /// # Panics
    /// When `range` is empty or of more than one step of the grid.
    pub fn lines(&self, range: Range<usize>) -> Lines<'_> {
        let PatchConfig { patch_size, merge_size, temporal_patch_size, .. } = self.config;
        let in_step = self.grid.h * self.grid.w;
        let step = range.start / in_step;
        let (from, to) = (range.start - step * in_step, range.end - step * in_step);
        assert!(from < to && to <= in_step, "rows {range:?} of {:?}", self.grid);
        // Rows of patches that a row of blocks has, and lines that it has.
        let (in_blocks, high) = (merge_size * self.grid.w, merge_size * patch_size);
        let line = self.size().width * CHANNELS;
        let bytes = from / in_blocks * high * line..to.div_ceil(in_blocks) * high * line;
        let first = step * temporal_patch_size;
        let frames = &self.frames[first..self.frames.len().min(first + temporal_patch_size)];
        let frames = frames.iter().map(|frame| &frame.rgb()[bytes.clone()]).collect();
        Lines { frames, before: from % in_blocks }
    }

    fn fill_row(&self, row: usize, out: &mut [f32]) {
        let PatchConfig { patch_size, merge_size, temporal_patch_size, .. } = self.config;
        let (step, row) = (row / (self.grid.h * self.grid.w), row % (self.grid.h * self.grid.w));
        let (block, inside) = (row / (merge_size * merge_size), row % (merge_size * merge_size));
        let blocks = self.grid.w / merge_size;
        let y = (block / blocks * merge_size + inside / merge_size) * patch_size;
        let x = (block % blocks * merge_size + inside % merge_size) * patch_size;
        let width = self.size().width;
        let mut lines = out.chunks_exact_mut(patch_size);
        for (channel, levels) in self.levels.iter().enumerate() {
            for frame in 0..temporal_patch_size {
                let frame = (step * temporal_patch_size + frame).min(self.frames.len() - 1);
                let rgb = self.frames[frame].rgb();
                for y in y..y + patch_size {
                    let line = &rgb[(y * width + x) * CHANNELS..(y * width + x + patch_size) * CHANNELS];
                    let pixels = line.as_chunks::<CHANNELS>().0;
                    for (out, pixel) in lines.next().into_iter().flatten().zip(pixels) {
                        *out = levels[usize::from(pixel[channel])];
                    }
                }
            }
        }
    }
}

/// Every value normalised: `(v - 255 mean) / (255 std)` in f32, as the reference fuses its rescaling by 1/255.
fn levels(mean: f64, std: f64) -> Levels {
    let (mean, std) = ((mean * 255.0) as f32, (std * 255.0) as f32);
    std::array::from_fn(|value| (value as f32 - mean) / std)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn config() -> PatchConfig {
        PatchConfig { patch_size: 2, merge_size: 2, temporal_patch_size: 2, mean: [0.5; 3], std: [0.5; 3] }
    }

    /// Frames of 8 x 4 pixels whose red value is `16 y + x`, green the frame's number, blue 255.
    fn frame(number: u8) -> Picture {
        let pixels = (0..4u8).flat_map(|y| (0..8u8).map(move |x| [16 * y + x, number, 255]));
        Picture::new(Size { height: 4, width: 8 }, pixels.flatten().collect())
    }

    fn rule() -> SizeRule {
        SizeRule { factor: 4, min_pixels: 1, max_pixels: 1_000 }
    }

    #[test]
    fn rows_go_by_step_block_and_place_in_the_block() {
        let patches = Patches::new(vec![frame(0), frame(1), frame(2)], &rule(), &config()).unwrap();
        assert_eq!(patches.grid(), Grid { t: 2, h: 2, w: 4 });
        assert_eq!((patches.tokens(), patches.row(), patches.grid().patches()), (4, 24, 16));
        let rows = patches.rows(0..16);
        let value = |v: u8| (f32::from(v) - 127.5) / 127.5;
        let red = |row: usize| rows[row * 24..row * 24 + 4].to_vec();
        // The second block begins at column 4; its third patch is in the second row of patches.
        assert_eq!(red(0), [0, 1, 16, 17].map(value));
        assert_eq!(red(1), [2, 3, 18, 19].map(value));
        assert_eq!(red(6), [36, 37, 52, 53].map(value));
        let green = |row: usize| [rows[row * 24 + 8], rows[row * 24 + 12]];
        assert_eq!((green(0), green(8)), ([value(0), value(1)], [value(2), value(2)]), "the last frame is repeated");
        assert_eq!(patches.rows(5..7), rows[5 * 24..7 * 24]);
    }

    #[test]
    fn rows_follow_from_their_lines_alone() {
        let patches = Patches::new(vec![frame(0), frame(1), frame(2)], &rule(), &config()).unwrap();
        let lines = patches.lines(2..5);
        let [first, second] = lines.frames[..] else { panic!("a step has two frames") };
        assert_eq!((first.len(), second.len(), lines.before), (4 * 8 * CHANNELS, 4 * 8 * CHANNELS, 2));
        assert_eq!((first[1], second[1]), (0, 1), "green is the frame's number");
        let last = patches.lines(8..16);
        assert_eq!((last.frames.len(), last.before, last.frames[0][1]), (1, 0, 2), "one frame is left");
        // 4 x 6 patches are two rows of blocks of 12 patches each; the second begins at line 4.
        let high = Size { height: 8, width: 12 };
        let pixels = (0..8u8).flat_map(|y| (0..12u8).map(move |x| [y, x, 0])).flatten().collect();
        let patches = Patches::new(vec![Picture::new(high, pixels)], &rule(), &config()).unwrap();
        let lines = patches.lines(13..20);
        assert_eq!((lines.before, lines.frames[0].len(), lines.frames[0][0]), (1, 4 * 12 * CHANNELS, 4));
        assert_eq!(patches.lines(11..13).frames[0].len(), 8 * 12 * CHANNELS, "of two rows of blocks");
        assert_eq!(patches.levels()[0][255], 1.0);
    }

    #[test]
    fn frames_of_different_sizes_and_none_are_refused() {
        let small = Picture::new(Size { height: 4, width: 4 }, vec![0; 48]);
        let error = Patches::new(vec![frame(0), small], &rule(), &config()).unwrap_err().to_string();
        assert_eq!(error, "frames = 4 x 4 beside 8 x 4: expected frames of one size");
        let error = Patches::new(Vec::new(), &rule(), &config()).unwrap_err().to_string();
        assert_eq!(error, "the video has 0 frames, at least 1 are needed");
    }
}
