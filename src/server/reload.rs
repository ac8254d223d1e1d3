//! Takes another config while the server runs. Running answers go on as they began.

use super::rules::Current;
use super::tls::{self, Tls, TlsError};
use omni_config::Config;
use std::sync::Arc;

/// Keys of the config, or their beginnings, that [`Reloader::apply`] takes over; others need a restart.
pub const RELOADED: [&str; 6] =
    ["keys[", "server.hosts", "server.origins", "server.tls.certificate", "server.tls.key", "telemetry.access_log"];

/// The parts of a server that may change while it runs.
#[derive(Clone, Debug)]
pub struct Reloader {
    pub(super) rules: Arc<Current>,
    pub(super) tls: Option<Arc<Tls>>,
}

impl Reloader {
    /// Takes over what can be: keys, their limits, names, origins, the certificate, whether requests are logged.
    ///
    /// # Errors
    /// A certificate that cannot be used; then nothing has changed.
    pub fn apply(&self, config: &Config) -> Result<(), TlsError> {
        if let (Some(tls), Some(files)) = (&self.tls, &config.server.access.tls) {
            tls.set(tls::load(files)?);
        }
        self.rules.set(&config.server, &config.telemetry);
        Ok(())
    }
}
