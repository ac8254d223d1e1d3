//! How a command ends: what is printed and which code is returned. `docs/operations.md` lists the codes.

use omni_config::ConfigError;
use omni_core::ids::StageName;
use omni_engine::StartError;
use omni_engine::process::ChildError;
use omni_model::LoadError;
use std::process::ExitCode;

/// The command failed after it had begun its work.
pub(crate) const FAILED: u8 = 1;
/// Nothing was begun: the command line, the config or the checkpoint is wrong.
const USAGE: u8 = 2;
/// A stage of a server that served was given up: another process may do better.
const GIVEN_UP: u8 = 3;
/// 128 + SIGINT, as shells count.
pub(crate) const INTERRUPTED: u8 = 130;

/// 128 + SIGPIPE, as shells count: who reads standard output has read enough.
pub(crate) const READ_ENOUGH: u8 = 141;

/// The command line contradicts itself or the config; clap catches the rest.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
pub struct Usage(pub String);

/// The user stopped it.
#[derive(Debug, thiserror::Error)]
#[error("interrupted")]
pub struct Interrupted;

/// A server gave up a stage, and has finished what did not need it.
#[derive(Debug, thiserror::Error)]
#[error("the {stage} stage failed too often and was given up: {reason}")]
pub struct GivenUp {
    /// Which stage.
    pub stage: StageName,
    /// Why it failed last.
    pub reason: String,
}

/// Prints an error and chooses the code.
pub fn report(error: &anyhow::Error) -> ExitCode {
    omni_telemetry::complain(&format!("error: {error:#}"));
    let usage = |cause: &(dyn std::error::Error + 'static)| {
        // A stage that does not come up may have run out of memory, and an address may be free later: neither is the
        // user's config.
        let later = |error: &StartError| matches!(error, StartError::Stage(..) | StartError::Failed(_));
        let start = cause.downcast_ref::<StartError>().is_some_and(|error| !later(error));
        let by_hand = matches!(cause.downcast_ref(), Some(ChildError::NoParent));
        start || by_hand || cause.is::<Usage>() || cause.is::<ConfigError>() || cause.is::<LoadError>()
    };
    ExitCode::from(if error.chain().any(|cause| cause.is::<Interrupted>()) {
        INTERRUPTED
    } else if error.chain().any(|cause| cause.is::<GivenUp>()) {
        GIVEN_UP
    } else if error.chain().any(usage) {
        USAGE
    } else {
        FAILED
    })
}
