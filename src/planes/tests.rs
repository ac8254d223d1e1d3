use super::*;
use proptest::collection::vec;
use proptest::prelude::*;

/// The bytes of numbers as nets have them, in bf16.
fn numbers(count: usize) -> Vec<u8> {
    let number = |i: usize| ((i as f32).sin() * 0.02).to_bits().to_le_bytes();
    (0..count).map(number).flat_map(|[.., low, high]| [low, high]).collect()
}

/// Bytes of each kind, several pieces of some.
fn bytes() -> impl Strategy<Value = Vec<u8>> {
    prop_oneof![
        vec(any::<u8>(), 0..5),
        vec(any::<u8>(), 0..3 * PIECE),
        (0..2 * PIECE).prop_map(numbers),
        (0..3 * PIECE, any::<u8>()).prop_map(|(count, byte)| vec![byte; count]),
        (0..3usize, 0..3usize).prop_map(|(pieces, more)| vec![7; (pieces * PIECE + more).saturating_sub(1)]),
    ]
}

/// All that is packed here, by way of parts that do not fit the pieces.
fn read_in_parts(packed: &[u8], part: usize) -> Result<Vec<u8>, UnpackError> {
    let planes = Planes::open(packed)?;
    let mut out = vec![0; planes.length()];
    for (i, out) in out.chunks_mut(part).enumerate() {
        planes.read(i * part, out)?;
    }
    Ok(out)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn what_was_packed_is_read_again(bytes in bytes(), part in 1000..2 * PIECE) {
        let packed = pack(&bytes);
        prop_assert_eq!(&Planes::open(&packed).unwrap().read_all().unwrap(), &bytes);
        prop_assert_eq!(read_in_parts(&packed, part).unwrap(), bytes);
    }

    #[test]
    fn any_part_is_read(bytes in bytes(), at in any::<prop::sample::Index>(), to in any::<prop::sample::Index>()) {
        let (at, to) = (at.index(bytes.len() + 1), to.index(bytes.len() + 1));
        let (start, end) = (at.min(to), at.max(to));
        let packed = pack(&bytes);
        let planes = Planes::open(&packed).unwrap();
        let mut out = vec![0; end - start];
        planes.read(start, &mut out).unwrap();
        prop_assert_eq!(&out, &bytes[start..end]);
        let behind = planes.read(bytes.len() - out.len() + 1, &mut out);
        prop_assert_eq!(behind.is_err(), true);
    }

    #[test]
    fn a_changed_byte_is_an_error_or_changes_nothing(
        bytes in bytes(), at in any::<prop::sample::Index>(), by in 1..=u8::MAX,
    ) {
        let mut packed = pack(&bytes);
        let at = at.index(packed.len());
        packed[at] ^= by;
        // Nothing checks the end of a zlib stream, whose own checksum is not looked at.
        if let Ok(read) = Planes::open(&packed).and_then(|planes| planes.read_all()) {
            prop_assert_eq!(read, bytes);
        }
    }

    #[test]
    fn bytes_that_are_cut_short_are_an_error(bytes in bytes(), at in any::<prop::sample::Index>()) {
        let mut packed = pack(&bytes);
        packed.truncate(at.index(packed.len()));
        prop_assert_eq!(Planes::open(&packed).unwrap_err(), UnpackError::Table(packed.len()));
    }

    #[test]
    fn bytes_that_nothing_packed_are_an_error(mut packed in vec(any::<u8>(), 0..4 * PIECE), length in 1..2 * PIECE) {
        prop_assert_eq!(Planes::open(&packed).is_err(), true);
        // With a length and a table that fit.
        let table = HEAD + length.div_ceil(PIECE) * ENTRY;
        packed.resize(packed.len().max(table), 0);
        packed[..HEAD].copy_from_slice(&(length as u64).to_le_bytes());
        let end = (packed.len() - table) as u64;
        packed[table - ENTRY..][..8].copy_from_slice(&end.to_le_bytes());
        prop_assert_eq!(Planes::open(&packed).unwrap().read_all().is_err(), true);
    }
}

#[test]
fn numbers_take_less_room() {
    let (bytes, noise) = (numbers(1 << 18), vec![0; 1 << 19]);
    let packed = pack(&bytes).len();
    assert!(packed < bytes.len() * 7 / 10, "{packed} of {}", bytes.len());
    assert!(pack(&noise).len() < noise.len() * 6 / 10);
}

#[test]
fn an_error_says_where_the_damage_is() {
    let mut packed = pack(&numbers(PIECE));
    *packed.last_mut().unwrap() ^= 1;
    let middle = packed.len() - 100;
    packed[middle] ^= 1;
    let planes = Planes::open(&packed).unwrap();
    planes.read(0, &mut [0; PIECE]).unwrap();
    let error = planes.read(PIECE, &mut [0; 2]).unwrap_err();
    assert_eq!(error.to_string(), "is damaged between bytes 16384 and 32768");
    assert_eq!(planes.read(2 * PIECE, &mut [0; 2]).unwrap_err().to_string(), "has 32768 bytes, not 32768 + 2");
}
