//! Log lines, to stderr: what they look like. [`log_queue`](super::log_queue) is their way there, which never waits and
//! never fails; nothing in a running server writes to stderr by another way.

use super::log_queue::log_queue;
use omni_core::ids::StageName;
use std::backtrace::{Backtrace, BacktraceStatus};
use std::io::{self, IsTerminal, Write};
use std::panic::PanicHookInfo;
use std::sync::Arc;
use tracing_subscriber::EnvFilter;
use tracing_subscriber::fmt::format::Writer;
use tracing_subscriber::fmt::time::{FormatTime, SystemTime};

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
    let lines = Marked { mark: mark.into(), skip };
    let writer = {
        let lines = lines.clone();
        move || lines.clone()
    };
    let builder = tracing_subscriber::fmt().with_env_filter(filter).with_writer(writer).log_internal_errors(false);
    match format {
        LogFormat::Text => builder.with_ansi(io::stderr().is_terminal()).try_init(),
        LogFormat::Json => builder.json().flatten_event(true).try_init(),
    }
    .map_err(|_| LogError::Twice)?;
    std::panic::set_hook(Box::new(move |panic| lines.put(panicked(panic, format).as_bytes())));
    Ok(())
}

/// Tells the user something on stderr, as lines of the log go there: without waiting, and without failing.
pub fn complain(text: &str) {
    log_queue().put(format!("{text}\n").into());
}

/// Waits until the lines so far have left, or for a second that none leaves. For the end of the program.
pub fn flush_logs() {
    log_queue().flush();
}

/// What a panic tells: a line as the standard library's, or an object.
fn panicked(panic: &PanicHookInfo<'_>, format: LogFormat) -> String {
    let payload = panic.payload();
    let message = payload.downcast_ref::<&str>().copied();
    let message = message.or_else(|| payload.downcast_ref::<String>().map(String::as_str)).unwrap_or("(no message)");
    let place = panic.location().map(ToString::to_string).unwrap_or_default();
    let thread = std::thread::current();
    let thread = thread.name().unwrap_or("unnamed");
    // Where the environment asks for one.
    let trace = Backtrace::capture();
    let trace = if trace.status() == BacktraceStatus::Captured { format!("\n{trace}") } else { String::new() };
    let mut time = String::new();
    // A clock that cannot be told leaves the time out.
    let _ = SystemTime.format_time(&mut Writer::new(&mut time));
    match format {
        LogFormat::Text => format!("{time} ERROR panic: thread '{thread}' panicked at {place}: {message}{trace}\n"),
        LogFormat::Json => {
            let message = format!("thread '{thread}' panicked at {place}: {message}{trace}");
            let line = serde_json::json!({"timestamp": time, "level": "ERROR", "target": "panic", "message": message});
            format!("{line}\n")
        }
    }
}

/// Lines for stderr, with something in front of each, in the place of its first `skip` bytes.
#[derive(Clone)]
struct Marked {
    mark: Arc<str>,
    skip: usize,
}

impl Marked {
    fn put(&self, line: &[u8]) {
        let rest = line.get(self.skip..).unwrap_or_default();
        log_queue().put([self.mark.as_bytes(), rest].concat());
    }
}

impl Write for Marked {
    /// The subscriber writes whole lines.
    fn write(&mut self, line: &[u8]) -> io::Result<usize> {
        self.put(line);
        Ok(line.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}
