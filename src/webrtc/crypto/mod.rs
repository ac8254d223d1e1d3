//! The cryptography of a call: what DTLS, SRTP and STUN ask for, by `ring`, which rustls brings anyway. One cipher suite
//! and two key exchanges, which RFC 8827 has every browser support, and the three protection profiles of SRTP.

mod certificate;
mod dtls;
mod handshake;
mod srtp;

use ring::{digest, hmac};
use std::sync::{Arc, OnceLock};
use str0m::crypto::{CryptoProvider, Sha1HmacProvider, Sha1Provider, Sha256Provider};

/// All of it, for [`RtcConfig`](str0m::RtcConfig).
pub fn provider() -> Arc<CryptoProvider> {
    static PROVIDER: OnceLock<Arc<CryptoProvider>> = OnceLock::new();
    let provider = || CryptoProvider {
        srtp_provider: &srtp::Srtp,
        sha1_hmac_provider: &Hashes,
        sha1_provider: &Hashes,
        sha256_provider: &Hashes,
        dtls_provider: &dtls::Dtls,
    };
    Arc::clone(PROVIDER.get_or_init(|| Arc::new(provider())))
}

#[derive(Debug)]
struct Hashes;

impl Sha1HmacProvider for Hashes {
    fn sha1_hmac(&self, key: &[u8], payloads: &[&[u8]]) -> [u8; 20] {
        let mut context = hmac::Context::with_key(&hmac::Key::new(hmac::HMAC_SHA1_FOR_LEGACY_USE_ONLY, key));
        payloads.iter().for_each(|payload| context.update(payload));
        array(context.sign().as_ref())
    }
}

impl Sha1Provider for Hashes {
    fn sha1(&self, data: &[u8]) -> [u8; 20] {
        array(digest::digest(&digest::SHA1_FOR_LEGACY_USE_ONLY, data).as_ref())
    }
}

impl Sha256Provider for Hashes {
    fn sha256(&self, data: &[u8]) -> [u8; 32] {
        array(digest::digest(&digest::SHA256, data).as_ref())
    }
}

/// Bytes whose number the algorithm says.
fn array<const N: usize>(bytes: &[u8]) -> [u8; N] {
    let mut array = [0; N];
    array.copy_from_slice(bytes);
    array
}
