//! The stages' implementations of [`StageModel`](super::stage::StageModel): rows and their bookkeeping around the nets.

pub mod talker;
pub mod thinker;
pub mod vocoder;

use crate::error::{ModelError, not_open};
use crate::stage::{DeviceTimes, RowOutput, RowWork, StepOutcome};
use omni_core::ids::Slot;
use omni_telemetry::{Phase, PhaseClock};
use std::collections::HashMap;

/// A stage of a language model: its rows go through one forward together.
trait LanguageModel {
    type Row;
    /// What a row's share of the forward is made of.
    type Input;

    fn rows(&mut self) -> &mut HashMap<Slot, Self::Row>;

    /// What a row does in this step: all of it if no forward is needed, otherwise its input and an entry in the batch.
    fn begin(
        &mut self,
        place: usize,
        work: RowWork,
        batch: &mut Batch<Self::Row, Self::Input>,
    ) -> Result<RowOutput, ModelError>;

    /// The forward of a step, and what comes of it.
    fn run(
        &mut self,
        batch: &mut Batch<Self::Row, Self::Input>,
        results: &mut [Result<RowOutput, ModelError>],
        clock: &mut PhaseClock,
    ) -> Result<(), ModelError>;

    /// One step: [`StageModel::launch`](crate::stage::StageModel::launch).
    fn step_rows(&mut self, work: &[RowWork]) -> Result<StepOutcome, ModelError> {
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
        for Running { slot, row, .. } in batch.running {
            self.rows().insert(slot, row);
        }
        clock.lap(Phase::Postprocess);
        Ok(StepOutcome { rows: results, times: DeviceTimes { total: None, phases: clock.phases() } })
    }
}

/// The rows that take part in the forward of a step, with their input.
struct Batch<R, I> {
    input: Vec<I>,
    running: Vec<Running<R>>,
}

/// A row in a batch; out of the stage's map meanwhile.
struct Running<R> {
    slot: Slot,
    /// Its entry in the step's results.
    place: usize,
    row: R,
    /// New positions.
    len: usize,
    /// Whether a token is sampled from the last of them.
    samples: bool,
}

impl<R, I> Batch<R, I> {
    /// Moves a row from the stage into the batch.
    fn take(
        &mut self,
        rows: &mut HashMap<Slot, R>,
        place: usize,
        work: RowWork,
        samples: bool,
    ) -> Result<(), ModelError> {
        let RowWork { slot, advance } = work;
        let row = rows.remove(&slot).ok_or_else(|| not_open(slot))?;
        self.running.push(Running { slot, place, row, len: advance as usize, samples });
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
