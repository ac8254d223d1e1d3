//! Another process of the program takes over: after SIGUSR2 the binary at this program's path is started with the same
//! arguments and given the listening sockets; when it is ready, this process accepts no more and finishes its streams.
//!
//! The two speak over a pair of sockets, the successor's standard input:
//!
//! ```text
//! predecessor -> successor   the listening sockets, and their names: the addresses that they were configured with
//! successor -> predecessor   `ready`, once every stage can serve
//! predecessor -> successor   `go`, or the end of the predecessor: the successor accepts
//! ```
//!
//! A predecessor that is killed at any moment leaves a successor that serves; a successor that ends or is not ready in
//! time leaves a predecessor that goes on.

use rustix::net::{
    RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer, SendAncillaryMessage, SendFlags,
};
use std::ffi::OsString;
use std::io::{self, IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::net::{SocketAddr, TcpListener};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::time::Duration;
use tokio::io::{AsyncReadExt, AsyncWriteExt};

/// Set for a successor.
const VARIABLE: &str = "OMNI_SUCCESSOR";
/// What a manager said to this process and would be wrong for another one.
const OWN: [&str; 4] = ["WATCHDOG_PID", "LISTEN_PID", "LISTEN_FDS", "LISTEN_FDNAMES"];
const READY: &[u8] = b"ready";
const GO: &[u8] = b"go";

/// Why no other process took over; this one goes on.
#[derive(Debug, thiserror::Error)]
pub(super) enum UpgradeError {
    /// It was not started.
    #[error("{} cannot be started: {error}", program.display())]
    Start {
        /// What should have been.
        program: PathBuf,
        /// What the system said.
        error: io::Error,
    },
    /// It ended, as a program does whose config is wrong.
    #[error("the new process ended before it was ready; its last lines in the log tell why")]
    Ended,
    /// It was killed.
    #[error("the new process was not ready within {0:?} and was killed")]
    Late(Duration),
}

/// Most sockets that are handed over: those of HTTP and of Wyoming.
const SOCKETS: usize = 2;

/// A listening socket, and its name: what it is for, and the address that it was configured with.
pub(super) type Named = (OwnedFd, String);

/// The name of the socket of HTTP.
pub(super) fn http(configured: SocketAddr) -> String {
    configured.to_string()
}

/// The name of the socket of Wyoming. Both may be configured with port 0.
pub(super) fn wyoming(configured: SocketAddr) -> String {
    format!("wyoming:{configured}")
}

/// This program, as it was started.
pub(super) struct Program {
    path: PathBuf,
    arguments: Vec<OsString>,
}

impl Program {
    /// Has to be asked early: later another file may lie at the path.
    pub fn this() -> io::Result<Program> {
        Ok(Program { path: std::env::current_exe()?, arguments: std::env::args_os().skip(1).collect() })
    }

    /// Starts a process of it, hands it `sockets`, of which there are one or two, and waits until it is ready. Dropping the future kills the process.
    pub async fn succeed(&self, sockets: &[Named], patience: Duration) -> Result<Successor, UpgradeError> {
        let failed = |error| UpgradeError::Start { program: self.path.clone(), error };
        let (child, link) = self.start(sockets).map_err(failed)?;
        let mut starting = Starting(Some(child));
        let mut link = tokio::net::UnixStream::from_std(link).map_err(failed)?;
        let mut word = [0; READY.len()];
        match tokio::time::timeout(patience, link.read_exact(&mut word)).await {
            Ok(Ok(_)) if word == READY => Ok(Successor { child: starting.0.take(), link }),
            Ok(_) => Err(UpgradeError::Ended),
            Err(_) => Err(UpgradeError::Late(patience)),
        }
    }

    fn start(&self, sockets: &[Named]) -> io::Result<(Child, UnixStream)> {
        let (ours, theirs) = UnixStream::pair()?;
        // Sent before the process is there: the words lie in the socket until it reads them.
        let names: Vec<&str> = sockets.iter().map(|(_, name)| name.as_str()).collect();
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(SOCKETS))];
        let mut control = SendAncillaryBuffer::new(&mut space);
        let sockets: Vec<_> = sockets.iter().map(|(socket, _)| socket.as_fd()).collect();
        if !control.push(SendAncillaryMessage::ScmRights(&sockets)) {
            return Err(io::Error::other("more listening sockets than can be handed over"));
        }
        rustix::net::sendmsg(&ours, &[IoSlice::new(names.join(" ").as_bytes())], &mut control, SendFlags::NOSIGNAL)?;
        ours.set_nonblocking(true)?;
        let mut command = Command::new(&self.path);
        command.args(&self.arguments).stdin(Stdio::from(OwnedFd::from(theirs))).env(VARIABLE, "1");
        for name in OWN {
            command.env_remove(name);
        }
        Ok((command.spawn()?, ours))
    }
}

