//! What all handlers share, and what they ask of it: whether a model, a voice or a length is allowed.

use super::aliases::{Aliases, own_name};
use super::api::measure::JsonLimits;
use super::api::speech::Model as Named;
use super::api::{FieldError, Fields};
use super::budget::{Budget, What};
use super::error::ApiError;
use super::export::Links;
use super::kept::Kept;
use super::realtime::Calls;
use super::rules::Current;
use super::secrets::Secrets;
use super::traces::{Recording, Traces};
use super::voice_finder::VoiceFinder;
use omni_audio::{AudioError, AudioWriter, Sound};
use omni_config::{
    LimitsConfig, MediaInputConfig, RealtimeConfig, ReferenceAudioConfig, ServerConfig, TelemetryConfig,
};
use omni_engine::{Service, TaskType};
use omni_telemetry::HttpMetrics;
use std::ops::Deref;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::{Duration, SystemTime, UNIX_EPOCH};
use tokio::sync::Semaphore;
use tokio_util::sync::CancellationToken;

/// One of the models of a server.
#[derive(Clone)]
pub struct Model {
    /// What makes its answers.
    pub service: Arc<dyn Service>,
    /// More names of this model alone.
    pub aliases: Vec<String>,
}

impl Model {
    fn has_name(&self, own: &str) -> bool {
        own_name(&self.service.info().id) == own
    }
}

/// The state of a server as a request sees it: with the model that it is for.
pub(super) struct App {
    /// The first model, until a request has chosen one ([`App::choose`]).
    pub service: Arc<dyn Service>,
    shared: Arc<Shared>,
}

impl Deref for App {
    type Target = Shared;

    fn deref(&self) -> &Shared {
        &self.shared
    }
}

/// What all requests share.
pub(super) struct Shared {
    /// At least one; requests that name none have the first.
    pub models: Vec<Model>,
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
    /// What chat turns may carry.
    pub media: MediaInputConfig,
    /// From where they may be read: as recordings, with a size of their own.
    pub media_files: ReferenceAudioConfig,
    pub metrics: HttpMetrics,
    /// Limits on sessions of the realtime protocol.
    pub realtime: RealtimeConfig,
    /// Places of such sessions.
    pub realtime_places: Arc<Semaphore>,
    /// Sessions over WebRTC, where the config has them.
    pub calls: Option<Arc<Calls>>,
    /// Keys for a short time that open such sessions.
    pub secrets: Secrets,
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

/// Of an answer whose body says when the process is gone: what it says. Its header must say the same, though the process
/// may have begun to retire in between.
#[derive(Clone, Copy)]
pub(super) struct SaidGoneBy(pub Option<u64>);

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

    /// With these models, of which there is at least one.
    pub fn new(
        models: Vec<Model>,
        config: &ServerConfig,
        limits: &LimitsConfig,
        (references, media): (ReferenceAudioConfig, MediaInputConfig),
        telemetry: &TelemetryConfig,
        rules: Arc<Current>,
        calls: Option<Arc<Calls>>,
    ) -> App {
        let metrics = HttpMetrics::new();
        let services: Vec<_> = models.iter().map(|model| Arc::clone(&model.service)).collect();
        rules.serve(&services, limits);
        let shared = Shared {
            models,
            max_body_bytes: config.max_body_bytes,
            read_timeout: config.read_timeout,
            idle_timeout: config.idle_timeout,
            json: JsonLimits { values: config.max_json_values, depth: config.max_json_depth },
            budget: Budget::new(What::Input, config.max_input_bytes, metrics.input_bytes.clone()),
            answers: Budget::new(What::Output, config.max_output_bytes, metrics.output_bytes.clone()),
            kept: Kept::new(config.answers_kept, config.max_kept_bytes),
            rules,
            media_files: ReferenceAudioConfig { max_bytes: media.max_bytes, ..references.clone() },
            media,
            references,
            metrics,
            realtime: config.realtime.clone(),
            realtime_places: Arc::new(Semaphore::new(config.realtime.max_sessions)),
            calls,
            secrets: Secrets::default(),
            traces: telemetry.trace.then(Traces::new),
            links: telemetry.otlp_endpoint.as_ref().map(|_| Arc::default()),
            batches: AtomicU64::new(1),
            unnamed: AtomicU64::new(1),
            started: unix_seconds(),
            stopping: CancellationToken::new(),
            retiring: Retiring::default(),
        };
        App { service: Arc::clone(&services[0]), shared: Arc::new(shared) }
    }

    /// A request may name the model; then it must be one that is served, or an alias of it.
    pub fn check_model(&self, asked: Option<&str>) -> Result<(), ApiError> {
        self.model(asked).map(|_| ())
    }

    /// The model of a name: its own, one of its aliases, or an alias of the server, which means the first.
    pub fn model(&self, asked: Option<&str>) -> Result<&Model, ApiError> {
        let first = &self.models[0];
        let Some(asked) = asked else { return Ok(first) };
        let own = own_name(asked);
        let named = self.models.iter().find(|model| model.has_name(own));
        let by_alias = || self.models.iter().find(|model| model.aliases.iter().any(|alias| own_name(alias) == own));
        let by_rule = || Aliases::of(&self.rules.get().aliases, first.service.info()).has_model(asked).then_some(first);
        named.or_else(by_alias).or_else(by_rule).ok_or_else(|| {
            let served: Vec<_> = self.models.iter().map(|model| model.service.info().id.as_str()).collect();
            ApiError::unknown_model(asked, &served)
        })
    }

    /// The state for a request of this model: `None` is the first one. What the model can do is known then.
    pub async fn choose(self: &Arc<App>, asked: Option<&str>) -> Result<Arc<App>, ApiError> {
        if self.models.len() == 1 {
            return Ok(Arc::clone(self));
        }
        let service = Arc::clone(&self.model(asked)?.service);
        service.prepare().await?;
        Ok(Arc::new(App { service, shared: Arc::clone(&self.shared) }))
    }

    /// The same by the field `model` of a request.
    pub async fn chosen(self: &Arc<App>, fields: Fields<'_>) -> Result<Arc<App>, ApiError> {
        if self.models.len() == 1 {
            return Ok(Arc::clone(self));
        }
        let asked = fields.read::<Named>()?.model;
        self.choose(asked.as_deref()).await
    }

    /// The state for uploads, which may name a model: otherwise for the first one that clones voices.
    pub async fn choose_for_voices(self: &Arc<App>, asked: Option<&str>) -> Result<Arc<App>, ApiError> {
        let clones = self.models.iter().find(|model| clones(&*model.service));
        let first = clones.map(|model| model.service.info().id.clone());
        self.choose(asked.or(first.as_deref())).await
    }

    /// Whether there are several models, so that lists tell the state of each.
    pub fn has_several(&self) -> bool {
        self.models.iter().any(|model| model.service.state().is_some())
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
        clones(&*self.service)
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

fn clones(service: &dyn Service) -> bool {
    service.info().tts.as_ref().is_some_and(|tts| tts.task == TaskType::Base)
}

/// Most names of voices that a session is told.
const TOLD: usize = 1000;

/// Now.
pub(super) fn unix_seconds() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs())
}
