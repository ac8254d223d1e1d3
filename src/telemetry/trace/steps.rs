//! A trace as exact numbers: each step's times, and what they say about the launch path.

use super::record::{Ran, Record, Track, What};
use super::recorder::Trace;
use omni_core::ids::{Generation, Replica, StageName, StepId};
use std::collections::{BTreeMap, HashMap};
use std::time::Duration;

/// One step, all times in nanoseconds of the host's clock. What was not recorded, because the trace began or ended in
/// between, is `None`.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct StepTimes {
    /// Its sequences.
    pub sequences: u32,
    /// Units that they advanced.
    pub units: u32,
    /// How many of these were of prompts.
    pub prompt: u32,
    /// When the scheduler gave it to the runner.
    pub planned: Option<u64>,
    /// The step whose return it was planned at.
    pub after: Option<StepId>,
    /// When its launch call began and returned.
    pub launched: Option<(u64, u64)>,
    /// Steps out, at its launch, whose tokens the scheduler had not seen.
    pub ahead: Option<u32>,
    /// When it began and ended on the device, as far as the host knows.
    pub ran: Option<(u64, u64)>,
    /// How long the device had nothing to do before it; `None` where no sequence had been waiting.
    pub bubble: Option<u64>,
    /// When the scheduler had taken up its outcome.
    pub seen: Option<u64>,
    /// When the last of its payloads was on its edge.
    pub sent: Option<u64>,
}

/// Steps by replica, generation and number.
pub type Steps = BTreeMap<(Replica, Generation, StepId), StepTimes>;

impl Trace {
    /// Every step of which something was recorded, by replica, generation and number.
    pub fn steps(&self) -> Steps {
        steps(&self.records)
    }
}

pub(super) fn steps(records: &[Record]) -> Steps {
    let mut steps = Steps::new();
    // Which step is the last in a payload: the packager knows, the connector need not.
    let packed = records.iter().filter_map(|record| match (&record.what, record.track) {
        (What::Packed(chunk), track) => Some(((track.place()?, chunk.piece()), chunk.step?)),
        _ => None,
    });
    let packed: HashMap<_, _> = packed.collect();
    for record in records {
        let Track::Stage { stage, replica, generation, .. } = record.track else { continue };
        let place = Replica { stage, number: replica };
        let step = match &record.what {
            What::Planned { step, .. } | What::Launched { step, .. } | What::Returned(step) => *step,
            What::Ran(ran) => ran.step,
            What::Put(chunk) => match packed.get(&(place, chunk.piece())) {
                Some(step) => *step,
                None => continue,
            },
            _ => continue,
        };
        let times = steps.entry((place, generation, step)).or_default();
        match &record.what {
            What::Planned { sequences, after, .. } => {
                (times.sequences, times.planned, times.after) = (*sequences, Some(record.ended), *after);
            }
            What::Launched { sequences, ahead, .. } => {
                (times.sequences, times.ahead) = (*sequences, Some(*ahead));
                times.launched = Some((record.began, record.ended));
            }
            What::Ran(ran) => times.ran(ran, (record.began, record.ended)),
            What::Returned(_) => times.seen = Some(record.ended),
            _ => times.sent = times.sent.max(Some(record.ended)),
        }
    }
    steps
}

impl StepTimes {
    fn ran(&mut self, ran: &Ran, time: (u64, u64)) {
        self.sequences = ran.sequences.len() as u32;
        (self.units, self.prompt) = (ran.units(), ran.prompt());
        (self.ran, self.bubble) = (Some(time), ran.bubble);
    }
}

/// What the steps of one stage say about its launch path.
#[derive(Clone, Debug, PartialEq)]
pub struct Summary {
    /// Which stage.
    pub stage: StageName,
    /// Steps that ran within the trace.
    pub steps: usize,
    /// Time between the ends of consecutive steps, p50 and p99.
    pub cadence: Option<(Duration, Duration)>,
    /// Time that the device waited for a launch though there was work, p50 and p99.
    pub bubble: Option<(Duration, Duration)>,
    /// Steps out at a launch, unseen by the scheduler; the mean.
    pub ahead: Option<f64>,
    /// Share of launches that returned before the outcome of the step before was known, among those that followed a
    /// step within the trace.
    pub early: Option<f64>,
}

impl Summary {
    /// Of every stage that ran a step, upstream first.
    pub fn of(steps: &Steps) -> Vec<Summary> {
        StageName::ALL.into_iter().filter_map(|stage| Summary::stage(stage, steps)).collect()
    }

