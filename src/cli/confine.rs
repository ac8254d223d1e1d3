//! `omni-actors confine`: limits itself, then becomes a program that works on what a client sent. Only a server starts it.

use clap::Args;
use omni_engine::decode::{Confined, confine};
use std::ffi::OsString;
use std::path::PathBuf;
use std::process::ExitCode;

/// Become a program with limits, for the server that started this process
#[derive(Args, Debug)]
pub struct ConfineArgs {
    /// Bytes of address space
    memory: u64,
    /// Seconds of processor time
    seconds: u64,
    /// The server's process
    parent: u32,
    /// The program and its arguments
    program: PathBuf,
    #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
    arguments: Vec<OsString>,
}

/// Runs the command, which comes back only where it fails. Its exit code tells the server why.
pub fn execute(args: ConfineArgs) -> ExitCode {
    let ConfineArgs { memory, seconds, parent, program, arguments } = args;
    let failed = confine(Confined { memory, seconds, parent, program, arguments });
    // The server reads it as the program's last words.
    eprintln!("{failed}");
    ExitCode::from(failed.code())
}
