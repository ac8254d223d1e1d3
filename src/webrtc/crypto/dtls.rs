//! DTLS: `dimpl` with our cryptography, as str0m wants it.

use super::certificate;
use super::handshake;
use crate::bounds::Association;
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
        let dtls = dimpl::Dtls::new_12(config()?, cert.clone(), now);
        Ok(Box::new(Instance { dtls, association: Association::default() }))
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

struct Instance {
    dtls: dimpl::Dtls,
    association: Association,
}

impl std::fmt::Debug for Instance {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Instance")
    }
}

impl DtlsInstance for Instance {
    fn set_active(&mut self, active: bool) {
        self.dtls.set_active(active);
    }

    fn handle_packet(&mut self, packet: &[u8]) -> Result<(), DtlsImplError> {
        self.dtls.handle_packet(packet)
    }

    fn poll_output<'a>(&mut self, buf: &'a mut [u8]) -> DtlsOutput<'a> {
        match self.dtls.poll_output(buf) {
            // As if it had been lost on its way.
            DtlsOutput::ApplicationData(packet) if !self.association.admits(packet) => DtlsOutput::ApplicationData(&[]),
            output => output,
        }
    }

    fn handle_timeout(&mut self, now: Instant) -> Result<(), DtlsImplError> {
        self.dtls.handle_timeout(now)
    }

    fn send_application_data(&mut self, data: &[u8]) -> Result<usize, DtlsImplError> {
        self.dtls.send_application_data(data)
    }

    fn is_active(&self) -> bool {
        self.dtls.is_active()
    }

    fn protocol_version(&self) -> Option<ProtocolVersion> {
        self.dtls.protocol_version()
    }

    fn is_closing(&self) -> bool {
        self.dtls.is_closing()
    }

    fn is_closed(&self) -> bool {
        self.dtls.is_closed()
    }

    fn close(&mut self) -> Result<(), DtlsImplError> {
        self.dtls.close()
    }
}
