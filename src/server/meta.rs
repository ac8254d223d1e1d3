//! What is served and how it is: models, health, readiness, metrics, and the page.

use super::aliases::{Aliases, own_name};
use super::api::service::{
    Admission, Aligner, AudioModelList, Health, HealthDetails, ListQuery, Live, ModelList, ModelObject, ModelStatus,
    Named, Node, Ready, Stage,
};
use super::auth::Caller;
use super::error::ApiError;
use super::rules::Rules;
use super::state::{App, Model, SaidGoneBy};
use axum::extract::{Path, Query, State};
use axum::http::{HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Response};
use axum::{Extension, Json};
use std::sync::Arc;

/// The page: one file, nothing to build, nothing loaded from elsewhere.
const PAGE: &str = include_str!("page/index.html");
/// The browser enforces it.
const PAGE_POLICY: &str = "default-src 'none'; script-src 'unsafe-inline' blob:; style-src 'unsafe-inline'; \
     connect-src 'self'; img-src data: blob:; media-src blob:; worker-src blob:; base-uri 'none'; form-action 'none'; \
     frame-ancestors 'none'";

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
        admission: Admission::from(&health.admission),
        calls: app.calls.is_some(),
        stages: health.stages.iter().map(Stage::from).collect(),
        nodes: health.nodes.iter().map(Node::from).collect(),
        aligner: health.aligner.as_ref().map(Aligner::from),
        models: statuses(&app),
    };
    let (ready, draining) = (any_ready(&app), health.draining);
    Json(Health { status: "alive", ready, draining, details: caller.trusted.then(details) }).into_response()
}

/// `GET /ready`: 200 if a request would be taken now.
pub(super) async fn ready(State(app): State<Arc<App>>, Extension(caller): Extension<Caller>) -> Response {
    let health = app.service.health();
    let draining = health.draining || app.stopping.is_cancelled();
    let ready = any_ready(&app) && !draining;
    let stages = caller.trusted.then(|| health.stages.iter().map(Stage::from).collect());
    let models = if caller.trusted { statuses(&app) } else { None };
    let gone_by = app.retiring.gone_by();
    let answer = (Extension(SaidGoneBy(gone_by)), Json(Ready { ready, draining, gone_by, stages, models }));
    if ready {
        return answer.into_response();
    }
    (StatusCode::SERVICE_UNAVAILABLE, [(header::RETRY_AFTER, HeaderValue::from_static("1"))], answer).into_response()
}

/// Whether a request for one of the models would be taken.
fn any_ready(app: &App) -> bool {
    app.models.iter().any(|model| model.service.health().ready)
}

/// Where each of several models is.
fn statuses(app: &App) -> Option<Vec<ModelStatus<'_>>> {
    app.has_several().then(|| app.models.iter().filter_map(|model| ModelStatus::of(&*model.service)).collect())
}

/// `GET /metrics`
pub(super) async fn metrics(State(app): State<Arc<App>>) -> Response {
    let content_type = HeaderValue::from_static("text/plain; version=0.0.4; charset=utf-8");
    ([(header::CONTENT_TYPE, content_type)], app.service.metrics().await).into_response()
}

/// `GET /v1/models`
pub(super) async fn models(State(app): State<Arc<App>>, Query(query): Query<ListQuery>) -> Response {
    let rules = app.rules.get();
    let data = listed(&app, &rules, query.aliases()).into_iter();
    Json(ModelList { object: "list", data: data.map(|(id, model)| object(&app, id, model)).collect() }).into_response()
}

/// `GET /v1/audio/models`
pub(super) async fn audio_models(State(app): State<Arc<App>>, Query(query): Query<ListQuery>) -> Response {
    let rules = app.rules.get();
    let models = listed(&app, &rules, query.aliases()).into_iter().map(|(id, model)| {
        let served = &model.service.info().id;
        if id == served { Named::plain(id) } else { Named::alias(id, served) }
    });
    Json(AudioModelList { models: models.collect() }).into_response()
}

/// `GET /v1/models/{id}`; ids may contain slashes.
pub(super) async fn model(State(app): State<Arc<App>>, Path(id): Path<String>) -> Result<Response, ApiError> {
    let model = app.model(Some(&id))?;
    let served = &model.service.info().id;
    let shown = if own_name(&id) == own_name(served) { served } else { &id };
    Ok(Json(object(&app, shown, model)).into_response())
}

/// The names of all models, then their other names; with `all` OpenAI's too.
fn listed<'a>(app: &'a App, rules: &'a Rules, all: bool) -> Vec<(&'a str, &'a Model)> {
    let names = app.models.iter().map(|model| (model.service.info().id.as_str(), model));
    let own = app.models.iter().flat_map(|model| model.aliases.iter().map(move |alias| (alias.as_str(), model)));
    let first = &app.models[0];
    let rest = Aliases::of(&rules.aliases, first.service.info()).models(all).map(|alias| (alias, first));
    let mut listed: Vec<(&str, &Model)> = names.chain(own).collect();
    for (alias, model) in rest {
        // Where several models share the names, one may be taken.
        if app.models.len() == 1 || listed.iter().all(|(known, _)| *known != alias) {
            listed.push((alias, model));
        }
    }
    listed
}

/// A model under one of its names.
fn object<'a>(app: &App, id: &'a str, model: &'a Model) -> ModelObject<'a> {
    let served = &model.service.info().id;
    let state = ModelStatus::of(&*model.service).map(|status| status.state);
    let root = (id != served).then_some(served.as_str());
    let info = model.service.info();
    let known = [("text", true), ("audio", info.hears), ("image", info.sees), ("video", info.sees)];
    let input_modalities = known.into_iter().filter_map(|(name, can)| can.then_some(name)).collect();
    let (object, owned_by) = ("model", "omni-actors");
    ModelObject { id, object, created: app.started, owned_by, root, input_modalities, state }
}
