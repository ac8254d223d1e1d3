//! One process with limits, and what it writes.

use super::{Ffmpeg, SOURCE};
use crate::limits::MediaError;
use rustix::fs::{MemfdFlags, memfd_create};
use std::fs::File;
use std::io::{Read, Seek, SeekFrom, Write};
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::thread;

/// Sets the limits and becomes the program: kilobytes of memory, seconds of processor time. No shell reads what a client
/// sent: it is the program's standard input.
const LIMITED: &str = r#"ulimit -c 0 && ulimit -f 0 && ulimit -n 64 && ulimit -v "$1" && ulimit -t "$2" || exit 121
shift 2 && exec "$@""#;
/// A limit could not be set; there is no such program; it may not be started.
pub(super) const NO_LIMITS: u8 = 121;
pub(super) const NO_PROGRAM: [u8; 2] = [127, 126];
/// Bytes of what a program says as it fails that are told.
const LAST_WORDS: u64 = 300;

/// A file in memory, without a name, that a program reads and seeks in.
pub(super) struct Input(File);

impl Input {
    pub fn new(bytes: &[u8]) -> Result<Input, MediaError> {
        let written = || -> std::io::Result<File> {
            let mut file = File::from(memfd_create("film", MemfdFlags::CLOEXEC)?);
            file.write_all(bytes)?;
            Ok(file)
        };
        written().map(Input).map_err(|error| MediaError::Video(format!("no room for the file ({error})")))
    }

    fn open(&self) -> std::io::Result<File> {
        let mut file = self.0.try_clone()?;
        file.seek(SeekFrom::Start(0))?;
        Ok(file)
    }
}

impl Ffmpeg {
    /// Has the program work on a file; what it writes to these outputs, at most `most` bytes.
    pub(super) fn run(&self, input: &Input, outputs: &[&str], most: u64) -> Result<Vec<u8>, MediaError> {
        let absent = |reason: String| MediaError::NoFfmpeg { program: self.program.display().to_string(), reason };
        let mut command = self.limited();
        command.arg(&self.program).args(SOURCE).args(outputs);
        command.env_clear().env("PATH", std::env::var_os("PATH").unwrap_or_default());
        command.stdin(input.open().map_err(|e| MediaError::Video(e.to_string()))?);
        let mut child =
            command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().map_err(|e| absent(e.to_string()))?;
        let readers = reader(child.stdout.take(), most + 1)
            .and_then(|output| Ok((output, reader(child.stderr.take(), LAST_WORDS)?)));
        let (output, said) = match readers {
            Ok(readers) => readers,
            Err(error) => {
                end(&mut child);
                return Err(MediaError::Video(format!("no thread reads what it writes ({error})")));
            }
        };
        // Both end with the process, or at their limit.
        let written = match output.recv_timeout(self.limits.time) {
            Ok(written) => written,
            Err(RecvTimeoutError::Timeout) => return Err(self.took_too_long(&mut child)),
            Err(RecvTimeoutError::Disconnected) => Vec::new(),
        };
        if written.len() as u64 > most {
            end(&mut child);
            return Err(MediaError::Video(format!("its frames or sound have more than {most} bytes")));
        }
        let said = match said.recv_timeout(self.limits.time) {
            Ok(said) => one_line(&said),
            Err(_) => return Err(self.took_too_long(&mut child)),
        };
        let status = child.wait().map_err(|e| MediaError::Video(e.to_string()))?;
        match status.code() {
            Some(0) => Ok(written),
            Some(code) if NO_PROGRAM.map(i32::from).contains(&code) => Err(absent(said)),
            Some(code) if code == i32::from(NO_LIMITS) => {
                Err(MediaError::Video(format!("the process cannot be limited: {said}")))
            }
            None => Err(MediaError::Video(format!("it was ended by its limits ({status})"))),
            Some(_) if said.is_empty() => Err(MediaError::Video(status.to_string())),
            Some(_) => Err(MediaError::Video(said)),
        }
    }

    /// What limits itself and becomes the program that is its next argument.
    fn limited(&self) -> Command {
        let (memory, seconds) = (self.limits.memory, self.limits.time.as_secs().max(1).to_string());
        let Some(launcher) = &self.launcher else {
            let mut shell = Command::new("/bin/sh");
            shell.args(["-c", LIMITED, "limited"]).arg((memory >> 10).to_string()).arg(seconds);
            return shell;
        };
        let mut command = Command::new(launcher);
        command.args(["confine", &memory.to_string(), &seconds, &std::process::id().to_string(), "--"]);
        command
    }

    fn took_too_long(&self, child: &mut Child) -> MediaError {
        end(child);
        MediaError::Video(format!("it takes longer than {} s", self.limits.time.as_secs_f64()))
    }
}

/// Reads up to `most` bytes on a thread of its own: a program that writes to one pipe must not wait for another.
fn reader(pipe: Option<impl Read + Send + 'static>, most: u64) -> std::io::Result<Receiver<Vec<u8>>> {
    let (give, receiver) = channel();
    thread::Builder::new().name("film-reader".to_owned()).spawn(move || {
        let mut bytes = Vec::new();
        if let Some(pipe) = pipe {
            // What came before an error counts.
            let _ = pipe.take(most).read_to_end(&mut bytes);
        }
        let _ = give.send(bytes);
    })?;
    Ok(receiver)
}

fn end(child: &mut Child) {
    let _ = child.kill();
    let _ = child.wait();
}

fn one_line(bytes: &[u8]) -> String {
    let text = String::from_utf8_lossy(bytes);
    text.lines().map(str::trim).filter(|line| !line.is_empty()).collect::<Vec<_>>().join("; ")
}
