//! Takes another config while the server runs. Running answers go on as they began.

use super::aliases::AliasError;
use super::rules::Current;
use super::tls::{self, Tls, TlsError};
use omni_config::Config;
use std::net::SocketAddr;
use std::sync::Arc;

/// Keys of the config, or their beginnings, that [`Reloader::apply`] takes over; others need a restart.
pub const RELOADED: [&str; 14] = [
    "aliases.",
    "keys[",
    "limits.first_audio_deadline",
    "limits.max_audio",
    "limits.max_input_chars",
    "limits.max_instruction_chars",
    "limits.max_messages",
    "limits.max_whole_audio",
    "server.hosts",
    "server.open_lists",
    "server.origins",
    "server.tls.certificate",
    "server.tls.key",
    "telemetry.access_log",
];

/// A config that a running server does not take over.
#[derive(Debug, thiserror::Error)]
pub enum ReloadError {
    /// The certificate cannot be used.
    #[error(transparent)]
    Tls(#[from] TlsError),
    /// An alias leads nowhere.
    #[error(transparent)]
    Alias(#[from] AliasError),
    /// Without a restart the server would be open at the address at which it listens now.
    #[error("the server still listens at {0}, which {1}")]
    TooOpen(SocketAddr, &'static str),
}

/// The parts of a server that may change while it runs.
#[derive(Clone, Debug)]
pub struct Reloader {
    pub(super) rules: Arc<Current>,
    pub(super) tls: Option<Arc<Tls>>,
    /// Where it listens, whatever a new config says.
    pub(super) listens: Vec<SocketAddr>,
    /// Where it speaks the Wyoming protocol.
    pub(super) wyoming: Option<SocketAddr>,
}

impl Reloader {
    /// Takes over what can be: keys, their limits, names, origins, aliases, the certificate, whether requests
    /// are logged, and limits that are looked at when a request comes.
    ///
    /// # Errors
    /// A certificate that cannot be used, an alias that leads nowhere, or no keys where other machines reach the server; then nothing has changed.
    pub fn apply(&self, config: &Config) -> Result<(), ReloadError> {
        for address in &self.listens {
            if let Some(why) = config.server.too_open_at(*address) {
                return Err(ReloadError::TooOpen(*address, why));
            }
        }
        if let Some(address) = self.wyoming
            && let Some(why) = config.wyoming.too_open_at(address, &config.server)
        {
            return Err(ReloadError::TooOpen(address, why));
        }
        self.rules.check(&config.server)?;
        if self.tls.is_some() != config.server.access.tls.is_some() {
            tracing::warn!("TLS is turned on and off by a restart only");
        }
        if let (Some(tls), Some(files)) = (&self.tls, &config.server.access.tls) {
            tls.set(tls::load(files)?);
        }
        self.rules.set(&config.server, &config.telemetry);
        self.rules.set_limits(&config.limits);
        Ok(())
    }
}
