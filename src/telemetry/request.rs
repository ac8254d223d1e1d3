//! What one request records, from its acceptance to its last event.

use super::catalogue as c;
use super::exposition::install;
use super::trace::{Recorder, What};
use metrics::{Counter, Gauge, Histogram, counter, gauge, histogram};
use omni_core::ids::RequestId;
use omni_core::playback::Playback;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// What was asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, bincode::Encode, bincode::Decode)]
pub enum RequestKind {
    /// Text spoken verbatim.
    Speech,
    /// A chat turn.
    Chat,
    /// A chat turn that nobody waits for.
    Preparation,
}

/// How it ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, bincode::Encode, bincode::Decode)]
pub enum Outcome {
    /// The client got everything.
    Finished,
    /// A stage failed, or the request could not go on.
    Failed,
    /// The client left.
    Aborted,
    /// Its time was up, or its client had stopped reading.
    TimedOut,
    /// The server was stopping.
    ShutDown,
}

const KINDS: [&str; 3] = ["speech", "chat", "preparation"];
const OUTCOMES: [&str; 5] = ["finished", "failed", "aborted", "timed_out", "shut_down"];

impl RequestKind {
    /// The name in metrics and traces.
    pub fn as_str(self) -> &'static str {
        KINDS[self as usize]
    }
}

impl Outcome {
    /// The name in metrics and traces.
    pub fn as_str(self) -> &'static str {
        OUTCOMES[self as usize]
    }
}

/// Handles for requests, made once per engine.
#[derive(Clone)]
pub struct RequestMetrics(Arc<Handles>);

struct Handles {
    recorder: Recorder,
    in_flight: Gauge,
    ledger_bytes: Gauge,
    outcomes: [[Counter; OUTCOMES.len()]; KINDS.len()],
    refused: [Counter; KINDS.len()],
    seconds: [Histogram; KINDS.len()],
    ttfa: [Histogram; KINDS.len()],
    ttft: Histogram,
    gap: Histogram,
    audio: Histogram,
    factor: Histogram,
    underruns: Counter,
}

impl RequestMetrics {
    /// Handles for every kind and outcome; a trace shows the requests too.
    pub fn new(recorder: Recorder) -> RequestMetrics {
        install();
        let requests = |kind, outcome| counter!(c::REQUESTS.name, "kind" => kind, "outcome" => outcome);
        RequestMetrics(Arc::new(Handles {
            recorder,
            in_flight: gauge!(c::REQUESTS_IN_FLIGHT.name),
            ledger_bytes: gauge!(c::LEDGER_BYTES.name),
            outcomes: KINDS.map(|kind| OUTCOMES.map(|outcome| requests(kind, outcome))),
            refused: KINDS.map(|kind| requests(kind, "refused")),
            seconds: KINDS.map(|kind| histogram!(c::REQUEST_SECONDS.name, "kind" => kind)),
            ttfa: KINDS.map(|kind| histogram!(c::TTFA_SECONDS.name, "kind" => kind)),
            ttft: histogram!(c::TTFT_SECONDS.name),
            gap: histogram!(c::CHUNK_GAP_SECONDS.name),
            audio: histogram!(c::AUDIO_SECONDS.name),
            factor: histogram!(c::REAL_TIME_FACTOR.name),
            underruns: counter!(c::UNDERRUNS.name),
        }))
    }

    /// A request was not accepted.
    pub fn refused(&self, kind: RequestKind) {
        self.0.refused[kind as usize].increment(1);
    }

    /// So much is kept of open requests.
    pub fn journals(&self, bytes: usize) {
        self.0.ledger_bytes.set(bytes as f64);
    }

    /// A request was accepted at `now`.
    pub fn accepted(&self, request: RequestId, kind: RequestKind, now: Instant) -> RequestMeter {
        self.0.recorder.request(request, || What::Accepted(kind));
        self.0.in_flight.increment(1.0);
        RequestMeter {
            metrics: Arc::clone(&self.0),
            request,
            kind,
            accepted: now,
            seen: now,
            spoke: false,
            player: Playback::default(),
            outcome: Outcome::Aborted,
        }
    }
}

impl std::fmt::Debug for RequestMetrics {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("RequestMetrics")
    }
}

/// Follows one request. A meter that is dropped without [`RequestMeter::end`] counts the request as aborted, because a
/// client that leaves drops it so.
pub struct RequestMeter {
    metrics: Arc<Handles>,
    request: RequestId,
    kind: RequestKind,
    accepted: Instant,
    seen: Instant,
    spoke: bool,
    player: Playback,
    outcome: Outcome,
}

impl RequestMeter {
    /// A piece of the answer's text went to the client.
    pub fn text(&mut self, now: Instant) {
        self.seen = now;
        self.metrics.recorder.request(self.request, || What::Text);
        if !self.spoke {
            self.spoke = true;
            self.metrics.ttft.record(now.duration_since(self.accepted));
        }
    }

    /// An audio chunk of `length` went to the client.
    pub fn audio(&mut self, now: Instant, length: Duration) {
        self.seen = now;
        self.metrics.recorder.request(self.request, || What::Speech { length: length.as_nanos() as u64 });
        let arrival = self.player.chunk(now.duration_since(self.accepted), length);
        if arrival.first {
            self.metrics.ttfa[self.kind as usize].record(now.duration_since(self.accepted));
        } else {
            self.metrics.gap.record(arrival.gap);
        }
        if arrival.underrun {
            self.metrics.underruns.increment(1);
        }
    }

    /// The request ended.
    pub fn end(mut self, now: Instant, outcome: Outcome) {
        self.seen = now;
        self.outcome = outcome;
    }
}

impl Drop for RequestMeter {
    fn drop(&mut self) {
        self.metrics.recorder.request(self.request, || What::Ended(self.outcome));
        let metrics = &self.metrics;
        let took = self.seen.duration_since(self.accepted);
        metrics.in_flight.decrement(1.0);
        metrics.outcomes[self.kind as usize][self.outcome as usize].increment(1);
        metrics.seconds[self.kind as usize].record(took);
        let speech = self.player.length();
        if speech > Duration::ZERO {
            metrics.audio.record(speech);
            // A request that was cut short says nothing about speed.
            if self.outcome == Outcome::Finished {
                metrics.factor.record(took.as_secs_f64() / speech.as_secs_f64());
            }
        }
    }
}

impl std::fmt::Debug for RequestMeter {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("RequestMeter").field("kind", &self.kind).field("outcome", &self.outcome).finish()
    }
}
