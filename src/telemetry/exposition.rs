//! The one recorder of the process, and its text form for `/metrics`.

use super::catalogue::{self, Kind};
use metrics::{describe_counter, describe_gauge, describe_histogram};
use metrics_exporter_prometheus::{Matcher, PrometheusBuilder, PrometheusHandle};
use std::sync::OnceLock;
use std::time::Duration;

/// Histograms keep raw samples until upkeep folds them into buckets; 5 s bounds that memory.
const UPKEEP: Duration = Duration::from_secs(5);

/// All metrics in Prometheus' text format.
pub fn render() -> String {
    install().map(PrometheusHandle::render).unwrap_or_default()
}

/// Installs the recorder on the first call. Every maker of handles calls it first, for a handle made before the
/// recorder would record nothing. `None` only if somebody else installed a recorder in this process.
pub(super) fn install() -> Option<&'static PrometheusHandle> {
    static HANDLE: OnceLock<Option<PrometheusHandle>> = OnceLock::new();
    HANDLE
        .get_or_init(|| {
            let mut builder = PrometheusBuilder::new();
            for metric in catalogue::ALL {
                if let Kind::Histogram(bounds) = metric.kind {
                    // Fails only for an empty list of bounds; a test of the catalogue renders every histogram.
                    builder = builder.set_buckets_for_metric(Matcher::Full(metric.name.to_owned()), bounds).ok()?;
                }
            }
            let handle = builder.install_recorder().ok()?;
            for metric in catalogue::ALL {
                match metric.kind {
                    Kind::Counter => describe_counter!(metric.name, metric.help),
                    Kind::Gauge => describe_gauge!(metric.name, metric.help),
                    Kind::Histogram(_) => describe_histogram!(metric.name, metric.help),
                }
            }
            let upkeep = handle.clone();
            std::thread::Builder::new()
                .name("metrics-upkeep".to_owned())
                .spawn(move || {
                    loop {
                        #[expect(clippy::disallowed_methods, reason = "this thread does nothing else")]
                        std::thread::sleep(UPKEEP);
                        upkeep.run_upkeep();
                    }
                })
                .ok()?;
            Some(handle)
        })
        .as_ref()
}
