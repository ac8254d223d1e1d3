use super::*;
use crate::payload::{Kind, Part, Payload};
use bytes::Bytes;
use candle_core::{Device, Tensor};
use omni_config::Precision;
use omni_core::ids::{Attempt, FinishReason, Generation, RequestId, Seq};
use omni_model::embeddings::{EmbeddingBytes, Embeddings};
use proptest::prelude::*;

fn header(kind: Kind, units: u32) -> Header {
    Header {
        request: RequestId(300),
        generation: Generation(2),
        attempt: Attempt(5),
        seq: Seq(7),
        kind,
        units,
        end: Some(FinishReason::Stop),
        sent: 0,
        cached: 0,
    }
}

fn payload(kind: Kind, units: u32, parts: Vec<Part>) -> Payload {
    Payload { header: header(kind, units), parts, leases: Vec::new() }
}

fn codes() -> Payload {
    payload(Kind::Codes, 1, vec![Part::U32(vec![1, 2, 0x0304_0506])])
}

fn bf16() -> Embeddings {
    let bytes = Bytes::from_static(&[0x80, 0x3f, 0x00, 0x40, 0x40, 0x40, 0x80, 0xc0, 1, 2, 3, 4]);
    Embeddings::Bytes(EmbeddingBytes::new(bytes, 3, Precision::Bf16).unwrap())
}

fn there_and_back(payload: &Payload) -> Payload {
    decode(&encode(payload).unwrap(), true).unwrap()
}

/// The bits of a part, whatever it is.
fn bits(part: &Part) -> Vec<u32> {
    match part {
        Part::Embeddings(embeddings) => {
            let tensor = embeddings.tensor().unwrap().flatten_all().unwrap();
            tensor.to_vec1::<f32>().unwrap().into_iter().map(f32::to_bits).collect()
        }
        Part::Features(features) => features.clone().numbers().iter().map(|value| value.to_bits()).collect(),
        Part::U32(values) => values.clone(),
        Part::F32(values) => values.iter().map(|value| value.to_bits()).collect(),
    }
}

/// A change of these bytes needs another version.
#[test]
fn a_frame_has_these_bytes() {
    let golden = |payload: &Payload, expected: &[&str]| {
        let frame = encode(payload).unwrap();
        let hex: Vec<_> = frame.iter().map(|byte| format!("{byte:02x}")).collect();
        let lines: Vec<_> = hex.chunks(16).map(|line| line.join(" ")).collect();
        assert_eq!(lines, expected);
    };
    golden(
        &codes(),
        &[
            "4f 4d 4e 41 04 00 10 00 10 00 00 00 1d 34 ee 0d",
            "fb 2c 01 02 05 07 02 01 01 00 00 00 01 02 01 03",
            "01 00 00 00 02 00 00 00 06 05 04 03 00 00 00 00",
        ],
    );
    golden(
        &payload(Kind::Embeddings, 2, vec![Part::Embeddings(bf16()), Part::F32(vec![1.0])]),
        &[
            "4f 4d 4e 41 04 00 14 00 20 00 00 00 67 88 6e 0a",
            "fb 2c 01 02 05 07 00 02 01 00 00 00 02 01 02 02",
            "03 00 01 01 00 00 00 00 00 00 00 00 00 00 00 00",
            "80 3f 00 40 40 40 80 c0 01 02 03 04 00 00 00 00",
            "00 00 80 3f 00 00 00 00 00 00 00 00 00 00 00 00",
        ],
    );
}

