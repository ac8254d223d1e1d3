//! The work of an encoder sequence, step by step. It follows from the sizes of the media and of the towers alone, so
//! those who send the input and those who compute agree on it without a word.
//!
//! The media are cut into *parts* that do not see each other: a window of a sound, a temporal slice of pictures. A unit
//! of work is a step of the stage:
//! - a window is one unit: it takes its features and emits its rows;
//! - a slice is a unit for each piece of its patches, some for its layers, and one for each piece of its rows.
//!
//! So the work of a step is bounded whatever the size of a picture, and so is a piece of input or output. How large both
//! are is the schedule's [`Grain`].

use crate::ModelError;
use crate::error::refused;
use crate::hf::ThinkerConfig;
use crate::towers::{layers_in_a_unit, patches_in_a_step, steps_of_a_layer};
use omni_media::Medium;
use std::ops::Range;

/// Patches, frames and rows of one sequence: far beyond what any prompt has room for, and no sum of them overflows.
const MOST: usize = 1 << 28;

/// One of the media that a tower encodes, as the schedule knows it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, bincode::Encode, bincode::Decode)]
pub enum Encodable {
    /// A clip of so many frames.
    Sound {
        /// Frames of its spectrum.
        frames: u32,
    },
    /// An image, or the frames of a video.
    Pictures {
        /// Steps in time, rows of patches, columns.
        grid: [u32; 3],
    },
}

impl Encodable {
    /// What a tower encodes of a medium: its sound, or its pictures. `None` where it has none.
    pub fn of(medium: &Medium, sound: bool) -> Option<Encodable> {
        if sound {
            return medium.sound().map(|sound| Encodable::Sound { frames: sound.frames() as u32 });
        }
        let grid = medium.pictures()?.grid();
        Some(Encodable::Pictures { grid: [grid.t, grid.h, grid.w].map(|size| size as u32) })
    }
}

/// How large the units of pictures are. What is computed does not depend on it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, bincode::Encode, bincode::Decode)]
pub enum Grain {
    /// For a CPU, and for an edge between processes: a piece of a layer, pieces of 1 MiB.
    #[default]
    Fine,
    /// For a GPU, to which a layer is little: several layers, pieces of 4 MiB.
    Coarse,
}

impl Grain {
    /// Numbers of a piece of patches or rows.
    fn piece(self) -> usize {
        match self {
            Grain::Fine => 1 << 18,
            Grain::Coarse => 1 << 20,
        }
    }
}

/// A part of the media: what is encoded without seeing anything else.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Part {
    /// Which of the media it is of.
    pub medium: usize,
    /// Units before it.
    pub unit: u32,
    /// Rows before it, those of all media counted.
    pub row: u32,
    /// Rows that it becomes.
    pub rows: u32,
    /// What it is.
    pub work: Work,
}

/// What a part is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Work {
    /// A window of a sound: these frames.
    Window(Range<usize>),
    /// A temporal slice of pictures.
    Slice {
        /// Its patches.
        patches: Range<usize>,
        /// Rows and columns of patches.
        sides: [usize; 2],
        /// Patches that come in one unit.
        piece: usize,
        /// Patches that go through a layer in one step of it.
        cut: usize,
        /// Steps of layers in a unit.
        steps: u32,
        /// Units of all layers.
        layers: u32,
        /// Rows that are emitted in one unit.
        emits: usize,
    },
}

/// A piece of input.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Piece {
    /// Which of the media it is of.
    pub medium: usize,
    /// Its frames or patches.
    pub range: Range<usize>,
    /// Units before it.
    pub unit: u32,
    /// Units of work that can be done once it is there.
    pub units: u32,
}

/// See the module.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Schedule {
    parts: Vec<Part>,
    units: u32,
    /// Behind the rows of each of the media.
    ends: Vec<u32>,
}

impl Schedule {
    /// [`Schedule::of`] in fine units.
    ///
    /// # Errors
    /// Those of [`Schedule::of`].
    pub fn new(config: &ThinkerConfig, media: &[Encodable]) -> Result<Schedule, ModelError> {
        Schedule::of(config, media, Grain::Fine)
    }

