//! The exit code of each command: that of [`omni_tools::exit`], and one more for a server that cannot go on.

use omni_core::ids::StageName;
use omni_tools::exit;
use std::process::ExitCode;

/// `run` ended because a stage was given up. Starting the program again may help: the code differs from that of a wrong
/// config, where it does not.
pub const STAGE_GIVEN_UP: u8 = 3;

/// A stage failed more often than `supervision` allows, so that the server can serve no more.
#[derive(Debug, thiserror::Error)]
#[error("the {stage} stage was given up, and the server ends with it: {reason}")]
pub struct StageGivenUp {
    /// Which.
    pub stage: StageName,
    /// Its last failure.
    pub reason: String,
}

/// Prints an error and chooses the code.
pub fn report(error: &anyhow::Error) -> ExitCode {
    let code = exit::report(error);
    if error.is::<StageGivenUp>() { ExitCode::from(STAGE_GIVEN_UP) } else { code }
}
