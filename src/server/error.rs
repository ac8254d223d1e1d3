//! What an error is in HTTP: 4xx where the client has to change something, 5xx where the server failed.

use super::api::FieldError;
use super::api::error::{CODES, ErrorBody, ErrorObject};
use axum::Json;
use axum::http::{HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Response};
use omni_audio::AudioError;
use omni_engine::{LaterReason, RequestError, SubmitError, VoiceError};
use std::time::Duration;

/// An answer that is an error.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct ApiError {
    pub status: StatusCode,
    /// A stable word that programs may match on.
    pub code: &'static str,
    /// What happened and what to do, in one sentence.
    pub message: String,
    /// The field at fault, such as `audio.format`.
    pub param: Option<String>,
    pub retry_after: Option<Duration>,
    /// Bytes of the whole file, where the position that was asked for is beyond its end.
    pub whole_length: Option<u64>,
}

impl ApiError {
    pub fn new(status: StatusCode, code: &'static str, message: impl Into<String>) -> ApiError {
        ApiError { status, code, message: message.into(), param: None, retry_after: None, whole_length: None }
    }

    /// 400 about one field.
    pub fn invalid(param: impl Into<String>, message: impl Into<String>) -> ApiError {
        ApiError::new(StatusCode::BAD_REQUEST, "invalid_value", message).with_param(param)
    }

    /// 404 for a model that is not served.
    pub fn unknown_model(asked: &str, served: &[&str]) -> ApiError {
        let served: Vec<String> = served.iter().map(|name| format!("{name:?}")).collect();
        let (asked, served) = (super::api::short(asked), served.join(", "));
        let message = format!("the model {asked:?} does not exist; this server has {served}");
        ApiError::new(StatusCode::NOT_FOUND, "model_not_found", message).with_param("model")
    }

    /// 500 for what should not happen.
    pub fn internal(message: impl Into<String>) -> ApiError {
        ApiError::new(StatusCode::INTERNAL_SERVER_ERROR, "internal_error", message)
    }

    pub fn with_param(self, param: impl Into<String>) -> ApiError {
        ApiError { param: Some(param.into()), ..self }
    }

    pub fn with_retry_after(self, after: Duration) -> ApiError {
        ApiError { retry_after: Some(after), ..self }
    }

    /// Whether the same request may succeed later.
    pub fn is_passing(&self) -> bool {
        matches!(self.status, StatusCode::TOO_MANY_REQUESTS | StatusCode::SERVICE_UNAVAILABLE)
    }

    /// OpenAI's `type`: which of the two sides has to act.
    fn kind(&self) -> &'static str {
        match self.status {
            StatusCode::TOO_MANY_REQUESTS => "rate_limit_error",
            status if status.is_client_error() => "invalid_request_error",
            _ => "server_error",
        }
    }

    /// The inner object.
    pub fn object(&self) -> ErrorObject<'_> {
        debug_assert!(CODES.contains(&self.code), "{} is not among the codes of the API", self.code);
        ErrorObject { message: &self.message, kind: self.kind(), param: self.param.as_deref(), code: self.code }
    }

    /// The whole body.
    pub fn body(&self) -> ErrorBody<'_> {
        ErrorBody { error: self.object() }
    }
}

/// Whole seconds, at least 1: what `Retry-After` can say.
pub(super) fn whole_seconds(after: Duration) -> u64 {
    after.as_secs_f64().ceil().max(1.0) as u64
}

