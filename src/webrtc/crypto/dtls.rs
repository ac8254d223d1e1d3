//! DTLS: `dimpl` with our cryptography, as str0m wants it.

use super::certificate;
use super::handshake;
use dimpl::Config;
use std::sync::{Arc, OnceLock};
use std::time::Instant;
use str0m::crypto::CryptoError;
use str0m::crypto::dtls::{
    DtlsCert, DtlsImplError, DtlsInstance, DtlsOutput, DtlsProvider, DtlsVersion, ProtocolVersion,
};

#[derive(Debug)]
pub(super) struct Dtls;

impl DtlsProvider for Dtls {
    fn generate_certificate(&self) -> Option<DtlsCert> {
        certificate::generate()
    }

    fn new_dtls(
        &self,
        cert: &DtlsCert,
        now: Instant,
        _: DtlsVersion,
        _: Option<usize>,
    ) -> Result<Box<dyn DtlsInstance>, CryptoError> {
        Ok(Box::new(Instance(dimpl::Dtls::new_12(config()?, cert.clone(), now))))
    }
}

/// The same for all calls: it tests the cryptography where it is built.
fn config() -> Result<Arc<Config>, CryptoError> {
    static CONFIG: OnceLock<Result<Arc<Config>, String>> = OnceLock::new();
    let build = || {
        let config = Config::builder().with_crypto_provider(handshake::provider()).build();
        config.map(Arc::new).map_err(|error| error.to_string())
    };
    CONFIG.get_or_init(build).clone().map_err(CryptoError::Other)
}

struct Instance(dimpl::Dtls);

impl std::fmt::Debug for Instance {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Instance")
    }
}

impl DtlsInstance for Instance {
    fn set_active(&mut self, active: bool) {
        self.0.set_active(active);
    }

    fn handle_packet(&mut self, packet: &[u8]) -> Result<(), DtlsImplError> {
        self.0.handle_packet(packet)
    }

    fn poll_output<'a>(&mut self, buf: &'a mut [u8]) -> DtlsOutput<'a> {
        self.0.poll_output(buf)
    }

    fn handle_timeout(&mut self, now: Instant) -> Result<(), DtlsImplError> {
        self.0.handle_timeout(now)
    }

    fn send_application_data(&mut self, data: &[u8]) -> Result<usize, DtlsImplError> {
        self.0.send_application_data(data)
    }

    fn is_active(&self) -> bool {
        self.0.is_active()
    }

    fn protocol_version(&self) -> Option<ProtocolVersion> {
        self.0.protocol_version()
    }

    fn is_closing(&self) -> bool {
        self.0.is_closing()
    }

    fn is_closed(&self) -> bool {
        self.0.is_closed()
    }

    fn close(&mut self) -> Result<(), DtlsImplError> {
        self.0.close()
    }
}
