//! `/debug/faults`: which faults the server injects into itself. The routes exist only where the config says
//! `drill.enabled = true`.

use super::api::service::Faults;
use super::api::voices::ModelQuery;
use super::auth::Caller;
use super::body::read_object;
use super::error::ApiError;
use super::state::App;
use axum::extract::{Query, Request, State};
use axum::http::StatusCode;
use axum::{Extension, Json};
use omni_config::{ConfigError, FaultFile, fault_fields, faults_of_json};
use omni_fault::{FaultPlan, PlanError};
use serde_json::{Map, Value, json};
use std::sync::Arc;

/// `GET /debug/faults`
pub(super) async fn list(State(app): State<Arc<App>>, Query(of): Query<ModelQuery>) -> Result<Json<Faults>, ApiError> {
    let app = app.choose(of.model.as_deref()).await?;
    plan(&app).map(listed)
}

/// `POST /debug/faults`: all of the rules or none.
pub(super) async fn add(
    State(app): State<Arc<App>>,
    Extension(caller): Extension<Caller>,
    Query(of): Query<ModelQuery>,
    request: Request,
) -> Result<Json<Faults>, ApiError> {
    let app = app.choose(of.model.as_deref()).await?;
    let (object, _held) = read_object(&app, request).await?;
    let plan = plan(&app)?;
    let FaultFile { seed, rules } = faults_of_json(&Value::Object(object)).map_err(|error| refused(&error))?;
    if seed.is_some() {
        return Err(ApiError::invalid("seed", "seed: is that of the server, drill.seed in its config; leave it out"));
    }
    plan.add(&rules).map_err(|error| match &error {
        PlanError::Unsuited { rule, key, .. } => ApiError::invalid(format!("faults[{rule}].{key}"), error.to_string()),
        PlanError::Closed => ApiError::invalid("faults", error.to_string()),
    })?;
    caller.visit.audit("faults_added", &format!("{} rules", rules.len()));
    Ok(listed(plan))
}

/// `DELETE /debug/faults`
pub(super) async fn clear(
    State(app): State<Arc<App>>,
    Extension(caller): Extension<Caller>,
    Query(of): Query<ModelQuery>,
) -> Result<Json<Faults>, ApiError> {
    let app = app.choose(of.model.as_deref()).await?;
    let plan = plan(&app)?;
    plan.clear();
    caller.visit.audit("faults_cleared", "all rules");
    Ok(listed(plan))
}

fn plan(app: &App) -> Result<&FaultPlan, ApiError> {
    let none = || ApiError::new(StatusCode::NOT_FOUND, "not_found", "faults are not enabled here");
    app.service.faults().ok_or_else(none)
}

fn refused(error: &ConfigError) -> ApiError {
    let param = error.problems().first().map(|problem| problem.key.clone()).filter(|key| !key.is_empty());
    ApiError::invalid(param.unwrap_or_else(|| "faults".to_owned()), error.to_string().replace('\n', "; "))
}

/// Every rule with its keys, how often it was looked at and how often it struck.
fn listed(plan: &FaultPlan) -> Json<Faults> {
    let rules = plan.rules().into_iter().map(|state| {
        let fields = fault_fields(&state.rule).into_iter();
        let mut fields: Map<String, Value> = fields.map(|(key, value)| (key.to_owned(), json!(value))).collect();
        fields.insert("seen".to_owned(), json!(state.count.seen));
        fields.insert("hits".to_owned(), json!(state.count.hits));
        fields
    });
    Json(Faults { seed: plan.seed(), faults: rules.collect() })
}
