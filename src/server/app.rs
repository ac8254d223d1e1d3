//! Shared state and the table of routes.

use super::auth::{Keys, auth};
use super::budget::Budget;
use super::error::{ApiError, short};
use super::{batch, chat, debug, faults, meta, speech, voices, ws};
use axum::Router;
use axum::extract::{Request, State};
use axum::http::{HeaderValue, Method, StatusCode, header};
use axum::middleware::{self, Next};
use axum::response::{IntoResponse, Response};
use axum::routing::{delete, get, post};
use omni_config::{LimitsConfig, ReferenceAudioConfig, ServerConfig};
use omni_engine::{Service, TaskType};
use omni_telemetry::HttpMetrics;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::time::{Duration, SystemTime, UNIX_EPOCH};
use tokio_util::sync::CancellationToken;

/// What every handler may look at.
pub(super) struct App {
    pub service: Arc<dyn Service>,
    pub limits: LimitsConfig,
    pub max_body_bytes: usize,
    pub read_timeout: Duration,
    pub idle_timeout: Duration,
    /// Bytes that clients have sent.
    pub budget: Arc<Budget>,
    pub keys: Keys,
    /// Which recordings are read, and from where.
    pub references: ReferenceAudioConfig,
    pub metrics: HttpMetrics,
    /// Of a server that lets its clients trace it.
    pub traces: Option<debug::Traces>,
    /// Batches answered, for their names.
    pub batches: AtomicU64,
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
        traces: bool,
    ) -> App {
        let metrics = HttpMetrics::new();
        App {
            service,
            limits: limits.clone(),
            max_body_bytes: config.max_body_bytes,
            read_timeout: config.read_timeout,
            idle_timeout: config.idle_timeout,
            budget: Budget::new(config.max_input_bytes, metrics.input_bytes.clone()),
            keys: Keys::new(config),
            references,
            metrics,
            traces: traces.then(debug::Traces::new),
            batches: AtomicU64::new(1),
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

    /// A voice of the checkpoint or an uploaded one, in any case, or an error that lists them. The engine would refuse it
    /// too; asking here lets a WebSocket session learn it before it sends text.
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
        Err(ApiError::invalid(param, format!("{param}: there is no voice {:?}; {advice}", short(asked))))
    }

    /// The limit on text, in characters.
    pub fn check_length(&self, param: &str, chars: usize) -> Result<(), ApiError> {
        let limit = self.limits.max_input_chars;
        if chars <= limit {
            return Ok(());
        }
        let message = format!("{param}: {chars} characters are more than the limit of {limit}");
        Err(ApiError { code: "text_too_long", ..ApiError::invalid(param, message) })
    }
}

/// Of a model, without whose it is: clients say `Qwen/Qwen3-TTS-12Hz-1.7B-Base` for what lies in a folder of the last name.
fn own_name(model: &str) -> &str {
    model.rsplit('/').next().unwrap_or(model)
}

/// Now.
pub(super) fn unix_seconds() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs())
}

/// The route of a path as metrics name it: a fixed set, whatever clients ask for.
fn route_label(path: &str) -> &'static str {
    const ROUTES: [&str; 13] = [
        "/",
        "/health",
        "/live",
        "/ready",
        "/metrics",
        "/v1/models",
        "/v1/audio/voices",
        "/v1/audio/speech",
        "/v1/audio/speech/batch",
        "/v1/audio/speech/stream",
        "/v1/chat/completions",
        "/debug/trace",
        "/debug/faults",
    ];
    match ROUTES.iter().find(|route| **route == path) {
        Some(route) => route,
        None if path.starts_with("/v1/models/") => "/v1/models/{id}",
        None if path.starts_with("/debug/trace/") => "/debug/trace/{id}",
        None if path.starts_with("/v1/audio/voices/") => "/v1/audio/voices/{name}",
        None => "other",
    }
}

/// Every route.
pub(super) fn router(app: Arc<App>) -> Router {
    // Without leave there is nothing to find.
    let traces = match &app.traces {
        Some(_) => {
            Router::new().route("/debug/trace", get(debug::now)).route("/debug/trace/{id}", get(debug::of_request))
        }
        None => Router::new(),
    };
    let drill = match app.service.faults() {
        Some(_) => Router::new().route("/debug/faults", get(faults::list).post(faults::add).delete(faults::clear)),
        None => Router::new(),
    };
    Router::new()
        .merge(traces)
        .merge(drill)
        .route("/", get(meta::page))
        .route("/health", get(meta::health))
        .route("/live", get(meta::live))
        .route("/ready", get(meta::ready))
        .route("/metrics", get(meta::metrics))
        .route("/v1/models", get(meta::models))
        .route("/v1/models/{*id}", get(meta::model))
        .route("/v1/audio/voices", get(voices::list).post(voices::add))
        .route("/v1/audio/voices/{name}", delete(voices::remove))
        .route("/v1/audio/speech", post(speech::speech))
        .route("/v1/audio/speech/batch", post(batch::batch))
        .route("/v1/audio/speech/stream", get(ws::connect))
        .route("/v1/chat/completions", post(chat::completions))
        .fallback(not_found)
        .method_not_allowed_fallback(wrong_method)
        .layer(middleware::from_fn_with_state(app.clone(), auth))
        .layer(middleware::from_fn_with_state(app.clone(), common))
        .with_state(app)
}

async fn not_found(request: Request) -> ApiError {
    let message = format!("there is nothing at {}; docs/api.md lists the routes", request.uri().path());
    ApiError::new(StatusCode::NOT_FOUND, "not_found", message)
}

async fn wrong_method(request: Request) -> Response {
    if request.method() == Method::OPTIONS {
        // axum adds the Allow header. There is no CORS header on purpose: other origins are not let in.
        return StatusCode::NO_CONTENT.into_response();
    }
    let message = format!("{} does not take {}", request.uri().path(), request.method());
    ApiError::new(StatusCode::METHOD_NOT_ALLOWED, "method_not_allowed", message).into_response()
}

/// Counts every response and gives it the headers that all have.
async fn common(State(app): State<Arc<App>>, request: Request, next: Next) -> Response {
    let route = route_label(request.uri().path());
    let mut response = next.run(request).await;
    app.metrics.response(route, response.status().as_u16());
    response.headers_mut().insert(header::X_CONTENT_TYPE_OPTIONS, HeaderValue::from_static("nosniff"));
    response
}
