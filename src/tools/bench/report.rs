//! The figures as a table for people and as JSON for programs.

use super::floor::Floor;
use super::overload::Overload;
use super::plan::Load;
use super::server::ServerFigures;
use super::stats::Figures;
use omni_config::format_bytes;
use serde::Serialize;

/// One load level and its figures.
#[derive(Clone, Debug, Serialize)]
pub struct Level {
    /// The load.
    pub load: Load,
    /// Frames of each request, where they were fixed.
    pub frames: Option<u32>,
    /// Tokens of each answer, where they were fixed.
    pub tokens: Option<u32>,
    /// The figures.
    #[serde(flatten)]
    pub figures: Figures,
    /// The change of the server's metrics meanwhile.
    pub server: ServerFigures,
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
    /// The least time per frame that the size of the weights and a bandwidth allow.
    pub floor: Option<Floor>,
    /// In the order in which they ran.
    pub levels: Vec<Level>,
    /// The run with more requests than the server carries, where the user asked for it.
    pub overload: Option<Overload>,
}

const HEAD: [&str; 11] = [
    "load",
    "ok",
    "TTFA p50/p95/p99 ms",
    "request p50/p95 ms",
    "ms per frame p50",
    "requests/s",
    "audio-s/s",
    "RTF p50/p95",
    "underrun streams",
    "underruns",
    "wall s",
];

/// Of chats.
const CHAT_HEAD: [&str; 11] = [
    "load",
    "ok",
    "TTFT p50/p95/p99 ms",
    "tokens/s of a stream p50",
    "tokens/s",
    "TTFA p50/p95/p99 ms",
    "audio-s/s",
    "underrun streams",
    "request p50/p95 ms",
    "requests/s",
    "wall s",
];

const STAGE_HEAD: [&str; 7] =
    ["load", "stage", "steps", "sequences", "step p50/p99 ms", "launch bubble p50/p99 us", "run-ahead"];

const BUCKET_HEAD: [&str; 4] = ["load", "captured sequences", "frames", "device p50/p99 ms"];

impl Report {
    /// Markdown tables, ready to paste: what listeners heard, with errors below it, and the metrics of the server,
    /// where it has any.
    pub fn table(&self) -> String {
        let chat = self.levels.iter().any(|level| level.figures.text.is_some());
        let mut text = match chat {
            true => table(&CHAT_HEAD, self.levels.iter().map(|level| chat_row(level).to_vec())),
            false => table(&HEAD, self.levels.iter().map(|level| row(level).to_vec())),
        };
        for level in &self.levels {
            for (error, times) in &level.figures.errors {
                text += &format!("{}: {times} x {error}\n", name(level));
            }
        }
        if let Some(floor) = &self.floor {
            text += &format!("\n{floor}\n");
        }
        let stages = self.levels.iter().flat_map(|level| level.server.stages.iter().map(move |stage| (level, stage)));
        let stages: Vec<_> = stages
            .map(|(level, stage)| {
                vec![
                    name(level),
                    stage.stage.clone(),
                    format!("{:.0}", stage.steps),
                    format!("{:.1}", stage.sequences),
                    format!("{:.2}/{:.2}", stage.step_ms.p50, stage.step_ms.p99),
                    format!("{:.0}/{:.0}", stage.bubble_us.p50, stage.bubble_us.p99),
                    format!("{:.2}", stage.run_ahead),
                ]
            })
            .collect();
        if !stages.is_empty() {
            text += &format!("\nWhat the server counted:\n\n{}", table(&STAGE_HEAD, stages));
        }
        let frames = self.levels.iter().flat_map(|level| level.server.frames.iter().map(move |bucket| (level, bucket)));
        let frames: Vec<_> = frames
            .map(|(level, bucket)| {
                let time = format!("{:.2}/{:.2}", bucket.ms.p50, bucket.ms.p99);
                vec![name(level), bucket.sequences.to_string(), format!("{:.0}", bucket.frames), time]
            })
            .collect();
        if !frames.is_empty() {
            text += &format!("\n{}", table(&BUCKET_HEAD, frames));
        }
        if let Some(level) = self.levels.last().filter(|level| !level.server.device_memory_bytes.is_empty()) {
            let uses = level.server.device_memory_bytes.iter();
            let uses: Vec<_> = uses.map(|(what, bytes)| format!("{what} {}", format_bytes(*bytes as u64))).collect();
            let blocking: f64 = self.levels.iter().map(|level| level.server.blocking_calls).sum();
            text += &format!("\ndevice memory: {}; blocking device calls: {blocking:.0}\n", uses.join(", "));
        }
        text
    }
}

/// A Markdown table with columns of even width.
pub fn table(head: &[&str], rows: impl IntoIterator<Item = Vec<String>>) -> String {
    let mut all = vec![head.iter().map(|cell| (*cell).to_owned()).collect::<Vec<_>>()];
    all.extend(rows);
    let width = |column: usize| all.iter().map(|row| row[column].chars().count()).max().unwrap_or(0);
    let widths: Vec<usize> = (0..head.len()).map(width).collect();
    let line = |cells: &Vec<String>| {
        let cells: Vec<String> = cells.iter().zip(&widths).map(|(cell, width)| format!("{cell:>width$}")).collect();
        format!("| {} |\n", cells.join(" | "))
    };
    let rule: Vec<String> = widths.iter().map(|width| format!("{}:", "-".repeat(width + 1))).collect();
    let mut text = line(&all[0]);
    text += &format!("|{}|\n", rule.join("|"));
    text.extend(all[1..].iter().map(line));
    text
}

