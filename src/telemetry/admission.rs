//! What admission records.

use super::catalogue as c;
use super::exposition::install;
use metrics::{Gauge, counter, gauge};

/// Handles for admission.
#[derive(Clone)]
pub struct AdmissionMetrics {
    capacity: Gauge,
}

impl AdmissionMetrics {
    /// The engine's handles.
    pub fn new() -> AdmissionMetrics {
        install();
        AdmissionMetrics { capacity: gauge!(c::ADMISSION_CAPACITY.name) }
    }

    /// So many streams can be carried.
    pub fn capacity(&self, streams: usize) {
        self.capacity.set(streams as f64);
    }

    /// A request was told to come later.
    pub fn refused(&self, reason: &'static str) {
        counter!(c::REFUSALS.name, "reason" => reason).increment(1);
    }

    /// A request lost its place because its client kept it waiting, or because it had lived for too long.
    pub fn ended(&self, reason: &'static str) {
        counter!(c::ENDED.name, "reason" => reason).increment(1);
    }

    /// So many requests gave their places up until their clients come back.
    pub fn paused(&self, requests: usize) {
        counter!(c::PAUSED.name).increment(requests as u64);
    }

    /// A promised deadline was met or missed.
    pub fn deadline(&self, deadline: &'static str, met: bool) {
        let outcome = if met { "met" } else { "missed" };
        counter!(c::DEADLINES.name, "deadline" => deadline, "outcome" => outcome).increment(1);
    }
}

impl Default for AdmissionMetrics {
    fn default() -> AdmissionMetrics {
        AdmissionMetrics::new()
    }
}

impl std::fmt::Debug for AdmissionMetrics {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("AdmissionMetrics")
    }
}
