//! `deadline_ms` and `timeout_ms`: when an answer has to come.

use super::app::App;
use super::error::ApiError;
use super::fields::Fields;
use omni_engine::{RequestOptions, Slo};
use serde_json::Value;
use std::time::Duration;

/// The fields.
pub(super) const FIELDS: [&str; 2] = ["deadline_ms", "timeout_ms"];

/// Longest deadline, in milliseconds: a day, in which anything is in time.
const LONGEST: i64 = 24 * 3600 * 1000;

/// Reads them. Without a deadline a request has the config's if somebody listens while it is made, and none if its answer
/// comes whole.
pub(super) fn read(app: &App, fields: &Fields<'_>, listened: bool) -> Result<RequestOptions, ApiError> {
    let slo = match fields.get("deadline_ms") {
        Some(Value::String(word)) if word == "none" => Slo::BestEffort,
        Some(Value::String(_)) => {
            return Err(fields.invalid("deadline_ms", "expected milliseconds, or \"none\""));
        }
        Some(_) => match fields.integer("deadline_ms", 1..=LONGEST)? {
            Some(milliseconds) => Slo::Realtime(Duration::from_millis(milliseconds.unsigned_abs())),
            None => Slo::BestEffort,
        },
        None if listened => Slo::Realtime(app.limits.first_audio_deadline),
        None => Slo::BestEffort,
    };
    let longest = i64::try_from(app.limits.request_timeout.as_millis()).unwrap_or(i64::MAX);
    let life = fields.integer("timeout_ms", 1..=longest)?;
    let life = life.map(|milliseconds| Duration::from_millis(milliseconds.unsigned_abs()));
    Ok(RequestOptions { slo, life, ..RequestOptions::default() })
}
