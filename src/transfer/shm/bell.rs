//! The doorbell: one of two connected sockets. A byte means "look again", the end of the stream "I am gone".

use rustix::event::{PollFd, PollFlags, Timespec};
use rustix::io::Errno;
use rustix::net::{AddressFamily, RecvFlags, SendFlags, Shutdown, SocketFlags, SocketType};
use std::io;
use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::Duration;
use tokio::io::Interest;
use tokio::io::unix::AsyncFd;

#[derive(Debug)]
pub(super) struct Bell {
    socket: Arc<OwnedFd>,
    /// Registered with the runtime that first waits.
    watched: OnceLock<AsyncFd<Arc<OwnedFd>>>,
    gone: AtomicBool,
}

impl Bell {
    pub fn pair() -> io::Result<(Bell, Bell)> {
        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        let (a, b) = rustix::net::socketpair(AddressFamily::UNIX, SocketType::STREAM, flags, None)?;
        Ok((Bell::new(a), Bell::new(b)))
    }

    pub fn new(socket: OwnedFd) -> Bell {
        Bell { socket: Arc::new(socket), watched: OnceLock::new(), gone: AtomicBool::new(false) }
    }

    pub fn socket(&self) -> &OwnedFd {
        &self.socket
    }

    /// Whether the other side has been found to be gone.
    pub fn gone(&self) -> bool {
        self.gone.load(Ordering::Acquire)
    }

    /// Wakes the other side. A full socket has woken it already.
    pub fn ring(&self) {
        let rung = rustix::net::send(&self.socket, &[1], SendFlags::DONTWAIT | SendFlags::NOSIGNAL);
        if let Err(Errno::PIPE | Errno::CONNRESET) = rung {
            self.gone.store(true, Ordering::Release);
        }
    }

    /// Tells the other side, in whichever process and however many copies of the descriptor there are, that this is
    /// over.
    pub fn close(&self) {
        let _ = rustix::net::shutdown(&self.socket, Shutdown::Both);
    }

    /// Waits for the bell or the end.
    pub async fn heard(&self) -> io::Result<()> {
        if self.gone() {
            return Ok(());
        }
        let watched = self.watched()?;
        loop {
            let mut ready = watched.readable().await?;
            if let Ok(heard) = ready.try_io(|_| self.drain().map_err(io::Error::from)) {
                return heard;
            }
        }
    }

    /// As [`Bell::heard`], on a thread that may block; returns without news when the time is over.
    pub fn heard_blocking(&self, timeout: Duration) -> io::Result<()> {
        if self.gone() {
            return Ok(());
        }
        let timeout =
            Timespec { tv_sec: timeout.as_secs().min(1 << 30) as i64, tv_nsec: timeout.subsec_nanos().into() };
        let mut sockets = [PollFd::new(&self.socket, PollFlags::IN)];
        match rustix::event::poll(&mut sockets, Some(&timeout)) {
            Ok(0) | Err(Errno::INTR) => Ok(()),
            Ok(_) => match self.drain() {
                Ok(()) | Err(Errno::AGAIN) => Ok(()),
                Err(error) => Err(error.into()),
            },
            Err(error) => Err(error.into()),
        }
    }

    /// Takes what is in the socket. [`Errno::AGAIN`]: nothing was.
    fn drain(&self) -> Result<(), Errno> {
        let mut bytes = [0u8; 64];
        let mut heard = false;
        loop {
            match rustix::net::recv(&self.socket, &mut bytes, RecvFlags::DONTWAIT) {
                Ok((_, 0)) | Err(Errno::CONNRESET) => {
                    self.gone.store(true, Ordering::Release);
                    return Ok(());
                }
                Ok((_, full)) if full == bytes.len() => heard = true,
                Ok(_) => return Ok(()),
                Err(Errno::AGAIN) if heard => return Ok(()),
                Err(Errno::INTR) => {}
                Err(error) => return Err(error),
            }
        }
    }

    fn watched(&self) -> io::Result<&AsyncFd<Arc<OwnedFd>>> {
        if let Some(watched) = self.watched.get() {
            return Ok(watched);
        }
        // Without a runtime the registration would panic.
        tokio::runtime::Handle::try_current().map_err(io::Error::other)?;
        // SAFETY: the `Arc` keeps the socket open, under the same number, for as long as it is registered.
        let watched = unsafe { AsyncFd::register_with_interest(Arc::clone(&self.socket), Interest::READABLE) };
        let watched = watched.map_err(io::Error::from)?;
        // Only one task waits for an end of a ring, so no other task has set it.
        Ok(self.watched.get_or_init(|| watched))
    }
}
