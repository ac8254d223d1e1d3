//! SRTP: the ciphers of its three profiles, and the rounds of AES from which it derives keys.

use aes::cipher::{BlockEncrypt, KeyInit};
use aes::{Aes128, Aes256};
use ring::aead::{AES_128_GCM, AES_256_GCM, Aad, Algorithm, LessSafeKey, Nonce, UnboundKey};
use str0m::crypto::{
    AeadAes128GcmCipher, AeadAes256GcmCipher, Aes128CmSha1_80Cipher, CryptoError, SrtpProvider, SupportedAeadAes128Gcm,
    SupportedAeadAes256Gcm, SupportedAes128CmSha1_80,
};

/// Bytes of a block of AES, and of the tag of GCM.
const BLOCK: usize = 16;

#[derive(Debug)]
pub(super) struct Srtp;

impl SrtpProvider for Srtp {
    fn aes_128_cm_sha1_80(&self) -> &'static dyn SupportedAes128CmSha1_80 {
        &Srtp
    }

    fn aead_aes_128_gcm(&self) -> &'static dyn SupportedAeadAes128Gcm {
        &Srtp
    }

    fn aead_aes_256_gcm(&self) -> &'static dyn SupportedAeadAes256Gcm {
        &Srtp
    }

    fn srtp_aes_128_ecb_round(&self, key: &[u8], input: &[u8], output: &mut [u8]) {
        output[..BLOCK].copy_from_slice(&round(&Aes128::new(key.into()), input));
    }

    fn srtp_aes_256_ecb_round(&self, key: &[u8], input: &[u8], output: &mut [u8]) {
        output[..BLOCK].copy_from_slice(&round(&Aes256::new(key.into()), input));
    }
}

/// One block. What callers ask for has always that length.
fn round(cipher: &impl BlockEncrypt<BlockSize = aes::cipher::consts::U16>, input: &[u8]) -> [u8; BLOCK] {
    let mut block = aes::Block::clone_from_slice(&input[..BLOCK]);
    cipher.encrypt_block(&mut block);
    block.into()
}

impl SupportedAes128CmSha1_80 for Srtp {
    fn create_cipher(&self, key: [u8; 16], _: bool) -> Box<dyn Aes128CmSha1_80Cipher> {
        Box::new(CounterMode(Aes128::new(&key.into())))
    }
}

impl SupportedAeadAes128Gcm for Srtp {
    fn create_cipher(&self, key: [u8; 16], _: bool) -> Box<dyn AeadAes128GcmCipher> {
        Box::new(Gcm::new(&AES_128_GCM, &key))
    }
}

impl SupportedAeadAes256Gcm for Srtp {
    fn create_cipher(&self, key: [u8; 32], _: bool) -> Box<dyn AeadAes256GcmCipher> {
        Box::new(Gcm::new(&AES_256_GCM, &key))
    }
}

/// AES in counter mode; its packets are authenticated by HMAC, which is not done here.
struct CounterMode(Aes128);

impl std::fmt::Debug for CounterMode {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("CounterMode")
    }
}

impl Aes128CmSha1_80Cipher for CounterMode {
    fn encrypt(&mut self, iv: &[u8; 16], input: &[u8], output: &mut [u8]) -> Result<(), CryptoError> {
        let mut counter = u128::from_be_bytes(*iv);
        let output = output.get_mut(..input.len()).ok_or_else(|| CryptoError::Other("no room".to_owned()))?;
        for (from, to) in input.chunks(BLOCK).zip(output.chunks_mut(BLOCK)) {
            let key = round(&self.0, &counter.to_be_bytes());
            to.iter_mut().zip(from).zip(key).for_each(|((to, from), key)| *to = from ^ key);
            counter = counter.wrapping_add(1);
        }
        Ok(())
    }

    fn decrypt(&mut self, iv: &[u8; 16], input: &[u8], output: &mut [u8]) -> Result<(), CryptoError> {
        self.encrypt(iv, input, output)
    }
}

/// AES in Galois counter mode. `None` where `ring` refused the key, which it does for a wrong length only.
struct Gcm(Option<LessSafeKey>);

impl std::fmt::Debug for Gcm {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Gcm")
    }
}

impl Gcm {
    fn new(algorithm: &'static Algorithm, key: &[u8]) -> Gcm {
        Gcm(UnboundKey::new(algorithm, key).ok().map(LessSafeKey::new))
    }

