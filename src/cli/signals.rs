//! The signals of `run` besides those that end it: SIGUSR2 asks for an upgrade; SIGHUP and SIGUSR1, which end a program
//! that does not know them, end nothing here.

use std::io;
use tokio::signal::unix::{Signal, SignalKind, signal};

/// Requests for an upgrade.
pub(super) struct Upgrades(Signal);

impl Upgrades {
    /// Takes SIGUSR2 over.
    pub fn catch() -> io::Result<Upgrades> {
        Ok(Upgrades(signal(SignalKind::user_defined2())?))
    }

    /// Resolves with the next request. Those that came while the last one was carried out count as one.
    pub async fn next(&mut self) {
        // The stream of a signal does not end.
        while self.0.recv().await.is_none() {}
    }
}

/// Keeps signals that nothing is done about from ending the process.
pub(super) fn outlive_others() -> io::Result<()> {
    for (name, kind) in [("SIGHUP", SignalKind::hangup()), ("SIGUSR1", SignalKind::user_defined1())] {
        let mut signals = signal(kind)?;
        tokio::spawn(async move {
            while signals.recv().await.is_some() {
                tracing::info!("{name} came");
            }
        });
    }
    Ok(())
}
