//! What a drill of a cluster found: by fault, counted, as tables and as JSON.

use super::super::drill::Stream;
use super::super::load::Load;
use super::super::report::{About, Bad, Gaps, Streams, complaint, joined, ms};
use super::super::tables::{RUN_HEAD, complaints, row_of_run, streams};
use super::super::verdict::Verdict;
use super::drill::{Run, Struck, described};
use super::listen::Played;
use super::plan::Kind;
use crate::bench::report::table;
use crate::bench::stats::Distribution;
use serde::Serialize;
use std::time::Duration;

/// The faults of one kind, and what listeners heard of them.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Row {
    /// The kind.
    pub fault: &'static str,
    /// How often it struck.
    pub times: usize,
    /// Streams that were heard from when it struck until the next fault did.
    pub streams: usize,
    /// Those of them of which not a bit differs from the undisturbed run.
    pub identical: usize,
    /// How many of them were asked for again at another gateway.
    pub moved: usize,
    /// Silence that the player of a stream filled in meanwhile, ms.
    pub gap_ms: Distribution,
    /// From when the fault was taken back to when every gateway used every node again, ms.
    pub whole_ms: Distribution,
}

/// One fault.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Fault {
    /// What struck what.
    pub fault: String,
    /// When, seconds since the run began.
    pub from_s: f64,
    /// When it was taken back.
    pub to_s: f64,
    /// When every gateway used every node again.
    pub whole_s: f64,
}

/// A whole drill.
#[derive(Clone, Debug, Serialize)]
pub struct Report {
    /// What was drilled, and how.
    #[serde(flatten)]
    pub about: About,
    /// Version of this program.
    pub version: &'static str,
    /// Seconds of the disturbed run.
    pub took_s: f64,
    /// In the order of time.
    pub faults: Vec<Fault>,
    /// By kind.
    pub faults_by_kind: Vec<Row>,
    /// Disturbed.
    pub streams: Streams,
    /// Undisturbed.
    pub undisturbed: Gaps,
    /// Disturbed.
    pub disturbed: Gaps,
    /// What did not come back, or could not be struck.
    pub given_up: Option<String>,
    /// The user ended it early.
    pub interrupted: bool,
    /// The streams that are not as they should be.
    pub bad: Vec<Bad>,
}

impl Report {
    /// Sums both runs up.
    pub fn new(about: About, load: &Load, undisturbed: &Run, disturbed: &Run) -> Report {
        let (before, meanwhile) = (streams_of(undisturbed), streams_of(disturbed));
        let rows = rows(&disturbed.struck, &disturbed.played);
        let mut streams = Streams { started: disturbed.begun, ..Streams::default() };
        meanwhile.clone().for_each(|stream| streams.count(&stream.verdict));
        let hurt = |played: &&Played| {
            let (from, to) = heard(played);
            disturbed.struck.iter().any(|struck| from <= struck.whole && struck.from <= to)
        };
        let good = disturbed.played.iter().filter(|played| played.stream.verdict.is_good());
        streams.recovered = good.filter(hurt).count();
        let fault = |struck: &Struck| Fault {
            fault: described(struck.strike),
            from_s: struck.from.as_secs_f64(),
            to_s: struck.to.as_secs_f64(),
            whole_s: struck.whole.as_secs_f64(),
        };
        Report {
            about,
            version: env!("CARGO_PKG_VERSION"),
            took_s: disturbed.took.as_secs_f64(),
            faults: disturbed.struck.iter().map(fault).collect(),
            faults_by_kind: rows,
            streams,
            undisturbed: Gaps::of(before),
            disturbed: Gaps::of(meanwhile.clone()),
            given_up: disturbed.given_up.clone(),
            interrupted: disturbed.interrupted,
            bad: meanwhile.filter(|stream| !stream.verdict.is_good()).map(|bad| complaint(bad, load)).collect(),
        }
    }

    /// One line for the error that ends the command; `None` if all is good.
    pub fn failure(&self) -> Option<String> {
        joined(self.streams.failure(), self.given_up.clone())
    }

    /// Markdown tables.
    pub fn tables(&self) -> String {
        let of = |of: &Distribution| format!("{:.0}/{:.0}", of.p50, of.max);
        let row = |row: &Row| {
            let counts = [row.times, row.streams, row.identical, row.moved].map(|count| count.to_string());
            [&[row.fault.to_owned()][..], &counts, &[of(&row.gap_ms), of(&row.whole_ms)]].concat()
        };
        let head =
            ["fault", "times", "streams", "identical", "moved", "gap heard p50/max ms", "whole after p50/max ms"];
        let mut text = table(&head, self.faults_by_kind.iter().map(row));
        text += "\n";
        text += &streams(&self.streams);
        text += "\n";
        let runs = [row_of_run("undisturbed", &self.undisturbed), row_of_run("disturbed", &self.disturbed)];
        text += &table(&RUN_HEAD, runs);
        text + &complaints(&self.bad)
    }
}

