//! What all handlers share, and what they ask of it: whether a model, a voice or a length is allowed.

use super::api::{FieldError, short};
use super::budget::Budget;
use super::error::ApiError;
use super::export::Links;
use super::rules::Current;
use super::traces::{Recording, Traces};
use omni_config::{LimitsConfig, ReferenceAudioConfig, ServerConfig, TelemetryConfig};
use omni_engine::{Service, TaskType};
use omni_telemetry::HttpMetrics;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, SystemTime, UNIX_EPOCH};
use tokio_util::sync::CancellationToken;

/// The state of a server.
pub(super) struct App {
    pub service: Arc<dyn Service>,
    pub limits: LimitsConfig,
    pub max_body_bytes: usize,
    pub read_timeout: Duration,
    pub idle_timeout: Duration,
    /// The bytes of requests that the server holds.
    pub budget: Arc<Budget>,
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
}

impl App {
    pub fn new(
        service: Arc<dyn Service>,
        config: &ServerConfig,
        limits: &LimitsConfig,
        references: ReferenceAudioConfig,
        telemetry: &TelemetryConfig,
        rules: Arc<Current>,
    ) -> App {
        let metrics = HttpMetrics::new();
        App {
            service,
            limits: limits.clone(),
            max_body_bytes: config.max_body_bytes,
            read_timeout: config.read_timeout,
            idle_timeout: config.idle_timeout,
            budget: Budget::new(config.max_input_bytes, metrics.input_bytes.clone()),
            rules,
            references,
            metrics,
            traces: telemetry.trace.then(Traces::new),
            links: telemetry.otlp_endpoint.as_ref().map(|_| Arc::default()),
            batches: AtomicU64::new(1),
            unnamed: AtomicU64::new(1),
            started: unix_seconds(),
            stopping: CancellationToken::new(),
        }
    }

    /// A request may name the model; then it must be the one that is served.
    pub fn check_model(&self, asked: Option<&str>) -> Result<(), ApiError> {
        let served = &self.service.info().id;
        match asked {
            Some(asked) if own_name(asked) != own_name(served) => Err(ApiError::unknown_model(asked, served)),
            _ => Ok(()),
        }
    }

    /// A voice of the checkpoint or an uploaded one, in any case, or an error that lists them. The engine refuses an
    /// unknown voice too; the check here tells a WebSocket session before it sends text.
    pub fn check_voice(&self, param: &str, asked: Option<&str>) -> Result<Option<String>, ApiError> {
        /// Voices that a message lists.
        const LISTED: usize = 20;
        let Some(asked) = asked else { return Ok(None) };
        let lower = asked.to_lowercase();
        if self.service.info().voices.contains(&lower) {
            return Ok(Some(lower));
        }
        let voices = self.service.voices();
        if let Some(found) = voices.iter().find(|voice| voice.name.to_lowercase() == lower) {
            return Ok(Some(found.name.clone()));
        }
        let mut names: Vec<&str> = voices.iter().take(LISTED).map(|voice| voice.name.as_str()).collect();
        if voices.len() > LISTED {
            names.push("... (see /v1/audio/voices)");
        }
        let advice = match self.service.info().tts.as_ref().map(|tts| tts.task) {
            _ if !names.is_empty() => format!("choose one of: {}", names.join(", ")),
            Some(TaskType::Base) => "upload one, or send ref_audio or speaker_embedding".to_owned(),
            Some(TaskType::VoiceDesign) => "describe the voice in instructions instead".to_owned(),
            _ => "this model has none".to_owned(),
        };
        Err(FieldError::invalid(param, format_args!("there is no voice {:?}; {advice}", short(asked))).into())
    }

    /// A name for an answer that has none: no other answer of this or an earlier process has it.
    pub fn fresh_id(&self) -> String {
        format!("{:x}-{}", self.started, self.unnamed.fetch_add(1, Ordering::Relaxed))
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

    /// The names that a request may give as its voice.
    pub fn voice_names(&self) -> Vec<String> {
        self.service.voices().into_iter().map(|voice| voice.name).collect()
    }

    /// The limit on text, in characters.
    pub fn check_length(&self, param: &str, chars: usize) -> Result<(), ApiError> {
        let limit = self.limits.max_input_chars;
        if chars <= limit {
            return Ok(());
        }
        let message = format_args!("{chars} characters are more than the limit of {limit}");
        Err(FieldError { code: "text_too_long", ..FieldError::invalid(param, message) }.into())
    }
}

/// A model's name without its owner: clients say `Qwen/Qwen3-TTS-12Hz-1.7B-Base` for a folder of the last name.
fn own_name(model: &str) -> &str {
    model.rsplit('/').next().unwrap_or(model)
}

/// Now.
pub(super) fn unix_seconds() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs())
}
