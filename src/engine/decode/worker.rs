//! One worker, seen from the server: started, given its one job, and ended whatever it did.

use super::DecodeError;
use super::frame;
use super::job::{Answer, Job};
use std::io::{self, Read};
use std::os::fd::AsFd;
use std::path::Path;
use std::process::{Child, ChildStdin, ChildStdout, Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

/// Most bytes of what a worker said as it crashed that the log has.
const LAST_WORDS: u64 = 400;

/// Bytes that a pipe holds: most files and pictures, and what Linux gives to every user.
const PIPE_BYTES: usize = 1 << 20;

/// What a worker may have.
#[derive(Clone, Copy, Debug)]
pub struct WorkerLimits {
    /// Bytes of memory beside the program itself.
    pub memory: u64,
    /// For one job: on the clock, and of the processor.
    pub time: Duration,
}

/// The answers to a job.
#[derive(Clone, Copy, Debug)]
pub(super) struct Expected {
    /// How many.
    pub answers: usize,
    /// Bytes of samples or pictures that each may have.
    pub bytes: u64,
}

/// A process that waits for its job. Dropped, it is ended.
pub(super) struct Worker {
    child: Child,
    limits: WorkerLimits,
}

impl Worker {
    /// Starts one. The thread that calls this must outlive it: the kernel ends a child with the thread that started it.
    pub fn start(binary: &Path, limits: WorkerLimits) -> io::Result<Worker> {
        let mut command = Command::new(binary);
        let seconds = limits.time.as_secs_f64().ceil() as u64;
        command.arg("decode").args([limits.memory, seconds, u64::from(std::process::id())].map(|n| n.to_string()));
        // It needs nothing of the environment, which may hold secrets, and nothing of the folder.
        command.env_clear().current_dir("/");
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
        // What a terminal tells the server is not for it.
        std::os::unix::process::CommandExt::process_group(&mut command, 0);
        let child = command.spawn()?;
        for pipe in [child.stdin.as_ref().map(AsFd::as_fd), child.stdout.as_ref().map(AsFd::as_fd)] {
            // So that neither end waits for the other piece by piece. Where the system gives no more, they do.
            let _ = pipe.map(|pipe| rustix::pipe::fcntl_setpipe_size(pipe, PIPE_BYTES));
        }
        Ok(Worker { child, limits })
    }

    /// Whether it ended before it had a job.
    pub fn is_gone(&mut self) -> bool {
        !matches!(self.child.try_wait(), Ok(None))
    }

    /// Gives it its job, about these files, and hands the answers to `take`, until that wants no further one. `section`
    /// of the config has the limit on time. Returns it if it has given all answers: then it is about to end, which takes
    /// longer than to decode a short recording.
    ///
    /// # Errors
    /// [`DecodeError::Refused`] with its reason; [`DecodeError::Ended`] where it gave none, or not in time.
    pub fn run(
        mut self,
        job: &Job,
        files: &[&[u8]],
        expected: Expected,
        section: &str,
        take: &mut dyn FnMut(Answer) -> bool,
    ) -> Result<Option<Worker>, DecodeError> {
        let (Some(stdin), Some(stdout)) = (self.child.stdin.take(), self.child.stdout.take()) else {
            return Err(DecodeError::Unavailable("it has no pipes".into()));
        };
        let (began, time) = (Instant::now(), self.limits.time);
        let answered = std::thread::scope(|scope| {
            // With the worker both pipes end, and with `told` the receiver of its answers: so the thread ends, too.
            let (tell, told) = flume::bounded(1);
            let talk = move || talk(stdin, stdout, job, files, expected, &tell);
            let talking = std::thread::Builder::new().name("decode".into()).spawn_scoped(scope, talk);
            talking.map_err(|error| DecodeError::Unavailable(error.to_string()))?;
            let (mut unanswered, mut answers) = (None, 0);
            for _ in 0..expected.answers {
                match told.recv_timeout(time.saturating_sub(began.elapsed())) {
                    Ok(Ok(Ok(answer))) => {
                        answers += 1;
                        if !take(answer) {
                            break;
                        }
                    }
                    other => {
                        unanswered = Some(other);
                        break;
                    }
                }
            }
            if answers == expected.answers {
                return Ok(true);
            }
            let ended = self.end();
            match unanswered {
                None | Some(Ok(Ok(Ok(_)))) => Ok(false),
                Some(Ok(Ok(Err(reason)))) => Err(DecodeError::Refused(reason)),
                Some(Ok(Err(error))) => Err(self.why(ended, &error)),
                Some(Err(_)) => Err(DecodeError::Ended(format!(
                    "decoding it took longer than {} s ({section}.decode_timeout)",
                    time.as_secs_f64()
                ))),
            }
        });
        if let Err(DecodeError::Ended(reason)) = &answered {
            let bytes: usize = files.iter().map(|file| file.len()).sum();
            tracing::warn!(pid = self.child.id(), bytes, reason, "a decoder was ended");
        }
        Ok(answered?.then_some(self))
    }

    fn end(&mut self) -> io::Result<ExitStatus> {
        // One that answered is about to end by itself.
        let _ = self.child.kill();
        self.child.wait()
    }

    /// Of a worker that ended without an answer, or gave one that makes no sense.
    fn why(&mut self, ended: io::Result<ExitStatus>, error: &io::Error) -> DecodeError {
        let mut words = Vec::new();
        let said = self.child.stderr.take().map(|said| said.take(LAST_WORDS).read_to_end(&mut words));
        let words = String::from_utf8_lossy(&words).trim().replace(char::is_control, " ");
        tracing::debug!(?said, words, ?ended, "the last words of a decoder");
        // The allocator's words, before it aborts.
        if words.starts_with("memory allocation of") {
            let limit = self.limits.memory >> 20;
            return DecodeError::Ended(format!("decoding it takes more than {limit} MiB of memory"));
        }
        DecodeError::Ended(match error.kind() {
            io::ErrorKind::InvalidData => format!("its decoder answered {error}"),
            _ => "its decoder crashed, or was ended for the processor time that it took".to_owned(),
        })
    }
}

impl Drop for Worker {
    fn drop(&mut self) {
        let _ = self.end();
    }
}

/// What a worker answered: in frames, which may be broken, an answer or why there is none.
type Told = io::Result<Result<Answer, String>>;

fn talk(
    mut stdin: ChildStdin,
    mut stdout: ChildStdout,
    job: &Job,
    files: &[&[u8]],
    expected: Expected,
    tell: &flume::Sender<Told>,
) {
    let mut sent = frame::send_job(&mut stdin, job, files).err();
    for _ in 0..expected.answers {
        // A worker that refuses a job without reading it all has still answered.
        let answer = frame::receive_answer(&mut stdout, expected.bytes).map_err(|error| sent.take().unwrap_or(error));
        let last = !matches!(answer, Ok(Ok(_)));
        if tell.send(answer).is_err() || last {
            break;
        }
    }
}