/// A process that is not ready yet. Dropped, it is killed.
struct Starting(Option<Child>);

impl Drop for Starting {
    fn drop(&mut self) {
        if let Some(mut child) = self.0.take() {
            // It may have ended by itself.
            let _ = child.kill();
            buried(child);
        }
    }
}

/// Waits for a child elsewhere: one that takes long to end must not hold up what runs here.
fn buried(mut child: Child) {
    let _ = std::thread::Builder::new().name("successor".to_owned()).spawn(move || _ = child.wait());
}

/// A process that is ready to accept.
pub(super) struct Successor {
    child: Option<Child>,
    link: tokio::net::UnixStream,
}

impl Successor {
    /// Its number.
    pub fn pid(&self) -> u32 {
        self.child.as_ref().map_or(0, Child::id)
    }

    /// Lets it accept.
    pub async fn go(mut self) {
        // One that was killed just now cannot be told; the service manager starts the next.
        let _ = self.link.write_all(GO).await;
        if let Some(child) = self.child.take() {
            buried(child);
        }
    }
}

/// What this process was given by the one before it.
pub(super) struct Predecessor {
    link: tokio::net::UnixStream,
    /// Each with its name.
    sockets: Vec<(TcpListener, String)>,
}

impl Predecessor {
    /// `None` for a process that succeeds no other.
    pub fn of_this_process() -> io::Result<Option<Predecessor>> {
        if std::env::var_os(VARIABLE).is_none() {
            return Ok(None);
        }
        let link = io::stdin().as_fd().try_clone_to_owned()?;
        let (mut names, mut space) = ([0; 128], [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(SOCKETS))]);
        let mut control = RecvAncillaryBuffer::new(&mut space);
        let flags = RecvFlags::CMSG_CLOEXEC;
        let got = rustix::net::recvmsg(&link, &mut [IoSliceMut::new(&mut names)], &mut control, flags)?;
        let came: Vec<OwnedFd> = control
            .drain()
            .flat_map(|message| match message {
                RecvAncillaryMessage::ScmRights(sockets) => sockets.collect(),
                _ => Vec::new(),
            })
            .collect();
        if came.is_empty() {
            return Err(io::Error::other("no listening socket came with it"));
        }
        let names = String::from_utf8_lossy(names.get(..got.bytes).unwrap_or_default());
        let names = names.split(' ').map(str::to_owned);
        let sockets = came.into_iter().map(TcpListener::from).zip(names).collect();
        let link = UnixStream::from(link);
        link.set_nonblocking(true)?;
        let link = tokio::net::UnixStream::from_std(link)?;
        Ok(Some(Predecessor { link, sockets }))
    }

    /// The socket of this name, if there is one; the config may name another address by now.
    pub fn socket(&self, name: &str) -> io::Result<Option<TcpListener>> {
        let same = self.sockets.iter().find(|(_, known)| known == name);
        same.map(|(socket, _)| socket.try_clone()).transpose()
    }

    /// Tells it that this process is ready, and waits until that accepts no more, or is gone.
    pub async fn relieve(mut self) {
        let mut word = [0; GO.len()];
        // A predecessor that is gone accepts nothing either.
        let _ = self.link.write_all(READY).await;
        let _ = self.link.read_exact(&mut word).await;
    }
}
