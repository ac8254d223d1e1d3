//! The cryptography of the DTLS handshake: ECDHE over X25519 or P-256, signed with P-256, AES-128-GCM with SHA-256.

use super::certificate::{Curve, public_key};
use aes::Aes128;
use aes::cipher::{BlockEncrypt, KeyInit};
use dimpl::crypto::{
    Aad, ActiveKeyExchange, Buf, Cipher, CryptoProvider, Dtls12CipherSuite, Dtls13CipherSuite, HashAlgorithm,
    HashContext, HashProvider, HmacProvider, KeyProvider, NamedGroup, Nonce, SecureRandom, SignatureAlgorithm,
    SignatureVerifier, SigningKey, SupportedDtls12CipherSuite, SupportedDtls13CipherSuite, SupportedKxGroup, TmpBuf,
    check_verify_scheme,
};
use dimpl::{CryptoError, CryptoOperation};
use ring::agreement::{self, EphemeralPrivateKey, UnparsedPublicKey as PeerKey, agree_ephemeral};
use ring::rand::{SecureRandom as _, SystemRandom};
use ring::signature::{self, EcdsaKeyPair, UnparsedPublicKey};
use ring::{aead, digest, hmac};

pub(super) fn provider() -> CryptoProvider {
    CryptoProvider {
        kx_groups: &[&Group(NamedGroup::X25519), &Group(NamedGroup::Secp256r1)],
        signature_verification: &Ring,
        key_provider: &Ring,
        secure_random: &Ring,
        hash_provider: &Ring,
        hmac_provider: &Ring,
        cipher_suites: &[&Ring],
        // Never chosen, for calls speak DTLS 1.2; dimpl wants one all the same.
        dtls13_cipher_suites: &[&Ring],
    }
}

#[derive(Debug)]
struct Ring;

const TAG: usize = 16;

impl SupportedDtls12CipherSuite for Ring {
    fn suite(&self) -> Dtls12CipherSuite {
        Dtls12CipherSuite::ECDHE_ECDSA_AES128_GCM_SHA256
    }

    fn hash_algorithm(&self) -> HashAlgorithm {
        HashAlgorithm::SHA256
    }

    fn key_lengths(&self) -> (usize, usize, usize) {
        (0, 16, 4)
    }

    fn explicit_nonce_len(&self) -> usize {
        8
    }

    fn tag_len(&self) -> usize {
        TAG
    }

    fn create_cipher(&self, key: &[u8]) -> Result<Box<dyn Cipher>, CryptoError> {
        let failed = |_| CryptoError::OperationFailed(CryptoOperation::CreateCipher);
        let key = aead::UnboundKey::new(&aead::AES_128_GCM, key).map_err(failed)?;
        Ok(Box::new(Gcm(aead::LessSafeKey::new(key))))
    }
}

impl SupportedDtls13CipherSuite for Ring {
    fn suite(&self) -> Dtls13CipherSuite {
        Dtls13CipherSuite::AES_128_GCM_SHA256
    }

    fn hash_algorithm(&self) -> HashAlgorithm {
        HashAlgorithm::SHA256
    }

    fn key_len(&self) -> usize {
        16
    }

    fn iv_len(&self) -> usize {
        12
    }

    fn tag_len(&self) -> usize {
        TAG
    }

    fn create_cipher(&self, key: &[u8]) -> Result<Box<dyn Cipher>, CryptoError> {
        SupportedDtls12CipherSuite::create_cipher(self, key)
    }

    fn encrypt_sn(&self, key: &[u8], sample: &[u8; 16]) -> [u8; 16] {
        let mut block = aes::Block::from(*sample);
        Aes128::new(key.into()).encrypt_block(&mut block);
        block.into()
    }
}

struct Gcm(aead::LessSafeKey);

impl std::fmt::Debug for Gcm {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Gcm")
    }
}

impl Cipher for Gcm {
    fn encrypt(&mut self, text: &mut Buf, aad: Aad, nonce: Nonce) -> Result<(), CryptoError> {
        let nonce = aead::Nonce::try_assume_unique_for_key(&nonce).map_err(|_| CryptoError::InvalidNonce)?;
        let sealed = self.0.seal_in_place_append_tag(nonce, aead::Aad::from(&aad[..]), text);
        sealed.map_err(|_| CryptoError::OperationFailed(CryptoOperation::Encrypt))
    }

    fn decrypt(&mut self, text: &mut TmpBuf, aad: Aad, nonce: Nonce) -> Result<(), CryptoError> {
        let nonce = aead::Nonce::try_assume_unique_for_key(&nonce).map_err(|_| CryptoError::InvalidNonce)?;
        let opened = self.0.open_in_place(nonce, aead::Aad::from(&aad[..]), text.as_mut());
        let length = opened.map_err(|_| CryptoError::OperationFailed(CryptoOperation::Decrypt))?.len();
        text.truncate(length);
        Ok(())
    }
}

#[derive(Debug)]
struct Group(NamedGroup);

impl SupportedKxGroup for Group {
    fn name(&self) -> NamedGroup {
        self.0
    }

    fn start_exchange(&self, mut public: Buf) -> Result<Box<dyn ActiveKeyExchange>, CryptoError> {
        let algorithm = match self.0 {
            NamedGroup::X25519 => &agreement::X25519,
            _ => &agreement::ECDH_P256,
        };
        let private = EphemeralPrivateKey::generate(algorithm, &SystemRandom::new())
            .map_err(|_| CryptoError::OperationFailed(CryptoOperation::GenerateEphemeralKey))?;
        let key = private
            .compute_public_key()
            .map_err(|_| CryptoError::OperationFailed(CryptoOperation::ComputePublicKey))?;
        public.clear();
        public.extend_from_slice(key.as_ref());
        Ok(Box::new(Exchange { group: self.0, algorithm, private, public }))
    }
}

