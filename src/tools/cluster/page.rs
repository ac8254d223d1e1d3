//! The page of `omni-actors top`: what gateways tell, as lines of text. Pure.

use super::histogram::Histogram;
use serde::Deserialize;
use std::collections::BTreeSet;
use std::fmt::Display;
use std::time::Duration;

/// What `/cluster` tells, or `/health` where there is none.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub(super) struct Status {
    version: String,
    started: u64,
    ready: bool,
    draining: bool,
    requests: usize,
    max_requests: usize,
    admission: Admission,
    nodes: Vec<Node>,
    stages: Vec<Stage>,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
struct Admission {
    capacity: usize,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
struct Node {
    name: String,
    host: String,
    pid: u32,
    slots: u32,
    joined: u64,
    round_trip_s: Option<f64>,
    stages: Vec<Offered>,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
struct Offered {
    name: String,
    used: bool,
    reason: Option<String>,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
struct Stage {
    name: String,
    replica: Option<usize>,
    state: String,
    since: u64,
    restarts: u32,
    last_reason: Option<String>,
    sequences: usize,
    node: Option<String>,
    pid: Option<u32>,
}

/// How long listeners waited: for the first sound, and between chunks.
#[derive(Clone, Debug, Default)]
pub(super) struct Waits {
    pub first_sound: Histogram,
    pub gap: Histogram,
}

/// A gateway, as it answered or why it did not.
pub(super) struct Seen {
    /// Its URL.
    pub gateway: String,
    /// `None` beside the state: its key may not read `/metrics`.
    pub told: Result<(Status, Option<Waits>), String>,
}

/// A line, and whether it tells of something that is not as it should be.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Line {
    pub text: String,
    pub kind: Kind,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum Kind {
    #[default]
    Plain,
    Head,
    Alarm,
}

fn line(text: impl Display) -> Line {
    Line { text: text.to_string(), kind: Kind::Plain }
}

fn head(text: impl Display) -> Line {
    Line { text: text.to_string(), kind: Kind::Head }
}

fn alarm_if(alarm: bool, text: impl Display) -> Line {
    Line { text: text.to_string(), kind: if alarm { Kind::Alarm } else { Kind::Plain } }
}

/// The whole page. `now` is Unix time; `waits` says of which time the waits are.
pub(super) fn page(gateways: &[Seen], now: u64, waits: &str) -> Vec<Line> {
    let mut lines = Vec::new();
    for seen in gateways {
        if !lines.is_empty() {
            lines.push(Line::default());
        }
        match &seen.told {
            Err(reason) => lines.push(alarm_if(true, format!("{}  down: {reason}", seen.gateway))),
            Ok((status, heard)) => gateway(&mut lines, &seen.gateway, status, heard.as_ref(), now, waits),
        }
    }
    // What others send must not command the terminal.
    for line in &mut lines {
        line.text = line.text.chars().map(|c| if c.is_control() { '?' } else { c }).collect();
    }
    lines
}

fn gateway(lines: &mut Vec<Line>, url: &str, status: &Status, heard: Option<&Waits>, now: u64, waits: &str) {
    let state = match (status.draining, status.ready) {
        (true, _) => "draining",
        (false, true) => "ready",
        (false, false) => "NOT READY",
    };
    let Status { version, requests, max_requests, .. } = status;
    let capacity = status.admission.capacity;
    let up = ago(status.started, now);
    lines.push(Line {
        text: format!("{url}  {version}  {state}  up {up}  requests {requests}/{max_requests}  capacity {capacity}"),
        kind: if status.ready { Kind::Head } else { Kind::Alarm },
    });
    lines.push(match heard {
        None => line("latencies: the key may not read /metrics"),
        Some(heard) => {
            let pair = |waits: &Histogram| format!("{} / {}", ms(waits.quantile(0.5)), ms(waits.quantile(0.95)));
            let (first, gap) = (pair(&heard.first_sound), pair(&heard.gap));
            line(format!("first sound {first} ms  gap {gap} ms  (p50 / p95, {waits})"))
        }
    });
    if !status.nodes.is_empty() {
        let mut known: Vec<&Node> = status.nodes.iter().collect();
        known.sort_by_key(|node| (&node.name, node.joined));
        nodes(lines, &known, now);
    }
    stages(lines, &status.stages, now);
}

fn nodes(lines: &mut Vec<Line>, nodes: &[&Node], now: u64) {
    let rows = nodes.iter().map(|node| {
        let used: Vec<&str> = node.stages.iter().filter(|stage| stage.used).map(|stage| stage.name.as_str()).collect();
        let used = if used.is_empty() { "none".to_owned() } else { used.join(" ") };
        let trip = ms(node.round_trip_s.filter(|trip| trip.is_finite() && *trip >= 0.0).map(Duration::from_secs_f64));
        let Node { name, host, pid, slots, joined, .. } = node;
        [name.clone(), format!("{host}:{pid}"), slots.to_string(), trip, ago(*joined, now), used]
    });
    let rows: Vec<_> = rows.collect();
    let table = table(["NODE", "HOST:PROCESS", "SLOTS", "RTT MS", "JOINED", "USED FOR"], &rows);
    let mut table = table.into_iter();
    lines.extend(table.next().map(head));
    for (node, row) in nodes.iter().zip(table) {
        let reasons: BTreeSet<&str> = node.stages.iter().filter_map(|stage| stage.reason.as_deref()).collect();
        lines.push(alarm_if(!reasons.is_empty(), row));
        lines.extend(reasons.into_iter().map(|reason| alarm_if(true, format!("  {reason}"))));
    }
}

fn stages(lines: &mut Vec<Line>, stages: &[Stage], now: u64) {
    // A replica whose node has left waits for another one, beside those that have one.
    let waits = |stage: &Stage| {
        let is_beside = |other: &Stage| other.name == stage.name && other.node.is_some() && other.state == "running";
        stage.state == "restarting" && stage.node.is_none() && stages.iter().any(is_beside)
    };
    let rows = stages.iter().map(|stage| {
        let place = match (&stage.node, stage.pid) {
            (Some(node), _) => node.clone(),
            (None, Some(pid)) => format!("process {pid}"),
            (None, None) if stage.state == "running" => "here".to_owned(),
            (None, None) => "-".to_owned(),
        };
        let replica = stage.replica.map_or("-".to_owned(), |replica| replica.to_string());
        let Stage { name, state, since, sequences, restarts, .. } = stage;
        let (sequences, restarts) = (sequences.to_string(), restarts.to_string());
        let state = if waits(stage) { "no node".to_owned() } else { state.clone() };
        [name.clone(), replica, place, state, ago(*since, now), sequences, restarts]
    });
    let rows: Vec<_> = rows.collect();
    let table = table(["STAGE", "REPLICA", "ON", "STATE", "FOR", "SEQUENCES", "RESTARTS"], &rows);
    let mut table = table.into_iter();
    lines.extend(table.next().map(head));
    for (stage, row) in stages.iter().zip(table) {
        let down = stage.state != "running" && !waits(stage);
        lines.push(alarm_if(down, row));
        lines.extend(stage.last_reason.as_ref().filter(|_| down).map(|reason| alarm_if(true, format!("  {reason}"))));
    }
}

/// Columns as wide as what they have; numbers stand to the right.
fn table<const N: usize>(heads: [&str; N], rows: &[[String; N]]) -> Vec<String> {
    let width = |column: usize| {
        let cells = rows.iter().map(|row| row[column].chars().count());
        cells.chain([heads[column].len()]).max().unwrap_or(0)
    };
    let is_number = |text: &str| text == "-" || text.parse::<f64>().is_ok();
    let right = |column: usize| !rows.is_empty() && rows.iter().all(|row| is_number(&row[column]));
    let line = |cells: [&str; N]| {
        let cells = cells.iter().enumerate().map(|(column, cell)| {
            let width = width(column);
            if right(column) { format!("{cell:>width$}") } else { format!("{cell:<width$}") }
        });
        cells.collect::<Vec<_>>().join("  ").trim_end().to_owned()
    };
    let rows = rows.iter().map(|row| line(std::array::from_fn(|column| row[column].as_str())));
    std::iter::once(line(heads)).chain(rows).collect()
}

/// How long ago a Unix time was, in its two largest units.
fn ago(then: u64, now: u64) -> String {
    match now.saturating_sub(then) {
        _ if then == 0 => "-".to_owned(),
        s @ 0..60 => format!("{s}s"),
        s @ 60..3600 => format!("{}m{:02}s", s / 60, s % 60),
        s @ 3600..86_400 => format!("{}h{:02}m", s / 3600, s % 3600 / 60),
        s => format!("{}d{:02}h", s / 86_400, s % 86_400 / 3600),
    }
}

fn ms(time: Option<Duration>) -> String {
    match time.map(|time| time.as_secs_f64() * 1e3) {
        None => "-".to_owned(),
        Some(ms) if ms < 10.0 => format!("{ms:.1}"),
        Some(ms) => format!("{ms:.0}"),
    }
}

/// The page as it fits a terminal; the last line says how much does not.
pub(super) fn fitted(lines: &[Line], columns: usize, rows: usize) -> Vec<Line> {
    let mut shown: Vec<Line> = lines.iter().take(rows).cloned().collect();
    if lines.len() > rows && rows > 0 {
        let more = lines.len() - rows + 1;
        shown[rows - 1] = head(format!("... {more} more lines: a larger terminal, or --once, shows them"));
    }
    for line in &mut shown {
        if line.text.chars().count() > columns {
            line.text = line.text.chars().take(columns.saturating_sub(1)).chain(['>']).collect();
        }
    }
    shown
}

#[cfg(test)]
#[path = "page_tests.rs"]
mod tests;
