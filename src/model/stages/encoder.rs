//! The encoder stage: sound and pictures to embeddings of the thinker, one step of a [`Schedule`] after the other.
//!
//! Units are steps of work: a window of sound, a piece of patches, a piece of a layer of a slice, a piece of its rows.
//! The parts of a sequence do not see each other, so a sequence may begin at any of them, with the same bits.

use crate::embeddings::Embeddings;
use crate::encoder::{EncoderSpec, Features, Part, Schedule, Work};
use crate::error::{not_open, refused};
use crate::hf::ThinkerConfig;
use crate::stage::{
    DeviceTimes, Launched, SequenceOutput, SequenceSpec, SequenceWork, StageData, StageFactory, StageModel, StepOutcome,
};
use crate::towers::{Slice, SliceLayout, Towers};
use crate::{LoadError, ModelError};
use candle_core::{Device, Tensor};
use omni_core::ids::{FinishReason, Slot};
use omni_telemetry::{Phase, PhaseClock};
use rayon::ThreadPool;
use std::collections::{HashMap, VecDeque};
use std::sync::Arc;

/// Makes [`EncoderStage`]s that share the towers.
pub struct EncoderFactory {
    towers: Arc<Towers>,
    config: Arc<ThinkerConfig>,
    threads: Arc<ThreadPool>,
}

impl EncoderFactory {
    /// For loaded towers and the sizes that they were loaded with. They compute on these threads, which no other stage
    /// has: a decode step then waits for a core as the system shares them out, and not until all that an encoder's step
    /// has queued is done.
    pub fn new(towers: Arc<Towers>, config: ThinkerConfig, threads: ThreadPool) -> EncoderFactory {
        EncoderFactory { towers, config: config.into(), threads: Arc::new(threads) }
    }
}

impl StageFactory for EncoderFactory {
    fn build(&self) -> Result<Box<dyn StageModel>, LoadError> {
        let (towers, config) = (Arc::clone(&self.towers), Arc::clone(&self.config));
        let threads = Arc::clone(&self.threads);
        Ok(Box::new(EncoderStage { towers, config, threads, sequences: HashMap::new() }))
    }
}

/// Sequences of the encoder.
pub struct EncoderStage {
    towers: Arc<Towers>,
    config: Arc<ThinkerConfig>,
    threads: Arc<ThreadPool>,
    sequences: HashMap<Slot, Sequence>,
}

struct Sequence {
    schedule: Schedule,
    longest: usize,
    /// The part that is encoded, and its units done.
    part: usize,
    unit: usize,
    /// Pieces that have come and were not used.
    waiting: VecDeque<Features>,
    /// Of the part that is encoded.
    slice: Option<Slice<Arc<SliceLayout>>>,
    /// Of the last slice: those of one video share theirs.
    layout: Option<([usize; 2], Arc<SliceLayout>)>,
    /// Rows of the part that were emitted.
    emitted: usize,
}

impl StageModel for EncoderStage {
    fn open(&mut self, slot: Slot, spec: SequenceSpec) -> Result<(), ModelError> {
        let SequenceSpec::Encoder(spec) = spec else {
            return refused(format!("{slot}: the encoder cannot open {spec:?}"));
        };
        if self.sequences.contains_key(&slot) {
            return refused(format!("{slot} is open already"));
        }
        let EncoderSpec { media, longest, done, grain } = spec;
        let schedule = Schedule::of(&self.config, &media, grain)?;
        if done as usize >= schedule.parts().len() {
            return refused(format!("{slot}: {done} parts of {} are done", schedule.parts().len()));
        }
        for part in schedule.parts() {
            // Its weights may lack what its config describes.
            match part.work {
                Work::Window(_) => drop(self.towers.audio()?),
                Work::Slice { .. } => drop(self.towers.vision()?),
            }
        }
        let sequence = Sequence {
            schedule,
            longest: longest as usize,
            part: done as usize,
            unit: 0,
            waiting: VecDeque::new(),
            slice: None,
            layout: None,
            emitted: 0,
        };
        self.sequences.insert(slot, sequence);
        Ok(())
    }

    fn push_input(&mut self, slot: Slot, input: Option<StageData>, _: bool) -> Result<(), ModelError> {
        let sequence = self.sequences.get_mut(&slot).ok_or_else(|| not_open(slot))?;
        match input {
            Some(StageData::Features(features)) => sequence.waiting.push_back(features),
            // The schedule says when it ends.
            None => {}
            Some(_) => return refused(format!("{slot}: the encoder takes features only")),
        }
        Ok(())
    }

