//! What one API key is used for, and what becomes of spans. The label is the name that the config gives the key, never the key.

use super::catalogue as c;
use super::exposition::install;
use metrics::{Counter, Gauge, counter, gauge};

/// Spans for a collector of traces.
#[derive(Clone)]
pub struct SpanMetrics {
    /// Those that it took.
    pub exported: Counter,
    /// Those that it did not take, or for which there was no room.
    pub dropped: Counter,
}

impl SpanMetrics {
    /// The exporter's handles.
    pub fn new() -> SpanMetrics {
        install();
        let count = |outcome: &'static str| counter!(c::SPANS.name, "outcome" => outcome);
        SpanMetrics { exported: count("exported"), dropped: count("dropped") }
    }
}

impl Default for SpanMetrics {
    fn default() -> SpanMetrics {
        SpanMetrics::new()
    }
}

impl std::fmt::Debug for SpanMetrics {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("SpanMetrics")
    }
}

/// Why a request of a key was refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum KeyRefusal {
    /// Too many at once.
    Connections,
    /// Too many in a minute.
    Requests,
    /// Too many bytes in a minute.
    Bytes,
    /// Too much speech in an hour.
    Speech,
    /// The key is not for this.
    Scope,
    /// The config does not have the key any more.
    Removed,
}

const REFUSALS: [&str; 6] = ["connections", "requests", "bytes", "speech", "scope", "removed"];

/// Handles of one key, or of all that have no series of their own.
#[derive(Clone)]
pub struct KeyMetrics {
    label: String,
    refusals: [Counter; REFUSALS.len()],
    /// Whole seconds.
    pub speech_seconds: Counter,
    /// Of bodies and messages.
    pub input_bytes: Counter,
    /// Being answered.
    pub connections: Gauge,
}

impl KeyMetrics {
    /// Handles of the key of this name.
    pub fn new(name: &str) -> KeyMetrics {
        install();
        let label = || name.to_owned();
        KeyMetrics {
            label: label(),
            refusals: REFUSALS.map(|reason| counter!(c::KEY_REFUSALS.name, "key" => label(), "reason" => reason)),
            speech_seconds: counter!(c::KEY_SPEECH_SECONDS.name, "key" => label()),
            input_bytes: counter!(c::KEY_INPUT_BYTES.name, "key" => label()),
            connections: gauge!(c::KEY_CONNECTIONS.name, "key" => label()),
        }
    }

    /// A request was answered.
    pub fn answered(&self, status: u16) {
        let labels = [("key", self.label.clone()), ("status", status.to_string())];
        counter!(c::KEY_REQUESTS.name, &labels).increment(1);
    }

    /// A request or an utterance was refused.
    pub fn refused(&self, why: KeyRefusal) {
        self.refusals[why as usize].increment(1);
    }
}

impl std::fmt::Debug for KeyMetrics {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "KeyMetrics({})", self.label)
    }
}