/// An answer of another layer that is an error without a structure, such as a query that cannot be read, in the form
/// that all errors have.
pub(super) async fn structured(response: Response) -> Response {
    /// Longest explanation that is taken over.
    const LONGEST: usize = 1024;
    let status = response.status();
    let is_json = response.headers().get(header::CONTENT_TYPE).is_some_and(|kind| kind == "application/json");
    if is_json || !(status.is_client_error() || status.is_server_error()) {
        return response;
    }
    let (head, body) = response.into_parts();
    let said = axum::body::to_bytes(body, LONGEST).await.unwrap_or_default();
    let said = String::from_utf8_lossy(&said).trim().to_lowercase();
    let usual = || status.canonical_reason().unwrap_or("the request failed").to_lowercase();
    let code = match status {
        StatusCode::NOT_FOUND => "not_found",
        StatusCode::METHOD_NOT_ALLOWED => "method_not_allowed",
        status if status.is_client_error() => "invalid_value",
        _ => "internal_error",
    };
    let message = if said.is_empty() { usual() } else { super::api::short(&said) };
    let mut response = ApiError::new(status, code, message).into_response();
    for (name, value) in &head.headers {
        if ![header::CONTENT_TYPE, header::CONTENT_LENGTH].contains(name) {
            response.headers_mut().insert(name.clone(), value.clone());
        }
    }
    response
}

impl IntoResponse for ApiError {
    fn into_response(self) -> Response {
        let told = self.retry_after.is_some() || !self.is_passing();
        debug_assert!(told, "{} is for now, and does not say for how long", self.code);
        let mut response = (self.status, Json(self.body())).into_response();
        if let Some(after) = self.retry_after {
            response.headers_mut().insert(header::RETRY_AFTER, HeaderValue::from(whole_seconds(after)));
        }
        if let Some(length) = self.whole_length
            && let Ok(range) = HeaderValue::from_str(&format!("bytes */{length}"))
        {
            response.headers_mut().insert(header::CONTENT_RANGE, range);
        }
        if self.status == StatusCode::UNAUTHORIZED {
            response.headers_mut().insert(header::WWW_AUTHENTICATE, HeaderValue::from_static("Bearer"));
        }
        response
    }
}

impl From<FieldError> for ApiError {
    fn from(error: FieldError) -> ApiError {
        ApiError::new(StatusCode::BAD_REQUEST, error.code, error.message).with_param(error.param)
    }
}

impl From<AudioError> for ApiError {
    fn from(error: AudioError) -> ApiError {
        match error {
            AudioError::Rate { .. } | AudioError::NotBuilt(_) => {
                ApiError::invalid("response_format", error.to_string())
            }
            AudioError::BeyondEnd { .. } => {
                let message = format!("start_sample: {error}");
                ApiError::new(StatusCode::RANGE_NOT_SATISFIABLE, "range_not_satisfiable", message)
                    .with_param("start_sample")
            }
            AudioError::Encoder { .. } | AudioError::Resampler { .. } | AudioError::Loudness(_) => {
                ApiError::internal(error.to_string())
            }
        }
    }
}

impl From<SubmitError> for ApiError {
    fn from(error: SubmitError) -> ApiError {
        let message = error.to_string();
        match error {
            SubmitError::Invalid { param, .. } => ApiError::invalid(param, message),
            SubmitError::Medium { .. } => ApiError::invalid("messages", message),
            SubmitError::Full { retry_after, .. } => {
                ApiError::new(StatusCode::TOO_MANY_REQUESTS, "rate_limit_exceeded", message)
                    .with_retry_after(retry_after)
            }
            SubmitError::Later { reason, retry_after } => {
                let code = match reason {
                    LaterReason::Streams(_) | LaterReason::FirstSound { .. } | LaterReason::Yields => "overloaded",
                    LaterReason::Share | LaterReason::OwnPlaces(_) | LaterReason::OwnRate(_) => "rate_limit_exceeded",
                };
                ApiError::new(StatusCode::TOO_MANY_REQUESTS, code, message).with_retry_after(retry_after)
            }
            SubmitError::Busy(_) => ApiError::new(StatusCode::TOO_MANY_REQUESTS, "rate_limit_exceeded", message)
                .with_retry_after(Duration::from_secs(1)),
            SubmitError::Internal(_) => ApiError::internal(message),
            SubmitError::NotReady(_) => ApiError::new(StatusCode::SERVICE_UNAVAILABLE, "not_ready", message)
                .with_retry_after(Duration::from_secs(1)),
            SubmitError::ShuttingDown => ApiError::new(StatusCode::SERVICE_UNAVAILABLE, "shutting_down", message)
                .with_retry_after(Duration::from_secs(5)),
        }
    }
}

