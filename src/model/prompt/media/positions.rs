//! Positions in three axes: time, row, column (`get_rope_index` in transformers 5.23.0).
//!
//! All of it is f32, as in the reference, and positions may be fractional. With `n = 0`, from left to right:
//! - an ordinary token, and a token of sound: `(n, n, n)`, then `n += 1`;
//! - an image, `s = n`: token `(r, c)` of the merged grid at `(s, s + r, s + c)`, then `n` is the largest of them + 1;
//! - a video likewise, step `k` at `(s + k * second_per_grid * positions_per_second, s + r, s + c)`;
//! - a video that is heard: the two start tokens as ordinary ones; then frames as above and token `j` of the sound at
//!   `s + j`, merged by time; `n` is the largest *of the piece that is left when one of the two has run out* + 1, so
//!   that behind a wide frame with little sound positions come twice; then the two end tokens.
//!
//! A prompt without images and videos has the positions of text.

use super::MediaItem;
use crate::hf::MediaConfig;
use crate::media::Positions;
use crate::prompt::PromptError;
use omni_media::patches::Grid;

/// Whose positions.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Side {
    /// The thinker's, over its whole prompt.
    Thinker,
    /// The talker's, over the user's turns that it is given. The reference does not tell it which videos are heard: it
    /// takes one for such only while an image is still to come, and otherwise all its tokens count as text.
    Talker,
}

/// The positions of expanded ids. `media` are the items whose tokens are in `ids`, in their order.
///
/// # Errors
/// [`PromptError::Structure`] when the ids are not those of these items.
pub fn positions(ids: &[u32], media: &[MediaItem], config: &MediaConfig, side: Side) -> Result<Positions, PromptError> {
    if !media.iter().any(MediaItem::is_seen) {
        return Ok(Positions::text(ids.len()));
    }
    let tokens = &config.tokens;
    let pair = |at: usize, second: u32| ids[at] == tokens.vision_start && ids.get(at + 1) == Some(&second);
    let mut images_left = (0..ids.len()).filter(|at| pair(*at, tokens.image)).count();
    let mut walk = Walk { next: 0.0, out: [const { Vec::new() }; 3], config };
    let mut items = media.iter();
    while walk.len() < ids.len() {
        let at = walk.len();
        let starts_sound = ids[at] == tokens.audio_start;
        if !starts_sound && !pair(at, tokens.image) && !pair(at, tokens.video) && !pair(at, tokens.audio_start) {
            walk.text(1);
            continue;
        }
        match (items.next(), starts_sound) {
            (Some(MediaItem::Audio(heard)), true) => walk.text(1 + heard + 1),
            (Some(MediaItem::Image(grid)), false) if pair(at, tokens.image) => {
                images_left -= 1;
                walk.picture(*grid, 0.0);
            }
            (Some(MediaItem::Video { grid, second_per_grid, audio: None }), false) if pair(at, tokens.video) => {
                walk.picture(*grid, *second_per_grid as f32);
            }
            (Some(MediaItem::Video { grid, second_per_grid, audio: Some(heard) }), false)
                if pair(at, tokens.audio_start) =>
            {
                if side == Side::Talker && images_left == 0 {
                    walk.text(2 + heard + grid.tokens(config.patches.merge_size) + 2);
                } else {
                    walk.text(2);
                    walk.heard_video(*grid, *second_per_grid as f32, *heard);
                    walk.text(2);
                }
            }
            (item, _) => {
                let what =
                    item.map_or("no medium is left".into(), |item| format!("the next medium is {}", item.kind()));
                return Err(PromptError::Structure(format!("{what} at token {at}")));
            }
        }
    }
    if walk.len() != ids.len() || items.next().is_some() {
        return Err(PromptError::Structure("its media have other tokens than it has".into()));
    }
    let largest = walk.out.iter().flatten().copied().fold(f32::MIN, f32::max);
    Ok(Positions { delta: largest + 1.0 - ids.len() as f32, axes: walk.out })
}

struct Walk<'a> {
    /// The position of the next ordinary token.
    next: f32,
    out: [Vec<f32>; 3],
    config: &'a MediaConfig,
}

impl Walk<'_> {
    fn len(&self) -> usize {
        self.out[0].len()
    }

    fn push(&mut self, position: [f32; 3]) {
        self.out.iter_mut().zip(position).for_each(|(axis, at)| axis.push(at));
    }

    fn text(&mut self, tokens: usize) {
        for _ in 0..tokens {
            self.push([self.next; 3]);
            self.next += 1.0;
        }
    }

    /// The tokens of a grid whose first one is at `next`.
    fn grid(&self, grid: Grid, second_per_grid: f32) -> Vec<[f32; 3]> {
        let (start, merge) = (self.next, self.config.patches.merge_size);
        let mut out = Vec::with_capacity(grid.tokens(merge));
        for k in 0..grid.t {
            let time = start + k as f32 * second_per_grid * self.config.positions_per_second;
            for r in 0..grid.h / merge {
                out.extend((0..grid.w / merge).map(|c| [time, start + r as f32, start + c as f32]));
            }
        }
        out
    }

    /// Start token, grid, end token.
    fn picture(&mut self, grid: Grid, second_per_grid: f32) {
        self.text(1);
        let block = self.grid(grid, second_per_grid);
        self.end_block(&block, 0);
        self.text(1);
    }

    /// Frames and sound, merged by time.
    fn heard_video(&mut self, grid: Grid, second_per_grid: f32, heard: usize) {
        let frames = self.grid(grid, second_per_grid);
        let sound: Vec<[f32; 3]> = (0..heard).map(|j| [self.next + j as f32; 3]).collect();
        let (mut block, mut seen, mut said) = (Vec::with_capacity(frames.len() + heard), 0, 0);
        while seen < frames.len() && said < heard {
            if frames[seen][0] <= sound[said][0] {
                block.push(frames[seen]);
                seen += 1;
            } else {
                block.push(sound[said]);
                said += 1;
            }
        }
        let merged = block.len();
        block.extend_from_slice(&frames[seen..]);
        block.extend_from_slice(&sound[said..]);
        self.end_block(&block, merged);
    }

    /// Takes a block over; what is behind it begins above the largest position from token `last` of it on.
    fn end_block(&mut self, block: &[[f32; 3]], last: usize) {
        let largest = block[last..].iter().flatten().copied().fold(f32::MIN, f32::max);
        block.iter().for_each(|position| self.push(*position));
        if largest > f32::MIN {
            self.next = largest + 1.0;
        }
    }
}