    /// The schedule of media on a thinker's towers.
    ///
    /// # Errors
    /// [`ModelError::Sequence`] for media that are empty, too large, or that there is no tower for.
    pub fn of(config: &ThinkerConfig, media: &[Encodable], grain: Grain) -> Result<Schedule, ModelError> {
        let mut schedule = Schedule { parts: Vec::new(), units: 0, ends: Vec::new() };
        for (number, medium) in media.iter().enumerate() {
            match medium {
                Encodable::Sound { frames } => schedule.add_sound(config, number, *frames as usize)?,
                Encodable::Pictures { grid } => {
                    schedule.add_pictures(config, number, grid.map(|n| n as usize), grain)?;
                }
            }
            schedule.ends.push(schedule.next().1);
        }
        Ok(schedule)
    }

    fn add_sound(&mut self, config: &ThinkerConfig, medium: usize, frames: usize) -> Result<(), ModelError> {
        let Some(tower) = &config.audio else { return refused("this checkpoint cannot hear: it has no audio tower") };
        if frames == 0 || frames > MOST {
            return refused(format!("a sound has {frames} frames: expected 1 to {MOST}"));
        }
        for start in (0..frames).step_by(tower.window_frames()) {
            let window = start..(start + tower.window_frames()).min(frames);
            let rows = tower.tokens(window.len());
            self.push(medium, rows, Work::Window(window))?;
        }
        Ok(())
    }

    fn add_pictures(
        &mut self,
        config: &ThinkerConfig,
        medium: usize,
        grid: [usize; 3],
        grain: Grain,
    ) -> Result<(), ModelError> {
        let Some(tower) = &config.vision else { return refused("this checkpoint cannot see: it has no vision tower") };
        let [slices, height, width] = grid;
        let all = slices.checked_mul(height).and_then(|n| n.checked_mul(width)).filter(|n| (1..=MOST).contains(n));
        let merges = |side: usize| side.is_multiple_of(tower.spatial_merge_size);
        if all.is_none() || !merges(height) || !merges(width) {
            return refused(format!(
                "a grid of {grid:?} patches: expected 1 to {MOST}, with sides that are multiples of {}",
                tower.spatial_merge_size
            ));
        }
        let (n, row) = (height * width, tower.patch_width());
        let out = config.text.hidden_size * (1 + tower.deepstack_visual_indexes.len());
        let (piece, emits) = ((grain.piece() / row).max(1), (grain.piece() / out).max(1));
        let cut = match grain {
            Grain::Fine => patches_in_a_step(tower, n),
            Grain::Coarse => n,
        };
        let steps = match grain {
            Grain::Fine => 1,
            Grain::Coarse => layers_in_a_unit(tower, n),
        };
        let layers = (tower.depth * steps_of_a_layer(n, cut)).div_ceil(steps) as u32;
        for slice in 0..slices {
            let patches = slice * n..(slice + 1) * n;
            let (sides, steps) = ([height, width], steps as u32);
            let work = Work::Slice { patches, sides, piece, cut, steps, layers, emits };
            self.push(medium, n / tower.merge_unit(), work)?;
        }
        Ok(())
    }

    fn push(&mut self, medium: usize, rows: usize, work: Work) -> Result<(), ModelError> {
        let (unit, row) = self.next();
        let part = Part { medium, unit, row, rows: rows as u32, work };
        let (Some(units), true) = (unit.checked_add(part.units()), row as usize + rows <= MOST) else {
            return refused(format!("media of more than {MOST} embeddings"));
        };
        self.units = units;
        self.parts.push(part);
        Ok(())
    }

    /// Units and rows so far.
    fn next(&self) -> (u32, u32) {
        (self.units, self.parts.last().map_or(0, |part| part.row + part.rows))
    }

    /// The parts, in order.
    pub fn parts(&self) -> &[Part] {
        &self.parts
    }

    /// Units of all parts.
    pub fn units(&self) -> u32 {
        self.units
    }

    /// Rows of all parts.
    pub fn rows(&self) -> u32 {
        self.next().1
    }

