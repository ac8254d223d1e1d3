//! For tests: the cryptography of a client that shows who it is and then sends what no client should. Its packets of
//! SCTP are changed before they are encrypted, and have the right checksum all the same.

use std::cell::RefCell;
use std::sync::Arc;
use std::time::Instant;
use str0m::crypto::dtls::{
    DtlsCert, DtlsImplError, DtlsInstance, DtlsOutput, DtlsProvider, DtlsVersion, ProtocolVersion,
};
use str0m::crypto::{CryptoError, CryptoProvider};

type Change = Box<dyn FnMut(&[u8]) -> Vec<u8>>;

thread_local! {
    static CHANGE: RefCell<Option<Change>> = const { RefCell::new(None) };
    static PLAIN: RefCell<Option<Arc<CryptoProvider>>> = const { RefCell::new(None) };
}

/// From now on this is done to what clients of this thread send.
pub fn change(with: impl FnMut(&[u8]) -> Vec<u8> + 'static) {
    CHANGE.with_borrow_mut(|change| *change = Some(Box::new(with)));
}

/// They are clients like others.
pub fn behave() {
    CHANGE.with_borrow_mut(|change| *change = None);
}

/// What such a client computes with, on this thread.
pub fn hostile(plain: Arc<CryptoProvider>) -> Arc<CryptoProvider> {
    let hostile = CryptoProvider {
        srtp_provider: plain.srtp_provider,
        sha1_hmac_provider: plain.sha1_hmac_provider,
        sha1_provider: plain.sha1_provider,
        sha256_provider: plain.sha256_provider,
        dtls_provider: &Hostile,
    };
    PLAIN.with_borrow_mut(|kept| *kept = Some(plain));
    Arc::new(hostile)
}

fn plain() -> &'static dyn DtlsProvider {
    PLAIN.with_borrow(|plain| plain.as_ref().unwrap().dtls_provider)
}

#[derive(Debug)]
struct Hostile;

impl DtlsProvider for Hostile {
    fn generate_certificate(&self) -> Option<DtlsCert> {
        plain().generate_certificate()
    }

    fn new_dtls(
        &self,
        cert: &DtlsCert,
        now: Instant,
        version: DtlsVersion,
        mtu: Option<usize>,
    ) -> Result<Box<dyn DtlsInstance>, CryptoError> {
        Ok(Box::new(Client(plain().new_dtls(cert, now, version, mtu)?)))
    }
}

#[derive(Debug)]
struct Client(Box<dyn DtlsInstance>);

impl DtlsInstance for Client {
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
        let changed = CHANGE.with_borrow_mut(|change| change.as_mut().map(|change| checked(change(data))));
        let Some(changed) = changed else { return self.0.send_application_data(data) };
        self.0.send_application_data(&changed)?;
        Ok(data.len())
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

/// With the checksum of SCTP, CRC-32C (RFC 9260, appendix A).
fn checked(mut packet: Vec<u8>) -> Vec<u8> {
    // What is longer is not sent by DTLS.
    packet.truncate(1100);
    if let Some(place) = packet.get_mut(8..12) {
        place.fill(0);
        let sum = !packet.iter().fold(!0u32, |sum, byte| {
            (0..8).fold(sum ^ u32::from(*byte), |sum, _| (sum >> 1) ^ (0x82f6_3b78 * (sum & 1)))
        });
        packet[8..12].copy_from_slice(&sum.to_le_bytes());
    }
    packet
}
