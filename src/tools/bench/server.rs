//! The metrics of the server under test: the change of its `/metrics` over a level. Pure.

use serde::Serialize;
use std::collections::BTreeMap;

/// The series of one moment: by name and labels, `le` last in a bucket's.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Snapshot(BTreeMap<(String, Labels), f64>);

type Labels = BTreeMap<String, String>;

/// The change between two snapshots.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct ServerFigures {
    /// Stages that ran, upstream first as far as their names tell.
    pub stages: Vec<StageFigures>,
    /// Frames by the batch size of their captured graph.
    pub frames: Vec<BucketFigures>,
    /// Device memory at the end, bytes by use.
    pub device_memory_bytes: BTreeMap<String, f64>,
    /// Calls to the GPU's driver that waited.
    pub blocking_calls: f64,
}

/// One stage.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct StageFigures {
    /// Its name.
    pub stage: String,
    /// Steps.
    pub steps: f64,
    /// Sequences of a step, mean.
    pub sequences: f64,
    /// Device time of a step, ms.
    pub step_ms: Spread,
    /// Device idle between two steps while there was work, microseconds.
    pub bubble_us: Spread,
    /// Steps in flight at a launch, mean.
    pub run_ahead: f64,
}

/// Frames of one size.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct BucketFigures {
    /// Batch size of the graph.
    pub sequences: u32,
    /// How many.
    pub frames: f64,
    /// Device time, ms.
    pub ms: Spread,
}

/// Percentiles out of a histogram: exact to its buckets, linear inside one.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub struct Spread {
    /// Median.
    pub p50: f64,
    /// 99th percentile.
    pub p99: f64,
}

impl Snapshot {
    /// Reads Prometheus' text; skips lines that are something else.
    pub fn parse(text: &str) -> Snapshot {
        Snapshot(text.lines().filter(|line| !line.starts_with('#')).filter_map(series).collect())
    }

    /// The change since `before`.
    pub fn since(&self, before: &Snapshot) -> ServerFigures {
        let change = Snapshot(
            self.0.iter().map(|(key, now)| (key.clone(), now - before.0.get(key).copied().unwrap_or(0.0))).collect(),
        );
        let stages = ["thinker", "talker", "vocoder"].into_iter().filter_map(|stage| change.stage(stage)).collect();
        let buckets = change.values_of("omni_frame_seconds_count", "bucket");
        let mut frames: Vec<BucketFigures> = buckets
            .filter_map(|(bucket, frames)| {
                let ms = change.spread("omni_frame_seconds", ("bucket", bucket), 1e3);
                (frames > 0.0).then_some(BucketFigures { sequences: bucket.parse().ok()?, frames, ms })
            })
            .collect();
        frames.sort_by_key(|bucket| bucket.sequences);
        let memory = self.values_of("omni_device_memory_bytes", "use");
        ServerFigures {
            stages,
            frames,
            device_memory_bytes: memory.map(|(what, bytes)| (what.to_owned(), bytes)).collect(),
            blocking_calls: change.total("omni_device_blocking_calls_total"),
        }
    }

    fn stage(&self, stage: &str) -> Option<StageFigures> {
        let label = ("stage", stage);
        let value = |name: &str| self.value(name, label);
        let steps = value("omni_stage_step_seconds_count");
        let mean = |name: &str| {
            let count = value(&format!("{name}_count"));
            if count > 0.0 { value(&format!("{name}_sum")) / count } else { 0.0 }
        };
        (steps > 0.0).then(|| StageFigures {
            stage: stage.to_owned(),
            steps,
            sequences: mean("omni_stage_batch_sequences"),
            step_ms: self.spread("omni_stage_step_seconds", label, 1e3),
            bubble_us: self.spread("omni_stage_launch_bubble_seconds", label, 1e6),
            run_ahead: mean("omni_stage_run_ahead_steps"),
        })
    }

    fn named<'a>(&'a self, name: &'a str) -> impl Iterator<Item = (&'a Labels, f64)> {
        self.0.iter().filter(move |((series, _), _)| series == name).map(|((_, labels), value)| (labels, *value))
    }

    fn total(&self, name: &str) -> f64 {
        self.named(name).map(|(_, value)| value).sum()
    }

    fn value(&self, name: &str, (label, wanted): (&str, &str)) -> f64 {
        self.named(name).filter(|(labels, _)| labels.get(label).is_some_and(|is| is == wanted)).map(|(_, v)| v).sum()
    }

    fn values_of<'a>(&'a self, name: &'a str, label: &'a str) -> impl Iterator<Item = (&'a str, f64)> {
        self.named(name).filter_map(move |(labels, value)| Some((labels.get(label)?.as_str(), value)))
    }

    fn spread(&self, name: &str, (label, wanted): (&str, &str), unit: f64) -> Spread {
        let name = format!("{name}_bucket");
        let mut cumulative: Vec<(f64, f64)> = self
            .named(&name)
            .filter(|(labels, _)| labels.get(label).is_some_and(|is| is == wanted))
            .filter_map(|(labels, count)| Some((bound(labels.get("le")?)?, count)))
            .collect();
        cumulative.sort_by(|a, b| a.0.total_cmp(&b.0));
        let at = |share| quantile(&cumulative, share) * unit;
        Spread { p50: at(0.5), p99: at(0.99) }
    }
}

