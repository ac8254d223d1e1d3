//! Memory and file descriptors of this process and of its stages' processes, as Linux counts them.

use serde::Serialize;
use std::time::Duration;

/// Growth from the middle of a run to its end that is no leak: pools and caches still fill, and records of the run are
/// kept.
const FORGIVEN: (f64, f64) = (0.05, 16.0 * 1024.0 * 1024.0);

/// One snapshot.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub struct Resources {
    /// Since the run began, in seconds.
    pub at_s: f64,
    /// Resident bytes of all processes.
    pub rss_bytes: u64,
    /// Open file descriptors of all processes.
    pub fds: u64,
}

/// A snapshot of this process and those with the ids `pids`. A process that cannot be read counts as nothing: it may
/// just have ended.
pub fn look(at: Duration, pids: impl Iterator<Item = u32>) -> Resources {
    let all = std::iter::once("self".to_owned()).chain(pids.map(|pid| pid.to_string()));
    let mut seen = Resources { at_s: at.as_secs_f64(), ..Resources::default() };
    for process in all {
        seen.rss_bytes += rss(&process).unwrap_or(0);
        seen.fds += std::fs::read_dir(format!("/proc/{process}/fd")).map_or(0, |entries| entries.count() as u64);
    }
    seen
}

fn rss(process: &str) -> Option<u64> {
    let statm = std::fs::read_to_string(format!("/proc/{process}/statm")).ok()?;
    let pages: u64 = statm.split_whitespace().nth(1)?.parse().ok()?;
    Some(pages * rustix::param::page_size() as u64)
}

/// What a run needed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub struct Use {
    /// When it began.
    pub start: Resources,
    /// Half way.
    pub middle: Resources,
    /// When it ended.
    pub end: Resources,
    /// Growth over its second half.
    pub rss_bytes_per_minute: f64,
    /// Growth over its second half.
    pub fds_per_minute: f64,
    /// Whether neither grew by more than is forgiven over the second half.
    pub flat: bool,
}

impl Use {
    /// From snapshots in their order. Single snapshots swing with the stage that is just being restarted, so the ends
    /// are medians of a tenth.
    pub fn of(looks: &[Resources]) -> Use {
        let (Some(first), tenth) = (looks.first(), looks.len().div_ceil(10)) else { return Use::default() };
        let half = &looks[looks.len() / 2..];
        let around = |from: usize| median(&looks[from.min(looks.len() - tenth)..][..tenth]);
        let (start, middle, end) = (*first, around(looks.len() / 2), around(looks.len() - tenth));
        let grew = |from: u64, to: u64, most: f64| to as f64 - from as f64 <= most;
        let rss = (middle.rss_bytes as f64 * FORGIVEN.0).max(FORGIVEN.1);
        Use {
            start,
            middle,
            end,
            rss_bytes_per_minute: slope(half, |look| look.rss_bytes) * 60.0,
            fds_per_minute: slope(half, |look| look.fds) * 60.0,
            // A stage that is just starting has a few more open.
            flat: grew(middle.rss_bytes, end.rss_bytes, rss) && grew(middle.fds, end.fds, 16.0),
        }
    }
}

fn median(looks: &[Resources]) -> Resources {
    let middle = |of: fn(&Resources) -> u64| {
        let mut values: Vec<u64> = looks.iter().map(of).collect();
        values.sort_unstable();
        values.get(values.len() / 2).copied().unwrap_or(0)
    };
    let at_s = looks.get(looks.len() / 2).map_or(0.0, |look| look.at_s);
    Resources { at_s, rss_bytes: middle(|look| look.rss_bytes), fds: middle(|look| look.fds) }
}

/// The slope of the straight line with the least squares, per second.
fn slope(looks: &[Resources], of: fn(&Resources) -> u64) -> f64 {
    let count = looks.len() as f64;
    let mean = |values: &dyn Fn(&Resources) -> f64| looks.iter().map(values).sum::<f64>() / count;
    let (time, value) = (mean(&|look| look.at_s), mean(&|look| of(look) as f64));
    let spread: f64 = looks.iter().map(|look| (look.at_s - time).powi(2)).sum();
    let shared: f64 = looks.iter().map(|look| (look.at_s - time) * (of(look) as f64 - value)).sum();
    if spread > 0.0 { shared / spread } else { 0.0 }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn looks(mib: impl Fn(usize) -> usize) -> Vec<Resources> {
        let look = |i| Resources { at_s: i as f64, rss_bytes: (mib(i) as u64) << 20, fds: 40 };
        (0..100).map(look).collect()
    }

    #[test]
    fn what_grows_at_first_and_then_stays_is_flat() {
        let used = Use::of(&looks(|i| 200 + i.min(40) * 5));
        assert!(used.flat && used.rss_bytes_per_minute == 0.0, "{used:?}");
        assert_eq!(
            (used.start.rss_bytes >> 20, used.middle.rss_bytes >> 20, used.end.rss_bytes >> 20),
            (200, 400, 400)
        );
    }

    #[test]
    fn what_keeps_growing_is_not() {
        let used = Use::of(&looks(|i| 200 + i * 2));
        assert!(!used.flat);
        assert!((used.rss_bytes_per_minute / f64::from(1 << 20) - 120.0).abs() < 1e-6, "{used:?}");
    }

    #[test]
    fn a_single_look_is_a_run_that_needed_so_much() {
        let used = Use::of(&looks(|_| 10)[..1]);
        assert!(used.flat && used.start == used.end);
        assert_eq!(Use::of(&[]), Use::default());
    }

    #[test]
    fn this_process_has_memory_and_descriptors() {
        let look = look(Duration::from_secs(3), std::iter::empty());
        assert!(look.rss_bytes > 1 << 20 && look.fds > 2, "{look:?}");
    }
}