#[test]
fn embeddings_keep_their_shape_type_and_every_bit() {
    let values = [0.1f32, -0.0, f32::MIN_POSITIVE, f32::NAN, 5.0, 6.0];
    let tensor = Tensor::from_slice(&values, (2, 3), &Device::Cpu).unwrap();
    let back =
        there_and_back(&payload(Kind::Embeddings, 4, vec![Part::Embeddings(tensor.into()), Part::Embeddings(bf16())]));
    assert_eq!(back.header, header(Kind::Embeddings, 4));
    let [Part::Embeddings(Embeddings::Bytes(f32s)), Part::Embeddings(Embeddings::Bytes(bf16s))] = &back.parts[..]
    else {
        panic!("{back:?}")
    };
    assert_eq!((f32s.count(), f32s.width(), f32s.precision()), (2, 3, Precision::F32));
    assert_eq!(bits(&back.parts[0]), values.map(f32::to_bits));
    assert_eq!((bf16s.count(), bf16s.width(), bf16s.precision()), (2, 3, Precision::Bf16));
    assert_eq!(bits(&back.parts[1]), bits(&Part::Embeddings(bf16())));
}

#[test]
fn a_tensor_that_is_a_view_of_another_is_written_in_its_own_order() {
    let tensor = Tensor::arange(0f32, 12.0, &Device::Cpu).unwrap().reshape((4, 3)).unwrap();
    for view in [tensor.narrow(0, 1, 2).unwrap(), tensor.t().unwrap(), tensor.narrow(1, 1, 2).unwrap()] {
        let parts = vec![Part::Embeddings(view.clone().into())];
        assert_eq!(bits(&there_and_back(&payload(Kind::Embeddings, 1, parts.clone())).parts[0]), bits(&parts[0]));
    }
}

#[test]
fn embeddings_stay_in_their_frame_unless_they_are_to_be_copied() {
    let frame = encode(&payload(Kind::Embeddings, 2, vec![Part::U32(vec![9]), Part::Embeddings(bf16())])).unwrap();
    let place = |zero_copy| {
        let Part::Embeddings(Embeddings::Bytes(embeddings)) = decode(&frame, zero_copy).unwrap().parts.remove(1) else {
            panic!()
        };
        frame.as_ptr_range().contains(&embeddings.data().as_ptr())
    };
    assert_eq!((place(true), place(false)), (true, false));
}

#[test]
fn a_frame_is_written_where_it_is_wanted_and_nowhere_else() {
    let payload = codes();
    let frame = Frame::new(&payload).unwrap();
    let mut place = vec![0xaa; frame.len()];
    frame.write(&mut place).unwrap();
    assert_eq!(encode(&payload).unwrap(), place);
    assert!(matches!(frame.write(&mut place[1..]), Err(WireError::Length { .. })));
}

#[test]
fn each_kind_of_damage_has_its_error() {
    let frame = encode(&codes()).unwrap();
    let broken = |at: usize, byte: u8| {
        let mut frame = frame.to_vec();
        frame[at] = byte;
        decode(&frame.into(), true).unwrap_err().to_string()
    };
    assert!(broken(0, 0).contains("not a wire frame"));
    assert!(broken(4, 1).contains("version"));
    assert!(broken(7, 0xff).contains("header of 65296 exceeds"));
    assert!(broken(11, 0xff).contains("body of"));
    assert!(broken(8, 0xff).contains("were announced"));
    assert!(broken(20, 0xff).contains("checksum"));
    assert!(broken(frame.len() - 1, 0xff).contains("checksum"));
    assert!(decode(&frame.slice(..10), true).is_err());
}

#[test]
fn parts_that_no_payload_has_are_refused() {
    let refused = |dtype: Dtype, dims: &[u32], body: usize| {
        decode(&forged(vec![(dtype, dims.to_vec())], body), true).unwrap_err().to_string()
    };
    assert!(decode(&forged(vec![(Dtype::U32, vec![4])], 16), true).is_ok());
    assert!(refused(Dtype::U32, &[1, 2], 16).contains("no part has 2 dimensions"));
    assert!(refused(Dtype::Bf16, &[2], 16).contains("no part has 1 dimensions"));
    assert!(refused(Dtype::F32, &[], 16).contains("no part has 0"));
    assert!(refused(Dtype::F32, &[1, 1, 1], 16).contains("rank of 3"));
    assert!(refused(Dtype::F32, &[0, 0], 0).contains("without width"));
    assert!(refused(Dtype::F32, &[5], 16).contains("beyond"));
    assert!(refused(Dtype::F32, &[u32::MAX, u32::MAX], 16).contains("beyond"));
    assert!(refused(Dtype::F32, &[1], 32).contains("end at"));
    let many = vec![(Dtype::U32, vec![0]); MAX_PARTS + 1];
    assert!(decode(&forged(many, 0), true).unwrap_err().to_string().contains("number of parts"));
}

