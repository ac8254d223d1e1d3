//! What a drill found, as tables for people.

use super::report::{Bad, Conversations, Count, Gaps, Recovery, Report, Streams};
use super::resources::Use;
use crate::bench::report::table;
use crate::bench::stats::Distribution;
use omni_config::format_bytes;
use std::collections::BTreeMap;

/// Bad streams that are shown; the file has all of them.
const SHOWN: usize = 20;
/// Above what [`row_of_run`] says.
pub(super) const RUN_HEAD: [&str; 4] =
    ["run", "TTFA p50/p99/max ms", "underruns/100 streams", "gap heard p50/p99/max ms"];

impl Report {
    /// Markdown tables.
    pub fn tables(&self) -> String {
        let counts = |of: &BTreeMap<String, Count>| {
            let rows = of.iter().map(|(name, n)| vec![name.clone(), n.injected.to_string(), n.hit.to_string()]);
            rows.collect::<Vec<_>>()
        };
        let mut text = table(&["fault", "injected", "hit"], counts(&self.faults_by_kind));
        text += "\n";
        text += &table(&["place", "injected", "hit"], counts(&self.faults_by_place));
        text += "\n";
        text += &streams(&self.streams);
        if self.conversations.ended > 0 {
            let Conversations { ended, identical } = self.conversations;
            text += &format!("\nconversations: {identical} of {ended} identical\n");
        }
        let all = Recovery { outages: self.stages.values().map(|s| s.outages).sum(), recovery_ms: self.recovery_ms };
        let stages = self.stages.iter().map(|(name, stage)| (name.as_str(), stage)).chain([("all", &all)]);
        let row = |(name, stage): (&str, &Recovery)| {
            vec![name.to_owned(), stage.outages.to_string(), three(&stage.recovery_ms)]
        };
        text += "\n";
        text += &table(&["stage", "times down", "recovery p50/p99/max ms"], stages.map(row));
        text += "\n";
        let run = |name, gaps, pause| [row_of_run(name, gaps), vec![pause]].concat();
        text += &table(
            &[&RUN_HEAD[..], &["pause in outage p50/p99/max ms"]].concat(),
            [
                run("undisturbed", &self.undisturbed, "-".to_owned()),
                run("disturbed", &self.disturbed, three(&self.pause_ms)),
            ],
        );
        let Use { start, middle, end, rss_bytes_per_minute, fds_per_minute, flat } = &self.resources;
        let rss = [start, middle, end].map(|look| format_bytes(look.rss_bytes)).join(" -> ");
        let fds = [start, middle, end].map(|look| look.fds.to_string()).join(" -> ");
        text += &format!(
            "\nmemory {rss} ({:+.2} MiB/min), file descriptors {fds} ({fds_per_minute:+.2}/min): {}\n",
            rss_bytes_per_minute / f64::from(1 << 20),
            if *flat { "flat" } else { "growing" }
        );
        text + &complaints(&self.bad)
    }
}

/// How the streams went.
pub(super) fn streams(s: &Streams) -> String {
    let row = [s.started, s.finished, s.identical, s.recovered, s.lost, s.repeated, s.reordered, s.changed];
    let row = row.into_iter().chain([s.ended, s.failed, s.refused, s.hung]).map(|n| n.to_string()).collect();
    table(
        &[
            "streams",
            "finished",
            "identical",
            "recovered",
            "lost",
            "repeated",
            "reordered",
            "changed",
            "ended",
            "failed",
            "refused",
            "hung",
        ],
        [row],
    )
}

/// What listeners of one run heard.
pub(super) fn row_of_run(name: &str, gaps: &Gaps) -> Vec<String> {
    let underruns = format!("{:.1}", gaps.underruns_per_100_streams);
    vec![name.to_owned(), three(&gaps.ttfa_ms), underruns, three(&gaps.silence_ms)]
}

/// The streams that are not as they should be.
pub(super) fn complaints(all: &[Bad]) -> String {
    let mut text = String::new();
    for bad in all.iter().take(SHOWN) {
        text += &format!(
            "bad: {} (request {}, seed {}, {:.1} s to {:.1} s): {}; {:?}\n",
            bad.request.as_deref().unwrap_or("-"),
            bad.number,
            bad.seed,
            bad.began_s,
            bad.ended_s,
            bad.verdict,
            bad.text
        );
    }
    if all.len() > SHOWN {
        text += &format!("and {} more\n", all.len() - SHOWN);
    }
    text
}

fn three(of: &Distribution) -> String {
    format!("{:.0}/{:.0}/{:.0}", of.p50, of.p99, of.max)
}
