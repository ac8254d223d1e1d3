//! Log lines, to stderr.

use crate::config::{LogFormat, TelemetryConfig};
use std::io::IsTerminal;
use tracing_subscriber::EnvFilter;

/// Takes the place of `telemetry.log` when set.
const VARIABLE: &str = "OMNI_LOG";

/// Logging that could not be set up.
#[derive(Debug, thiserror::Error)]
pub enum LogError {
    /// The filter is not one.
    #[error("{VARIABLE}={value}: {reason}; try `info` or `omni_actors=debug`")]
    Filter {
        /// What it was.
        value: String,
        /// What is wrong with it.
        reason: String,
    },
    /// This process logs already.
    #[error("logging is set up already")]
    Twice,
}

/// What the decoder of recordings finds remarkable in the files of strangers is not.
const QUIETER: &str = "symphonia=warn";

/// Starts logging for the whole process.
///
/// # Errors
/// A filter in the environment that cannot be read, or a second call.
pub fn init_logging(config: &TelemetryConfig) -> Result<(), LogError> {
    let filter = match std::env::var(VARIABLE) {
        Ok(value) if !value.is_empty() => EnvFilter::try_new(&value)
            .map_err(|error| LogError::Filter { value: value.clone(), reason: error.to_string() })?,
        _ => EnvFilter::new(format!("{QUIETER},{}", config.log)),
    };
    let builder = tracing_subscriber::fmt().with_env_filter(filter).with_writer(std::io::stderr);
    match config.log_format {
        LogFormat::Text => builder.with_ansi(std::io::stderr().is_terminal()).try_init(),
        LogFormat::Json => builder.json().flatten_event(true).try_init(),
    }
    .map_err(|_| LogError::Twice)
}
