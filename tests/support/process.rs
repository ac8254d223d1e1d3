//! Processes, watched from outside.
#![allow(dead_code, reason = "each test binary uses its own part")]

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::process::{Pid, PidfdFlags, Signal, pidfd_open, pidfd_send_signal};
use std::os::fd::OwnedFd;
use std::time::Duration;

/// A process that cannot be mistaken for another one of the same number.
pub struct Watched(OwnedFd);

impl Watched {
    pub fn new(pid: u32) -> Watched {
        Watched(pidfd_open(Pid::from_raw(pid as i32).unwrap(), PidfdFlags::empty()).unwrap())
    }

    pub fn kill(&self) {
        pidfd_send_signal(&self.0, Signal::KILL).unwrap();
    }

    /// Fails if it still runs after so long.
    pub fn ends_within(&self, patience: Duration) {
        let limit = Timespec { tv_sec: patience.as_secs() as i64, tv_nsec: 0 };
        let ended = poll(&mut [PollFd::new(&self.0, PollFlags::IN)], Some(&limit)).unwrap();
        assert_eq!(ended, 1, "a stage process still runs after {patience:?}");
    }
}

/// Processes that run and have this in their environment, of their own or from the process that started them.
pub fn marked(variable: &str) -> Vec<u32> {
    let has_it = |pid: &u32| {
        let environment = std::fs::read(format!("/proc/{pid}/environ")).unwrap_or_default();
        environment.split(|byte| *byte == 0).any(|entry| entry == variable.as_bytes())
    };
    let entries = std::fs::read_dir("/proc").unwrap();
    entries.filter_map(|entry| entry.ok()?.file_name().to_str()?.parse().ok()).filter(has_it).collect()
}