    fn launch(&mut self, sequences: &[SequenceWork]) -> Result<Launched, ModelError> {
        // One after the other: the products of a part are large enough to fill a CPU's pipes alone.
        let mut clock = PhaseClock::start();
        let threads = Arc::clone(&self.threads);
        let sequences = threads.install(|| sequences.iter().map(|work| self.advance(*work)).collect());
        clock.lap(Phase::Backbone);
        Ok(Launched::Done(StepOutcome { sequences, times: DeviceTimes { total: None, phases: clock.phases() } }))
    }

    fn close(&mut self, slot: Slot) {
        self.sequences.remove(&slot);
    }

    fn live_sequences(&self) -> usize {
        self.sequences.len()
    }
}

impl EncoderStage {
    fn advance(&mut self, work: SequenceWork) -> Result<SequenceOutput, ModelError> {
        let sequence = self.sequences.get_mut(&work.slot).ok_or_else(|| not_open(work.slot))?;
        let Some(part) = sequence.schedule.parts().get(sequence.part).cloned() else {
            return Ok(SequenceOutput { stale: true, ..SequenceOutput::default() });
        };
        if work.advance != 1 {
            return refused(format!("{}: asked for {} units, a step is 1", work.slot, work.advance));
        }
        let rows = sequence.step(&part, &self.towers)?;
        sequence.unit += 1;
        if sequence.unit == part.units() as usize {
            (sequence.part, sequence.unit) = (sequence.part + 1, 0);
            (sequence.slice, sequence.emitted) = (None, 0);
        }
        let finished = sequence.part == sequence.schedule.parts().len();
        Ok(SequenceOutput {
            finish: finished.then_some(FinishReason::Stop),
            emit: rows.map(|rows| StageData::Embeddings(Embeddings::Host(rows))),
            ..SequenceOutput::default()
        })
    }
}

impl Sequence {
    /// The next unit of a part. Returns the rows `[n, width]` that it emits.
    fn step(&mut self, part: &Part, towers: &Towers) -> Result<Option<Tensor>, ModelError> {
        match &part.work {
            Work::Window(frames) => {
                let tower = towers.audio()?;
                let features = self.next(&[tower.config().num_mel_bins, frames.len()])?;
                let chunk = tower.padded_chunk(self.longest);
                Ok(Some(tower.encode_window(&features, chunk)?.rows))
            }
            Work::Slice { patches, sides: [height, width], piece, cut, steps, layers, emits } => {
                let tower = towers.vision()?;
                let (pieces, layers) = (patches.len().div_ceil(*piece), *layers as usize);
                if self.unit < pieces {
                    let count = (*piece).min(patches.len() - self.unit * piece);
                    let features = self.next(&[count, tower.config().patch_width()])?;
                    if self.slice.is_none() {
                        let sides = [*height, *width];
                        let layout = match &self.layout {
                            Some((of, layout)) if *of == sides => Arc::clone(layout),
                            _ => Arc::new(tower.layout(*height, *width)?),
                        };
                        self.layout = Some((sides, Arc::clone(&layout)));
                        self.slice = Some(tower.empty(layout));
                    }
                    if let Some(slice) = &mut self.slice {
                        tower.feed(slice, &features)?;
                    }
                    return Ok(None);
                }
                if self.unit < pieces + layers {
                    let Some(slice) = &mut self.slice else { return refused("a slice without patches") };
                    for _ in 0..*steps {
                        tower.advance(slice, *cut)?;
                    }
                    return Ok(None);
                }
                let Some(slice) = &self.slice else { return refused("a slice without rows") };
                let count = (*emits).min(part.rows as usize - self.emitted);
                let rows = tower.merge(slice, self.emitted, count)?.joined()?;
                self.emitted += count;
                Ok(Some(rows))
            }
        }
    }

    /// The next piece of input, as a tensor of this shape.
    fn next(&mut self, shape: &[usize; 2]) -> Result<Tensor, ModelError> {
        let Some(features) = self.waiting.pop_front() else { return refused("the features of a part have not come") };
        let numbers = features.numbers();
        if numbers.len() != shape[0] * shape[1] {
            return refused(format!("features have {} numbers: expected {shape:?}", numbers.len()));
        }
        Ok(Tensor::from_vec(numbers, (shape[0], shape[1]), &Device::Cpu)?)
    }
}
