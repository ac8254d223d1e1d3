//! Ctrl-C and SIGTERM: the first asks, the second ends the process at once.

use super::exit::INTERRUPTED;
use std::io;
use tokio::signal::unix::{Signal, SignalKind, signal};

/// Both signals, caught from now on.
pub struct Signals {
    interrupt: Signal,
    terminate: Signal,
}

impl Signals {
    /// Takes the signals over from the system's defaults.
    pub fn catch() -> io::Result<Signals> {
        Ok(Signals { interrupt: signal(SignalKind::interrupt())?, terminate: signal(SignalKind::terminate())? })
    }

    /// Resolves with the next signal.
    pub async fn next(&mut self) {
        tokio::select! {
            _ = self.interrupt.recv() => {}
            _ = self.terminate.recv() => {}
        }
    }

    /// Resolves with the first signal; from then on another one ends the process at once.
    pub async fn first_asks_second_ends(mut self) {
        self.next().await;
        tokio::spawn(async move {
            self.next().await;
            tracing::warn!("stopped at once by a second signal");
            omni_telemetry::flush_logs();
            #[expect(clippy::disallowed_methods, reason = "the second signal asks for exactly this")]
            std::process::exit(i32::from(INTERRUPTED));
        });
    }
}