fn streams_of(run: &Run) -> impl Iterator<Item = &Stream> + Clone {
    run.played.iter().map(|played| &played.stream)
}

/// From when to when a stream was heard.
fn heard(played: &Played) -> (Duration, Duration) {
    (played.stream.timing.began, played.stream.timing.ended)
}

/// What streams heard of each kind of fault that struck. What they hear until the next one strikes is due to the one before.
fn rows(struck: &[Struck], played: &[Played]) -> Vec<Row> {
    let windows = struck.iter().enumerate().map(|(i, one)| {
        let until = struck.get(i + 1).map_or(Duration::MAX, |next| next.from);
        (one, one.from..until)
    });
    let windows: Vec<_> = windows.collect();
    let row = |kind: Kind| {
        let its: Vec<_> = windows.iter().filter(|(struck, _)| struck.strike.kind == kind).collect();
        let mut row = Row {
            fault: kind.name(),
            times: its.len(),
            streams: 0,
            identical: 0,
            moved: 0,
            gap_ms: Distribution::default(),
            whole_ms: Distribution::of(its.iter().map(|(one, _)| ms(one.whole.saturating_sub(one.to))).collect()),
        };
        let mut gaps = Vec::new();
        for (_, window) in &its {
            let meanwhile = |played: &&Played| {
                let (from, to) = heard(played);
                from < window.end && window.start <= to
            };
            for played in played.iter().filter(meanwhile) {
                row.streams += 1;
                row.identical += usize::from(played.stream.verdict == Verdict::Identical);
                row.moved += usize::from(played.moved.iter().any(|at| window.contains(at)));
                let silence = played.gaps.iter().filter(|(at, _)| window.contains(at)).map(|(_, gap)| *gap);
                gaps.push(ms(silence.sum()));
            }
        }
        row.gap_ms = Distribution::of(gaps);
        (row.times > 0).then_some(row)
    };
    Kind::ALL.into_iter().filter_map(row).collect()
}

#[cfg(test)]
mod tests {
    use super::super::super::listen::Timing;
    use super::super::plan::Strike;
    use super::*;

    const fn s(n: u64) -> Duration {
        Duration::from_secs(n)
    }

    fn struck(kind: Kind, from: u64, to: u64) -> Struck {
        Struck { strike: Strike { kind, target: 0 }, from: s(from), to: s(to), whole: s(to + 1) }
    }

    fn played(began: u64, ended: u64, gaps: &[(u64, u64)], moved: &[u64], verdict: Verdict) -> Played {
        let timing = Timing { began: s(began), ended: s(ended), ..Timing::default() };
        let gaps = gaps.iter().map(|(at, gap)| (s(*at), s(*gap))).collect();
        let stream = Stream { number: 0, case: 0, request: None, verdict, timing };
        Played { stream, gaps, moved: moved.iter().map(|at| s(*at)).collect() }
    }

    #[test]
    fn what_a_stream_hears_is_due_to_the_fault_before_it() {
        let faults =
            [struck(Kind::KillNode, 10, 13), struck(Kind::KillGateway, 20, 23), struck(Kind::KillNode, 30, 33)];
        let hung = Verdict::Hung { after_s: 9.0 };
        let all = [
            played(0, 9, &[(5, 1)], &[], Verdict::Identical),
            played(8, 22, &[(9, 1), (12, 2), (21, 3)], &[21], Verdict::Identical),
            played(31, 60, &[(40, 4), (41, 1)], &[], hung),
        ];
        let rows = rows(&faults, &all);
        let [nodes, gateways] = &rows[..] else { panic!("{rows:?}") };
        let counts = |row: &Row| (row.times, row.streams, row.identical, row.moved);
        assert_eq!(counts(nodes), (2, 2, 1, 0));
        assert_eq!(counts(gateways), (1, 1, 1, 1));
        assert_eq!((nodes.gap_ms.max, gateways.gap_ms.max), (5_000.0, 3_000.0));
        assert_eq!((nodes.whole_ms.max, nodes.fault), (1_000.0, "kill -9 of a node"));
    }

    #[test]
    fn without_faults_there_are_no_rows() {
        assert_eq!(rows(&[], &[played(0, 9, &[], &[], Verdict::Identical)]), []);
    }
}
