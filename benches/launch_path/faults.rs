//! When faults strike, in this process: the logs tell, and nothing else is wanted of them here.

use omni_actors::telemetry::clock;
use std::sync::{Arc, Mutex};
use tracing::{Event, Metadata, Subscriber};
use tracing_subscriber::layer::{Context, Layer, SubscriberExt};

const FAULTS: &str = "omni_fault::site";

/// Listens to fault plans. Clones share what was heard: nanoseconds of the host's clock.
#[derive(Clone, Default)]
pub struct Faults(Arc<Mutex<Vec<u64>>>);

impl Faults {
    /// Listens from now on.
    pub fn listen() -> anyhow::Result<Faults> {
        let faults = Faults::default();
        tracing::subscriber::set_global_default(tracing_subscriber::registry().with(faults.clone()))?;
        Ok(faults)
    }

    /// Those since the last call.
    pub fn take(&self) -> Vec<u64> {
        std::mem::take(&mut *self.0.lock().unwrap())
    }
}

impl<S: Subscriber> Layer<S> for Faults {
    fn enabled(&self, metadata: &Metadata<'_>, _: Context<'_, S>) -> bool {
        metadata.is_event() && metadata.target() == FAULTS
    }

    fn on_event(&self, _: &Event<'_>, _: Context<'_, S>) {
        self.0.lock().unwrap().push(clock::now());
    }
}
