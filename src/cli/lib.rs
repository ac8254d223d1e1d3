//! The command line: `run`, `node`, `say`, `check` and the hidden `stage`, `decode` and `confine`, one file each, and `main`, which parses
//! the arguments of these and of the commands in `omni-tools`. What the commands share (config and checkpoint, exit
//! codes, signals) lies in `omni-tools` too.

#![forbid(unsafe_code)]
#![cfg_attr(test, allow(clippy::unwrap_used))]

mod check;
mod confine;
mod decode;
mod give_up;
mod limits;
mod manager;
mod node;
mod reload;
mod run;
mod say;
mod served;
mod signals;
mod sink;
mod sockets;
mod stage;
mod upgrade;

pub use omni_model::weights::{Content, EmbeddedFiles};

use clap::{Parser, Subcommand};
use futures::future::LocalBoxFuture;
use omni_engine::process;
use omni_tools::{bench, chaos, cluster, exit, simulate, trace, verify};
use std::process::ExitCode;

/// A serving runtime for models that talk
///
/// Serves Qwen3-Omni and Qwen3-TTS checkpoints: text in, speech streamed out while it is made, on a CPU or, built with
/// the feature `cuda`, on a GPU. Without a checkpoint it speaks with the small voice that is part of this program.
#[derive(Parser, Debug)]
#[command(name = "omni-actors", version, max_term_width = 110)]
#[command(
    after_help = "Exit codes: 0 done, 1 failed while running, 2 wrong usage or config, 3 a stage was given up, 130 interrupted,
141 the reader of standard output is gone.
`omni-actors COMMAND --help` has examples."
)]
struct Cli {
    /// The process with which this one ends, if that has started it: `chaos --cluster` leaves none behind
    #[arg(long, value_name = "PID", hide = true)]
    parent: Option<u32>,
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand, Debug)]
enum Command {
    Run(run::RunArgs),
    Node(node::NodeArgs),
    Say(say::SayArgs),
    Check(check::CheckArgs),
    Verify(verify::command::VerifyArgs),
    Bench(bench::BenchArgs),
    Chaos(chaos::ChaosArgs),
    Simulate(simulate::SimulateArgs),
    Trace(trace::TraceArgs),
    Drain(cluster::drain::DrainArgs),
    Top(cluster::top::TopArgs),
    #[command(hide = true)]
    Stage(stage::StageArgs),
    #[command(hide = true)]
    Decode(decode::DecodeArgs),
    #[command(hide = true)]
    Confine(confine::ConfineArgs),
}

/// Runs the command line of this process. `embedded` is the voice that the binary carries, if it does.
pub fn main(embedded: Option<EmbeddedFiles>) -> ExitCode {
    let Cli { parent, command } = Cli::parse();
    let _last = LastLines;
    if let Some(Err(error)) = parent.map(process::die_with) {
        return exit::report(&error.into());
    }
    // The file may be replaced while this runs; this name stays the program that runs.
    process::set_binary("/proc/self/exe");
    let outcome = match command {
        // These compute and never wait: they need no runtime.
        Command::Check(args) => check::execute(&args, embedded),
        Command::Verify(args) => verify::command::execute(&args),
        Command::Simulate(args) => simulate::execute(&args),
        Command::Decode(args) => decode::execute(&args),
        Command::Confine(args) => return confine::execute(args),
        Command::Run(args) => on_runtime(Box::pin(run::execute(args, embedded))),
        Command::Node(args) => node::with_threads().and_then(|()| on_runtime(Box::pin(node::execute(args, embedded)))),
        Command::Say(args) => on_runtime(Box::pin(say::execute(args, embedded))),
        Command::Bench(args) => on_runtime(bench::execute(args, embedded)),
        Command::Chaos(args) => on_runtime(chaos::execute(args, embedded)),
        Command::Trace(args) => on_runtime(trace::execute(args, embedded)),
        Command::Drain(args) => on_runtime(cluster::drain::execute(args)),
        Command::Top(args) => on_runtime(cluster::top::execute(args)),
        Command::Stage(args) => on_runtime(Box::pin(stage::execute(args, embedded))),
    };
    match outcome {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => exit::report(&error),
    }
}

/// Lets the last lines leave, also where the program ends by a panic.
struct LastLines;

impl Drop for LastLines {
    fn drop(&mut self) {
        omni_telemetry::flush_logs();
    }
}

fn on_runtime(command: LocalBoxFuture<'static, anyhow::Result<()>>) -> anyhow::Result<()> {
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build()?;
    let outcome = runtime.block_on(command);
    // A command that ended leaves nothing behind that is worth waiting for: it has drained or it was interrupted.
    runtime.shutdown_background();
    outcome
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::CommandFactory;

    #[test]
    fn the_command_line_is_well_formed() {
        Cli::command().debug_assert();
    }
}
