//! An end of a ring on its way to another process.

use super::bell::Bell;
use super::map::Map;
use super::{Consumer, Producer};
use rustix::io::FdFlags;
use std::io;
use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd, RawFd};
use std::os::unix::process::CommandExt;
use std::process::Command;

/// Which end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Side {
    Producer,
    Consumer,
}

/// One end of a ring, not open: its two descriptors. Dropping it closes that end.
#[derive(Debug)]
pub struct RingHandle {
    side: Side,
    memory: OwnedFd,
    bell: OwnedFd,
}

impl RingHandle {
    pub(super) fn new(side: Side, memory: OwnedFd, bell: OwnedFd) -> RingHandle {
        RingHandle { side, memory, bell }
    }

    /// Has the child that `command` starts inherit this end, and no other process: the descriptors are close-on-exec
    /// everywhere but in that child. Returns the text that [`RingHandle::from_inherited`] needs there; hand it over as
    /// an argument or in the environment.
    ///
    /// `command` owns the descriptors now: **drop it once the child runs**, or its death goes unnoticed.
    pub fn inherit(self, command: &mut Command) -> String {
        let side = match self.side {
            Side::Producer => 'p',
            Side::Consumer => 'c',
        };
        let text = format!("{side}:{}:{}", self.memory.as_raw_fd(), self.bell.as_raw_fd());
        let keep = move || {
            for descriptor in [&self.memory, &self.bell] {
                rustix::io::fcntl_setfd(descriptor, FdFlags::empty())?;
            }
            Ok(())
        };
        // SAFETY: runs in the child between fork and exec, where only what is safe in a signal handler may be called:
        // two system calls on descriptors that the closure owns, no allocation, no lock.
        unsafe { command.pre_exec(keep) };
        text
    }

    /// In the child: the end that the parent gave to [`RingHandle::inherit`].
    ///
    /// # Errors
    /// A text that does not say so, or descriptors that this process did not inherit, or took already.
    pub fn from_inherited(text: &str) -> io::Result<RingHandle> {
        let malformed = || io::Error::new(io::ErrorKind::InvalidInput, format!("{text:?} names no end of a ring"));
        let mut fields = text.split(':');
        let side = match fields.next() {
            Some("p") => Side::Producer,
            Some("c") => Side::Consumer,
            _ => return Err(malformed()),
        };
        let mut number = || fields.next().and_then(|field| field.parse().ok()).filter(|number: &RawFd| *number > 2);
        let (Some(memory), Some(bell), None) = (number(), number(), fields.next()) else { return Err(malformed()) };
        if memory == bell {
            return Err(malformed());
        }
        Ok(RingHandle { side, memory: inherited(memory)?, bell: inherited(bell)? })
    }

    /// Opens the writing end.
    ///
    /// # Errors
    /// The other end, or memory that is no ring.
    pub fn into_producer(self) -> io::Result<Producer> {
        let (memory, map, bell) = self.open(Side::Producer)?;
        Producer::new(memory, map, bell)
    }

    /// Opens the reading end.
    ///
    /// # Errors
    /// The other end, or memory that is no ring.
    pub fn into_consumer(self) -> io::Result<Consumer> {
        let (memory, map, bell) = self.open(Side::Consumer)?;
        Consumer::new(memory, map, bell)
    }

    fn open(self, side: Side) -> io::Result<(OwnedFd, Map, Bell)> {
        if self.side != side {
            let why = format!("this is the {:?} of the ring, not its {side:?}", self.side);
            return Err(io::Error::new(io::ErrorKind::InvalidInput, why));
        }
        let map = Map::open(&self.memory)?;
        Ok((self.memory, map, Bell::new(self.bell)))
    }
}

/// Takes a descriptor over that this process was born with: one end of a ring, or a socket of a service manager.
///
/// # Errors
/// A number that this process did not inherit, or took already.
pub fn inherited(number: RawFd) -> io::Result<OwnedFd> {
    // SAFETY: only used for this call, which fails if there is no such descriptor.
    let flags = rustix::io::fcntl_getfd(unsafe { BorrowedFd::borrow_raw(number) })?;
    // Whatever a Rust process opens itself is close-on-exec; what it inherited cannot be.
    if flags.contains(FdFlags::CLOEXEC) {
        return Err(io::Error::new(io::ErrorKind::InvalidInput, format!("descriptor {number} was not inherited")));
    }
    // SAFETY: it was inherited, for this purpose, and is taken once: from the next line on it is close-on-exec.
    let descriptor = unsafe { OwnedFd::from_raw_fd(number) };
    rustix::io::fcntl_setfd(&descriptor, FdFlags::CLOEXEC)?;
    Ok(descriptor)
}