    fn seal(&self, iv: [u8; 12], aad: &[u8], input: &[u8], output: &mut [u8]) -> Result<(), CryptoError> {
        let failed = || CryptoError::Other("a packet could not be encrypted".to_owned());
        let key = self.0.as_ref().ok_or_else(failed)?;
        let room = output.get_mut(..input.len() + BLOCK).ok_or_else(failed)?;
        let (text, tag) = room.split_at_mut(input.len());
        text.copy_from_slice(input);
        let sealed = key.seal_in_place_separate_tag(Nonce::assume_unique_for_key(iv), Aad::from(aad), text);
        tag.copy_from_slice(sealed.map_err(|_| failed())?.as_ref());
        Ok(())
    }

    fn open(&self, iv: [u8; 12], aads: &[&[u8]], input: &[u8], output: &mut [u8]) -> Result<usize, CryptoError> {
        let failed = || CryptoError::Other("a packet is not authentic".to_owned());
        let key = self.0.as_ref().ok_or_else(failed)?;
        let mut text = input.to_vec();
        let aad = aads.concat();
        let opened = key.open_in_place(Nonce::assume_unique_for_key(iv), Aad::from(aad), &mut text);
        let opened = opened.map_err(|_| failed())?;
        output.get_mut(..opened.len()).ok_or_else(failed)?.copy_from_slice(opened);
        Ok(opened.len())
    }
}

impl AeadAes128GcmCipher for Gcm {
    fn encrypt(&mut self, iv: &[u8; 12], aad: &[u8], input: &[u8], output: &mut [u8]) -> Result<(), CryptoError> {
        self.seal(*iv, aad, input, output)
    }

    fn decrypt(
        &mut self,
        iv: &[u8; 12],
        aads: &[&[u8]],
        input: &[u8],
        output: &mut [u8],
    ) -> Result<usize, CryptoError> {
        self.open(*iv, aads, input, output)
    }
}

impl AeadAes256GcmCipher for Gcm {
    fn encrypt(&mut self, iv: &[u8; 12], aad: &[u8], input: &[u8], output: &mut [u8]) -> Result<(), CryptoError> {
        self.seal(*iv, aad, input, output)
    }

    fn decrypt(
        &mut self,
        iv: &[u8; 12],
        aads: &[&[u8]],
        input: &[u8],
        output: &mut [u8],
    ) -> Result<usize, CryptoError> {
        self.open(*iv, aads, input, output)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn bytes<const N: usize>(hex: &str) -> [u8; N] {
        std::array::from_fn(|at| u8::from_str_radix(&hex[2 * at..2 * at + 2], 16).unwrap())
    }

    #[test]
    fn the_key_stream_of_the_rfc() {
        // RFC 3711, B.2.
        let mut cipher = CounterMode(Aes128::new(&bytes("2b7e151628aed2a6abf7158809cf4f3c").into()));
        let mut stream = [0; 48];
        cipher.encrypt(&bytes("f0f1f2f3f4f5f6f7f8f9fafbfcfd0000"), &[0; 48], &mut stream).unwrap();
        let known = "e03ead0935c95e80e166b16dd92b4eb4d23513162b02d0f72a43a2fe4a5f97ab41e95b3bb0a2e8dd477901e4fca894c0";
        assert_eq!(stream, bytes::<48>(known));
    }

    #[test]
    fn a_round_is_a_block_of_aes() {
        // FIPS 197, C.1 and C.3.
        let input: [u8; 16] = bytes("00112233445566778899aabbccddeeff");
        let key: [u8; 32] = std::array::from_fn(|at| at as u8);
        let mut output = [0; 32];
        Srtp.srtp_aes_128_ecb_round(&key[..16], &input, &mut output);
        assert_eq!(output[..16], bytes::<16>("69c4e0d86a7b0430d8cdb78070b4c55a"));
        Srtp.srtp_aes_256_ecb_round(&key, &input, &mut output);
        assert_eq!(output[..16], bytes::<16>("8ea2b7ca516745bfeafc49904b496089"));
    }

    #[test]
    fn what_was_changed_is_not_opened() {
        let gcm = Gcm::new(&AES_256_GCM, &[7; 32]);
        let mut sealed = [0; 21];
        gcm.seal([1; 12], b"head", b"hello", &mut sealed).unwrap();
        let mut opened = [0; 5];
        assert_eq!(gcm.open([1; 12], &[b"he", b"ad"], &sealed, &mut opened).unwrap(), 5);
        assert_eq!(&opened, b"hello");
        assert!(gcm.open([1; 12], &[b"heat"], &sealed, &mut opened).is_err());
        sealed[2] ^= 1;
        assert!(gcm.open([1; 12], &[b"head"], &sealed, &mut opened).is_err());
        assert!(gcm.open([1; 12], &[b"head"], &sealed[..3], &mut opened).is_err());
    }
}
