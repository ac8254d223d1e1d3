//! Steps under way, and how to read their outcome.

use super::arrivals::Arrival;
use super::ring::{Lease, Ring};
use super::swap::Swapped;
use super::table::{BROKEN, EXHAUSTED, STALE, STOPPED};
use crate::persistent::Stalled;
use crate::spinning::GpuUse;
use metrics::Histogram;
use omni_core::ids::FinishReason;
use omni_model::ModelError;
use omni_model::error::refused;
use omni_model::no_block;
use omni_model::stage::{DeviceTimes, PendingStep, SequenceOutput, StageData, StepOutcome};
use omni_telemetry::{CopyMetrics, Phase, Phases};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

/// One sequence's part in a step.
pub(super) enum Part {
    /// The outcome is known without the device.
    Known(Result<SequenceOutput, ModelError>),
    /// A frame, at this row of the step's output.
    Frame { at: usize, forced: bool, finished: Arc<AtomicBool> },
    /// Positions of a prompt.
    Prompt,
}

/// A step under way.
pub(super) struct Pending {
    pub(super) ring: Arc<Ring>,
    pub(super) lease: Option<Lease>,
    pub(super) parts: Vec<Part>,
    pub(super) timed: Arc<[(usize, Histogram)]>,
    pub(super) using: GpuUse,
    pub(super) stalled: Option<Arc<Stalled>>,
    pub(super) groups: usize,
    pub(super) times_at: usize,
    /// Page-locked memory that the step reads.
    pub(super) _held: Vec<Swapped>,
    /// Embeddings that the step reads where they are.
    pub(super) arrivals: Vec<Arrival>,
    pub(super) copies: CopyMetrics,
}

/// Passes of the predictor that are left of a frame when the host plans the next one: 0.35 ms of one sequence on an H200,
/// and the host takes some 0.2.
const LEFT: usize = 6;
/// How often a frame is asked how far it is.
const ASKED: Duration = Duration::from_micros(30);

impl PendingStep for Pending {
    #[expect(
        clippy::disallowed_methods,
        reason = "there is no event inside a graph: a word in the host's memory tells"
    )]
    fn nearly(&self) {
        let frames = self.parts.iter().any(|part| matches!(part, Part::Frame { .. }));
        let Some(lease) = self.lease.as_ref().filter(|_| frames) else { return };
        no_block::waits("a frame that is nearly over");
        if lease.end.gpu().bind().is_err() {
            return;
        }
        let at = self.times_at + nearly_at(self.groups);
        // A device that failed does not get there; its end tells.
        while lease.out.get(at..at + 1) == [0] && lease.end.passed() == Ok(false) {
            std::thread::sleep(ASKED);
        }
    }

    fn wait(mut self: Box<Self>) -> Result<StepOutcome, ModelError> {
        let Some(lease) = &self.lease else { return Ok(StepOutcome::default()) };
        lease.end.gpu().bind()?;
        lease.end.wait()?;
        self.using.ended();
        if let Some(stalled) = &self.stalled {
            stalled.check(lease.end.gpu())?;
        }
        let device_time = lease.end.since(&lease.begin).ok();
        self.arrivals.iter().for_each(|arrival| arrival.count(&self.copies));
        let (groups, width) = (self.groups, out_words(self.groups));
        let parts = std::mem::take(&mut self.parts);
        let frames = parts.iter().filter(|part| matches!(part, Part::Frame { .. })).count();
        let alone = frames > 0 && !parts.iter().any(|part| matches!(part, Part::Prompt));
        if let (true, Some(time)) = (alone, device_time)
            && let Some((_, histogram)) = self.timed.iter().find(|(bucket, _)| *bucket >= frames)
        {
            histogram.record(time);
        }
        let sequences = parts
            .into_iter()
            .map(|part| match part {
                Part::Known(result) => result,
                Part::Prompt => Ok(SequenceOutput::default()),
                Part::Frame { at, forced, finished } => {
                    let words = if forced { width } else { groups + 2 };
                    read(&lease.out.get(at * width..at * width + words), groups, &finished)
                }
            })
            .collect();
        let phases = match device_time {
            Some(total) if frames > 0 => {
                let words = lease.out.get(self.times_at..self.times_at + time_words(groups));
                phases(&words, total, alone)
            }
            Some(total) => Phases::only(Phase::Backbone, total),
            None => Phases::default(),
        };
        Ok(StepOutcome { sequences, times: DeviceTimes { total: device_time, phases } })
    }
}

