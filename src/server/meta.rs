//! What is served and how it is: models, health, readiness, metrics, and the page.

use super::aliases::{Aliases, own_name};
use super::api::service::{
    Admission, AudioModelList, Health, HealthDetails, ListQuery, Live, ModelList, ModelObject, Named, Ready, Stage,
};
use super::auth::Caller;
use super::error::ApiError;
use super::state::App;
use axum::extract::{Path, Query, State};
use axum::http::{HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Response};
use axum::{Extension, Json};
use std::sync::Arc;

/// The page: one file, nothing to build, nothing loaded from elsewhere.
const PAGE: &str = include_str!("page/index.html");
/// The browser enforces it.
const PAGE_POLICY: &str = "default-src 'none'; script-src 'unsafe-inline' blob:; style-src 'unsafe-inline'; \
     connect-src 'self'; img-src data:; worker-src blob:; base-uri 'none'; form-action 'none'; frame-ancestors 'none'";

/// `GET /`
pub(super) async fn page() -> Response {
    let headers = [
        (header::CONTENT_TYPE, HeaderValue::from_static("text/html; charset=utf-8")),
        (header::CACHE_CONTROL, HeaderValue::from_static("no-cache")),
        (header::CONTENT_SECURITY_POLICY, HeaderValue::from_static(PAGE_POLICY)),
    ];
    (headers, PAGE).into_response()
}

/// `GET /live`: 200 as long as the process runs.
pub(super) async fn live() -> Json<Live> {
    Json(Live { live: true })
}

/// `GET /health`: 200 as long as the process runs. Details are for those who may use the server.
pub(super) async fn health(State(app): State<Arc<App>>, Extension(caller): Extension<Caller>) -> Response {
    let health = app.service.health();
    let details = || HealthDetails {
        version: env!("CARGO_PKG_VERSION"),
        started: app.started,
        model: &app.service.info().id,
        requests: health.requests,
        max_requests: app.limits().max_requests,
        admission: Admission {
            capacity: health.admission.capacity,
            held: health.admission.held,
            realtime: health.admission.realtime,
        },
        stages: health.stages.iter().map(Stage::from).collect(),
    };
    let (ready, draining) = (health.ready, health.draining);
    Json(Health { status: "alive", ready, draining, details: caller.trusted.then(details) }).into_response()
}

/// `GET /ready`: 200 if a request would be taken now.
pub(super) async fn ready(State(app): State<Arc<App>>, Extension(caller): Extension<Caller>) -> Response {
    let health = app.service.health();
    let draining = health.draining || app.stopping.is_cancelled();
    let ready = health.ready && !draining;
    let stages = caller.trusted.then(|| health.stages.iter().map(Stage::from).collect());
    let body = Json(Ready { ready, draining, gone_by: app.retiring.gone_by(), stages });
    if ready {
        return body.into_response();
    }
    (StatusCode::SERVICE_UNAVAILABLE, [(header::RETRY_AFTER, HeaderValue::from_static("1"))], body).into_response()
}

/// `GET /metrics`
pub(super) async fn metrics(State(app): State<Arc<App>>) -> Response {
    let content_type = HeaderValue::from_static("text/plain; version=0.0.4; charset=utf-8");
    ([(header::CONTENT_TYPE, content_type)], app.service.metrics().await).into_response()
}

/// `GET /v1/models`
pub(super) async fn models(State(app): State<Arc<App>>, Query(query): Query<ListQuery>) -> Response {
    let rules = app.rules.get();
    let aliases = Aliases::of(&rules.aliases, app.service.info()).models(query.aliases());
    let others = aliases.map(|alias| ModelObject { id: alias, ..other_name(&app) });
    Json(ModelList { object: "list", data: std::iter::once(model_object(&app)).chain(others).collect() })
        .into_response()
}

/// `GET /v1/audio/models`
pub(super) async fn audio_models(State(app): State<Arc<App>>, Query(query): Query<ListQuery>) -> Response {
    let rules = app.rules.get();
    let served = &app.service.info().id;
    let aliases = Aliases::of(&rules.aliases, app.service.info()).models(query.aliases());
    let others = aliases.map(|alias| Named::alias(alias, served));
    Json(AudioModelList { models: std::iter::once(Named::plain(served)).chain(others).collect() }).into_response()
}

/// `GET /v1/models/{id}`; ids may contain slashes.
pub(super) async fn model(State(app): State<Arc<App>>, Path(id): Path<String>) -> Result<Response, ApiError> {
    app.check_model(Some(&id))?;
    if own_name(&id) == own_name(&app.service.info().id) {
        return Ok(Json(model_object(&app)).into_response());
    }
    Ok(Json(ModelObject { id: &id, ..other_name(&app) }).into_response())
}

fn model_object(app: &App) -> ModelObject<'_> {
    let id = &app.service.info().id;
    ModelObject { id, object: "model", created: app.started, owned_by: "omni-actors", root: None }
}

/// The served model, still under its own name.
fn other_name(app: &App) -> ModelObject<'_> {
    ModelObject { root: Some(&app.service.info().id), ..model_object(app) }
}
