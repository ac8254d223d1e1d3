//! How long steps took, and how long the device waited for them: in metrics and in a trace.

use crate::generation::Life;
use omni_core::ids::RequestId;
use omni_core::scheduler::{Plan, SequenceDone};
use omni_model::stage::DeviceTimes;
use omni_telemetry::trace::{self, Component, Ran, SequenceShare, What};
use std::time::{Duration, Instant};

/// Counts steps, one after the other.
#[derive(Default)]
pub(super) struct Steps {
    /// When the last step had run, and of which requests.
    last: Option<(Instant, Vec<RequestId>)>,
}

impl Steps {
    /// Counts a step, and puts it into a trace with what each sequence had of it.
    pub fn count(
        &mut self,
        life: &Life,
        plan: &Plan,
        span: &Span,
        pending: bool,
        times: &DeviceTimes,
        shares: Option<Vec<SequenceShare>>,
    ) {
        let metrics = &life.metrics;
        metrics.phases(&times.phases);
        metrics.steps.increment(1);
        let took = span.step(self.last.as_ref().map(|(ended, _)| *ended));
        metrics.step_seconds.record(took);
        metrics.batch_sequences.record(plan.sequences.len() as f64);
        metrics.units.increment(plan.sequences.iter().map(|sequence| u64::from(sequence.advance)).sum());
        let of = |request: &RequestId| plan.sequences.iter().any(|sequence| sequence.request == *request);
        let goes_on = self.last.as_ref().filter(|(_, before)| before.iter().any(of));
        let bubble = goes_on.map(|(last, _)| span.bubble(*last, pending));
        if let Some(bubble) = bubble {
            metrics.bubble_seconds.record(bubble);
        }
        let (ended, requests) = self.last.get_or_insert_with(|| (span.ended, Vec::new()));
        *ended = span.ended;
        requests.clear();
        requests.extend(plan.sequences.iter().map(|sequence| sequence.request));

        let Some(sequences) = shares else { return };
        let began = span.ended.checked_sub(took).unwrap_or(span.ended);
        trace::span(life.track(Component::Device), began, span.ended, || {
            What::Ran(Box::new(Ran {
                step: plan.step,
                sequences,
                measured: times.total.is_some(),
                bubble: bubble.map(|bubble| bubble.as_nanos() as u64),
                phases: Ran::nanos(&times.phases),
            }))
        });
    }
}

/// What each sequence had of a step.
pub(super) fn shares(plan: &Plan, done: &[SequenceDone]) -> Vec<SequenceShare> {
    let both = plan.sequences.iter().zip(done);
    let share = both.map(|(planned, done)| SequenceShare {
        request: planned.request,
        units: planned.advance,
        prompt: planned.prompt,
        gave: done.emitted,
    });
    share.collect()
}

/// When things happened to a step.
pub(super) struct Span {
    /// Its launch began and returned.
    pub began: Instant,
    pub returned: Instant,
    /// It had run.
    pub ended: Instant,
    /// For how long it ran, if the device can tell.
    pub device: Option<Duration>,
}

impl Span {
    /// How long the step ran. Steps run one after the other: without word from the device, it is taken to have begun
    /// when it was launched or the one before had ended, whatever came last.
    fn step(&self, last: Option<Instant>) -> Duration {
        let begun = last.map_or(self.began, |last| last.max(self.began));
        self.device.unwrap_or_else(|| self.ended.saturating_duration_since(begun))
    }

    /// How long the device had nothing to do before the step, after the one before had ended.
    fn bubble(&self, last: Instant, pending: bool) -> Duration {
        if pending && self.returned <= last {
            return Duration::ZERO;
        }
        let begun = self.device.and_then(|device| self.ended.checked_sub(device)).unwrap_or(self.began);
        begun.max(self.began).saturating_duration_since(last)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ms(ms: u64) -> Duration {
        Duration::from_millis(ms)
    }

    fn span(start: Instant, began: u64, returned: u64, ended: u64, device: Option<u64>) -> Span {
        let at = |at| start + ms(at);
        Span { began: at(began), returned: at(returned), ended: at(ended), device: device.map(ms) }
    }

    #[test]
    fn a_step_launched_before_the_last_one_ended_leaves_no_bubble() {
        let start = Instant::now();
        let last = start + ms(10);
        assert_eq!(span(start, 3, 4, 15, None).bubble(last, true), ms(0));
        assert_eq!(span(start, 3, 4, 15, Some(5)).bubble(last, true), ms(0));
    }

    #[test]
    fn a_step_launched_late_leaves_a_bubble_up_to_its_launch_or_its_start_on_the_device() {
        let start = Instant::now();
        let last = start + ms(10);
        assert_eq!(span(start, 12, 13, 20, None).bubble(last, true), ms(2));
        assert_eq!(span(start, 12, 13, 20, Some(6)).bubble(last, true), ms(4));
        assert_eq!(span(start, 9, 11, 20, Some(8)).bubble(last, true), ms(2), "its launch returned too late");
        assert_eq!(span(start, 12, 20, 20, None).bubble(last, false), ms(2), "a step that a launch computes");
    }

    #[test]
    fn a_step_takes_what_the_device_says_or_the_time_it_had_the_device_to_itself() {
        let start = Instant::now();
        let last = Some(start + ms(10));
        assert_eq!(span(start, 3, 4, 15, Some(4)).step(last), ms(4));
        assert_eq!(span(start, 3, 4, 15, None).step(last), ms(5));
        assert_eq!(span(start, 12, 13, 15, None).step(last), ms(3));
        assert_eq!(span(start, 12, 13, 15, None).step(None), ms(3));
    }
}
