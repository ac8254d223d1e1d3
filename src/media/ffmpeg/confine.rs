//! A process that takes rights away from itself and then becomes a program: what a shell does with `ulimit`, and what no
//! shell can, to end with the process that started it.

use rustix::process::{Pid, Resource, Rlimit, Signal, getppid, set_parent_process_death_signal, setrlimit};
use rustix::thread::set_no_new_privs;
use std::ffi::OsString;
use std::io;
use std::os::unix::process::CommandExt;
use std::path::PathBuf;
use std::process::Command;

/// Descriptors of a program: its input and its outputs, and the files of its libraries.
const DESCRIPTORS: u64 = 64;

/// What a process becomes, and what it may have then.
#[derive(Clone, Debug)]
pub struct Confined {
    /// Bytes of address space.
    pub memory: u64,
    /// Seconds of processor time.
    pub seconds: u64,
    /// The process that must live for this one to live.
    pub parent: u32,
    /// The program, by name or path.
    pub program: PathBuf,
    /// Its arguments.
    pub arguments: Vec<OsString>,
}

/// Why a process has not become a program.
#[derive(Debug, thiserror::Error)]
pub enum NotConfined {
    /// It was started by another process, or that has ended.
    #[error("`omni-actors confine` is started by `omni-actors run` for what clients send, not by hand")]
    NoParent,
    /// The system does not let it limit itself.
    #[error("{0}")]
    Limits(io::Error),
    /// The program cannot be started.
    #[error("{0}")]
    Program(io::Error),
}

impl NotConfined {
    /// The exit code that tells the parent which it is, as a shell has them.
    pub fn code(&self) -> u8 {
        match self {
            NotConfined::NoParent | NotConfined::Limits(_) => super::process::NO_LIMITS,
            NotConfined::Program(_) => super::process::NO_PROGRAM[0],
        }
    }
}

/// Becomes the program. The kernel ends it with the thread that started this process.
///
/// # Errors
/// See [`NotConfined`]; this process may have limits by then.
pub fn confine(confined: Confined) -> NotConfined {
    let lives = set_parent_process_death_signal(Some(Signal::KILL));
    // It may have died before that.
    if lives.is_err() || getppid().map(Pid::as_raw_pid) != Some(confined.parent as i32) {
        return NotConfined::NoParent;
    }
    // The first that the kernel ends when memory runs out; where there is no such file, the limits still hold.
    let _ = std::fs::write("/proc/self/oom_score_adj", "1000");
    let mut program = Command::new(&confined.program);
    program.args(&confined.arguments);
    match limit(&confined) {
        Ok(()) => NotConfined::Program(program.exec()),
        Err(error) => NotConfined::Limits(error),
    }
}

fn limit(confined: &Confined) -> io::Result<()> {
    set_no_new_privs(true)?;
    for (resource, most) in [
        (Resource::Core, 0),
        (Resource::Fsize, 0),
        (Resource::Nofile, DESCRIPTORS),
        (Resource::Cpu, confined.seconds),
        (Resource::As, confined.memory),
    ] {
        setrlimit(resource, Rlimit { current: Some(most), maximum: Some(most) })?;
    }
    Ok(())
}