    /// The rows of one of the media, as those of all are counted.
    pub fn rows_of(&self, medium: usize) -> Range<u32> {
        let end = |at: usize| self.ends.get(at).copied().unwrap_or_default();
        let start = if medium == 0 { 0 } else { end(medium - 1) };
        start..end(medium)
    }

    /// Parts of which so many rows are all: where a sequence goes on that has delivered them.
    pub fn parts_within(&self, rows: u32) -> u32 {
        self.parts.partition_point(|part| part.row + part.rows <= rows) as u32
    }

    /// The pieces of input from a unit on.
    pub fn pieces_from(&self, unit: u32) -> impl Iterator<Item = Piece> {
        let first = self.parts.partition_point(|part| part.unit + part.units() <= unit);
        self.parts[first..].iter().flat_map(Part::pieces).skip_while(move |piece| piece.unit < unit)
    }
}

impl Part {
    /// Units that it takes.
    pub fn units(&self) -> u32 {
        match &self.work {
            Work::Window(_) => 1,
            Work::Slice { patches, piece, layers, emits, .. } => {
                let emissions = (self.rows as usize).div_ceil(*emits);
                (patches.len().div_ceil(*piece) + emissions) as u32 + layers
            }
        }
    }

    /// Its input.
    pub fn pieces(&self) -> impl Iterator<Item = Piece> {
        let (range, size) = match &self.work {
            Work::Window(frames) => (frames.clone(), frames.len()),
            Work::Slice { patches, piece, .. } => (patches.clone(), *piece),
        };
        let (medium, first, end) = (self.medium, self.unit, self.unit + self.units());
        let count = range.len().div_ceil(size.max(1));
        (0..count).map(move |i| {
            let start = range.start + i * size;
            let unit = first + i as u32;
            // What is done behind the last piece needs no input of its own.
            let units = if i + 1 == count { end - unit } else { 1 };
            Piece { medium, range: start..(start + size).min(range.end), unit, units }
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::checkpoint::Checkpoint;
    use std::path::Path;

    fn config() -> ThinkerConfig {
        let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/fixtures/qwen3_omni");
        Checkpoint::open(&folder).unwrap().omni().unwrap().thinker.clone()
    }

    #[test]
    fn the_pieces_of_all_parts_are_all_of_the_media_and_their_units_follow_each_other() {
        let config = config();
        let media = [
            Encodable::Sound { frames: 637 },
            Encodable::Pictures { grid: [3, 40, 44] },
            Encodable::Sound { frames: 1 },
        ];
        let schedule = Schedule::new(&config, &media).unwrap();
        let mut unit = 0;
        let mut taken = [0, 0, 0];
        for piece in schedule.pieces_from(0) {
            assert_eq!((piece.unit, piece.range.start), (unit, taken[piece.medium]), "{piece:?}");
            unit += piece.units;
            taken[piece.medium] = piece.range.end;
        }
        assert_eq!((unit, taken), (schedule.units(), [637, 3 * 40 * 44, 1]));
        let tower = config.audio.as_ref().unwrap();
        let rows = [tower.tokens(637), 3 * 40 * 44 / 4, 1].map(|rows| rows as u32);
        assert_eq!(schedule.rows_of(0), 0..rows[0]);
        assert_eq!(schedule.rows_of(1), rows[0]..rows[0] + rows[1]);
        assert_eq!(schedule.rows(), rows.iter().sum::<u32>());
        // A slice comes in pieces, and its last one carries its layers.
        let slice = schedule.parts().iter().find(|part| part.medium == 1).unwrap();
        let pieces: Vec<_> = slice.pieces().collect();
        assert!(pieces.len() > 1);
        assert!(pieces[pieces.len() - 1].units > config.vision.as_ref().unwrap().depth as u32);
        assert_eq!(schedule.pieces_from(pieces[1].unit).next(), Some(pieces[1].clone()));
    }

    #[test]
    fn the_grain_changes_units_and_no_part() {
        let mut config = config();
        let tower = config.vision.as_mut().unwrap();
        (tower.hidden_size, tower.intermediate_size, tower.num_heads, tower.depth) = (1152, 4304, 16, 27);
        let media = [Encodable::Pictures { grid: [2, 30, 40] }, Encodable::Sound { frames: 450 }];
        let [fine, coarse] = [Grain::Fine, Grain::Coarse].map(|grain| Schedule::of(&config, &media, grain).unwrap());
        let rows = |schedule: &Schedule| schedule.parts().iter().map(|p| (p.medium, p.row, p.rows)).collect::<Vec<_>>();
        assert_eq!(rows(&fine), rows(&coarse));
        assert!(coarse.units() * 4 < fine.units(), "{} units, and {} fine ones", coarse.units(), fine.units());
        for schedule in [fine, coarse] {
            let pieces: u32 = schedule.pieces_from(0).map(|piece| piece.units).sum();
            assert_eq!(pieces, schedule.units());
        }
        // However large a picture is, a unit is a layer of it at most.
        let large = Schedule::of(&config, &[Encodable::Pictures { grid: [1, 128, 128] }], Grain::Coarse).unwrap();
        let Work::Slice { steps, layers, .. } = large.parts()[0].work else { panic!("no slice") };
        assert_eq!((steps, layers), (1, 27));
    }

    #[test]
    fn the_layers_of_a_large_picture_are_cut_into_steps_of_bounded_work() {
        // As large as that of the 30B checkpoint.
        let mut config = config();
        let tower = config.vision.as_mut().unwrap();
        (tower.hidden_size, tower.intermediate_size, tower.num_heads, tower.depth) = (1152, 4304, 16, 27);
        tower.out_hidden_size = 2048;
        let layers = |side: u32| {
            let schedule = Schedule::new(&config, &[Encodable::Pictures { grid: [1, side, side] }]).unwrap();
            let Work::Slice { cut, layers, .. } = schedule.parts()[0].work.clone() else { panic!("no slice") };
            (cut, layers as usize)
        };
        assert_eq!(layers(14), (196, 27), "a small one goes through a layer in one step");
        for side in [64, 128, 512] {
            let (n, (cut, steps)) = ((side * side) as usize, layers(side));
            assert_eq!(steps, 27 * 2 * n.div_ceil(cut), "{side}");
            assert!(cut.is_multiple_of(4), "{side}: {cut} are no whole merge blocks");
            // Attention alone: to score all others, and to add up what they show.
            let macs = 2 * cut as u128 * n as u128 * 1152;
            assert!(macs <= 1 << 33, "{side}: {macs} multiply-adds a step");
        }
    }

    #[test]
    fn a_sequence_goes_on_at_the_first_part_that_was_not_delivered_whole() {
        let media = [Encodable::Sound { frames: 450 }, Encodable::Pictures { grid: [2, 4, 6] }];
        let schedule = Schedule::new(&config(), &media).unwrap();
        let ends: Vec<u32> = schedule.parts().iter().map(|part| part.row + part.rows).collect();
        assert_eq!(ends.len(), 5, "three windows and two slices");
        for rows in 0..=schedule.rows() {
            let done = schedule.parts_within(rows) as usize;
            assert!(done == 0 || ends[done - 1] <= rows, "{rows}");
            assert!(done == ends.len() || ends[done] > rows, "{rows}");
        }
    }

    #[test]
    fn what_cannot_be_encoded_is_refused() {
        let config = config();
        let refused = |config: &ThinkerConfig, medium| Schedule::new(config, &[medium]).unwrap_err().to_string();
        assert!(refused(&config, Encodable::Sound { frames: 0 }).contains("0 frames: expected 1 to"));
        assert!(refused(&config, Encodable::Pictures { grid: [1, 3, 4] }).contains("multiples of 2"));
        assert!(refused(&config, Encodable::Pictures { grid: [u32::MAX; 3] }).contains("expected 1 to"));
        let none = ThinkerConfig { audio: None, vision: None, ..config };
        assert!(refused(&none, Encodable::Sound { frames: 1 }).contains("cannot hear"));
        assert!(refused(&none, Encodable::Pictures { grid: [1, 2, 2] }).contains("cannot see"));
    }
}
