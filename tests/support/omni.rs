//! Runs the `omni-actors` binary, so that a test of the command line is five lines.
#![allow(dead_code, reason = "each test binary uses its own part")]

use super::http::Ask;
use crate::support::wait;
use std::io::{BufRead, BufReader, Write};
use std::path::Path;
use std::process::{Child, ChildStdout, Command, Output, Stdio};

/// A command line to run in its own folder. Paths beginning with `configs/` are the repository's.
pub struct Omni {
    folder: tempfile::TempDir,
    args: Vec<String>,
    stdin: String,
    variables: Vec<(String, String)>,
    log: Option<String>,
}

/// `omni-actors ARGS`
pub fn omni<const N: usize>(args: [&str; N]) -> Omni {
    Omni::new().args(args)
}

impl Omni {
    pub fn new() -> Omni {
        Omni {
            folder: tempfile::tempdir().unwrap(),
            args: Vec::new(),
            stdin: String::new(),
            variables: Vec::new(),
            log: None,
        }
    }

    pub fn args<const N: usize>(self, args: [&str; N]) -> Omni {
        self.arguments(&args)
    }

    pub fn arguments(mut self, args: &[&str]) -> Omni {
        self.args = args.iter().map(|&arg| arg.to_owned()).collect();
        self
    }

    /// Further arguments.
    pub fn more(mut self, args: &[&str]) -> Omni {
        self.args.extend(args.iter().map(|&arg| arg.to_owned()));
        self
    }

    pub fn stdin(mut self, text: &str) -> Omni {
        text.clone_into(&mut self.stdin);
        self
    }

    /// One of its environment.
    pub fn variable(mut self, name: &str, value: &str) -> Omni {
        self.variables.push((name.to_owned(), value.to_owned()));
        self
    }

    /// The file to which a server writes its log, instead of this test's.
    pub fn log_to(mut self, path: &str) -> Omni {
        self.log = Some(path.to_owned());
        self
    }

    /// The folder in which it writes what it is asked to.
    pub fn folder(&self) -> &Path {
        self.folder.path()
    }

    /// A path inside that folder.
    pub fn path(&self, name: &str) -> String {
        self.folder.path().join(name).display().to_string()
    }

    /// A file inside that folder.
    pub fn file(&self, name: &str, content: &str) -> String {
        std::fs::write(self.folder.path().join(name), content).unwrap();
        self.path(name)
    }

    fn command(&self) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_omni-actors"));
        command.args(&self.args).current_dir(env!("CARGO_MANIFEST_DIR")).env_remove("OMNI_LOG");
        // What these tests expect is what a CPU says, also where there is a GPU.
        command.env("CUDA_VISIBLE_DEVICES", "");
        command.envs(self.variables.iter().map(|(name, value)| (name, value)));
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
        command
    }

    /// Runs it to its end.
    pub fn run(&self) -> Done {
        let mut child = self.command().spawn().unwrap();
        // Fails only if the command does not read its input, which is its right.
        let _ = child.stdin.take().unwrap().write_all(self.stdin.as_bytes());
        Done::from(child.wait_with_output().unwrap())
    }

    /// Runs it to its end, where nobody reads what it prints.
    pub fn run_unread(&self) -> Done {
        let (_, unread) = std::io::pipe().unwrap();
        Done::from(self.command().stdout(unread).spawn().unwrap().wait_with_output().unwrap())
    }

    /// Starts a server on a free port and waits for its first line.
    pub fn serve(self) -> Serving {
        let log = self.log.as_ref().map_or_else(Stdio::inherit, |path| std::fs::File::create(path).unwrap().into());
        self.serve_to(log)
    }

    /// The same with this as its standard error.
    pub fn serve_to(self, log: impl Into<Stdio>) -> Serving {
        Serving::from_child(self.command().stderr(log).spawn().unwrap(), self)
    }
}

/// What a command left.
pub struct Done {
    pub code: Option<i32>,
    pub stdout: String,
    pub stdout_bytes: Vec<u8>,
    pub stderr: String,
}

impl From<Output> for Done {
    fn from(output: Output) -> Done {
        Done {
            code: output.status.code(),
            stdout: String::from_utf8_lossy(&output.stdout).into_owned(),
            stdout_bytes: output.stdout,
            stderr: String::from_utf8_lossy(&output.stderr).into_owned(),
        }
    }
}

impl Done {
    pub fn exits(&self, code: i32) -> &Done {
        assert_eq!(self.code, Some(code), "stdout:\n{}\nstderr:\n{}", self.stdout, self.stderr);
        self
    }

    pub fn succeeds(&self) -> &Done {
        self.exits(0)
    }

    /// Stderr has it.
    pub fn tells(&self, text: &str) -> &Done {
        assert!(self.stderr.contains(text), "{text:?} is not in stderr:\n{}", self.stderr);
        self
    }

    /// Stdout has it.
    pub fn shows(&self, text: &str) -> &Done {
        assert!(self.stdout.contains(text), "{text:?} is not in stdout:\n{}", self.stdout);
        self
    }
}

/// A running server; ended with the test.
pub struct Serving {
    pub url: String,
    child: Child,
    stdout: Option<BufReader<ChildStdout>>,
    _omni: Omni,
}

impl Serving {
    /// A server that was just started, with a pipe as its stdout.
    pub fn from_child(mut child: Child, omni: Omni) -> Serving {
        let mut stdout = BufReader::new(child.stdout.take().unwrap());
        let mut line = String::new();
        stdout.read_line(&mut line).unwrap();
        let url = line.split([' ', ',']).find(|word| word.starts_with("http://")).unwrap_or_else(|| panic!("{line}"));
        Serving { url: url.to_owned(), child, stdout: Some(stdout), _omni: omni }
    }

    /// One whose address is known.
    pub fn at(url: &str, child: Child, omni: Omni) -> Serving {
        Serving { url: url.to_owned(), child, stdout: None, _omni: omni }
    }

    /// Where it speaks Wyoming, from the lines behind the first one. To be asked once.
    pub fn wyoming(&mut self) -> String {
        let lines = self.stdout.as_mut().unwrap().lines().map(Result::unwrap);
        let mut found = lines.filter_map(|line| Some(line.split_once("Wyoming at ")?.1.to_owned()));
        found.next().expect("no Wyoming listener")
    }

    /// The same server, once it takes requests.
    pub fn ready(self) -> Serving {
        let ready = Ask::new("GET", "/ready", &[], "");
        wait::until("the server becomes ready", || ready.send(&self.url).status == 200);
        self
    }

    /// Of the process.
    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    /// A path inside its folder.
    pub fn path(&self, name: &str) -> String {
        self._omni.path(name)
    }

    /// Sends a signal, such as `TERM`.
    pub fn signal(&self, name: &str) {
        let sent = Command::new("kill").args([&format!("-{name}"), &self.child.id().to_string()]).status().unwrap();
        assert!(sent.success());
    }

    /// Waits for its end and tells the exit code.
    pub fn exit_code(mut self) -> Option<i32> {
        self.wait()
    }

    /// The same, and its folder stays to be looked at.
    pub fn wait(&mut self) -> Option<i32> {
        self.child.wait().unwrap().code()
    }

    /// Waits for its end and tells the exit code and what it logged.
    pub fn log(mut self) -> (Option<i32>, String) {
        let code = self.wait();
        (code, std::fs::read_to_string(self._omni.log.as_ref().unwrap()).unwrap())
    }
}

impl Drop for Serving {
    fn drop(&mut self) {
        // It may have ended already, as most tests want it to.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
