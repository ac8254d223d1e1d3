//! The figures as a table for people and as JSON for programs.

use super::Turns;
use super::figures::Figures;
use crate::bench::report::table;
use crate::bench::server::ServerFigures;
use serde::Serialize;
use std::fmt;
use std::time::Duration;

/// One load level and its figures.
#[derive(Clone, Debug, Serialize)]
pub(super) struct Level {
    /// Conversations at once.
    pub conversations: usize,
    /// The figures.
    #[serde(flatten)]
    pub figures: Figures,
    /// The change of the server's metrics meanwhile.
    pub server: ServerFigures,
}

/// A whole run.
#[derive(Clone, Debug, Serialize)]
pub(super) struct Report {
    /// What was measured.
    pub target: String,
    /// Version of this program.
    pub version: &'static str,
    /// Seed of scripts and sessions.
    pub seed: u64,
    /// CPU cores of this machine.
    pub cores: usize,
    /// How turns end.
    pub turns: Turns,
    /// Turns of each conversation.
    pub turns_each: u32,
    /// The share of answers that the scripts interrupt.
    pub interrupt: f64,
    /// How many times as fast as it lasts users say something.
    pub pace: f64,
    /// Limit on frames and tokens of an answer that is not interrupted.
    pub frames: u32,
    /// How long each of the recordings lasts.
    pub recordings_s: Vec<f64>,
    /// In the order in which they ran.
    pub levels: Vec<Level>,
}

/// Lengths as numbers.
pub(super) fn seconds(lengths: Vec<Duration>) -> Vec<f64> {
    lengths.into_iter().map(|length| length.as_secs_f64()).collect()
}

const HEAD: [&str; 12] = [
    "load",
    "answers",
    "first sound p50/p95/max ms",
    "after speech p50/p95 ms",
    "interrupted",
    "noticed p50/p95/max ms",
    "to last sound p50/max ms",
    "to cancelled p50/p95/max ms",
    "underrun answers",
    "worst silence ms",
    "wall s",
    "last turn p50/p95 ms",
];

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Report { target, cores, turns_each, frames, seed, .. } = self;
        let turns = match self.turns {
            Turns::Vad => "found by the server",
            Turns::Push => "ended with a button",
            Turns::Text => "written",
        };
        writeln!(f, "{target} on {cores} cores, {turns_each} turns {turns}, {frames} frames, seed {seed}\n")?;
        f.write_str(&table(&HEAD, self.levels.iter().map(|level| row(level).to_vec())))?;
        for level in &self.levels {
            for (error, times) in &level.figures.errors {
                writeln!(f, "n={}: {times} x {error}", level.conversations)?;
            }
        }
        Ok(())
    }
}

fn row(level: &Level) -> [String; HEAD.len()] {
    let f = &level.figures;
    // Of what did not happen there is no time.
    let of = |any: bool, told: String| if any { told } else { "-".to_owned() };
    let interrupted = f.interruptions > 0;
    [
        format!("n={}", level.conversations),
        format!("{}/{}", f.answers, f.turns),
        format!("{:.1}/{:.1}/{:.1}", f.first_sound_ms.p50, f.first_sound_ms.p95, f.first_sound_ms.max),
        of(f.after_speech_ms.max > 0.0, format!("{:.0}/{:.0}", f.after_speech_ms.p50, f.after_speech_ms.p95)),
        f.interruptions.to_string(),
        of(f.noticed_ms.max > 0.0, format!("{:.0}/{:.0}/{:.0}", f.noticed_ms.p50, f.noticed_ms.p95, f.noticed_ms.max)),
        of(interrupted, format!("{:.1}/{:.1}", f.last_sound_ms.p50, f.last_sound_ms.max)),
        of(interrupted, format!("{:.1}/{:.1}/{:.1}", f.cancelled_ms.p50, f.cancelled_ms.p95, f.cancelled_ms.max)),
        f.answers_with_underrun.to_string(),
        format!("{:.0}", f.worst_silence_ms),
        format!("{:.1}", f.wall_s),
        format!("{:.1}/{:.1}", f.last_turn_ms.p50, f.last_turn_ms.p95),
    ]
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::bench::stats::Distribution;

    fn report() -> Report {
        let first_sound_ms = Distribution { p50: 41.6, p95: 50.0, p99: 60.0, max: 70.0 };
        let mut figures = Figures { turns: 8, answers: 7, first_sound_ms, ..Figures::default() };
        figures.errors.insert("overloaded".to_owned(), 1);
        Report {
            target: "x".to_owned(),
            version: "0",
            seed: 1,
            cores: 2,
            turns: Turns::Push,
            turns_each: 4,
            interrupt: 0.25,
            pace: 1.0,
            frames: 50,
            recordings_s: seconds(vec![Duration::from_millis(1_500)]),
            levels: vec![Level { conversations: 2, figures, server: ServerFigures::default() }],
        }
    }

    #[test]
    fn the_table_has_one_row_per_level_and_the_errors_below_it() {
        let text = report().to_string();
        let lines: Vec<&str> = text.lines().collect();
        assert_eq!(lines[0], "x on 2 cores, 4 turns ended with a button, 50 frames, seed 1");
        assert!(
            lines[4].contains("n=2 |") && lines[4].contains("7/8 |") && lines[4].contains("41.6/50.0/70.0"),
            "{text}"
        );
        let cells: Vec<&str> = lines[4].split('|').map(str::trim).collect();
        assert_eq!((cells.len(), cells[7]), (HEAD.len() + 2, "-"), "nothing was interrupted: {text}");
        assert_eq!(lines[5], "n=2: 1 x overloaded");
    }

    #[test]
    fn the_json_has_load_and_figures_side_by_side() {
        let json = serde_json::to_value(report()).unwrap();
        assert_eq!((&json["turns"], &json["recordings_s"][0]), (&"push".into(), &1.5.into()));
        let level = &json["levels"][0];
        assert_eq!((&level["conversations"], &level["first_sound_ms"]["max"]), (&2.into(), &70.0.into()));
        assert_eq!(level["errors"]["overloaded"], 1);
    }
}
