//! Log lines, to stderr.

use omni_core::ids::StageName;
use std::io::{self, IsTerminal, Write};
use tracing_subscriber::EnvFilter;

/// Replaces `telemetry.log` when it is set.
const VARIABLE: &str = "OMNI_LOG";

/// Logging that could not be set up.
#[derive(Debug, thiserror::Error)]
pub enum LogError {
    /// The filter is not one.
    #[error("{VARIABLE}={value}: {reason}; try `info` or `omni_engine=debug`")]
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

/// The decoder of recordings logs oddities of clients' files at level info.
const QUIETER: &str = "symphonia=warn";

/// How a log line is written.
#[derive(Clone, Copy, Debug, PartialEq, Eq, bincode::Encode, bincode::Decode)]
pub enum LogFormat {
    /// For people.
    Text,
    /// One JSON object a line.
    Json,
}

/// Starts logging for the whole process: `filter` says what is logged unless the environment says otherwise.
///
/// # Errors
/// A filter in the environment that cannot be read, or a second call.
pub fn init_logging(filter: &str, format: LogFormat) -> Result<(), LogError> {
    init(filter, format, None)
}

/// The same for the process of a stage: each line tells which.
///
/// # Errors
/// Those of [`init_logging`].
pub fn init_stage_logging(filter: &str, format: LogFormat, stage: StageName) -> Result<(), LogError> {
    init(filter, format, Some(stage))
}

fn init(filter: &str, format: LogFormat, stage: Option<StageName>) -> Result<(), LogError> {
    let filter = match std::env::var(VARIABLE) {
        Ok(value) if !value.is_empty() => EnvFilter::try_new(&value)
            .map_err(|error| LogError::Filter { value: value.clone(), reason: error.to_string() })?,
        _ => EnvFilter::new(format!("{QUIETER},{filter}")),
    };
    let mark = match (stage, format) {
        (None, _) => String::new(),
        (Some(stage), LogFormat::Text) => format!("[{stage}] "),
        // Of an object that has at least a time.
        (Some(stage), LogFormat::Json) => format!("{{\"process\":\"{stage}\","),
    };
    let skip = usize::from(!mark.is_empty() && format == LogFormat::Json);
    let writer = move || Marked { mark: mark.clone(), skip };
    let builder = tracing_subscriber::fmt().with_env_filter(filter).with_writer(writer);
    match format {
        LogFormat::Text => builder.with_ansi(io::stderr().is_terminal()).try_init(),
        LogFormat::Json => builder.json().flatten_event(true).try_init(),
    }
    .map_err(|_| LogError::Twice)
}

/// Stderr, with something in front of each line, in the place of its first `skip` bytes.
struct Marked {
    mark: String,
    skip: usize,
}

impl Write for Marked {
    /// The subscriber writes whole lines, and processes that share a stderr must not cut those of others.
    fn write(&mut self, line: &[u8]) -> io::Result<usize> {
        let rest = line.get(self.skip..).unwrap_or_default();
        io::stderr().write_all(&[self.mark.as_bytes(), rest].concat())?;
        Ok(line.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        io::stderr().flush()
    }
}