#[test]
fn what_cannot_be_written_is_refused() {
    let flat = Tensor::zeros(3, candle_core::DType::F32, &Device::Cpu).unwrap();
    assert!(
        encode(&payload(Kind::Embeddings, 1, vec![Part::Embeddings(flat.into())]))
            .unwrap_err()
            .to_string()
            .contains("rank 1")
    );
    let large = payload(Kind::Audio, 1, vec![Part::F32(vec![0.0; MAX_BODY / 4 + 1])]);
    assert!(encode(&large).unwrap_err().to_string().contains("exceeds the limit"));
}

/// A frame with a valid checksum that says what a sender of ours would never say.
fn forged(parts: Vec<(Dtype, Vec<u32>)>, body: usize) -> Bytes {
    let parts = parts.into_iter().map(|(dtype, dims)| PartHeader { dtype, dims }).collect();
    let header = WireHeader { header: header(Kind::Embeddings, 1), parts };
    let header = bincode::encode_to_vec(header, bincode::config::standard()).unwrap();
    let mut frame = vec![0; body_start(header.len()) + body];
    frame[..4].copy_from_slice(&MAGIC);
    frame[4..6].copy_from_slice(&VERSION.to_le_bytes());
    frame[6..8].copy_from_slice(&(header.len() as u16).to_le_bytes());
    frame[8..12].copy_from_slice(&(body as u32).to_le_bytes());
    frame[PREFIX..PREFIX + header.len()].copy_from_slice(&header);
    sealed(frame)
}

/// Damage that a checksum cannot find, because the sender made it.
fn sealed(mut frame: Vec<u8>) -> Bytes {
    if frame.len() >= PREFIX {
        let sum = checksum(&frame);
        frame[12..PREFIX].copy_from_slice(&sum.to_le_bytes());
    }
    frame.into()
}

/// Something that is, was or might be a frame.
#[derive(Clone, Debug)]
enum Hostile {
    /// A good frame with some bytes changed, cut or continued, its checksum made good again or not.
    Damaged { which: u8, changes: Vec<(u16, u8)>, len: i8, sealed: bool },
    /// A frame that is whole and lies.
    Forged { parts: Vec<(u8, Vec<u32>)>, body: u8 },
    /// Noise behind a good beginning.
    Noise { prefix: bool, bytes: Vec<u8>, sealed: bool },
}

fn hostile() -> impl Strategy<Value = Hostile> {
    let bytes = |most| proptest::collection::vec(any::<u8>(), 0..most);
    let changes = proptest::collection::vec((any::<u16>(), any::<u8>()), 0..6);
    let dim = prop_oneof![0..20u32, Just(u32::MAX), any::<u32>()];
    let part = (0..3u8, proptest::collection::vec(dim, 0..4));
    prop_oneof![
        4 => (any::<u8>(), changes, -20..20i8, any::<bool>())
            .prop_map(|(which, changes, len, sealed)| Hostile::Damaged { which, changes, len, sealed }),
        2 => (proptest::collection::vec(part, 0..5), any::<u8>())
            .prop_map(|(parts, body)| Hostile::Forged { parts, body }),
        1 => (any::<bool>(), bytes(80), any::<bool>())
            .prop_map(|(prefix, bytes, sealed)| Hostile::Noise { prefix, bytes, sealed }),
    ]
}

