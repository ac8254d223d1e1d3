//! A sequence's way through its [`Schedule`], whatever encodes: which unit is next, the input that it takes, and what is
//! over behind it. It owns the input that has come and was not used; it must never compute.

use super::schedule::{Part, Schedule, Work};
use super::{EncoderSpec, Features};
use crate::ModelError;
use crate::error::refused;
use crate::hf::ThinkerConfig;
use crate::stage::{SequenceWork, StageData};
use crate::towers::steps_of_a_layer;
use omni_core::ids::Slot;
use std::collections::VecDeque;
use std::ops::Range;

/// See the module.
pub struct Walk {
    schedule: Schedule,
    longest: usize,
    /// The part that is encoded, and its units done.
    part: usize,
    unit: usize,
    /// Pieces that have come and were not used.
    waiting: VecDeque<Features>,
    /// Rows of the part that were emitted.
    emitted: usize,
}

/// What a unit is.
#[derive(Clone, Debug)]
pub enum Unit {
    /// A window of sound.
    Window {
        /// `[bins, frames]`.
        features: Features,
        /// Frames of it.
        frames: usize,
        /// Frames that its chunks are padded to.
        chunk: usize,
    },
    /// The next patches of a slice.
    Patches {
        /// `[count, patch_width]`.
        features: Features,
        /// How many.
        count: usize,
        /// Rows and columns of the patches of the slice.
        sides: [usize; 2],
    },
    /// Steps of the layers of a slice.
    Layers {
        /// Patches that go through a layer in one step of it.
        cut: usize,
        /// Steps.
        steps: usize,
        /// Layers that have been begun when they are done.
        begun: usize,
        /// Rows and columns of the patches of the slice.
        sides: [usize; 2],
    },
    /// These embeddings of a slice that has been through all layers.
    Rows(Range<usize>),
}

/// What is over behind a unit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Over {
    /// The part.
    pub part: bool,
    /// All parts.
    pub all: bool,
}

impl Walk {
    /// Begins at the first part that was not done.
    ///
    /// # Errors
    /// Those of [`Schedule::of`], and [`ModelError::Sequence`] when no part is left.
    pub fn open(config: &ThinkerConfig, slot: Slot, spec: &EncoderSpec) -> Result<Walk, ModelError> {
        let schedule = Schedule::of(config, &spec.media, spec.grain)?;
        let (part, parts) = (spec.done as usize, schedule.parts().len());
        if part >= parts {
            return refused(format!("{slot}: {part} parts of {parts} are done"));
        }
        let longest = spec.longest as usize;
        Ok(Walk { schedule, longest, part, unit: 0, waiting: VecDeque::new(), emitted: 0 })
    }

    /// Whether it has sound, and whether it has pictures.
    pub fn has(&self) -> [bool; 2] {
        let sound = |part: &Part| matches!(part.work, Work::Window(_));
        [self.schedule.parts().iter().any(sound), !self.schedule.parts().iter().all(sound)]
    }

    /// Takes input. The schedule says when it ends.
    ///
    /// # Errors
    /// [`ModelError::Sequence`] for what is no features.
    pub fn push(&mut self, slot: Slot, input: Option<StageData>) -> Result<(), ModelError> {
        match input {
            Some(StageData::Features(features)) => self.waiting.push_back(features),
            None => {}
            Some(_) => return refused(format!("{slot}: the encoder takes features only")),
        }
        Ok(())
    }

