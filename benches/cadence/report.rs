//! What was measured in the spans of each kind, and how it compares.

use crate::answers::{Answers, Kind};
use omni_actors::core::ids::StageName;
use omni_actors::telemetry::trace::{StepTimes, Trace};
use std::fmt::Write;
use std::ops::Range;
use std::sync::PoisonError;

/// All spans of all rounds, by what happened in them.
#[derive(Default)]
pub struct Spans {
    pub quiet: Times,
    pub encoding: Times,
    pub again: Times,
}

/// Milliseconds.
#[derive(Default)]
pub struct Times {
    steps: Vec<f64>,
    gaps: Vec<f64>,
    /// Of all spans.
    lasted: f64,
}

impl Times {
    /// Adds what ended within a span: steps in which all answers decoded and nothing else was done, behind another such.
    pub fn add(&mut self, (trace, span): (&Trace, Range<u64>), stage: StageName, answers: &Answers<'_>) {
        let steps = trace.steps();
        let of_stage: Vec<_> = steps.iter().filter(|((place, ..), _)| place.stage == stage).collect();
        let decodes = |step: &StepTimes| step.sequences == answers.count && step.prompt == 0;
        for pair in of_stage.windows(2) {
            let [((_, _, number), one), ((_, _, next), two)] = pair else { continue };
            if let (Some((_, before)), Some((_, after))) = (one.ran, two.ran)
                && decodes(one)
                && decodes(two)
                && number.0 + 1 == next.0
                && span.contains(&before)
                && span.contains(&after)
            {
                self.steps.push((after - before) as f64 / 1e6);
            }
        }
        let gaps = answers.gaps.lock().unwrap_or_else(PoisonError::into_inner);
        let inside = gaps.iter().filter(|(at, gap)| span.contains(at) && span.contains(&(at - gap)));
        self.gaps.extend(inside.map(|(_, gap)| *gap as f64 / 1e6));
        self.lasted += (span.end - span.start) as f64 / 1e9;
    }
}

/// Which of the times.
type Pick = fn(&Times) -> &Vec<f64>;

/// A table.
pub fn report(kind: Kind, count: u32, stage: StageName, spans: &Spans) -> String {
    let mut text = String::new();
    let kind = if kind == Kind::Text { "text" } else { "speech" };
    let _ = writeln!(text, "\n{count} running answers of {kind}, {:.1} s encoding", spans.encoding.lasted);
    let _ = writeln!(text, "{:<44}{:>8}{:>9}{:>9}{:>9}{:>9}", "ms", "count", "mean", "p50", "p95", "p99");
    let of: [(String, Pick); 2] = [
        (format!("{stage}, step to step"), |times| &times.steps),
        ("client, piece to piece".into(), |times| &times.gaps),
    ];
    for (what, pick) in of {
        let quiet = Figures::of(pick(&spans.quiet));
        for (when, times) in [("quiet", &spans.quiet), ("encoding", &spans.encoding), ("quiet again", &spans.again)] {
            let figures = Figures::of(pick(times));
            let _ = writeln!(text, "{:<44}{figures}", format!("{what}, {when}"));
            if when != "quiet" {
                let _ = writeln!(text, "{:<44}{:>8}{}", "    ratio", "", figures.over(&quiet));
            }
        }
    }
    text
}

struct Figures {
    count: usize,
    of: [f64; 4],
}

impl Figures {
    fn of(values: &[f64]) -> Figures {
        let mut sorted = values.to_vec();
        sorted.sort_by(f64::total_cmp);
        let at = |part: f64| sorted.get(((sorted.len() as f64 * part) as usize).min(sorted.len().saturating_sub(1)));
        let quantile = |part| at(part).copied().unwrap_or(f64::NAN);
        let mean = sorted.iter().sum::<f64>() / sorted.len() as f64;
        Figures { count: sorted.len(), of: [mean, quantile(0.5), quantile(0.95), quantile(0.99)] }
    }

    fn over(&self, other: &Figures) -> String {
        self.of.iter().zip(other.of).map(|(value, of)| format!("{:>9.3}", value / of)).collect()
    }
}

impl std::fmt::Display for Figures {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{:>8}", self.count)?;
        self.of.iter().try_for_each(|value| write!(f, "{value:>9.3}"))
    }
}
