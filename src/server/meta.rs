//! What is served and how it is: models, health, readiness, metrics, and the page.

use super::app::App;
use super::auth::Caller;
use super::error::ApiError;
use axum::extract::{Path, State};
use axum::http::{HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Response};
use axum::{Extension, Json};
use serde_json::{Value, json};
use std::sync::Arc;

/// The page: one file, nothing to build, nothing loaded from elsewhere.
const PAGE: &str = include_str!("page/index.html");
/// The browser enforces that "nothing from elsewhere".
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

/// `GET /live`: 200 as long as the process turns.
pub(super) async fn live() -> Json<Value> {
    Json(json!({ "live": true }))
}

/// `GET /health`: 200 as long as the process turns. Details are for those who may use the server.
pub(super) async fn health(State(app): State<Arc<App>>, Extension(caller): Extension<Caller>) -> Json<Value> {
    let health = app.service.health();
    if !caller.trusted {
        return Json(json!({ "status": "alive", "ready": health.ready, "draining": health.draining }));
    }
    Json(json!({
        "status": "alive",
        "version": env!("CARGO_PKG_VERSION"),
        "started": app.started,
        "model": app.service.info().id,
        "ready": health.ready,
        "draining": health.draining,
        "requests": health.requests,
        "max_requests": app.limits.max_requests,
        "admission": health.admission,
        "stages": health.stages,
    }))
}

/// `GET /ready`: 200 if a request would be taken now.
pub(super) async fn ready(State(app): State<Arc<App>>, Extension(caller): Extension<Caller>) -> Response {
    let health = app.service.health();
    let draining = health.draining || app.stopping.is_cancelled();
    let ready = health.ready && !draining;
    let mut body = json!({ "ready": ready, "draining": draining });
    if caller.trusted {
        body["stages"] = json!(health.stages);
    }
    if ready {
        return Json(body).into_response();
    }
    (StatusCode::SERVICE_UNAVAILABLE, [(header::RETRY_AFTER, HeaderValue::from_static("1"))], Json(body))
        .into_response()
}

/// `GET /metrics`
pub(super) async fn metrics(State(app): State<Arc<App>>) -> Response {
    let content_type = HeaderValue::from_static("text/plain; version=0.0.4; charset=utf-8");
    ([(header::CONTENT_TYPE, content_type)], app.service.metrics().await).into_response()
}

/// `GET /v1/models`
pub(super) async fn models(State(app): State<Arc<App>>) -> Json<Value> {
    Json(json!({ "object": "list", "data": [model_object(&app)] }))
}

/// `GET /v1/models/{id}`; ids may contain slashes.
pub(super) async fn model(State(app): State<Arc<App>>, Path(id): Path<String>) -> Result<Json<Value>, ApiError> {
    app.check_model(Some(&id))?;
    Ok(Json(model_object(&app)))
}

fn model_object(app: &App) -> Value {
    json!({ "id": app.service.info().id, "object": "model", "created": app.started, "owned_by": "omni-actors" })
}
