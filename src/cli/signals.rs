//! The signals of `run` besides those that end it: SIGUSR2 asks for an upgrade; SIGUSR1, which ends a program that does
//! not know it, ends nothing here. SIGHUP is the business of `reload`.

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

/// Keeps a signal that nothing is done about from ending the process.
pub(super) fn outlive_others() -> io::Result<()> {
    let mut signals = signal(SignalKind::user_defined1())?;
    tokio::spawn(async move {
        while signals.recv().await.is_some() {
            tracing::info!("SIGUSR1 came");
        }
    });
    Ok(())
}
