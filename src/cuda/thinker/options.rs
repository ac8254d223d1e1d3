//! How large a thinker is, and what it keeps.

use super::host::HostMemory;
use crate::persistent::LIMIT;
use std::sync::Arc;
use std::time::Duration;

/// How large a thinker is.
#[derive(Clone, Copy, Debug)]
pub struct ThinkerOptions {
    /// Sequences that hold state at once.
    pub slots: usize,
    /// Sequences that a step samples for; there is a graph for every power of two up to it.
    pub batch: usize,
    /// Prompt positions of a pass.
    pub prefill_chunk: usize,
    /// Steps launched ahead.
    pub run_ahead: usize,
    /// Bytes for keys and values; `None`: what the slots usually need.
    pub kv_memory: Option<u64>,
    /// Whether embeddings for the talker are copied to the host in the step that made them.
    pub embeddings_in_step: bool,
    /// The longest time of a launch of a persistent kernel; `None`: everything runs as a graph.
    pub persistent: Option<Duration>,
}

impl ThinkerOptions {
    /// The limit of a persistent kernel's launches.
    pub const PERSISTENT: Duration = LIMIT;
}

/// Memory for prompts that no sequence uses.
#[derive(Clone, Default)]
pub struct KeptMemory {
    /// Bytes in the cache; 0: nothing is kept.
    pub(super) device: usize,
    /// Bytes of the host's memory for what the cache has no room for.
    pub(super) host: usize,
    pub(super) memory: Arc<HostMemory>,
}

impl KeptMemory {
    /// So many bytes of the device and of the host.
    pub fn new(device: usize, host: usize) -> KeptMemory {
        KeptMemory { device, host, memory: Arc::default() }
    }
}
