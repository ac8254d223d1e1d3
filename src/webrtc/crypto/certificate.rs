//! Certificates: one made for each call, whose fingerprint its answer tells, and the public key of a peer's. No name and
//! no date in them counts; a fingerprint of the offer or the answer is what a call trusts.

use dimpl::DtlsCertificate;
use ring::rand::{SecureRandom, SystemRandom};
use ring::signature::{ECDSA_P256_SHA256_ASN1_SIGNING, EcdsaKeyPair, KeyPair};

const SEQUENCE: u8 = 0x30;
const INTEGER: u8 = 0x02;
const BITS: u8 = 0x03;
const OID: u8 = 0x06;
/// `[0]`, in which a certificate has its version.
const VERSION: u8 = 0xa0;

const EC_PUBLIC_KEY: &[u8] = &[0x2a, 0x86, 0x48, 0xce, 0x3d, 0x02, 0x01];
const P256: &[u8] = &[0x2a, 0x86, 0x48, 0xce, 0x3d, 0x03, 0x01, 0x07];
const P384: &[u8] = &[0x2b, 0x81, 0x04, 0x00, 0x22];
const ECDSA_SHA256: &[u8] = &[0x2a, 0x86, 0x48, 0xce, 0x3d, 0x04, 0x03, 0x02];
const COMMON_NAME: &[u8] = &[0x55, 0x04, 0x03];

/// A curve on which a peer's key may lie.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Curve {
    P256,
    P384,
}

/// A key and a certificate that it has signed itself; `None` if the system has no random numbers.
pub(super) fn generate() -> Option<DtlsCertificate> {
    let random = SystemRandom::new();
    let private_key = EcdsaKeyPair::generate_pkcs8(&ECDSA_P256_SHA256_ASN1_SIGNING, &random).ok()?;
    let key = EcdsaKeyPair::from_pkcs8(&ECDSA_P256_SHA256_ASN1_SIGNING, private_key.as_ref(), &random).ok()?;
    let mut serial = [0; 16];
    random.fill(&mut serial).ok()?;
    // Positive, and without a zero in front. Firefox refuses two certificates of one number.
    serial[0] = serial[0] & 0x3f | 0x40;
    let name = of(SEQUENCE, &of(0x31, &of(SEQUENCE, &[of(OID, COMMON_NAME), of(0x0c, b"omni-actors")].concat())));
    let algorithm = of(SEQUENCE, &of(OID, ECDSA_SHA256));
    // From 2020 on, and without an end.
    let validity = [of(0x17, b"200101000000Z"), of(0x18, b"99991231235959Z")].concat();
    let of_key = of(SEQUENCE, &[of(OID, EC_PUBLIC_KEY), of(OID, P256)].concat());
    let body = [
        of(VERSION, &of(INTEGER, &[2])),
        of(INTEGER, &serial),
        algorithm.clone(),
        name.clone(),
        of(SEQUENCE, &validity),
        name,
        of(SEQUENCE, &[of_key, bits(key.public_key().as_ref())].concat()),
    ];
    let body = of(SEQUENCE, &body.concat());
    let signature = key.sign(&random, &body).ok()?;
    let certificate = of(SEQUENCE, &[body, algorithm, bits(signature.as_ref())].concat());
    Some(DtlsCertificate { certificate, private_key: private_key.as_ref().to_vec() })
}

/// A value of DER with its head.
fn of(tag: u8, content: &[u8]) -> Vec<u8> {
    let mut value = vec![tag];
    match content.len() {
        length @ 0..=0x7f => value.push(length as u8),
        length @ 0x80..=0xff => value.extend([0x81, length as u8]),
        // No certificate of ours is longer than this can say.
        length => value.extend([0x82, (length >> 8) as u8, length as u8]),
    }
    value.extend_from_slice(content);
    value
}

fn bits(content: &[u8]) -> Vec<u8> {
    of(BITS, &[&[0], content].concat())
}

/// The key of a certificate, where it is one of a curve.
pub(super) fn public_key(certificate: &[u8]) -> Option<(Curve, &[u8])> {
    let mut body = take(&mut take(&mut &*certificate, SEQUENCE)?, SEQUENCE)?;
    let fields = &mut body;
    // Certificates of the first version do not say so.
    let _ = take(fields, VERSION);
    take(fields, INTEGER)?;
    // The algorithm, the issuer, the dates, the subject.
    for _ in 0..4 {
        take(fields, SEQUENCE)?;
    }
    let mut key = take(fields, SEQUENCE)?;
    let mut algorithm = take(&mut key, SEQUENCE)?;
    let is_curve = take(&mut algorithm, OID)? == EC_PUBLIC_KEY;
    let curve = match take(&mut algorithm, OID)? {
        P256 if is_curve => Curve::P256,
        P384 if is_curve => Curve::P384,
        _ => return None,
    };
    Some((curve, take(&mut key, BITS)?.strip_prefix(&[0])?))
}

/// The content of the next value, if it has this tag.
fn take<'a>(from: &mut &'a [u8], tag: u8) -> Option<&'a [u8]> {
    let (&[found, length], rest) = from.split_first_chunk()?;
    let (length, rest) = match length {
        0..=0x7f => (usize::from(length), rest),
        0x81 => (usize::from(*rest.first()?), &rest[1..]),
        0x82 => {
            let (length, rest) = rest.split_first_chunk()?;
            (usize::from(u16::from_be_bytes(*length)), rest)
        }
        _ => return None,
    };
    let (content, rest) = rest.split_at_checked(length).filter(|_| found == tag)?;
    *from = rest;
    Some(content)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use ring::signature::{ECDSA_P256_SHA256_ASN1, UnparsedPublicKey};

    #[test]
    fn a_certificate_has_its_key_and_is_signed_with_it() {
        let made = generate().unwrap();
        let (curve, key) = public_key(&made.certificate).unwrap();
        assert_eq!((curve, key.len()), (Curve::P256, 65));
        let mut whole = take(&mut &*made.certificate, SEQUENCE).unwrap();
        let before = whole;
        take(&mut whole, SEQUENCE).unwrap();
        let body = &before[..before.len() - whole.len()];
        take(&mut whole, SEQUENCE).unwrap();
        let signature = take(&mut whole, BITS).unwrap();
        assert!(whole.is_empty());
        UnparsedPublicKey::new(&ECDSA_P256_SHA256_ASN1, key).verify(body, &signature[1..]).unwrap();
        assert_ne!(generate().unwrap().certificate, made.certificate);
    }

    proptest! {
        #[test]
        fn a_broken_certificate_has_no_key_and_does_no_harm(at in 0usize..300, byte: u8, cut in 0usize..300) {
            let mut broken = generate().unwrap().certificate;
            let at = at % broken.len();
            broken[at] = byte;
            let _ = public_key(&broken);
            broken.truncate(cut);
            prop_assert!(cut >= 160 || public_key(&broken).is_none());
        }
    }
}