#[derive(Debug)]
struct Exchange {
    group: NamedGroup,
    algorithm: &'static agreement::Algorithm,
    private: EphemeralPrivateKey,
    public: Buf,
}

impl ActiveKeyExchange for Exchange {
    fn pub_key(&self) -> &[u8] {
        &self.public
    }

    fn complete(self: Box<Self>, peer: &[u8], out: &mut Buf) -> Result<(), CryptoError> {
        let group = self.group;
        let agreed = agree_ephemeral(self.private, &PeerKey::new(self.algorithm, peer), |secret| {
            out.clear();
            out.extend_from_slice(secret);
        });
        agreed.map_err(|_| CryptoError::InvalidPublicKey(group))
    }

    fn group(&self) -> NamedGroup {
        self.group
    }
}

impl SignatureVerifier for Ring {
    fn verify_signature(
        &self,
        certificate: &[u8],
        data: &[u8],
        signature: &[u8],
        hash: HashAlgorithm,
        algorithm: SignatureAlgorithm,
    ) -> Result<(), CryptoError> {
        let (curve, key) = public_key(certificate).ok_or(CryptoError::CertificateParseFailed)?;
        let group = match curve {
            Curve::P256 => NamedGroup::Secp256r1,
            Curve::P384 => NamedGroup::Secp384r1,
        };
        check_verify_scheme(algorithm, hash, group)?;
        let scheme = match (curve, hash) {
            (Curve::P256, HashAlgorithm::SHA256) => &signature::ECDSA_P256_SHA256_ASN1,
            (Curve::P256, _) => &signature::ECDSA_P256_SHA384_ASN1,
            (Curve::P384, HashAlgorithm::SHA256) => &signature::ECDSA_P384_SHA256_ASN1,
            (Curve::P384, _) => &signature::ECDSA_P384_SHA384_ASN1,
        };
        let verified = UnparsedPublicKey::new(scheme, key).verify(data, signature);
        verified.map_err(|_| CryptoError::SignatureVerificationFailed { signature: algorithm, hash, group })
    }
}

impl KeyProvider for Ring {
    fn load_private_key(&self, key: &[u8]) -> Result<Box<dyn SigningKey>, CryptoError> {
        let key = EcdsaKeyPair::from_pkcs8(&signature::ECDSA_P256_SHA256_ASN1_SIGNING, key, &SystemRandom::new());
        Ok(Box::new(Key(key.map_err(|_| CryptoError::InvalidPrivateKey)?)))
    }
}

#[derive(Debug)]
struct Key(EcdsaKeyPair);

impl SigningKey for Key {
    fn sign(&mut self, data: &[u8], hash: HashAlgorithm, out: &mut Buf) -> Result<(), CryptoError> {
        if hash != HashAlgorithm::SHA256 {
            return Err(CryptoError::SigningKeyHashMismatch { key_hash: HashAlgorithm::SHA256, requested: hash });
        }
        let signature = self.0.sign(&SystemRandom::new(), data);
        let signature = signature.map_err(|_| CryptoError::OperationFailed(CryptoOperation::Sign))?;
        out.clear();
        out.extend_from_slice(signature.as_ref());
        Ok(())
    }

    fn algorithm(&self) -> SignatureAlgorithm {
        SignatureAlgorithm::ECDSA
    }

    fn hash_algorithm(&self) -> HashAlgorithm {
        HashAlgorithm::SHA256
    }

    fn supported_hash_algorithms(&self) -> &[HashAlgorithm] {
        &[HashAlgorithm::SHA256]
    }
}

impl SecureRandom for Ring {
    fn fill(&self, bytes: &mut [u8]) -> Result<(), CryptoError> {
        let filled = SystemRandom::new().fill(bytes);
        filled.map_err(|_| CryptoError::OperationFailed(CryptoOperation::FillRandom))
    }
}

impl HashProvider for Ring {
    fn create_hash(&self, algorithm: HashAlgorithm) -> Box<dyn HashContext> {
        Box::new(Hash(digest::Context::new(match algorithm {
            HashAlgorithm::SHA384 => &digest::SHA384,
            _ => &digest::SHA256,
        })))
    }
}

struct Hash(digest::Context);

impl std::fmt::Debug for Hash {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Hash")
    }
}

impl HashContext for Hash {
    fn update(&mut self, data: &[u8]) {
        self.0.update(data);
    }

    fn clone_and_finalize(&self, out: &mut Buf) {
        out.clear();
        out.extend_from_slice(self.0.clone().finish().as_ref());
    }
}

impl HmacProvider for Ring {
    fn hmac(&self, hash: HashAlgorithm, key: &[u8], data: &[u8], out: &mut [u8]) -> Result<usize, CryptoError> {
        let algorithm = match hash {
            HashAlgorithm::SHA384 => hmac::HMAC_SHA384,
            _ => hmac::HMAC_SHA256,
        };
        let tag = hmac::sign(&hmac::Key::new(algorithm, key), data);
        let tag = tag.as_ref();
        let room = out.get_mut(..tag.len()).ok_or(CryptoError::OperationFailed(CryptoOperation::ComputeHmac))?;
        room.copy_from_slice(tag);
        Ok(tag.len())
    }
}
