//! The figures as a table for people and as JSON for programs.

use super::plan::Load;
use super::stats::Figures;
use serde::Serialize;

/// One load level and what came of it.
#[derive(Clone, Debug, Serialize)]
pub struct Level {
    /// The load.
    pub load: Load,
    /// The figures.
    #[serde(flatten)]
    pub figures: Figures,
}

/// A whole run.
#[derive(Clone, Debug, Serialize)]
pub struct Report {
    /// What was measured.
    pub target: String,
    /// Version of this program.
    pub version: &'static str,
    /// Seed of arrivals and requests.
    pub seed: u64,
    /// How many texts the requests took turns with.
    pub texts: usize,
    /// CPU cores of this machine.
    pub cores: usize,
    /// In the order in which they ran.
    pub levels: Vec<Level>,
}

const HEAD: [&str; 10] = [
    "load",
    "ok",
    "TTFA p50/p95/p99 ms",
    "request p50/p95 ms",
    "requests/s",
    "audio-s/s",
    "RTF p50/p95",
    "underrun streams",
    "underruns",
    "wall s",
];

impl Report {
    /// A Markdown table, so that it can be pasted, with errors below it.
    pub fn table(&self) -> String {
        let mut rows = vec![HEAD.map(str::to_owned)];
        rows.extend(self.levels.iter().map(row));
        let width = |column: usize| rows.iter().map(|row| row[column].chars().count()).max().unwrap_or(0);
        let widths: Vec<usize> = (0..HEAD.len()).map(width).collect();
        let line = |cells: &[String; HEAD.len()]| {
            let cells: Vec<String> = cells.iter().zip(&widths).map(|(cell, width)| format!("{cell:>width$}")).collect();
            format!("| {} |\n", cells.join(" | "))
        };
        let rule: Vec<String> = widths.iter().map(|width| format!("{}:", "-".repeat(width + 1))).collect();
        let mut text = line(&rows[0]);
        text += &format!("|{}|\n", rule.join("|"));
        text.extend(rows[1..].iter().map(line));
        for level in &self.levels {
            for (error, times) in &level.figures.errors {
                text += &format!("{}: {times} x {error}\n", name(&level.load));
            }
        }
        text
    }
}

fn row(level: &Level) -> [String; HEAD.len()] {
    let f = &level.figures;
    [
        name(&level.load),
        format!("{}/{}", f.succeeded, f.requests),
        format!("{:.0}/{:.0}/{:.0}", f.ttfa_ms.p50, f.ttfa_ms.p95, f.ttfa_ms.p99),
        format!("{:.0}/{:.0}", f.request_ms.p50, f.request_ms.p95),
        format!("{:.2}", f.requests_per_s),
        format!("{:.2}", f.audio_s_per_s),
        format!("{:.3}/{:.3}", f.real_time_factor.p50, f.real_time_factor.p95),
        format!("{}", f.streams_with_underrun),
        format!("{}", f.underruns),
        format!("{:.1}", f.wall_s),
    ]
}

fn name(load: &Load) -> String {
    match load {
        Load::Closed { concurrency, .. } => format!("c={concurrency}"),
        Load::Open { rate, .. } => format!("{rate}/s"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn report() -> Report {
        let mut figures = Figures { requests: 4, succeeded: 3, ..Figures::default() };
        figures.ttfa_ms.p50 = 41.6;
        figures.errors.insert("429".to_owned(), 1);
        let load = Load::Closed { concurrency: 4, requests: 4 };
        let levels = vec![Level { load, figures }];
        Report { target: "x".to_owned(), version: "0", seed: 1, texts: 2, cores: 2, levels }
    }

    #[test]
    fn the_table_is_markdown_with_one_row_per_level() {
        let table = report().table();
        let lines: Vec<&str> = table.lines().collect();
        assert_eq!(lines.len(), 4);
        let cells = |line: &str| line.matches('|').count();
        assert_eq!((cells(lines[0]), cells(lines[1]), cells(lines[2])), (11, 11, 11));
        assert!(lines[2].contains("c=4 | 3/4 |"), "{table}");
        assert!(lines[2].contains("42/0/0"), "{table}");
        assert_eq!(lines[3], "c=4: 1 x 429");
    }

    #[test]
    fn the_json_has_load_and_figures_side_by_side() {
        let json = serde_json::to_value(report()).unwrap();
        let level = &json["levels"][0];
        assert_eq!(level["load"]["loop"], "closed");
        assert_eq!(level["load"]["concurrency"], 4);
        assert_eq!(level["ttfa_ms"]["p50"], 41.6);
        assert_eq!(level["errors"]["429"], 1);
    }
}
