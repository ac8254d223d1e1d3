//! What a session is measured by: what its user hears when, read off the events that it is told.

use omni_realtime::ServerEvent;
use omni_telemetry::RealtimeMetrics;
use tokio::time::Instant;

/// Watches the events of a session.
pub(super) struct Measured {
    metrics: RealtimeMetrics,
    /// When the turn ended whose answer has made no sound yet.
    ended: Option<Instant>,
}

impl Measured {
    /// A session that is open from now on.
    pub fn new() -> Measured {
        Measured { metrics: RealtimeMetrics::open(), ended: None }
    }

    /// What was computed of a turn before its end is over, in this way.
    pub fn prepared(&self, outcome: &'static str) {
        self.metrics.prepared(outcome);
    }

    /// An event is on its way to the client.
    pub fn tells(&mut self, event: &ServerEvent) {
        match event {
            ServerEvent::SpeechStopped { .. } => self.ended = Some(Instant::now()),
            ServerEvent::Committed { .. } => {
                self.metrics.turns.increment(1);
                // Where the detector found the end, it was told of it just before.
                self.ended.get_or_insert_with(Instant::now);
            }
            // Their next turn has begun, and the last one may never be answered.
            ServerEvent::SpeechStarted { .. } => self.ended = None,
            ServerEvent::AudioDelta { .. } | ServerEvent::OutputStarted { .. } => {
                if let Some(ended) = self.ended.take() {
                    self.metrics.first_sound.record(ended.elapsed());
                }
            }
            ServerEvent::ResponseDone { response } if response.was_interrupted() => {
                self.metrics.interruptions.increment(1);
            }
            _ => {}
        }
    }
}
