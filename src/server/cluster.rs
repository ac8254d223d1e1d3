//! `/cluster`: the nodes of this gateway, and what takes one out of service for all gateways.

use super::api::cluster::{Cluster, ClusterNode, DrainNode, DrainedNodes};
use super::api::service::{Admission, Stage};
use super::api::{FieldError, Fields, short};
use super::auth::Caller;
use super::body::read_object;
use super::error::ApiError;
use super::state::App;
use axum::extract::{Request, State};
use axum::http::{HeaderMap, StatusCode, header};
use axum::response::{IntoResponse, Response};
use axum::{Extension, Json};
use omni_core::nodes::DrainError;
use std::sync::Arc;

/// What proxies add to requests of others.
const FORWARDED: [&str; 2] = ["x-forwarded-for", "x-real-ip"];

/// `GET /cluster`
pub(super) async fn show(State(app): State<Arc<App>>) -> Result<Response, ApiError> {
    let health = app.service.health();
    let gateway = health.gateway.as_deref().ok_or_else(|| refused(DrainError::NoCluster))?;
    let cluster = Cluster {
        gateway,
        version: env!("CARGO_PKG_VERSION"),
        started: app.started,
        ready: health.ready,
        draining: health.draining,
        requests: health.requests,
        max_requests: app.limits().max_requests,
        admission: Admission::from(&health.admission),
        nodes: health.nodes.iter().map(|node| ClusterNode::of(node, &health)).collect(),
        stages: health.stages.iter().map(Stage::from).collect(),
    };
    Ok(Json(cluster).into_response())
}

/// `POST /cluster/drain`
pub(super) async fn drain(
    State(app): State<Arc<App>>,
    Extension(caller): Extension<Caller>,
    request: Request,
) -> Result<Response, ApiError> {
    check(&caller, request.headers())?;
    let (body, _held) = read_object(&app, request).await?;
    let DrainNode { node, force, undo } = Fields::top(&body).read()?;
    let node = node.ok_or_else(|| FieldError::missing("node", "the name or the id of a node that has joined"))?;
    let (force, undo) = (force.unwrap_or(false), undo.unwrap_or(false));
    let nodes = app.service.drain_node(node.clone(), force, undo).await.map_err(refused)?;
    caller.visit.audit(if undo { "node_put_back" } else { "node_drained" }, &short(&node));
    let health = app.service.health();
    let nodes = nodes.iter().map(|node| ClusterNode::of(node, &health)).collect();
    Ok(Json(DrainedNodes { nodes }).into_response())
}

/// Who has no key, because the server has none, has to ask from this machine, and not through a proxy on it.
fn check(caller: &Caller, headers: &HeaderMap) -> Result<(), ApiError> {
    let forwarded = headers.contains_key(header::FORWARDED) || FORWARDED.iter().any(|name| headers.contains_key(*name));
    if caller.visit.key().is_some() || caller.visit.address().to_canonical().is_loopback() && !forwarded {
        return Ok(());
    }
    let message = "without keys nodes are drained from the machine of the gateway only; from elsewhere it takes a key \
                   with the scope \"cluster\" (docs/security.md)";
    Err(ApiError::new(StatusCode::FORBIDDEN, "insufficient_scope", message))
}

fn refused(error: DrainError) -> ApiError {
    match &error {
        DrainError::NoCluster => ApiError::new(StatusCode::NOT_FOUND, "not_found", error.to_string()),
        DrainError::Unknown(node, known) => {
            let error = DrainError::Unknown(short(node), known.clone());
            ApiError::new(StatusCode::NOT_FOUND, "node_not_found", error.to_string()).with_param("node")
        }
        DrainError::Refused(_) => ApiError::new(StatusCode::CONFLICT, "node_not_drained", error.to_string()),
    }
}
