//! Threads that step back behind those of streams.

use omni_model::LoadError;
use rayon::{ThreadPool, ThreadPoolBuilder};

/// How much they step back behind others, as `nice` counts.
const NICENESS: i32 = 10;

/// Half of the cores, and after those who want them more. `name` is what they are for.
///
/// # Errors
/// When the system gives no threads.
pub(super) fn background(name: &'static str) -> Result<ThreadPool, LoadError> {
    let cores = std::thread::available_parallelism().map_or(1, |cores| cores.get());
    let built = ThreadPoolBuilder::new()
        .num_threads((cores / 2).max(1))
        .thread_name(move |number| format!("{name}-{number}"))
        .start_handler(|_| {
            // A system that allows no priorities computes with that of all threads.
            let _ = rustix::process::nice(NICENESS);
        })
        .build();
    built.map_err(|error| LoadError::Invalid { file: name.into(), reason: error.to_string() })
}
