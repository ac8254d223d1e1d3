//! When each step of each stage ran, one log line per step. `scripts/timeline.py` draws them.

use std::sync::LazyLock;
use std::time::Instant;

/// The target of the lines, all of level trace: `OMNI_LOG=info,timeline=trace` switches them on.
pub const TARGET: &str = "timeline";

static EPOCH: LazyLock<Instant> = LazyLock::new(Instant::now);

/// Sets the moment that [`micros`] counts from, if nobody has.
pub(super) fn start() {
    LazyLock::force(&EPOCH);
}

/// Microseconds from when logging began to `at`: the one clock of all stages. 0 for what was before.
pub fn micros(at: Instant) -> u64 {
    at.saturating_duration_since(*EPOCH).as_micros() as u64
}
