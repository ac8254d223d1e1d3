//! The stages' implementations of [`StageModel`](super::stage::StageModel): sequences and their bookkeeping around the
//! nets.

pub mod encoder;
mod kept;
pub mod media;
pub mod talker;
pub mod thinker;
pub mod vocoder;

pub use kept::{Held, HostCopy, PagedPrompts, Planned};

use crate::error::{ModelError, not_open};
use crate::stage::{DeviceTimes, SequenceOutput, SequenceWork, StepOutcome};
use omni_core::ids::Slot;
use omni_telemetry::{Phase, PhaseClock};
use std::collections::HashMap;

/// A stage of a language model: its sequences go through one forward together.
trait LanguageModel {
    type Sequence;
    /// What a sequence's share of the forward is made of.
    type Input;

    fn sequences(&mut self) -> &mut HashMap<Slot, Self::Sequence>;

    /// Begins a sequence's step: completes it if it needs no forward, otherwise adds its input to the batch.
    fn begin(
        &mut self,
        place: usize,
        work: SequenceWork,
        batch: &mut Batch<Self::Sequence, Self::Input>,
    ) -> Result<SequenceOutput, ModelError>;

    /// Runs the forward of a step and makes its outputs.
    fn run(
        &mut self,
        batch: &mut Batch<Self::Sequence, Self::Input>,
        results: &mut [Result<SequenceOutput, ModelError>],
        clock: &mut PhaseClock,
    ) -> Result<(), ModelError>;

    /// One step: [`StageModel::launch`](crate::stage::StageModel::launch).
    fn step_sequences(&mut self, work: &[SequenceWork]) -> Result<StepOutcome, ModelError> {
        let mut clock = PhaseClock::start();
        let mut results = Vec::with_capacity(work.len());
        let mut batch = Batch { input: Vec::new(), running: Vec::new() };
        for (place, work) in work.iter().enumerate() {
            results.push(self.begin(place, *work, &mut batch));
        }
        clock.lap(Phase::Preprocess);
        if !batch.running.is_empty() {
            self.run(&mut batch, &mut results, &mut clock)?;
        }
        for Running { slot, sequence, .. } in batch.running {
            self.sequences().insert(slot, sequence);
        }
        clock.lap(Phase::Postprocess);
        Ok(StepOutcome { sequences: results, times: DeviceTimes { total: None, phases: clock.phases() } })
    }
}

/// The sequences that take part in the forward of a step, with their input.
struct Batch<R, I> {
    input: Vec<I>,
    running: Vec<Running<R>>,
}

/// A sequence in a batch; out of the stage's map meanwhile.
struct Running<R> {
    slot: Slot,
    /// Its entry in the step's results.
    place: usize,
    sequence: R,
    /// New positions.
    len: usize,
    /// Whether a token is sampled from the last of them.
    samples: bool,
}

impl<R, I> Batch<R, I> {
    /// Moves a sequence from the stage into the batch.
    fn take(
        &mut self,
        sequences: &mut HashMap<Slot, R>,
        place: usize,
        work: SequenceWork,
        samples: bool,
    ) -> Result<(), ModelError> {
        let SequenceWork { slot, advance } = work;
        let sequence = sequences.remove(&slot).ok_or_else(|| not_open(slot))?;
        self.running.push(Running { slot, place, sequence, len: advance as usize, samples });
        Ok(())
    }

    /// Positions of the forward that tokens are sampled from.
    fn last_positions(&self) -> Vec<u32> {
        let ends = self.running.iter().scan(0, |end, entry| {
            *end += entry.len as u32;
            Some((entry.samples, *end - 1))
        });
        ends.filter_map(|(samples, last)| samples.then_some(last)).collect()
    }
}
