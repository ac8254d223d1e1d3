//! Steps on their way, and what the device says of them.

use super::arrivals::Arrival;
use super::ring::{Lease, Ring};
use super::swap::Swapped;
use super::table::{BROKEN, EXHAUSTED, STALE, STOPPED};
use crate::model::ModelError;
use crate::model::stage::{Emit, Finish, PendingStep, RowOutput, StepOutcome};
use crate::model::stages::refused;
use metrics::Histogram;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

/// One row's part in a step.
pub(super) enum Part {
    /// Known without the device.
    Known(Result<RowOutput, ModelError>),
    /// A frame: the row of the step's output.
    Frame { at: usize, forced: bool, finished: Arc<AtomicBool> },
    /// Positions of a prompt.
    Prompt,
}

/// A step on its way.
pub(super) struct Pending {
    pub(super) ring: Arc<Ring>,
    pub(super) lease: Option<Lease>,
    pub(super) parts: Vec<Part>,
    pub(super) timed: Arc<[(usize, Histogram)]>,
    pub(super) groups: usize,
    /// Page-locked memory that the step reads.
    pub(super) _held: Vec<Swapped>,
    /// Rows that the step reads where they are.
    pub(super) _arrivals: Vec<Arrival>,
}

impl PendingStep for Pending {
    fn wait(mut self: Box<Self>) -> Result<StepOutcome, ModelError> {
        let Some(lease) = &self.lease else { return Ok(StepOutcome::default()) };
        lease.end.gpu().bind()?;
        lease.end.wait()?;
        let device_time = lease.end.since(&lease.begin).ok();
        let (groups, width) = (self.groups, out_words(self.groups));
        let parts = std::mem::take(&mut self.parts);
        let frames = parts.iter().filter(|part| matches!(part, Part::Frame { .. })).count();
        let alone = frames > 0 && !parts.iter().any(|part| matches!(part, Part::Prompt));
        if let (true, Some(time)) = (alone, device_time)
            && let Some((_, histogram)) = self.timed.iter().find(|(bucket, _)| *bucket >= frames)
        {
            histogram.record(time);
        }
        let rows = parts
            .into_iter()
            .map(|part| match part {
                Part::Known(result) => result,
                Part::Prompt => Ok(RowOutput::default()),
                Part::Frame { at, forced, finished } => {
                    let words = if forced { width } else { groups + 2 };
                    read(&lease.out.get(at * width..at * width + words), groups, &finished)
                }
            })
            .collect();
        Ok(StepOutcome { rows, times: device_time.into() })
    }
}

impl Drop for Pending {
    fn drop(&mut self) {
        if let Some(lease) = self.lease.take() {
            self.ring.give_back(lease);
        }
    }
}

/// Words of a row in the output of a step.
pub(super) fn out_words(groups: usize) -> usize {
    2 * groups + 2
}

/// What the device says of one row: codes, code 0 again, status; with forced codes those that it would have picked.
fn read(words: &[u32], groups: usize, finished: &AtomicBool) -> Result<RowOutput, ModelError> {
    let Some((codes, [sampled, status, picked @ ..])) = words.split_at_checked(groups) else {
        return refused("the step has no output");
    };
    let picked = |count: usize| picked.get(..count).map(Box::from);
    if status & STALE != 0 {
        return Ok(RowOutput { stale: true, ..RowOutput::default() });
    }
    if status & BROKEN != 0 {
        finished.store(true, Ordering::Release);
        return refused("a logit is not a number or no code is allowed, so no code can be sampled");
    }
    let finish = match status {
        status if status & STOPPED != 0 => Some(Finish::Stop),
        status if status & EXHAUSTED != 0 => Some(Finish::Length),
        _ => None,
    };
    if finish.is_some() {
        finished.store(true, Ordering::Release);
        // Nothing was said but code 0.
        return Ok(RowOutput { sampled: Some(*sampled), finish, picked: picked(1), ..RowOutput::default() });
    }
    let emit = Emit::Codes(codes.to_vec());
    Ok(RowOutput { sampled: Some(*sampled), emit, picked: picked(groups), ..RowOutput::default() })
}
