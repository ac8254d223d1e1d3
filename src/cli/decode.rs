//! `omni-actors decode`: decodes one file that a client sent, in a process with limits. Only a server starts it.

use clap::Args;
use omni_engine::decode::{self, DecoderArgs};

/// Decode one file for the server that started this process
#[derive(Args, Debug)]
pub struct DecodeArgs {
    /// Bytes of memory beside the program itself
    memory: u64,
    /// Seconds of processor time
    seconds: u64,
    /// The server's process
    parent: u32,
}

/// Runs the command, which ends with its one answer.
pub fn execute(args: &DecodeArgs) -> anyhow::Result<()> {
    let DecodeArgs { memory, seconds, parent } = *args;
    Ok(decode::serve(DecoderArgs { memory, seconds, parent })?)
}
