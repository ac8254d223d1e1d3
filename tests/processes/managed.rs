//! A server with a service manager of the test's own: a socket that hears what systemd would.

use crate::signals::until;
use crate::support::omni::{Omni, Serving};
use crate::support::process::{Watched, marked};
use crate::support::wait::{self, PATIENCE};
use rustix::process::{Pid, Signal, kill_process};
use std::os::unix::net::UnixDatagram;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

/// What every server here is started with.
pub const ARGS: [&str; 9] = [
    "run",
    "--listen",
    "127.0.0.1:0",
    "--set",
    "model.checkpoint=tests/fixtures/qwen3_omni",
    "--set",
    "limits.admission=places",
    "--set",
    "server.drain_grace=60s",
];

/// The server, its successors, and what they say. All of them end with it.
pub struct Managed {
    pub serving: Serving,
    /// The process that the manager takes for the server.
    pub main: u32,
    socket: UnixDatagram,
    mark: String,
    _folder: tempfile::TempDir,
}

impl Managed {
    /// Starts `ARGS`, which `change` may add to, and waits until it says that it is ready.
    pub fn start(change: impl FnOnce(Omni) -> Omni) -> Managed {
        static NUMBER: AtomicU32 = AtomicU32::new(0);
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("notify");
        let socket = UnixDatagram::bind(&path).unwrap();
        socket.set_read_timeout(Some(PATIENCE)).unwrap();
        let value = format!("{}-{}", std::process::id(), NUMBER.fetch_add(1, Ordering::Relaxed));
        let omni = change(Omni::new().arguments(&ARGS));
        let omni = omni.variable("OMNI_UPGRADE_MARK", &value).variable("NOTIFY_SOCKET", path.to_str().unwrap());
        let serving = omni.serve();
        let main = serving.pid();
        let mut managed =
            Managed { serving, main, socket, mark: format!("OMNI_UPGRADE_MARK={value}"), _folder: folder };
        managed.hears("READY=1");
        managed
    }

    /// The next message that has this line. Every message names the process that is the server from then on.
    pub fn hears(&mut self, wanted: &str) -> String {
        let mut bytes = [0; 4096];
        loop {
            let count = self.socket.recv(&mut bytes).unwrap_or_else(|error| panic!("no {wanted}: {error}"));
            let message = String::from_utf8(bytes[..count].to_vec()).unwrap();
            if let Some(pid) = message.lines().find_map(|line| line.strip_prefix("MAINPID=")) {
                self.main = pid.parse().unwrap();
            }
            if message.lines().any(|line| line.starts_with(wanted)) {
                return message;
            }
        }
    }

    pub fn signal(&self, signal: Signal) {
        kill_process(Pid::from_raw(self.main as i32).unwrap(), signal).unwrap();
    }

    /// All processes of the server that run.
    pub fn processes(&self) -> Vec<u32> {
        marked(&self.mark)
    }

    /// Waits until so many processes run.
    pub fn until_processes(&self, count: usize) -> Vec<u32> {
        wait::answer(|| match self.processes() {
            running if running.len() == count => Ok(running),
            running => Err(format!("{running:?} run, not {count}")),
        })
    }

    pub fn until_ready(&self) {
        until(&self.serving, |health| health["ready"] == true);
    }
}

impl Drop for Managed {
    fn drop(&mut self) {
        for pid in self.processes() {
            // One that has ended meanwhile needs no signal.
            let _ = kill_process(Pid::from_raw(pid as i32).unwrap(), Signal::KILL);
        }
    }
}

#[test]
fn a_manager_hears_that_the_server_is_ready_lives_and_stops() {
    let mut managed = Managed::start(|omni| omni.variable("WATCHDOG_USEC", "200000"));
    assert_eq!(managed.main, managed.serving.pid());
    managed.until_ready();
    for _ in 0..3 {
        managed.hears("WATCHDOG=1");
    }
    managed.signal(Signal::TERM);
    let last = managed.hears("STOPPING=1");
    assert!(last.contains("EXTEND_TIMEOUT_USEC=90000000"), "{last}");
    assert_eq!(managed.serving.wait(), Some(0));
}

#[test]
fn signals_that_mean_nothing_end_nothing() {
    let mut managed = Managed::start(|omni| omni.more(&["--set", "stages.talker.placement=process"]));
    for pid in managed.processes() {
        for signal in [Signal::HUP, Signal::USR1] {
            kill_process(Pid::from_raw(pid as i32).unwrap(), signal).unwrap();
        }
    }
    managed.until_ready();
    assert_eq!(managed.processes().len(), 2);
    let stage = managed.processes().into_iter().find(|pid| *pid != managed.main).unwrap();
    let stage = Watched::new(stage);
    managed.signal(Signal::TERM);
    assert_eq!(managed.serving.wait(), Some(0));
    stage.ends_within(Duration::from_secs(2));
}
