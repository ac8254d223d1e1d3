//! What all turns say together.

use crate::conditions::{BASE, Condition};
use crate::measure::Turn;
use serde_json::{Value, json};
use std::fmt;

pub struct Report {
    pub device: String,
    pub model: String,
    pub frames: u32,
    pub rounds: usize,
    pub runs: Vec<Run>,
}

/// One number of sequences.
pub struct Run {
    pub sequences: u32,
    pub lines: Vec<Line>,
}

/// One condition.
pub struct Line {
    pub condition: &'static Condition,
    /// Milliseconds.
    pub cadence: [f64; 2],
    /// Microseconds.
    pub bubble: [f64; 2],
    pub run_ahead: f64,
    /// Median cadence over that of the base in the same round: the median of all rounds, the least and the most.
    pub ratio: [f64; 3],
    pub hash: String,
    /// Whether every round sounded like the first of the base.
    pub same: bool,
}

impl Run {
    pub fn new(sequences: u32, turns: impl Iterator<Item = (&'static Condition, Vec<Turn>)>) -> Run {
        let turns: Vec<_> = turns.collect();
        let base = turns.iter().find(|(condition, _)| condition.key == BASE);
        let base = &base.expect("the base is always among them").1;
        let lines = turns.iter().map(|(condition, turns)| Line::new(condition, turns, base));
        Run { sequences, lines: lines.collect() }
    }
}

impl Line {
    fn new(condition: &'static Condition, turns: &[Turn], base: &[Turn]) -> Line {
        let both = |of: fn(&Turn) -> &Vec<f64>| {
            let all: Vec<f64> = turns.iter().flat_map(|turn| of(turn).iter().copied()).collect();
            [percentile(&all, 0.5), percentile(&all, 0.99)]
        };
        let median = |turn: &Turn| percentile(&turn.cadence, 0.5);
        let ratios: Vec<f64> = turns.iter().zip(base).map(|(turn, base)| median(turn) / median(base)).collect();
        Line {
            condition,
            cadence: both(|turn| &turn.cadence),
            bubble: both(|turn| &turn.bubble),
            run_ahead: turns.iter().map(|turn| turn.run_ahead).sum::<f64>() / turns.len() as f64,
            ratio: [0.5, 0.0, 1.0].map(|share| percentile(&ratios, share)),
            hash: turns[0].hash.clone(),
            same: turns.iter().all(|turn| turn.hash == base[0].hash),
        }
    }
}

fn percentile(values: &[f64], share: f64) -> f64 {
    let mut sorted = values.to_vec();
    sorted.sort_unstable_by(f64::total_cmp);
    let at = (sorted.len() - 1) as f64 * share;
    // Between two values, what lies between them.
    let (low, high) = (sorted[at.floor() as usize], sorted[at.ceil() as usize]);
    low + (high - low) * at.fract()
}

impl Report {
    /// Whether every condition, in every round, gave the samples of the base.
    pub fn all_the_same(&self) -> bool {
        self.runs.iter().all(|run| run.lines.iter().all(|line| line.same))
    }

    pub fn json(&self) -> Value {
        let line = |line: &Line| {
            json!({
                "key": line.condition.key,
                "what": line.condition.what,
                "cadence_ms": { "p50": line.cadence[0], "p99": line.cadence[1] },
                "bubble_us": { "p50": line.bubble[0], "p99": line.bubble[1] },
                "run_ahead": line.run_ahead,
                "ratio": { "median": line.ratio[0], "least": line.ratio[1], "most": line.ratio[2] },
                "hash": line.hash,
                "same": line.same,
            })
        };
        let runs = self.runs.iter().map(|run| {
            let lines: Vec<Value> = run.lines.iter().map(line).collect();
            json!({ "sequences": run.sequences, "conditions": lines })
        });
        json!({
            "device": self.device,
            "model": self.model,
            "frames": self.frames,
            "rounds": self.rounds,
            "same": self.all_the_same(),
            "runs": runs.collect::<Vec<_>>(),
        })
    }
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Report { device, model, frames, rounds, .. } = self;
        writeln!(
            f,
            "{model} on {device}: {frames} frames, {rounds} rounds in turns; talker steps in which all sequences decode"
        )?;
        for run in &self.runs {
            writeln!(f, "\n{} sequences\n", run.sequences)?;
            writeln!(
                f,
                "| condition | cadence p50 / p99 ms | ratio (least to most) | bubble p50 / p99 us | run-ahead | samples |"
            )?;
            writeln!(f, "| --- | ---: | ---: | ---: | ---: | --- |")?;
            for line in &run.lines {
                let [ratio, least, most] = line.ratio;
                let slo = match line.condition.promised {
                    true if ratio <= 1.02 => ", as promised",
                    true => ", MORE THAN 2 %",
                    false => "",
                };
                writeln!(
                    f,
                    "| {} | {:.3} / {:.3} | {ratio:.3} ({least:.3} to {most:.3}){slo} | {:.0} / {:.0} | {:.2} | {} |",
                    line.condition.what,
                    line.cadence[0],
                    line.cadence[1],
                    line.bubble[0],
                    line.bubble[1],
                    line.run_ahead,
                    if line.same { "the same" } else { "DIFFERENT" },
                )?;
            }
        }
        Ok(())
    }
}
