//! What was measured in the spans of each kind, and how it compares.

use crate::answers::{Answers, Kind};
use omni_actors::core::ids::StageName;
use omni_actors::telemetry::trace::{StepTimes, Trace};
use std::fmt::Write;
use std::ops::Range;
use std::sync::PoisonError;

/// The spans of a round, in their order.
#[derive(Default)]
pub struct Round {
    pub quiet: Times,
    pub encoding: Times,
    pub again: Times,
    /// From the request with media to its answer: encoding and prefill.
    pub asking: Times,
}

/// Milliseconds.
#[derive(Default)]
pub struct Times {
    steps: Vec<f64>,
    /// Steps that had a piece of a prompt beside the running answers.
    prefills: Vec<f64>,
    gaps: Vec<f64>,
    /// Of all spans.
    lasted: f64,
}

impl Times {
    /// Adds what ended within a span: steps in which all answers decoded and nothing else was done, behind another such, and
    /// those with a piece of a prompt.
    pub fn add(&mut self, (trace, span): (&Trace, Range<u64>), stage: StageName, answers: &Answers<'_>) {
        let steps = trace.steps();
        let of_stage: Vec<_> = steps.iter().filter(|((place, ..), _)| place.stage == stage).collect();
        let decodes = |step: &StepTimes| step.sequences == answers.count && step.prompt == 0;
        for pair in of_stage.windows(2) {
            let [((_, _, number), one), ((_, _, next), two)] = pair else { continue };
            if let (Some((_, before)), Some((_, after))) = (one.ran, two.ran)
                && number.0 + 1 == next.0
                && span.contains(&before)
                && span.contains(&after)
            {
                let took = (after - before) as f64 / 1e6;
                if two.prompt > 0 {
                    self.prefills.push(took);
                } else if decodes(one) && decodes(two) {
                    self.steps.push(took);
                }
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
/// Which of the spans.
type When = fn(&Round) -> &Times;

/// What the cadence may be at most while something is encoded, of what it is without.
const GOAL: f64 = 1.02;
/// Of the spans of a round that are compared, in words.
const WHEN: [(&str, When); 3] =
    [("quiet", |round| &round.quiet), ("encoding", |round| &round.encoding), ("quiet again", |round| &round.again)];

/// A table.
pub fn report(kind: Kind, count: u32, stage: StageName, rounds: &[Round]) -> String {
    let mut text = String::new();
    let kind = if kind == Kind::Text { "text" } else { "speech" };
    let lasted: f64 = rounds.iter().map(|round| round.encoding.lasted).sum();
    let _ = writeln!(text, "\n{count} running answers of {kind}, {} rounds, {lasted:.1} s encoding", rounds.len());
    let _ = writeln!(text, "{:<44}{:>8}{:>9}{:>9}{:>9}{:>9}", "ms", "count", "mean", "p50", "p95", "p99");
    let prefills: Vec<f64> = rounds.iter().flat_map(|round| &round.asking.prefills).copied().collect();
    if !prefills.is_empty() {
        let _ = writeln!(text, "{:<44}{}", format!("{stage}, with a piece of the prompt"), Figures::of(&prefills));
    }
    let of: [(String, Pick); 2] = [
        (format!("{stage}, step to step"), |times| &times.steps),
        ("client, piece to piece".into(), |times| &times.gaps),
    ];
    for (what, pick) in of {
        for (name, when) in WHEN {
            let all: Vec<f64> = rounds.iter().flat_map(|round| pick(when(round))).copied().collect();
            let _ = writeln!(text, "{:<44}{}", format!("{what}, {name}"), Figures::of(&all));
        }
        let encoding = ratios(rounds, pick, |round| &round.encoding, |round| [&round.quiet, &round.again]);
        let noise = ratios(rounds, pick, |round| &round.again, |round| [&round.quiet, &round.quiet]);
        for (name, ratios) in [("encoding", &encoding), ("quiet again", &noise)] {
            for (of, part) in [("lowest", 0.0), ("median", 0.5), ("highest", 1.0)] {
                let row: String = at(ratios, part).iter().map(|ratio| format!("{ratio:>9.3}")).collect();
                let _ = writeln!(text, "{:<44}{:>8}{row}", format!("    {name}, {of} ratio of a round"), "");
            }
        }
        // Of the means: a step that waits long counts as long.
        let [encoding, noise] = [at(&encoding, 0.5)[0], at(&noise, 0.5)[0]];
        let verdict = match (encoding <= GOAL, (noise - 1.0).abs() < GOAL - 1.0) {
            (true, true) => "reached",
            (false, true) => "missed",
            (_, false) => "open: the machine itself changes by more than that",
        };
        let _ = writeln!(text, "    mean {encoding:.3} of the quiet spans around, goal {GOAL}: {verdict}");
    }
    text
}

/// In each round, the figures of a span over those of two others, of which the mean counts: a machine that becomes
/// slower or faster meanwhile changes them little.
fn ratios(rounds: &[Round], pick: Pick, of: When, to: fn(&Round) -> [&Times; 2]) -> Vec<[f64; 4]> {
    let ratio = |round: &Round| {
        let (of, [one, other]) = (Figures::of(pick(of(round))), to(round).map(|times| Figures::of(pick(times))));
        [0, 1, 2, 3].map(|figure| of.of[figure] * 2.0 / (one.of[figure] + other.of[figure]))
    };
    rounds.iter().map(ratio).collect()
}

/// Such a part of the rounds is below, for each figure by itself.
fn at(ratios: &[[f64; 4]], part: f64) -> [f64; 4] {
    [0, 1, 2, 3].map(|figure| quantile(&mut ratios.iter().map(|ratio| ratio[figure]).collect::<Vec<_>>(), part))
}

/// Sorts the values. NaN for none.
fn quantile(values: &mut [f64], part: f64) -> f64 {
    values.sort_by(f64::total_cmp);
    let place = ((values.len() as f64 * part) as usize).min(values.len().saturating_sub(1));
    values.get(place).copied().unwrap_or(f64::NAN)
}

struct Figures {
    count: usize,
    of: [f64; 4],
}

impl Figures {
    fn of(values: &[f64]) -> Figures {
        let mut sorted = values.to_vec();
        let mean = values.iter().sum::<f64>() / values.len() as f64;
        let [p50, p95, p99] = [0.5, 0.95, 0.99].map(|part| quantile(&mut sorted, part));
        Figures { count: values.len(), of: [mean, p50, p95, p99] }
    }
}

impl std::fmt::Display for Figures {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{:>8}", self.count)?;
        self.of.iter().try_for_each(|value| write!(f, "{value:>9.3}"))
    }
}