impl Hostile {
    fn bytes(&self, good: &[Bytes]) -> Bytes {
        match self {
            Hostile::Damaged { which, changes, len, sealed: seal } => {
                let mut frame = good[usize::from(*which) % good.len()].to_vec();
                for (at, byte) in changes {
                    let at = usize::from(*at) % frame.len();
                    frame[at] = *byte;
                }
                frame.resize(frame.len().saturating_add_signed((*len).min(0).into()), 0);
                frame.resize(frame.len() + usize::from((*len).max(0).unsigned_abs()), 7);
                if *seal { sealed(frame) } else { frame.into() }
            }
            Hostile::Forged { parts, body } => {
                let dtype = |n: &u8| [Dtype::F32, Dtype::Bf16, Dtype::U32][usize::from(*n)];
                forged(parts.iter().map(|(n, dims)| (dtype(n), dims.clone())).collect(), usize::from(*body))
            }
            Hostile::Noise { prefix, bytes, sealed: seal } => {
                let mut frame = if *prefix { good[0][..8].to_vec() } else { Vec::new() };
                frame.extend(bytes);
                if *seal { sealed(frame) } else { frame.into() }
            }
        }
    }
}

/// `OMNI_FUZZ_CASES=10000000 cargo test --lib wire::tests::no_bytes -- --nocapture` runs as many as it says.
fn fuzz_cases() -> u32 {
    std::env::var("OMNI_FUZZ_CASES").ok().and_then(|cases| cases.parse().ok()).unwrap_or(20_000)
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 3000, ..ProptestConfig::default() })]

    #[test]
    fn any_payload_survives_the_wire(embeddings in 0..5usize, hidden in 1..9usize, ids in proptest::collection::vec(any::<u32>(), 0..40), units: u32, zero_copy: bool) {
        let tensor = Tensor::arange(0f32, (embeddings * hidden) as f32, &Device::Cpu).and_then(|t| t.reshape((embeddings, hidden)));
        let mut parts = vec![Part::U32(ids), Part::F32(vec![0.5; embeddings]), Part::Embeddings(bf16())];
        parts.extend(tensor.ok().map(|tensor| Part::Embeddings(tensor.into())));
        let payload = payload(Kind::Embeddings, units, parts);
        let back = decode(&encode(&payload).unwrap(), zero_copy).unwrap();
        prop_assert_eq!(back.header, payload.header);
        prop_assert_eq!(back.parts.iter().map(bits).collect::<Vec<_>>(), payload.parts.iter().map(bits).collect::<Vec<_>>());
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: fuzz_cases(), ..ProptestConfig::default() })]

    /// An error or a payload that fits into its frame: never a panic, never more memory than the frame has.
    #[test]
    fn no_bytes_whatever_make_a_decoder_fall_over(hostile in hostile()) {
        static GOOD: std::sync::LazyLock<Vec<Bytes>> = std::sync::LazyLock::new(|| {
            let embeddings = || payload(Kind::Embeddings, 2, vec![Part::Embeddings(bf16()), Part::F32(vec![1.0]), Part::U32(vec![])]);
            [codes(), embeddings(), payload(Kind::Tokens, 0, Vec::new())].iter().map(|p| encode(p).unwrap()).collect()
        });
        let frame = hostile.bytes(&GOOD);
        match (decode(&frame, true), decode(&frame, false)) {
            (Ok(stays), Ok(copied)) => {
                prop_assert!(stays.bytes() <= frame.len());
                prop_assert_eq!(stays.header, copied.header);
                prop_assert_eq!(stays.parts.iter().map(bits).collect::<Vec<_>>(), copied.parts.iter().map(bits).collect::<Vec<_>>());
                prop_assert!(encode(&stays).is_ok());
            }
            (Err(_), Err(_)) => {}
            (stays, copied) => prop_assert!(false, "{stays:?} and {copied:?}"),
        }
    }
}
