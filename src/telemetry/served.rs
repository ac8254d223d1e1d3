//! Handles for what clients reach: the server, files and sessions of theirs, models. Made as the
//! [handles of stages](super::handles) are.

use super::catalogue as c;
use super::exposition::install;
use metrics::{Counter, Gauge, Histogram, counter, gauge, histogram};
use std::time::Duration;

/// What the server records.
#[derive(Clone)]
pub struct HttpMetrics {
    /// Connections open.
    pub connections: Gauge,
    /// Bytes of input that are held.
    pub input_bytes: Gauge,
    /// Bytes of answers in one piece that are held.
    pub output_bytes: Gauge,
    /// Requests without a key that is known.
    pub unauthorized: Counter,
}

impl HttpMetrics {
    /// The server's handles.
    pub fn new() -> HttpMetrics {
        install();
        HttpMetrics {
            connections: gauge!(c::HTTP_CONNECTIONS.name),
            input_bytes: gauge!(c::HTTP_INPUT_BYTES.name),
            output_bytes: gauge!(c::HTTP_OUTPUT_BYTES.name),
            unauthorized: counter!(c::HTTP_UNAUTHORIZED.name),
        }
    }

    /// A connection was closed: it was `idle`, what it was owed was `unread`, or its client was `slow`.
    pub fn evicted(what: &'static str) {
        counter!(c::HTTP_EVICTED.name, "what" => what).increment(1);
    }

    /// An answer was made again to go on at a position, which the client gave as a `sample`, a `byte` or an `event`.
    pub fn resumed(by: &'static str) {
        counter!(c::HTTP_RESUMED.name, "by" => by).increment(1);
    }

    /// A response began. `route` is the pattern, never the path that the client sent: label values stay few.
    pub fn response(&self, route: &'static str, status: u16) {
        counter!(c::HTTP_RESPONSES.name, "route" => route, "status" => status.to_string()).increment(1);
    }
}

impl Default for HttpMetrics {
    fn default() -> HttpMetrics {
        HttpMetrics::new()
    }
}

impl std::fmt::Debug for HttpMetrics {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("HttpMetrics")
    }
}

/// Files that clients sent, decoded or not.
#[derive(Debug)]
pub struct DecodeMetrics;

impl DecodeMetrics {
    /// What became of one: it was `decoded`, `refused` for what it is, its decoder was `ended`, or there was `no_worker`
    /// for it.
    pub fn ended(kind: &'static str, outcome: &'static str) {
        install();
        counter!(c::DECODES.name, "kind" => kind, "outcome" => outcome).increment(1);
    }
}

/// Sounds, pictures and videos of chat turns, and embeddings of them that are kept.
#[derive(Debug)]
pub struct MediaMetrics;

impl MediaMetrics {
    /// They were looked for, and were there or not.
    pub fn looked_up(there: bool) {
        install();
        counter!(c::MEDIA_CACHE.name, "outcome" => if there { "hit" } else { "miss" }).increment(1);
    }

    /// So many bytes are kept now.
    pub fn cached(bytes: usize) {
        install();
        gauge!(c::MEDIA_CACHE_BYTES.name).set(bytes as f64);
    }

    /// The spectrum of a second of speech was looked for, and was there or not.
    pub fn spectrum_looked_up(there: bool) {
        install();
        counter!(c::MEDIA_SPECTRA.name, "outcome" => if there { "hit" } else { "miss" }).increment(1);
    }

    /// So many bytes of spectra are kept now.
    pub fn spectra_kept(bytes: usize) {
        install();
        gauge!(c::MEDIA_SPECTRA_BYTES.name).set(bytes as f64);
    }

    /// What became of one: it was `prepared`, `refused`, there was no room (`busy`), or it was `dropped` with its request.
    pub fn ended(kind: &'static str, outcome: &'static str) {
        install();
        counter!(c::MEDIA.name, "kind" => kind, "outcome" => outcome).increment(1);
    }

    /// How long one took.
    pub fn took(kind: &'static str, time: Duration) {
        install();
        histogram!(c::MEDIA_SECONDS.name, "kind" => kind).record(time);
    }

    /// So many bytes more, or fewer, are held for them.
    pub fn holds(more: f64) {
        install();
        gauge!(c::MEDIA_BYTES.name).increment(more);
    }
}

/// What the port of calls records.
pub struct CallMetrics {
    /// Calls that are open.
    pub open: Gauge,
    /// Packets of no call.
    pub unknown: Counter,
    /// Packets beyond what their call takes.
    pub full: Counter,
}

impl CallMetrics {
    /// Of a port.
    pub fn new() -> CallMetrics {
        install();
        let dropped = |why| counter!(c::REALTIME_DROPPED.name, "why" => why);
        CallMetrics { open: gauge!(c::REALTIME_CALLS.name), unknown: dropped("unknown"), full: dropped("full") }
    }
}

impl Default for CallMetrics {
    fn default() -> CallMetrics {
        CallMetrics::new()
    }
}

impl std::fmt::Debug for CallMetrics {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("CallMetrics")
    }
}

/// What a session of the realtime protocol records. It counts as open until it is dropped.
pub struct RealtimeMetrics {
    sessions: Gauge,
    /// Turns of its user.
    pub turns: Counter,
    /// Answers that its user cut off.
    pub interruptions: Counter,
    /// From the end of a turn to the first sound of its answer.
    pub first_sound: Histogram,
}

impl RealtimeMetrics {
    /// Of a session that is open from now on.
    pub fn open() -> RealtimeMetrics {
        install();
        let sessions = gauge!(c::REALTIME_SESSIONS.name);
        sessions.increment(1.0);
        RealtimeMetrics {
            sessions,
            turns: counter!(c::REALTIME_TURNS.name),
            interruptions: counter!(c::REALTIME_INTERRUPTIONS.name),
            first_sound: histogram!(c::REALTIME_FIRST_SOUND_SECONDS.name),
        }
    }

    /// What was computed of a turn before its end has ended in this way.
    pub fn prepared(&self, outcome: &'static str) {
        counter!(c::REALTIME_PREPARATIONS.name, "outcome" => outcome).increment(1);
    }
}

impl Drop for RealtimeMetrics {
    fn drop(&mut self) {
        self.sessions.decrement(1.0);
    }
}

impl std::fmt::Debug for RealtimeMetrics {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("RealtimeMetrics")
    }
}

/// One of several models.
#[derive(Debug)]
pub struct ModelMetrics {
    model: String,
}

impl ModelMetrics {
    /// Of the model of this name, which is not loaded yet.
    pub fn new(model: &str) -> ModelMetrics {
        install();
        let metrics = ModelMetrics { model: model.to_owned() };
        metrics.loaded(false);
        metrics
    }

    /// It is in memory, or not.
    pub fn loaded(&self, loaded: bool) {
        gauge!(c::MODEL_LOADED.name, "model" => self.model.clone()).set(f64::from(u8::from(loaded)));
    }

    /// A load ended: it was `loaded`, or it `failed`.
    pub fn load_ended(&self, outcome: &'static str) {
        counter!(c::MODEL_LOADS.name, "model" => self.model.clone(), "outcome" => outcome).increment(1);
    }
}

/// Says which build runs.
pub fn process_started() {
    install();
    gauge!(c::BUILD_INFO.name, "version" => env!("CARGO_PKG_VERSION")).set(1.0);
    // An alert on a series that is not there yet never fires.
    counter!(c::LOG_LINES_LOST.name).increment(0);
}

/// Says whether requests are accepted.
pub fn set_ready(ready: bool) {
    install();
    gauge!(c::READY.name).set(f64::from(u8::from(ready)));
}