fn bound(text: &str) -> Option<f64> {
    if text == "+Inf" { Some(f64::INFINITY) } else { text.parse().ok() }
}

/// The quantile of pairs (upper bound, how many are not above it), ascending. A value above the last finite bound
/// counts as that bound.
fn quantile(cumulative: &[(f64, f64)], share: f64) -> f64 {
    let wanted = cumulative.last().map_or(0.0, |last| last.1) * share;
    let (mut low, mut before) = (0.0, 0.0);
    for &(high, count) in cumulative {
        if count >= wanted && count > before {
            return if high.is_finite() { low + (high - low) * (wanted - before) / (count - before) } else { low };
        }
        (low, before) = (if high.is_finite() { high } else { low }, count);
    }
    0.0
}

/// `name{label="value",...} number`; the labels of this program hold no quotes or commas.
fn series(line: &str) -> Option<((String, Labels), f64)> {
    let (series, value) = line.rsplit_once(' ')?;
    let (name, labels) = match series.split_once('{') {
        Some((name, labels)) => (name, labels.strip_suffix('}')?),
        None => (series, ""),
    };
    let pair = |pair: &str| {
        let (label, value) = pair.split_once('=')?;
        Some((label.to_owned(), value.trim_matches('"').to_owned()))
    };
    let labels = labels.split(',').filter(|pair| !pair.is_empty()).map(pair).collect::<Option<_>>()?;
    Some(((name.to_owned(), labels), value.parse().ok()?))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn text(fast: u32, slow: u32) -> String {
        let all = fast + slow;
        format!(
            "# HELP omni_stage_step_seconds x\nomni_stage_step_seconds_bucket{{stage=\"talker\",le=\"0.002\"}} {fast}\n\
             omni_stage_step_seconds_bucket{{stage=\"talker\",le=\"0.004\"}} {all}\n\
             omni_stage_step_seconds_bucket{{stage=\"talker\",le=\"+Inf\"}} {all}\n\
             omni_stage_step_seconds_count{{stage=\"talker\"}} {all}\n\
             omni_stage_batch_sequences_sum{{stage=\"talker\"}} {}\nomni_stage_batch_sequences_count{{stage=\"talker\"}} {all}\n\
             omni_frame_seconds_bucket{{bucket=\"8\",le=\"0.002\"}} {all}\nomni_frame_seconds_count{{bucket=\"8\"}} {all}\n\
             omni_device_memory_bytes{{use=\"kv\"}} 7e9\nomni_device_blocking_calls_total 3\nnonsense\n",
            8 * all
        )
    }

    #[test]
    fn figures_are_the_change_between_two_snapshots() {
        let figures = Snapshot::parse(&text(110, 90)).since(&Snapshot::parse(&text(10, 90)));
        let [stage] = &figures.stages[..] else { panic!("{figures:?}") };
        assert_eq!((stage.stage.as_str(), stage.steps, stage.sequences), ("talker", 100.0, 8.0));
        // All of the hundred new steps are in the first bucket.
        assert!((stage.step_ms.p50 - 1.0).abs() < 1e-9 && (stage.step_ms.p99 - 1.98).abs() < 1e-9, "{stage:?}");
        assert_eq!((figures.frames[0].sequences, figures.frames[0].frames), (8, 100.0));
        assert_eq!(figures.device_memory_bytes["kv"], 7e9);
        assert_eq!(figures.blocking_calls, 0.0);
    }

    #[test]
    fn quantiles_are_linear_inside_a_bucket_and_stay_below_the_last_bound() {
        let buckets = [(1.0, 0.0), (2.0, 10.0), (f64::INFINITY, 20.0)];
        assert_eq!(quantile(&buckets, 0.25), 1.5);
        assert_eq!(quantile(&buckets, 0.99), 2.0);
        assert_eq!(quantile(&[], 0.5), 0.0);
        assert_eq!(quantile(&[(1.0, 0.0), (f64::INFINITY, 0.0)], 0.5), 0.0);
    }

    #[test]
    fn a_server_without_our_metrics_says_nothing() {
        assert_eq!(Snapshot::parse("<html>not here</html>").since(&Snapshot::default()), ServerFigures::default());
    }
}