fn row(level: &Level) -> [String; HEAD.len()] {
    let f = &level.figures;
    [
        name(level),
        format!("{}/{}", f.succeeded, f.requests),
        format!("{:.1}/{:.1}/{:.1}", f.ttfa_ms.p50, f.ttfa_ms.p95, f.ttfa_ms.p99),
        format!("{:.0}/{:.0}", f.request_ms.p50, f.request_ms.p95),
        format!("{:.2}", f.frame_ms.p50),
        format!("{:.2}", f.requests_per_s),
        format!("{:.2}", f.audio_s_per_s),
        format!("{:.3}/{:.3}", f.real_time_factor.p50, f.real_time_factor.p95),
        format!("{}", f.streams_with_underrun),
        format!("{}", f.underruns),
        format!("{:.1}", f.wall_s),
    ]
}

fn chat_row(level: &Level) -> [String; CHAT_HEAD.len()] {
    let f = &level.figures;
    let text = f.text.clone().unwrap_or_default();
    // Answers in text have no sound.
    let of_sound = |told: String| if f.audio_s > 0.0 { told } else { "-".to_owned() };
    [
        name(level),
        format!("{}/{}", f.succeeded, f.requests),
        format!("{:.1}/{:.1}/{:.1}", text.ttft_ms.p50, text.ttft_ms.p95, text.ttft_ms.p99),
        format!("{:.1}", text.tokens_per_s_of_stream.p50),
        format!("{:.1}", text.tokens_per_s),
        of_sound(format!("{:.1}/{:.1}/{:.1}", f.ttfa_ms.p50, f.ttfa_ms.p95, f.ttfa_ms.p99)),
        of_sound(format!("{:.2}", f.audio_s_per_s)),
        of_sound(format!("{}", f.streams_with_underrun)),
        format!("{:.0}/{:.0}", f.request_ms.p50, f.request_ms.p95),
        format!("{:.2}", f.requests_per_s),
        format!("{:.1}", f.wall_s),
    ]
}

fn name(level: &Level) -> String {
    match level.load {
        Load::Closed { concurrency, .. } => format!("c={concurrency}"),
        Load::Open { rate, .. } => format!("{rate}/s"),
    }
}

#[cfg(test)]
mod tests {
    use super::super::server::{BucketFigures, StageFigures};
    use super::super::stats::TextFigures;
    use super::*;

    fn report() -> Report {
        let mut figures = Figures { requests: 4, succeeded: 3, ..Figures::default() };
        figures.ttfa_ms.p50 = 41.6;
        figures.errors.insert("429".to_owned(), 1);
        let load = Load::Closed { concurrency: 4, requests: 4 };
        let levels = vec![Level { load, frames: Some(100), tokens: None, figures, server: ServerFigures::default() }];
        Report {
            target: "x".to_owned(),
            version: "0",
            seed: 1,
            texts: 2,
            cores: 2,
            floor: None,
            levels,
            overload: None,
        }
    }

    #[test]
    fn the_table_is_markdown_with_one_row_per_level() {
        let table = report().table();
        let lines: Vec<&str> = table.lines().collect();
        assert_eq!(lines.len(), 4);
        let cells = |line: &str| line.matches('|').count();
        assert_eq!((cells(lines[0]), cells(lines[1]), cells(lines[2])), (12, 12, 12));
        assert!(lines[2].contains("c=4 | 3/4 |"), "{table}");
        assert!(lines[2].contains("41.6/0.0/0.0"), "{table}");
        assert_eq!(lines[3], "c=4: 1 x 429");
    }

    #[test]
    fn chats_have_a_table_of_their_own() {
        let mut report = report();
        report.levels[0].figures.text = Some(TextFigures { tokens_per_s: 123.4, ..TextFigures::default() });
        let table = report.table();
        let cells = |line: &str| line.split('|').map(|cell| cell.trim().to_owned()).collect::<Vec<_>>();
        let row = cells(table.lines().nth(2).unwrap());
        assert!(table.starts_with("| load") && table.contains("TTFT p50/p95/p99 ms"), "{table}");
        assert_eq!((row[5].as_str(), row[6].as_str(), row.len()), ("123.4", "-", 13), "{table}");
        report.levels[0].figures.audio_s = 2.0;
        assert!(report.table().contains("41.6/0.0/0.0"));
    }

    #[test]
    fn the_metrics_of_the_server_follow_if_it_has_any() {
        let mut report = report();
        assert!(!report.table().contains("counted"));
        let server = &mut report.levels[0].server;
        server.stages.push(StageFigures { stage: "talker".to_owned(), steps: 7.0, ..StageFigures::default() });
        server.frames.push(BucketFigures { sequences: 8, frames: 7.0, ..BucketFigures::default() });
        server.device_memory_bytes.insert("kv".to_owned(), f64::from(1u32 << 30));
        let table = report.table();
        assert!(table.contains("c=4 | talker |") && table.contains("captured sequences"), "{table}");
        assert!(table.contains("device memory: kv 1.0 GiB; blocking device calls: 0"), "{table}");
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
