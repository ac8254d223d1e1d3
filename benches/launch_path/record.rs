//! The timeline of the engine in this process, step by step and not rounded into buckets.

use omni_actors::telemetry::timeline;
use std::fmt::Debug;
use std::sync::{Arc, Mutex};
use std::time::Instant;
use tracing::field::{Field, Visit};
use tracing::{Event, Metadata, Subscriber};
use tracing_subscriber::layer::{Context, Layer, SubscriberExt};

const FAULTS: &str = "omni_actors::fault::plan";

/// What one step says of itself; microseconds of one clock.
#[derive(Clone, Debug, Default)]
pub struct Step {
    pub stage: String,
    pub step: u64,
    pub rows: u64,
    pub prompt: u64,
    pub began: u64,
    pub returned: u64,
    pub known: u64,
    pub device: Option<u64>,
}

impl Step {
    /// How long the device had nothing to do before this step, after the one before had ended at `last`.
    pub fn bubble(&self, last: u64) -> u64 {
        if self.returned <= last {
            return 0;
        }
        let begun = self.device.map_or(self.began, |device| self.known.saturating_sub(device));
        begun.max(self.began).saturating_sub(last)
    }
}

/// What has been recorded.
#[derive(Default)]
struct Seen {
    steps: Vec<Step>,
    faults: Vec<u64>,
}

/// Listens to the timeline. Clones share what was heard.
#[derive(Clone, Default)]
pub struct Recorder(Arc<Mutex<Seen>>);

impl Recorder {
    /// Listens from now on.
    pub fn install() -> anyhow::Result<Recorder> {
        // The clock of the timeline begins with its first question.
        let _ = timeline::micros(Instant::now());
        let recorder = Recorder::default();
        tracing::subscriber::set_global_default(tracing_subscriber::registry().with(recorder.clone()))?;
        Ok(recorder)
    }

    /// Steps of all stages so far.
    pub fn count(&self) -> usize {
        self.0.lock().unwrap().steps.len()
    }

    /// Everything since the last call: steps, and when faults struck.
    pub fn take(&self) -> (Vec<Step>, Vec<u64>) {
        let seen = std::mem::take(&mut *self.0.lock().unwrap());
        (seen.steps, seen.faults)
    }
}

impl<S: Subscriber> Layer<S> for Recorder {
    fn enabled(&self, metadata: &Metadata<'_>, _: Context<'_, S>) -> bool {
        metadata.is_event() && [timeline::TARGET, FAULTS].contains(&metadata.target())
    }

    fn on_event(&self, event: &Event<'_>, _: Context<'_, S>) {
        if event.metadata().target() == FAULTS {
            self.0.lock().unwrap().faults.push(timeline::micros(Instant::now()));
            return;
        }
        let mut step = Step::default();
        event.record(&mut step);
        self.0.lock().unwrap().steps.push(step);
    }
}

impl Visit for Step {
    fn record_u64(&mut self, field: &Field, value: u64) {
        match field.name() {
            "step" => self.step = value,
            "rows" => self.rows = value,
            "prompt" => self.prompt = value,
            "began_us" => self.began = value,
            "returned_us" => self.returned = value,
            "known_us" => self.known = value,
            "device_us" => self.device = Some(value),
            _ => {}
        }
    }

    fn record_debug(&mut self, field: &Field, value: &dyn Debug) {
        if field.name() == "stage" {
            self.stage = format!("{value:?}");
        }
    }
}
