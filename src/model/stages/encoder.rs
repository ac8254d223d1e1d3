//! The encoder stage: sound and pictures to embeddings of the thinker, one step of a
//! [`Schedule`](crate::encoder::Schedule) after the other.
//!
//! Units are steps of work: a window of sound, a piece of patches, a piece of a layer of a slice, a piece of its rows.
//! The parts of a sequence do not see each other, so a sequence may begin at any of them, with the same bits.

use crate::embeddings::Embeddings;
use crate::encoder::{Features, Unit, Walk};
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
use std::collections::HashMap;
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
    walk: Walk,
    /// Of the part that is encoded.
    slice: Option<Slice<Arc<SliceLayout>>>,
    /// Of the last slice: those of one video share theirs.
    layout: Option<([usize; 2], Arc<SliceLayout>)>,
}

impl StageModel for EncoderStage {
    fn open(&mut self, slot: Slot, spec: SequenceSpec) -> Result<(), ModelError> {
        let SequenceSpec::Encoder(spec) = spec else {
            return refused(format!("{slot}: the encoder cannot open {spec:?}"));
        };
        if self.sequences.contains_key(&slot) {
            return refused(format!("{slot} is open already"));
        }
        let walk = Walk::open(&self.config, slot, &spec)?;
        // Its weights may lack what its config describes.
        let [sound, pictures] = walk.has();
        if sound {
            self.towers.audio()?;
        }
        if pictures {
            self.towers.vision()?;
        }
        self.sequences.insert(slot, Sequence { walk, slice: None, layout: None });
        Ok(())
    }

    fn push_input(&mut self, slot: Slot, input: Option<StageData>, _: bool) -> Result<(), ModelError> {
        self.sequences.get_mut(&slot).ok_or_else(|| not_open(slot))?.walk.push(slot, input)
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
        let Some((unit, over)) = sequence.walk.next(&self.config, work)? else {
            return Ok(SequenceOutput { stale: true, ..SequenceOutput::default() });
        };
        let rows = sequence.step(unit, &self.towers)?;
        if over.part {
            sequence.slice = None;
        }
        Ok(SequenceOutput {
            finish: over.all.then_some(FinishReason::Stop),
            emit: rows.map(|rows| StageData::Embeddings(Embeddings::Host(rows))),
            ..SequenceOutput::default()
        })
    }
}

impl Sequence {
    /// Computes a unit. Returns the rows `[n, width]` that it emits.
    fn step(&mut self, unit: Unit, towers: &Towers) -> Result<Option<Tensor>, ModelError> {
        let tensor = |features: Features, rows: usize| {
            let numbers = features.numbers();
            let shape = (rows, numbers.len() / rows);
            Tensor::from_vec(numbers, shape, &Device::Cpu)
        };
        match unit {
            Unit::Window { features, chunk, .. } => {
                let tower = towers.audio()?;
                let features = tensor(features, tower.config().num_mel_bins)?;
                return Ok(Some(tower.encode_window(&features, chunk)?.rows));
            }
            Unit::Patches { features, count, sides } => {
                let (tower, features) = (towers.vision()?, tensor(features, count)?);
                if self.slice.is_none() {
                    let layout = match &self.layout {
                        Some((of, layout)) if *of == sides => Arc::clone(layout),
                        _ => Arc::new(tower.layout(sides[0], sides[1])?),
                    };
                    self.layout = Some((sides, Arc::clone(&layout)));
                    self.slice = Some(tower.empty(layout));
                }
                if let Some(slice) = &mut self.slice {
                    tower.feed(slice, &features)?;
                }
            }
            Unit::Layers { cut, steps, .. } => {
                let (tower, Some(slice)) = (towers.vision()?, &mut self.slice) else {
                    return refused("a slice without patches");
                };
                for _ in 0..steps {
                    tower.advance(slice, cut)?;
                }
            }
            Unit::Rows(rows) => {
                let Some(slice) = &self.slice else { return refused("a slice without rows") };
                return Ok(Some(towers.vision()?.merge(slice, rows.start, rows.len())?.joined()?));
            }
        }
        Ok(None)
    }
}
