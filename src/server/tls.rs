//! TLS: reads a certificate and its key from files, and shakes hands. A reload replaces both for connections that are
//! still to come.

use omni_config::TlsConfig;
use std::path::Path;
use std::sync::{Arc, PoisonError, RwLock};
use tokio_rustls::TlsAcceptor;
use tokio_rustls::rustls::crypto::ring;
use tokio_rustls::rustls::pki_types::pem::PemObject;
use tokio_rustls::rustls::pki_types::{CertificateDer, PrivateKeyDer};
use tokio_rustls::rustls::{self, ServerConfig};

/// A certificate that cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum TlsError {
    /// A file that cannot be read, or is not PEM.
    #[error("server.tls: cannot read {file}: {reason}")]
    File {
        /// Which.
        file: String,
        /// What is wrong.
        reason: String,
    },
    /// A key that is not the certificate's, or of a kind that is not known.
    #[error("server.tls: {0}")]
    Unsuited(#[from] rustls::Error),
}

/// What connections are accepted with.
pub(super) struct Tls(RwLock<TlsAcceptor>);

impl Tls {
    pub fn new(config: &TlsConfig) -> Result<Tls, TlsError> {
        Ok(Tls(RwLock::new(load(config)?)))
    }

    /// For the next connection.
    pub fn acceptor(&self) -> TlsAcceptor {
        self.0.read().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Replaces the certificate.
    pub fn set(&self, acceptor: TlsAcceptor) {
        *self.0.write().unwrap_or_else(PoisonError::into_inner) = acceptor;
    }
}

impl std::fmt::Debug for Tls {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Tls")
    }
}

/// Reads the files.
///
/// # Errors
/// What is wrong with them.
pub(super) fn load(config: &TlsConfig) -> Result<TlsAcceptor, TlsError> {
    let wrong = |file: &Path, reason: String| TlsError::File { file: file.display().to_string(), reason };
    let chain = CertificateDer::pem_file_iter(&config.certificate).and_then(Iterator::collect);
    let chain: Vec<_> = chain.map_err(|error| wrong(&config.certificate, error.to_string()))?;
    if chain.is_empty() {
        return Err(wrong(&config.certificate, "there is no certificate in it".to_owned()));
    }
    let key = PrivateKeyDer::from_pem_file(&config.key).map_err(|error| wrong(&config.key, error.to_string()))?;
    // The provider that is linked already, for fetching recordings.
    let builder = ServerConfig::builder_with_provider(Arc::new(ring::default_provider()));
    let builder = builder.with_safe_default_protocol_versions()?.with_no_client_auth();
    let mut config = builder.with_single_cert(chain, key)?;
    config.alpn_protocols = vec![b"http/1.1".to_vec()];
    Ok(TlsAcceptor::from(Arc::new(config)))
}

/// Whether the certificate of a config can be used.
///
/// # Errors
/// What is wrong with its files.
pub fn check_tls(config: &omni_config::ServerConfig) -> Result<(), TlsError> {
    config.access.tls.as_ref().map_or(Ok(()), |tls| load(tls).map(drop))
}
