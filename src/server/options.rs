//! When an answer has to come.

use super::api::FieldError;
use super::api::speech::Deadlines;
use super::api::values::Deadline;
use super::state::App;
use omni_engine::{RequestOptions, Slo};
use std::time::Duration;

/// Reads the deadlines of a request. Without one a request has the config's if its client listens while the answer is
/// made, and none if the answer comes whole.
pub(super) fn read(app: &App, wire: &Deadlines, listens: bool) -> Result<RequestOptions, FieldError> {
    let slo = match wire.deadline_ms {
        Some(Deadline::Milliseconds(milliseconds)) => Slo::Realtime(Duration::from_millis(milliseconds)),
        None if listens => Slo::Realtime(app.limits().first_audio_deadline),
        Some(Deadline::None) | None => Slo::BestEffort,
    };
    let longest = i64::try_from(app.limits().request_timeout.as_millis()).unwrap_or(i64::MAX);
    let life = wire.timeout_ms.as_ref().map(|milliseconds| milliseconds.within(1..=longest)).transpose();
    let life = life.map_err(|message| FieldError::invalid("timeout_ms", message))?;
    let life = life.map(|milliseconds| Duration::from_millis(milliseconds.unsigned_abs()));
    Ok(RequestOptions { slo, life, ..RequestOptions::default() })
}