    fn stage(stage: StageName, steps: &Steps) -> Option<Summary> {
        let own: Vec<_> = steps.iter().filter(|((of, ..), step)| of.stage == stage && step.ran.is_some()).collect();
        let (mut cadence, mut bubbles, mut aheads, mut early) = (Vec::new(), Vec::new(), Vec::new(), Vec::new());
        for ((place, generation, number), step) in &own {
            bubbles.extend(step.bubble);
            aheads.extend(step.ahead.map(f64::from));
            let before = number.0.checked_sub(1).and_then(|before| steps.get(&(*place, *generation, StepId(before))));
            let Some((_, known)) = before.and_then(|before| before.ran) else { continue };
            early.extend(step.launched.map(|(_, returned)| f64::from(u8::from(returned <= known))));
            // A pause without any sequence is no cadence.
            if let (Some((_, ended)), Some(_)) = (step.ran, step.bubble) {
                cadence.push(ended.saturating_sub(known));
            }
        }
        (!own.is_empty()).then(|| Summary {
            stage,
            steps: own.len(),
            cadence: percentiles(cadence),
            bubble: percentiles(bubbles),
            ahead: mean(&aheads),
            early: mean(&early),
        })
    }
}

fn mean(values: &[f64]) -> Option<f64> {
    (!values.is_empty()).then(|| values.iter().sum::<f64>() / values.len() as f64)
}

/// The 50th and the 99th, by nearest rank.
fn percentiles(mut nanos: Vec<u64>) -> Option<(Duration, Duration)> {
    nanos.sort_unstable();
    let rank = |share: f64| {
        let at = (share * nanos.len() as f64).ceil() as usize;
        nanos.get(at.saturating_sub(1)).copied().map(Duration::from_nanos)
    };
    Some((rank(0.5)?, rank(0.99)?))
}

#[cfg(test)]
mod tests {
    use super::super::record::{Chunk, Component};
    use super::*;
    use omni_core::ids::{PayloadKind, RequestId, Seq};

    fn record(component: Component, began: u64, ended: u64, what: What) -> Record {
        let track = Track::of(StageName::Talker, Generation(1), component);
        Record { process: 1, track, began, ended, what }
    }

    fn ran(step: u64, began: u64, ended: u64, bubble: Option<u64>) -> Record {
        let ran = Ran { step: StepId(step), sequences: Vec::new(), measured: true, bubble, phases: [0; 6] };
        record(Component::Device, began, ended, What::Ran(Box::new(ran)))
    }

    fn launched(step: u64, began: u64, ended: u64) -> Record {
        record(
            Component::Launch,
            began,
            ended,
            What::Launched { step: StepId(step), sequences: 1, ahead: step.min(1) as u32 },
        )
    }

    #[test]
    fn what_was_recorded_of_a_step_comes_together() {
        let chunk = |seq, step| Chunk {
            request: RequestId(7),
            kind: PayloadKind::Codes,
            seq: Seq(seq),
            units: 1,
            bytes: 64,
            step,
        };
        let packed = |seq| record(Component::Packager, 34, 35, What::Packed(chunk(seq, Some(StepId(3)))));
        let put = |seq, began| record(Component::ConnectorOut, began, began + 4, What::Put(chunk(seq, None)));
        let records = [
            record(
                Component::Scheduler,
                8,
                10,
                What::Planned { step: StepId(3), sequences: 2, after: Some(StepId(1)) },
            ),
            launched(3, 11, 12),
            ran(3, 20, 30, Some(4)),
            record(Component::Scheduler, 31, 33, What::Returned(StepId(3))),
            packed(5),
            packed(6),
            put(5, 40),
            put(6, 41),
            put(7, 90),
        ];
        let steps = steps(&records);
        let step = &steps[&(StageName::Talker.into(), Generation(1), StepId(3))];
        assert_eq!((step.planned, step.after, step.launched), (Some(10), Some(StepId(1)), Some((11, 12))));
        assert_eq!((step.ran, step.bubble, step.seen, step.sent), (Some((20, 30)), Some(4), Some(33), Some(45)));
    }

    #[test]
    fn a_summary_tells_pauses_from_cadence_and_early_launches_from_late_ones() {
        let records = [
            launched(0, 0, 1),
            launched(1, 2, 3),
            ran(0, 1, 10, None),
            ran(1, 10, 20, Some(0)),
            // Launched after the step before was known.
            launched(2, 25, 26),
            ran(2, 26, 36, Some(6)),
            // No sequence had been waiting.
            launched(3, 1000, 1001),
            ran(3, 1001, 1011, None),
        ];
        let summary = Summary::of(&steps(&records));
        let [talker] = summary.as_slice() else { panic!("{summary:?}") };
        let nanos = Duration::from_nanos;
        assert_eq!((talker.stage, talker.steps), (StageName::Talker, 4));
        assert_eq!(talker.cadence, Some((nanos(10), nanos(16))));
        assert_eq!(talker.bubble, Some((nanos(0), nanos(6))));
        assert_eq!((talker.ahead, talker.early), (Some(0.75), Some(1.0 / 3.0)));
        assert_eq!(Summary::of(&Steps::new()), []);
    }
}