impl Drop for Pending {
    fn drop(&mut self) {
        if let Some(lease) = self.lease.take() {
            self.ring.give_back(lease);
        }
    }
}

/// Words of a row of a step's output.
pub(super) fn out_words(groups: usize) -> usize {
    2 * groups + 2
}

/// Words of the times of a frame: see `StepHead` of `kernels/frame.cuh`.
pub(super) fn time_words(groups: usize) -> usize {
    2 * (2 + 2 * groups)
}

/// The word of the times of a frame that is not 0 once all but [`LEFT`] groups are picked.
pub(super) fn nearly_at(groups: usize) -> usize {
    let group = groups.saturating_sub(LEFT + 1);
    2 * (2 + 2 * group + 1)
}

/// The phases of a step with a frame. The time ahead of the frame counts as layers if the step had prompts, otherwise
/// as input.
fn phases(words: &[u32], total: Duration, alone: bool) -> Phases {
    let times: Vec<u64> =
        words.as_chunks::<2>().0.iter().map(|[low, high]| u64::from(*high) << 32 | u64::from(*low)).collect();
    let mut phases = Phases::default();
    let ([begin, _, picks @ ..], Some(end)) = (times.as_slice(), times.last()) else { return phases };
    let took = |from: u64, to: u64| Duration::from_nanos(to.saturating_sub(from));
    let picking: Duration = picks.as_chunks::<2>().0.iter().map(|[from, to]| took(*from, *to)).sum();
    let (first, frame) = (picks.first().copied().unwrap_or(*begin), took(*begin, *end));
    phases.add(if alone { Phase::Preprocess } else { Phase::Backbone }, total.saturating_sub(frame));
    phases.add(Phase::Backbone, took(*begin, first));
    phases.add(Phase::Sampling, picking);
    phases.add(Phase::CodePredictor, took(first, *end).saturating_sub(picking));
    phases
}

/// The output of one sequence: codes, code 0 again, status; with forced codes those that it would have picked.
fn read(words: &[u32], groups: usize, finished: &AtomicBool) -> Result<SequenceOutput, ModelError> {
    let Some((codes, [sampled, status, picked @ ..])) = words.split_at_checked(groups) else {
        return refused("the step has no output");
    };
    let picked = |count: usize| picked.get(..count).map(Box::from);
    if status & STALE != 0 {
        return Ok(SequenceOutput { stale: true, ..SequenceOutput::default() });
    }
    if status & BROKEN != 0 {
        finished.store(true, Ordering::Release);
        return refused("a logit is not a number or no code is allowed, so no code can be sampled");
    }
    let finish = match status {
        status if status & STOPPED != 0 => Some(FinishReason::Stop),
        status if status & EXHAUSTED != 0 => Some(FinishReason::Length),
        _ => None,
    };
    if finish.is_some() {
        finished.store(true, Ordering::Release);
        // The only output was code 0.
        return Ok(SequenceOutput { sampled: Some(*sampled), finish, picked: picked(1), ..SequenceOutput::default() });
    }
    let emit = Some(StageData::Codes(codes.to_vec()));
    Ok(SequenceOutput { sampled: Some(*sampled), emit, picked: picked(groups), ..SequenceOutput::default() })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_times_of_a_frame_add_up_to_the_step() {
        // Begin; code 0 picked from 500 to 510, the two other groups from 700 to 720 and 900 to 930.
        let times: [u64; 8] = [100, 0, 500, 510, 700, 720, 900, 930];
        let words: Vec<u32> = times.iter().flat_map(|time| [*time as u32, (time >> 32) as u32]).collect();
        assert_eq!(words.len(), time_words(3));
        let ns = Duration::from_nanos;
        let spent = phases(&words, ns(1000), true);
        assert_eq!(spent.get(Phase::Preprocess), ns(170));
        assert_eq!(spent.get(Phase::Backbone), ns(400));
        assert_eq!(spent.get(Phase::Sampling), ns(60));
        assert_eq!(spent.get(Phase::CodePredictor), ns(370));
        let with_prompt = phases(&words, ns(1000), false);
        assert_eq!(with_prompt.get(Phase::Backbone), ns(570));
        assert_eq!(phases(&words, ns(5), true).get(Phase::Preprocess), ns(0), "clocks differ");
    }
}