    /// The next unit, with its input, and what is over once it is done; `None` behind the last.
    ///
    /// # Errors
    /// [`ModelError::Sequence`] for a step of more units than one, and when the input has not come or has another size.
    pub fn next(&mut self, config: &ThinkerConfig, work: SequenceWork) -> Result<Option<(Unit, Over)>, ModelError> {
        let Some(part) = self.schedule.parts().get(self.part) else { return Ok(None) };
        if work.advance != 1 {
            return refused(format!("{}: asked for {} units, a step is 1", work.slot, work.advance));
        }
        let (rows, units, work) = (part.rows as usize, part.units() as usize, part.work.clone());
        let unit = match work {
            Work::Window(frames) => {
                let (bins, chunk) = config
                    .audio
                    .as_ref()
                    .map_or((0, 0), |tower| (tower.num_mel_bins, tower.padded_chunk(self.longest)));
                let frames = frames.len();
                Unit::Window { features: self.features([bins, frames])?, frames, chunk }
            }
            Work::Slice { patches, sides, piece, cut, steps, layers, emits } => {
                let (n, layers, steps) = (patches.len(), layers as usize, steps as usize);
                let pieces = n.div_ceil(piece);
                if self.unit < pieces {
                    let count = piece.min(n - self.unit * piece);
                    let width = config.vision.as_ref().map_or(0, |tower| tower.patch_width());
                    Unit::Patches { features: self.features([count, width])?, count, sides }
                } else if self.unit < pieces + layers {
                    let behind = (self.unit - pieces + 1) * steps;
                    Unit::Layers { cut, steps, begun: behind.div_ceil(steps_of_a_layer(n, cut)), sides }
                } else {
                    Unit::Rows(self.emitted..rows.min(self.emitted + emits))
                }
            }
        };
        if let Unit::Rows(emitted) = &unit {
            self.emitted = emitted.end;
        }
        self.unit += 1;
        let over = self.unit == units;
        if over {
            (self.part, self.unit, self.emitted) = (self.part + 1, 0, 0);
        }
        Ok(Some((unit, Over { part: over, all: self.part == self.schedule.parts().len() })))
    }

    /// The next piece of input, which has this many numbers.
    fn features(&mut self, shape: [usize; 2]) -> Result<Features, ModelError> {
        let Some(features) = self.waiting.pop_front() else { return refused("the features of a part have not come") };
        if features.len() != shape[0] * shape[1] {
            return refused(format!("features have {} numbers: expected {shape:?}", features.len()));
        }
        Ok(features)
    }
}

#[cfg(test)]
mod tests {
    use super::super::{Encodable, Grain};
    use super::*;
    use crate::checkpoint::Checkpoint;
    use std::path::Path;

    #[test]
    fn a_walk_takes_all_input_and_gives_all_rows_in_as_many_units_as_were_planned() {
        let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/fixtures/qwen3_omni");
        let config = Checkpoint::open(&folder).unwrap().omni().unwrap().thinker.clone();
        let media = [Encodable::Sound { frames: 250 }, Encodable::Pictures { grid: [2, 8, 24] }];
        let work = SequenceWork { slot: Slot(3), advance: 1 };
        for grain in [Grain::Fine, Grain::Coarse] {
            let schedule = Schedule::of(&config, &media, grain).unwrap();
            let spec = EncoderSpec { media: media.into(), longest: 250, done: 0, grain };
            let mut walk = Walk::open(&config, Slot(3), &spec).unwrap();
            assert_eq!(walk.has(), [true, true]);
            assert!(walk.next(&config, work).unwrap_err().to_string().contains("have not come"));
            for piece in schedule.pieces_from(0) {
                let tower = config.vision.as_ref().unwrap();
                let width = if piece.medium == 0 { 128 } else { tower.patch_width() };
                let features = Features::Numbers(vec![0.0; piece.range.len() * width]);
                walk.push(Slot(3), Some(StageData::Features(features))).unwrap();
            }
            assert!(
                walk.next(&config, SequenceWork { advance: 2, ..work }).unwrap_err().to_string().contains("2 units")
            );
            let (mut rows, mut begun) = (0, 0);
            for unit in 1..=schedule.units() {
                let (next, over) = walk.next(&config, work).unwrap().unwrap();
                match next {
                    Unit::Window { frames, .. } => rows += config.audio.as_ref().unwrap().tokens(frames),
                    Unit::Rows(emitted) => rows += emitted.len(),
                    Unit::Layers { begun: layers, .. } => begun = layers,
                    Unit::Patches { .. } => {}
                }
                assert_eq!(over.all, unit == schedule.units(), "{grain:?}");
                assert!(over.part || !over.all);
            }
            assert_eq!((rows as u32, begun), (schedule.rows(), config.vision.as_ref().unwrap().depth), "{grain:?}");
            assert!(walk.next(&config, work).unwrap().is_none(), "behind the last unit");
            let done = EncoderSpec { done: schedule.parts().len() as u32, ..spec };
            assert!(Walk::open(&config, Slot(3), &done).is_err_and(|error| error.to_string().contains("are done")));
        }
    }
}