impl From<VoiceError> for ApiError {
    fn from(error: VoiceError) -> ApiError {
        let message = error.to_string();
        match error {
            VoiceError::Invalid { param, .. } => ApiError::invalid(param, message),
            VoiceError::Exists(_) => ApiError::new(StatusCode::CONFLICT, "voice_exists", message).with_param("name"),
            VoiceError::Unknown(_) => {
                ApiError::new(StatusCode::NOT_FOUND, "voice_not_found", message).with_param("name")
            }
            VoiceError::TooMany(_) | VoiceError::TooLarge { .. } => {
                ApiError::new(StatusCode::CONFLICT, "too_many_voices", message)
            }
            VoiceError::Busy => ApiError::new(StatusCode::TOO_MANY_REQUESTS, "rate_limit_exceeded", message)
                .with_retry_after(Duration::from_secs(1)),
            VoiceError::Unavailable(_) => ApiError::new(StatusCode::SERVICE_UNAVAILABLE, "no_decoder", message)
                .with_retry_after(Duration::from_secs(1)),
            VoiceError::NotReady(_) => ApiError::new(StatusCode::SERVICE_UNAVAILABLE, "not_ready", message)
                .with_retry_after(Duration::from_secs(1)),
            VoiceError::Internal(_) => ApiError::internal(message),
            VoiceError::Storage(_) => ApiError::new(StatusCode::INSUFFICIENT_STORAGE, "storage_failed", message),
        }
    }
}

impl From<RequestError> for ApiError {
    fn from(error: RequestError) -> ApiError {
        let message = error.to_string();
        match error {
            RequestError::StageFailed { .. } => ApiError::new(StatusCode::SERVICE_UNAVAILABLE, "stage_failed", message)
                .with_retry_after(Duration::from_secs(1)),
            RequestError::SequenceFailed { .. } => {
                ApiError::new(StatusCode::INTERNAL_SERVER_ERROR, "request_failed", message)
            }
            RequestError::BroughtDown { .. } => {
                ApiError::new(StatusCode::INTERNAL_SERVER_ERROR, "stage_crashed", message)
            }
            RequestError::Internal(_) => ApiError::internal(message),
            RequestError::Refused(_) => ApiError::invalid("input", message),
            RequestError::TimedOut(_) => ApiError::new(StatusCode::GATEWAY_TIMEOUT, "timed_out", message),
            RequestError::SlowClient(_) | RequestError::Yielded => {
                ApiError::new(StatusCode::REQUEST_TIMEOUT, "slow_client", message)
            }
            RequestError::ShuttingDown => ApiError::new(StatusCode::SERVICE_UNAVAILABLE, "shutting_down", message)
                .with_retry_after(Duration::from_secs(5)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn a_full_server_says_when_to_come_back() {
        let full = SubmitError::Full { limit: 4, retry_after: Duration::from_millis(1200) };
        let response = ApiError::from(full).into_response();
        assert_eq!(response.status(), StatusCode::TOO_MANY_REQUESTS);
        assert_eq!(response.headers()[header::RETRY_AFTER], "2");
    }

    #[test]
    fn the_shape_is_openais() {
        let body = serde_json::to_value(ApiError::invalid("voice", "no such voice").body()).unwrap();
        let expected = json!({"error": {"message": "no such voice", "type": "invalid_request_error", "param": "voice",
            "code": "invalid_value"}});
        assert_eq!(body, expected);
        assert_eq!(ApiError::internal("x").object().kind, "server_error");
    }
}
