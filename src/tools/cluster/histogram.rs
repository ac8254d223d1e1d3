//! Quantiles out of the histograms of `/metrics`. Pure.

use std::collections::BTreeMap;
use std::time::Duration;

/// A histogram: how many were at most so long, by the bound in microseconds; the last bound is `u64::MAX`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Histogram(BTreeMap<u64, u64>);

impl Histogram {
    /// The histogram of this name, all of its series together.
    pub fn read(metrics: &str, name: &str) -> Histogram {
        let mut bounds = BTreeMap::new();
        for line in metrics.lines() {
            let Some(series) = line.strip_prefix(name).and_then(|rest| rest.strip_prefix("_bucket{")) else { continue };
            let Some((labels, count)) = series.rsplit_once("} ") else { continue };
            let Some((_, bound)) = labels.split_once("le=\"") else { continue };
            let Some(bound) = bound.split('"').next().and_then(micros) else { continue };
            *bounds.entry(bound).or_insert(0) += count.trim().parse::<f64>().unwrap_or(0.0) as u64;
        }
        Histogram(bounds)
    }

    /// What came after an earlier one of the same series; all of it, where the process is another one since.
    pub fn since(&self, earlier: &Histogram) -> Histogram {
        let before = |bound: &u64| earlier.0.get(bound).copied().unwrap_or(0);
        if self.0.iter().any(|(bound, count)| *count < before(bound)) {
            return self.clone();
        }
        Histogram(self.0.iter().map(|(bound, count)| (*bound, count - before(bound))).collect())
    }

    /// How long all but `1 - share` took at most: even within a bucket, as Prometheus has it. `None` if there were none.
    pub fn quantile(&self, share: f64) -> Option<Duration> {
        let total = *self.0.values().next_back().filter(|total| **total > 0)? as f64;
        let rank = share * total;
        let (mut below, mut lower) = (0.0, 0);
        for (bound, count) in &self.0 {
            let count = *count as f64;
            if count >= rank && count > below {
                // Beyond the last bound nothing is known.
                let width = if *bound == u64::MAX { 0 } else { bound - lower };
                let inside = width as f64 * (rank - below).max(0.0) / (count - below);
                return Some(Duration::from_micros(lower + inside as u64));
            }
            (below, lower) = (count, if *bound == u64::MAX { lower } else { *bound });
        }
        None
    }
}

fn micros(seconds: &str) -> Option<u64> {
    match seconds {
        "+Inf" => Some(u64::MAX),
        seconds => seconds.parse::<f64>().ok().map(|seconds| (seconds * 1e6).round() as u64),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(counts: [u64; 3]) -> Histogram {
        let [a, b, c] = counts;
        let text = format!(
            "# TYPE t histogram\nt_bucket{{kind=\"speech\",le=\"0.01\"}} {a}\nt_bucket{{kind=\"speech\",le=\"0.02\"}} {b}\n\
             t_bucket{{kind=\"speech\",le=\"+Inf\"}} {c}\nt_sum{{kind=\"speech\"}} 1\nother_bucket{{le=\"0.01\"}} 9\n"
        );
        Histogram::read(&text, "t")
    }

    #[test]
    fn quantiles_are_even_within_a_bucket_and_stop_at_the_last_bound() {
        assert_eq!(of([10, 20, 20]).quantile(0.5), Some(Duration::from_millis(10)));
        assert_eq!(of([10, 20, 20]).quantile(0.75), Some(Duration::from_millis(15)));
        assert_eq!(of([0, 10, 20]).quantile(0.95), Some(Duration::from_millis(20)));
        assert_eq!(of([0, 0, 0]).quantile(0.5), None);
        assert_eq!(Histogram::default().quantile(0.5), None);
    }

    #[test]
    fn series_of_several_kinds_count_together_and_a_window_has_what_is_new() {
        let text = "t_bucket{kind=\"chat\",le=\"+Inf\"} 2\nt_bucket{kind=\"speech\",le=\"+Inf\"} 3\n";
        assert_eq!(Histogram::read(text, "t"), Histogram(BTreeMap::from([(u64::MAX, 5)])));
        assert_eq!(of([10, 25, 25]).since(&of([10, 20, 20])), of([0, 5, 5]));
        assert_eq!(of([1, 2, 2]).since(&of([10, 20, 20])), of([1, 2, 2]), "the process is another one");
    }
}
