//! What all handlers share, and what they ask of it: whether a model, a voice or a length is allowed.

use super::aliases::{Aliases, own_name};
use super::api::FieldError;
use super::api::measure::JsonLimits;
use super::budget::{Budget, What};
use super::error::ApiError;
use super::export::Links;
use super::kept::Kept;
use super::rules::Current;
use super::traces::{Recording, Traces};
use super::voice_finder::VoiceFinder;
use omni_audio::{AudioError, AudioWriter, Sound};
use omni_config::{LimitsConfig, ReferenceAudioConfig, ServerConfig, TelemetryConfig};
use omni_engine::{Service, TaskType};
use omni_telemetry::HttpMetrics;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::{Duration, SystemTime, UNIX_EPOCH};
use tokio_util::sync::CancellationToken;

/// The state of a server.
pub(super) struct App {
    pub service: Arc<dyn Service>,
    pub max_body_bytes: usize,
    pub read_timeout: Duration,
    pub idle_timeout: Duration,
    /// What JSON of a client may have.
    pub json: JsonLimits,
    /// The bytes of requests that the server holds.
    pub budget: Arc<Budget>,
    /// The bytes of answers that the server holds.
    pub answers: Arc<Budget>,
    /// What was answered not long ago.
    pub kept: Arc<Kept>,
    /// Who may use it.
    pub rules: Arc<Current>,
    /// From where the server reads recordings, and how large they may be.
    pub references: ReferenceAudioConfig,
    pub metrics: HttpMetrics,
    /// Present where the config lets clients trace the server.
    pub traces: Option<Traces>,
    /// Which trace a request is part of, where spans are exported.
    pub links: Option<Arc<Links>>,
    /// Number of the next batch, for its name.
    pub batches: AtomicU64,
    /// Number of the next request that no other part of the server names.
    unnamed: AtomicU64,
    /// Unix seconds.
    pub started: u64,
    /// Cancelled when the server begins to drain.
    pub stopping: CancellationToken,
    /// Whether another process accepts in this one's place.
    pub retiring: Retiring,
}

/// Whether another process accepts in this one's place, and when this one is gone at the latest, in Unix seconds.
#[derive(Clone, Default)]
pub(super) struct Retiring(Arc<OnceLock<u64>>);

impl Retiring {
    pub fn begin(&self, gone_by: u64) {
        let _ = self.0.set(gone_by);
    }

    pub fn gone_by(&self) -> Option<u64> {
        self.0.get().copied()
    }
}

impl App {
    /// A writer of one answer.
    pub fn writer(&self, sound: Sound) -> Result<AudioWriter, AudioError> {
        let info = self.service.info();
        Ok(sound.writer(info.sample_rate)?.fading_in(info.fade_in))
    }

    /// The limits that hold now.
    pub fn limits(&self) -> Arc<LimitsConfig> {
        self.rules.limits()
    }

    pub fn new(
        service: Arc<dyn Service>,
        config: &ServerConfig,
        limits: &LimitsConfig,
        references: ReferenceAudioConfig,
        telemetry: &TelemetryConfig,
        rules: Arc<Current>,
    ) -> App {
        let metrics = HttpMetrics::new();
        rules.serve(&service, limits);
        App {
            service,
            max_body_bytes: config.max_body_bytes,
            read_timeout: config.read_timeout,
            idle_timeout: config.idle_timeout,
            json: JsonLimits { values: config.max_json_values, depth: config.max_json_depth },
            budget: Budget::new(What::Input, config.max_input_bytes, metrics.input_bytes.clone()),
            answers: Budget::new(What::Output, config.max_output_bytes, metrics.output_bytes.clone()),
            kept: Kept::new(config.answers_kept, config.max_kept_bytes),
            rules,
            references,
            metrics,
            traces: telemetry.trace.then(Traces::new),
            links: telemetry.otlp_endpoint.as_ref().map(|_| Arc::default()),
            batches: AtomicU64::new(1),
            unnamed: AtomicU64::new(1),
            started: unix_seconds(),
            stopping: CancellationToken::new(),
            retiring: Retiring::default(),
        }
    }

    /// A request may name the model; then it must be the one that is served, or an alias of it.
    pub fn check_model(&self, asked: Option<&str>) -> Result<(), ApiError> {
        let served = &self.service.info().id;
        let known = |asked| own_name(asked) == own_name(served) || self.has_alias(asked);
        match asked {
            Some(asked) if !known(asked) => Err(ApiError::unknown_model(asked, served)),
            _ => Ok(()),
        }
    }

    fn has_alias(&self, model: &str) -> bool {
        Aliases::of(&self.rules.get().aliases, self.service.info()).has_model(model)
    }

    /// A voice of the checkpoint or an uploaded one, in any case, or what an alias stands for, or an error that lists the
    /// voices. `None` is the default, or the voice that a request describes. The engine refuses an unknown voice too; the
    /// check here tells a WebSocket session before it sends text.
    pub fn check_voice(&self, param: &str, asked: Option<&str>) -> Result<Option<String>, ApiError> {
        let Some(asked) = asked else { return Ok(None) };
        Ok(self.voice_finder().find(asked).map_err(|message| FieldError::invalid(param, message))?)
    }

    /// What finds voices by the names that clients give.
    pub fn voice_finder(&self) -> VoiceFinder {
        VoiceFinder { service: Arc::clone(&self.service), rules: Arc::clone(&self.rules) }
    }

    /// A name for an answer that has none: no other answer of this or an earlier process has it.
    pub fn fresh_id(&self) -> String {
        format!("{:x}-{}", self.started, self.unnamed.fetch_add(1, Ordering::Relaxed))
    }

    /// Whether the model speaks in the voice of a recording.
    pub fn clones(&self) -> bool {
        self.service.info().tts.as_ref().is_some_and(|tts| tts.task == TaskType::Base)
    }

    /// Begins a trace if a request asks for one with its field `trace`.
    pub fn record(&self, trace: Option<bool>) -> Result<Option<Recording>, ApiError> {
        match (trace, &self.traces) {
            (None | Some(false), _) => Ok(None),
            (Some(true), Some(traces)) => Ok(Some(traces.begin(&self.service.recorder()))),
            (Some(true), None) => {
                let message = "this server takes no traces; telemetry.trace = true in its config allows them";
                Err(FieldError::invalid("trace", message).into())
            }
        }
    }

    /// The names that a request may give as its voice, or the first of them.
    pub fn voice_names(&self) -> Vec<String> {
        self.service.voices().iter().take(TOLD).map(|voice| voice.name.clone()).collect()
    }

    /// The limit on text, in characters.
    pub fn check_length(&self, param: &str, chars: usize) -> Result<(), ApiError> {
        Ok(FieldError::at_most(param, (chars, "characters"), self.limits().max_input_chars, None)?)
    }
}

/// Most names of voices that a session is told.
const TOLD: usize = 1000;

/// Now.
pub(super) fn unix_seconds() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs())
}
