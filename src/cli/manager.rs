//! What the service manager is told: that the server is ready, lives, stops, or is another process now. The protocol is
//! that of systemd: datagrams to the socket that `$NOTIFY_SOCKET` names. Telling it never waits and never fails.

use std::os::linux::net::SocketAddrExt;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::net::{SocketAddr, UnixDatagram};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

/// How often the manager hears of a server that loads its model, and is asked for more time.
const LOADING: Duration = Duration::from_secs(10);
/// How much more.
const MORE_TIME: Duration = Duration::from_secs(60);
/// What the end takes besides the grace time of streams: stages that do not stop are left behind within this.
const END: Duration = Duration::from_secs(30);

/// The manager that started this process, if one did.
pub(super) struct Manager {
    socket: Option<(UnixDatagram, SocketAddr)>,
    /// It takes the server for hung after this long without a word.
    watchdog: Option<Duration>,
    ready: AtomicBool,
}

impl Manager {
    /// As the environment names it.
    pub fn from_environment() -> Manager {
        let address = std::env::var_os("NOTIFY_SOCKET").and_then(|name| match name.as_bytes() {
            [b'@', name @ ..] => SocketAddr::from_abstract_name(name).ok(),
            [b'/', ..] => SocketAddr::from_pathname(&name).ok(),
            _ => None,
        });
        let socket = address.and_then(|address| {
            let socket = UnixDatagram::unbound().ok()?;
            socket.set_nonblocking(true).ok()?;
            Some((socket, address))
        });
        let number = |name: &str| std::env::var(name).ok()?.parse::<u64>().ok();
        let ours = number("WATCHDOG_PID").is_none_or(|pid| pid == u64::from(std::process::id()));
        let watchdog = number("WATCHDOG_USEC").filter(|micros| *micros > 0 && ours).map(Duration::from_micros);
        Manager { socket, watchdog, ready: AtomicBool::new(false) }
    }

    /// Requests are taken from now on.
    pub fn ready(&self) {
        self.ready.store(true, Ordering::Relaxed);
        // The process may be another one than the manager started.
        self.tell(&format!("READY=1\nMAINPID={}\nSTATUS=serving", std::process::id()));
    }

    /// Streams that are under way have `grace` to finish.
    pub fn stopping(&self, grace: Duration) {
        let more = (grace + END).as_micros();
        self.tell(&format!("STOPPING=1\nSTATUS=finishing streams\nEXTEND_TIMEOUT_USEC={more}"));
    }

    /// Another process is the server from now on; this one only finishes its streams.
    pub fn replaced_by(&self, pid: u32) {
        self.tell(&format!("MAINPID={pid}"));
    }

    /// Tells again and again that the server lives, as long as `alive` says so.
    pub async fn keep(&self, alive: impl Fn() -> bool) -> std::convert::Infallible {
        // Twice in the time, as systemd advises, and once more.
        let every = self.watchdog.map_or(LOADING, |watchdog| (watchdog / 3).min(LOADING));
        let mut ticks = tokio::time::interval(every);
        loop {
            ticks.tick().await;
            if !self.ready.load(Ordering::Relaxed) {
                self.tell(&format!("STATUS=loading the model\nEXTEND_TIMEOUT_USEC={}", MORE_TIME.as_micros()));
            }
            if alive() {
                if self.watchdog.is_some() {
                    self.tell("WATCHDOG=1");
                }
            } else {
                tracing::error!("the supervisors do not turn, and the service manager is not told otherwise");
            }
        }
    }

    fn tell(&self, words: &str) {
        // A manager that does not read, or is gone, changes nothing for streams.
        if let Some((socket, address)) = &self.socket
            && let Err(error) = socket.send_to_addr(words.as_bytes(), address)
        {
            tracing::debug!(%error, "the service manager was not told");
        }
    }
}
