//! `POST /v1/realtime/client_secrets`: a key for a short time, with the session that it opens.

use super::opening;
use crate::api::realtime::ClientSecret;
use crate::auth::Caller;
use crate::body::read_object;
use crate::error::ApiError;
use crate::secrets::{MAX_SESSION_BYTES, PREFIX, Secret, TooMany};
use crate::state::{App, unix_seconds};
use axum::extract::{Request, State};
use axum::http::StatusCode;
use axum::{Extension, Json};
use omni_realtime::{Refusal, Session};
use serde_json::{Map, Value};
use std::ops::RangeInclusive;
use std::sync::Arc;
use tokio_rustls::rustls::crypto::ring::default_provider;

/// How long a secret may live, and lives where nothing is said: OpenAI's.
const SECONDS: RangeInclusive<u64> = 10..=7200;
const USUAL_SECONDS: u64 = 600;

/// The handler.
pub(crate) async fn make(
    State(app): State<Arc<App>>,
    Extension(caller): Extension<Caller>,
    request: Request,
) -> Result<Json<ClientSecret>, ApiError> {
    let (mut object, _held) = read_object(&app, request).await?;
    let seconds = lifetime(object.get("expires_after"))?;
    let session = match object.remove("session") {
        None | Some(Value::Null) => Map::new(),
        Some(Value::Object(session)) => session,
        Some(_) => return Err(ApiError::invalid("session", "session: expected an object")),
    };
    let bytes = serde_json::to_string(&session).map_or(usize::MAX, |text| text.len());
    if bytes > MAX_SESSION_BYTES {
        let message = format!("session: has {bytes} bytes as JSON; a client secret keeps at most {MAX_SESSION_BYTES}");
        return Err(ApiError::invalid("session", message));
    }
    let asked = session.get("model").and_then(Value::as_str);
    app.check_model(asked)?;
    let app = app.choose(asked).await?;
    super::check_answers(&app)?;
    // Made for its checks, and for how it tells of itself.
    let (trial, _) = Session::configured(opening(&app, 0), session.clone()).map_err(refused)?;
    let (now, value) = (unix_seconds(), fresh()?);
    let expires_at = now + seconds;
    let secret = Secret { key: caller.key_name().map(str::to_owned), expires_at, session };
    app.secrets.add(&value, secret, now).map_err(too_many)?;
    caller.visit.audit("client_secret_made", &format!("for {seconds} s"));
    Ok(Json(ClientSecret { value, expires_at, session: trial.described() }))
}

fn too_many(error: TooMany) -> ApiError {
    ApiError::new(StatusCode::TOO_MANY_REQUESTS, "too_many_client_secrets", error.to_string())
        .with_retry_after(error.wait)
}

fn lifetime(asked: Option<&Value>) -> Result<u64, ApiError> {
    let wrong = |message: &str| Err(ApiError::invalid("expires_after", format!("expires_after: {message}")));
    let Some(Value::Object(asked)) = asked.filter(|value| !value.is_null()) else {
        return if asked.is_some_and(|value| !value.is_null()) {
            wrong("expected an object")
        } else {
            Ok(USUAL_SECONDS)
        };
    };
    if asked.get("anchor").is_some_and(|anchor| anchor != "created_at") {
        return wrong("anchor must be \"created_at\"");
    }
    match asked.get("seconds") {
        None => Ok(USUAL_SECONDS),
        Some(seconds) => match seconds.as_u64().filter(|seconds| SECONDS.contains(seconds)) {
            Some(seconds) => Ok(seconds),
            None => wrong(&format!("seconds must be a whole number from {} to {}", SECONDS.start(), SECONDS.end())),
        },
    }
}

/// One that cannot be guessed: 128 bits of the system's randomness.
fn fresh() -> Result<String, ApiError> {
    let mut bytes = [0u8; 16];
    let filled = default_provider().secure_random.fill(&mut bytes);
    filled.map_err(|_| ApiError::internal("the system has no random numbers"))?;
    Ok(format!("{PREFIX}{:032x}", u128::from_le_bytes(bytes)))
}

pub(super) fn refused(refusal: Refusal) -> ApiError {
    let Refusal { code, message, param, .. } = refusal;
    let param = param.unwrap_or_else(|| "session".to_owned());
    match code.as_str() {
        "invalid_value" => ApiError::invalid(param, message),
        _ => ApiError::invalid(param, format!("{message} ({code})")),
    }
}
