//! An encoder that computes nothing: a row is a hash of all features of its part, and of what its clip is padded to. The
//! schedule is the real one, so are its steps.

use super::Book;
use crate::simulation::media::CONFIG;
use omni_core::ids::StageName;
use omni_core::random::mix;
use omni_media::Medium;
use omni_model::ModelError;
use omni_model::encoder::{Encodable, EncoderSpec, Features, Part, Schedule, Work};
use omni_model::error::refused;
use std::collections::VecDeque;
use std::sync::Arc;

/// A sequence of the encoder.
pub(super) struct Encoding {
    schedule: Schedule,
    chunk: u64,
    part: usize,
    /// Units of the part that are done, and its rows that were emitted.
    unit: u32,
    emitted: u32,
    state: u64,
    waiting: VecDeque<Vec<f32>>,
    /// Whose the part is, if it is of a medium that one prompt alone has.
    prompt: Option<u32>,
}

impl Encoding {
    pub fn open(spec: &EncoderSpec) -> Result<Encoding, ModelError> {
        let schedule = Schedule::new(&CONFIG, &spec.media)?;
        let (part, chunk) = (spec.done as usize, chunk(spec.longest));
        if part >= schedule.parts().len() {
            return refused(format!("{part} parts of {} are done", schedule.parts().len()));
        }
        let waiting = VecDeque::new();
        Ok(Encoding { schedule, chunk, part, unit: 0, emitted: 0, state: 0, waiting, prompt: None })
    }

    pub fn push(&mut self, features: Features) {
        self.waiting.push_back(features.numbers());
    }

    /// One unit of work. Returns the rows that it makes, and whether they are the last.
    pub fn step(&mut self, book: &Book) -> Result<(Vec<u32>, bool), ModelError> {
        let Some(part) = self.schedule.parts().get(self.part).cloned() else { return refused("nothing is left") };
        let (patches, rows_of_a_step) = match &part.work {
            Work::Window(_) => (1, part.rows),
            Work::Slice { patches, piece, emits, .. } => (patches.len().div_ceil(*piece) as u32, *emits as u32),
        };
        let layers = if let Work::Slice { layers, .. } = part.work { layers } else { 0 };
        if self.unit == 0 {
            self.state = begin(&part, self.chunk);
        }
        if self.unit < patches {
            let Some(numbers) = self.waiting.pop_front() else {
                return refused("the features of a part have not come");
            };
            let wanted = width(&part) * length(&part, self.unit);
            if numbers.len() != wanted {
                return refused(format!("{} numbers of a piece of {wanted}", numbers.len()));
            }
            self.state = look(self.state, &numbers);
            self.prompt = book.whose(&numbers).or(self.prompt);
        } else if self.unit < patches + layers {
            self.state = layer(self.state, self.unit - patches);
        }
        if let Some(prompt) = self.prompt {
            book.check(StageName::Encoder, u64::from(prompt), self.unit)?;
        }
        let mut rows = Vec::new();
        if layers == 0 || self.unit >= patches + layers {
            let upto = part.rows.min(self.emitted + rows_of_a_step);
            rows.extend((self.emitted..upto).map(|at| row(self.state, at)));
            self.emitted = upto;
        }
        self.unit += 1;
        if self.unit == part.units() {
            self.part += 1;
            (self.unit, self.emitted, self.prompt) = (0, 0, None);
        }
        Ok((rows, self.part == self.schedule.parts().len()))
    }
}

/// Numbers of a frame or patch of a part.
fn width(part: &Part) -> usize {
    match part.work {
        Work::Window(_) => CONFIG.audio.as_ref().map_or(0, |tower| tower.num_mel_bins),
        Work::Slice { .. } => CONFIG.vision.as_ref().map_or(0, |tower| tower.patch_width()),
    }
}

/// Frames or patches of a piece of a part.
fn length(part: &Part, piece: u32) -> usize {
    part.pieces().nth(piece as usize).map_or(0, |piece| piece.range.len())
}

/// What the clips of a request are padded to.
fn chunk(longest: u32) -> u64 {
    u64::from(longest).min(CONFIG.audio.as_ref().map_or(0, |tower| tower.chunk_frames() as u64))
}

/// A window follows from what its clip is padded to, a slice from itself alone.
fn begin(part: &Part, chunk: u64) -> u64 {
    if matches!(part.work, Work::Window(_)) { chunk } else { 0 }
}

pub(super) fn look(state: u64, numbers: &[f32]) -> u64 {
    numbers.iter().fold(state, |state, number| mix(state, u64::from(number.to_bits())))
}

fn layer(state: u64, unit: u32) -> u64 {
    mix(state, 0x200 + u64::from(unit))
}

/// A row: a number that an embedding of one number can hold.
fn row(state: u64, at: u32) -> u32 {
    mix(state, u64::from(at)) as u32 & 0xFF_FFFF
}

/// The features of what is encoded, in pieces.
pub(in crate::simulation) fn pieces(media: &[(Arc<Medium>, bool)]) -> impl Iterator<Item = (Part, Vec<f32>)> {
    let encodables: Vec<_> = media.iter().filter_map(|(medium, sound)| Encodable::of(medium, *sound)).collect();
    let parts = Schedule::new(&CONFIG, &encodables).map(|schedule| schedule.parts().to_vec()).unwrap_or_default();
    parts.into_iter().map(|part| {
        let (medium, sound) = &media[part.medium];
        let numbers = part
            .pieces()
            .flat_map(|piece| Features::Of { medium: Arc::clone(medium), sound: *sound, range: piece.range }.numbers());
        let numbers = numbers.collect();
        (part, numbers)
    })
}

/// The rows of media, computed in one go.
pub(super) fn rows(media: &[(Arc<Medium>, bool)]) -> Vec<u32> {
    let longest = media.iter().filter(|(_, sound)| *sound).filter_map(|(medium, _)| medium.sound());
    let chunk = chunk(longest.map(|sound| sound.frames() as u32).max().unwrap_or(0));
    let rows = pieces(media).flat_map(|(part, numbers)| {
        let layers = if let Work::Slice { layers, .. } = part.work { layers } else { 0 };
        let state = (0..layers).fold(look(begin(&part, chunk), &numbers), layer);
        (0..part.rows).map(move |at| row(state, at))
    });
    rows.collect()
}
