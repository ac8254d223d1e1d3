//! The worker: takes its rights away from itself, then reads one job, answers it, and ends.
//!
//! After that it has three pipes and its memory. It can open no file and no socket (its limit on descriptors is what it
//! has), start no process, write no file, and gains no rights from a program that it might run. Memory and processor
//! time have hard limits, and the kernel ends it with the server, and before the server when memory runs out.

use super::frame;
use super::job::execute;
use omni_transfer::shm::inherited;
use rustix::process::{Pid, Resource, Rlimit, Signal, getppid, set_parent_process_death_signal, setrlimit};
use rustix::thread::set_no_new_privs;
use std::io;

/// What the server tells a worker when it starts it: none of it comes from a client.
#[derive(Clone, Copy, Debug)]
pub struct DecoderArgs {
    /// Bytes of memory beside what the program itself has mapped.
    pub memory: u64,
    /// Seconds of processor time.
    pub seconds: u64,
    /// The process that must live for this one to live.
    pub parent: u32,
}

/// Why a worker ended without an answer.
#[derive(Debug, thiserror::Error)]
pub enum DecoderError {
    /// No server started it.
    #[error("`omni-actors decode` is started by `omni-actors run` for what clients send, not by hand")]
    NoParent,
    /// The system does not let it limit itself, so it decodes nothing.
    #[error("a decoder cannot limit itself: {0}")]
    Limits(io::Error),
    /// The pipes broke, or what came through them makes no sense.
    #[error("a decoder cannot speak to its server: {0}")]
    Pipe(#[from] io::Error),
}

/// Serves one job.
///
/// # Errors
/// [`DecoderError`]; the server sees the process end.
pub fn serve(args: DecoderArgs) -> Result<(), DecoderError> {
    let lives = set_parent_process_death_signal(Some(Signal::KILL));
    // The server may have died before that.
    if lives.is_err() || getppid().map(Pid::as_raw_pid) != Some(args.parent as i32) {
        return Err(DecoderError::NoParent);
    }
    limit(args).map_err(DecoderError::Limits)?;
    let (job, body) = match frame::receive_job(&mut io::stdin().lock(), args.memory) {
        // The server needs it no more.
        Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => return Ok(()),
        received => received?,
    };
    let mut answers = Answers(io::stdout());
    Ok(execute(&job, &body, &mut |answer| frame::send_answer(&mut answers, &answer))?)
}

/// The pipe to the server. The standard output itself looks for ends of lines in what is written.
struct Answers(io::Stdout);

impl io::Write for Answers {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        Ok(rustix::io::write(&self.0, bytes)?)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// The descriptors of a worker: its input, its output, and where it says why it crashed.
const DESCRIPTORS: u64 = 3;

fn limit(args: DecoderArgs) -> io::Result<()> {
    // The first that the kernel ends when memory runs out. Raising it needs no rights; where there is no such file, the
    // limits below still hold.
    let _ = std::fs::write("/proc/self/oom_score_adj", "1000");
    close_others()?;
    let mapped = std::fs::read_to_string("/proc/self/statm")?;
    let pages: u64 = mapped.split(' ').next().unwrap_or_default().parse().map_err(io::Error::other)?;
    let mapped = pages * rustix::param::page_size() as u64;
    set_no_new_privs(true)?;
    for (resource, most) in [
        (Resource::As, mapped.saturating_add(args.memory)),
        (Resource::Cpu, args.seconds),
        (Resource::Core, 0),
        (Resource::Fsize, 0),
        (Resource::Nproc, 0),
        (Resource::Nofile, DESCRIPTORS),
    ] {
        setrlimit(resource, Rlimit { current: Some(most), maximum: Some(most) })?;
    }
    Ok(())
}

/// Closes descriptors that someone left open for every child of the server: those of the server itself are not among
/// them, for each is closed where a program begins.
fn close_others() -> io::Result<()> {
    let mut others = Vec::new();
    for entry in std::fs::read_dir("/proc/self/fd")? {
        let number = entry?.file_name().to_str().and_then(|name| name.parse::<i32>().ok());
        others.extend(number.filter(|number| *number >= DESCRIPTORS as i32));
    }
    for number in others {
        // It fails for the listing's own, which is closed by now.
        drop(inherited(number));
    }
    Ok(())
}
