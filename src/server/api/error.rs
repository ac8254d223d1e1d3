//! Errors, as OpenAI's clients know them.

use schemars::JsonSchema;
use serde::Serialize;

/// Every `code`: a stable word for programs. docs/api.md says when each comes.
pub(crate) const CODES: &[&str] = &[
    "missing_required_parameter",
    "invalid_type",
    "invalid_value",
    "unsupported_parameter",
    "text_too_long",
    "invalid_json",
    "invalid_form",
    "incomplete_body",
    "invalid_api_key",
    "origin_not_allowed",
    "host_not_allowed",
    "insufficient_scope",
    "not_found",
    "model_not_found",
    "voice_not_found",
    "call_not_found",
    "node_not_found",
    "node_not_drained",
    "method_not_allowed",
    "request_timeout",
    "idle_timeout",
    "voice_exists",
    "too_many_client_secrets",
    "too_many_voices",
    "trace_busy",
    "trace_running",
    "request_too_large",
    "message_too_large",
    "unsupported_media_type",
    "range_not_satisfiable",
    "upgrade_required",
    "rate_limit_exceeded",
    "overloaded",
    "request_failed",
    "stage_crashed",
    "internal_error",
    "too_much_input",
    "too_much_output",
    "answer_not_found",
    "answer_too_long",
    "no_decoder",
    "not_ready",
    "stage_failed",
    "realtime_unavailable",
    "webrtc_unavailable",
    "shutting_down",
    "too_many_connections",
    "storage_failed",
    "timed_out",
    "slow_client",
];

/// The body of every answer that is an error, and the last event of a stream that failed.
#[derive(Serialize, JsonSchema)]
pub(crate) struct ErrorBody<'a> {
    pub error: ErrorObject<'a>,
}

/// What went wrong.
#[derive(Serialize, JsonSchema)]
pub(crate) struct ErrorObject<'a> {
    /// What happened and what to do, in one sentence.
    pub message: &'a str,
    /// Which side has to act: `invalid_request_error`, `rate_limit_error` or `server_error`.
    #[serde(rename = "type")]
    pub kind: &'static str,
    /// The field at fault, such as `messages[0].content[1]`.
    pub param: Option<&'a str>,
    /// A stable word for programs.
    #[schemars(extend("enum" = CODES))]
    pub code: &'static str,
}
