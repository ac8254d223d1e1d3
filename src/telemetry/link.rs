//! What passes on links to stages outside of this process.

use super::catalogue as c;
use super::exposition::install;
use metrics::{Counter, counter};
use omni_core::ids::StageName;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// What one direction of the link to a stage process records.
#[derive(Clone)]
pub struct LinkMetrics {
    frames: Counter,
    bytes: Counter,
    /// Of this link alone.
    own: Option<Arc<LinkTraffic>>,
}

impl LinkMetrics {
    /// Handles of the directions down to the stage and up from it.
    pub fn pair(stage: StageName) -> (LinkMetrics, LinkMetrics) {
        install();
        let direction = |name: &'static str| LinkMetrics {
            frames: counter!(c::LINK_FRAMES.name, "stage" => stage.as_str(), "direction" => name),
            bytes: counter!(c::LINK_BYTES.name, "stage" => stage.as_str(), "direction" => name),
            own: None,
        };
        (direction("down"), direction("up"))
    }

    /// The same, which also counts what passes on this link alone.
    #[must_use]
    pub fn and(self, own: &Arc<LinkTraffic>) -> LinkMetrics {
        LinkMetrics { own: Some(Arc::clone(own)), ..self }
    }

    /// One frame passed.
    pub fn passed(&self, bytes: usize) {
        self.frames.increment(1);
        self.bytes.increment(bytes as u64);
        if let Some(own) = &self.own {
            own.passed(bytes);
        }
    }
}

impl std::fmt::Debug for LinkMetrics {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("LinkMetrics")
    }
}

/// What passed on one direction of a link.
#[derive(Debug, Default)]
pub struct LinkTraffic {
    frames: AtomicU64,
    bytes: AtomicU64,
}

impl LinkTraffic {
    /// Of a link that begins.
    pub fn new() -> Arc<LinkTraffic> {
        Arc::default()
    }

    /// Frames until now.
    pub(super) fn frames(&self) -> u64 {
        self.frames.load(Ordering::Relaxed)
    }

    /// Bytes of them.
    pub(super) fn bytes(&self) -> u64 {
        self.bytes.load(Ordering::Relaxed)
    }

    pub(super) fn passed(&self, bytes: usize) {
        self.frames.fetch_add(1, Ordering::Relaxed);
        self.bytes.fetch_add(bytes as u64, Ordering::Relaxed);
    }
}
