//! The wire frame: a fixed prefix, a small bincode header, raw bytes that no codec touches.
//!
//! ```text
//! offset  size  what
//!      0     4  magic "OMNA"
//!      4     2  version (1), little endian like every number here
//!      6     2  length of the header
//!      8     4  length of the body
//!     12     4  CRC-32 (IEEE) of bytes 4..12 and everything after byte 16
//!     16     h  header: `Header` and the shape of each part, bincode (standard configuration)
//!   16+h     b  body: the parts one after the other, 4 bytes per element
//! ```
//!
//! A decoder believes nothing: every length is checked against what is there and against a limit before memory is taken.

use super::payload::{Header, Part, Payload};
use crate::model::ModelError;
use crate::model::rows::Rows;
use bytes::Bytes;
use candle_core::{Device, Tensor};

const MAGIC: [u8; 4] = *b"OMNA";
const VERSION: u16 = 1;
const PREFIX: usize = 16;
/// A header is a few dozen bytes; this is far above any real one.
const MAX_HEADER: usize = 1024;
/// Largest body: 16 Mi elements, an hour of codes or five minutes of samples in one payload.
pub const MAX_BODY: usize = 64 << 20;
/// A payload has one part today; more than this is not ours.
const MAX_PARTS: usize = 8;
/// Tensors on edges are at most `[rows, hidden]` with a batch dimension.
const MAX_RANK: usize = 4;

/// Why bytes are not a payload.
#[derive(Debug, thiserror::Error)]
pub enum WireError {
    /// Fewer bytes than the prefix promises, or more.
    #[error("frame of {got} bytes where {expected} were announced")]
    Length {
        /// From the prefix.
        expected: usize,
        /// What is there.
        got: usize,
    },
    /// Not a frame of ours.
    #[error("not a wire frame: {0}")]
    Foreign(&'static str),
    /// Bits changed on the way.
    #[error("checksum mismatch")]
    Checksum,
    /// Larger than any real payload.
    #[error("{what} of {got} exceeds the limit of {limit}")]
    TooLarge {
        /// What is too large.
        what: &'static str,
        /// How large.
        got: usize,
        /// What is allowed.
        limit: usize,
    },
    /// The header cannot be read or contradicts the body.
    #[error("malformed header: {0}")]
    Header(String),
    /// A tensor could not be made.
    #[error("tensor: {0}")]
    Tensor(#[from] candle_core::Error),
    /// Rows that are not in the host's memory.
    #[error("rows: {0}")]
    Rows(#[from] ModelError),
}

#[derive(bincode::Encode, bincode::Decode)]
struct WireHeader {
    header: Header,
    parts: Vec<PartShape>,
}

#[derive(bincode::Encode, bincode::Decode)]
enum PartShape {
    Tensor(Vec<u32>),
    U32(u32),
    F32(u32),
}

impl PartShape {
    fn elements(&self) -> Option<usize> {
        match self {
            PartShape::Tensor(dims) => dims.iter().try_fold(1usize, |product, dim| product.checked_mul(*dim as usize)),
            PartShape::U32(count) | PartShape::F32(count) => Some(*count as usize),
        }
    }
}

/// Turns a payload into a frame. Tensors are copied to the host as f32; leases are given back.
///
/// # Errors
/// [`WireError::TooLarge`] for a body over [`MAX_BODY`]; device errors.
pub fn encode(payload: &Payload) -> Result<Bytes, WireError> {
    let body_len = payload.bytes();
    if body_len > MAX_BODY {
        return Err(WireError::TooLarge { what: "body", got: body_len, limit: MAX_BODY });
    }
    let shapes = payload.parts.iter().map(shape).collect();
    let header = WireHeader { header: payload.header, parts: shapes };
    let header =
        bincode::encode_to_vec(header, bincode::config::standard()).map_err(|e| WireError::Header(e.to_string()))?;
    if header.len() > MAX_HEADER {
        return Err(WireError::TooLarge { what: "header", got: header.len(), limit: MAX_HEADER });
    }
    let mut frame = Vec::with_capacity(PREFIX + header.len() + body_len);
    frame.extend_from_slice(&MAGIC);
    frame.extend_from_slice(&VERSION.to_le_bytes());
    frame.extend_from_slice(&(header.len() as u16).to_le_bytes());
    frame.extend_from_slice(&(body_len as u32).to_le_bytes());
    frame.extend_from_slice(&[0; 4]);
    frame.extend_from_slice(&header);
    for part in &payload.parts {
        match part {
            Part::Rows(rows) => {
                let values = rows.tensor()?.flatten_all()?.to_vec1::<f32>()?;
                frame.extend(values.iter().flat_map(|value| value.to_le_bytes()));
            }
            Part::U32(values) => frame.extend(values.iter().flat_map(|value| value.to_le_bytes())),
            Part::F32(values) => frame.extend(values.iter().flat_map(|value| value.to_le_bytes())),
        }
    }
    let checksum = checksum(&frame);
    frame[12..PREFIX].copy_from_slice(&checksum.to_le_bytes());
    Ok(frame.into())
}

/// Turns a frame back into a payload, its tensors on `device`.
///
/// # Errors
/// Every [`WireError`]; never panics, whatever the bytes.
pub fn decode(frame: &[u8], device: &Device) -> Result<Payload, WireError> {
    let prefix = frame.get(..PREFIX).ok_or(WireError::Length { expected: PREFIX, got: frame.len() })?;
    if prefix[..4] != MAGIC {
        return Err(WireError::Foreign("wrong magic"));
    }
    if u16_at(prefix, 4) != VERSION {
        return Err(WireError::Foreign("unknown version"));
    }
    let (header_len, body_len) = (usize::from(u16_at(prefix, 6)), u32_at(prefix, 8) as usize);
    for (what, got, limit) in [("header", header_len, MAX_HEADER), ("body", body_len, MAX_BODY)] {
        if got > limit {
            return Err(WireError::TooLarge { what, got, limit });
        }
    }
    let expected = PREFIX + header_len + body_len;
    if frame.len() != expected {
        return Err(WireError::Length { expected, got: frame.len() });
    }
    if checksum(frame) != u32_at(prefix, 12) {
        return Err(WireError::Checksum);
    }
    let (header, mut body) = frame[PREFIX..].split_at(header_len);
    let config = bincode::config::standard().with_limit::<{ MAX_HEADER * 4 }>();
    let (header, used): (WireHeader, usize) =
        bincode::decode_from_slice(header, config).map_err(|e| WireError::Header(e.to_string()))?;
    if used != header_len {
        return Err(WireError::Header(format!("{} bytes too many", header_len - used)));
    }
    if header.parts.len() > MAX_PARTS {
        return Err(WireError::TooLarge { what: "number of parts", got: header.parts.len(), limit: MAX_PARTS });
    }
    let mut parts = Vec::with_capacity(header.parts.len());
    for shape in &header.parts {
        let bytes = shape.elements().and_then(|count| count.checked_mul(4)).filter(|bytes| *bytes <= body.len());
        let Some(bytes) = bytes else { return Err(WireError::Header("a part is longer than the body".into())) };
        let (data, rest) = body.split_at(bytes);
        parts.push(part(shape, data, device)?);
        body = rest;
    }
    if !body.is_empty() {
        return Err(WireError::Header(format!("{} bytes of the body belong to no part", body.len())));
    }
    Ok(Payload { header: header.header, parts, leases: Vec::new() })
}

fn shape(part: &Part) -> PartShape {
    match part {
        Part::Rows(rows) => PartShape::Tensor(vec![rows.shape().0 as u32, rows.shape().1 as u32]),
        Part::U32(values) => PartShape::U32(values.len() as u32),
        Part::F32(values) => PartShape::F32(values.len() as u32),
    }
}

fn part(shape: &PartShape, data: &[u8], device: &Device) -> Result<Part, WireError> {
    let floats = || data.as_chunks::<4>().0.iter().map(|bytes| f32::from_le_bytes(*bytes)).collect::<Vec<_>>();
    Ok(match shape {
        PartShape::Tensor(dims) if dims.len() > MAX_RANK => {
            return Err(WireError::TooLarge { what: "tensor rank", got: dims.len(), limit: MAX_RANK });
        }
        PartShape::Tensor(dims) => {
            let dims: Vec<_> = dims.iter().map(|dim| *dim as usize).collect();
            Part::Rows(Rows::Host(Tensor::from_vec(floats(), dims, device)?))
        }
        PartShape::U32(_) => {
            Part::U32(data.as_chunks::<4>().0.iter().map(|bytes| u32::from_le_bytes(*bytes)).collect())
        }
        PartShape::F32(_) => Part::F32(floats()),
    })
}

/// Over everything but the magic and the checksum itself.
fn checksum(frame: &[u8]) -> u32 {
    let mut hasher = crc32fast::Hasher::new();
    hasher.update(&frame[4..12]);
    hasher.update(&frame[PREFIX..]);
    hasher.finalize()
}

fn u16_at(bytes: &[u8], at: usize) -> u16 {
    u16::from_le_bytes([bytes[at], bytes[at + 1]])
}

fn u32_at(bytes: &[u8], at: usize) -> u32 {
    u32::from_le_bytes([bytes[at], bytes[at + 1], bytes[at + 2], bytes[at + 3]])
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ids::{Generation, RequestId, Seq};
    use crate::transfer::payload::{End, Kind};
    use proptest::prelude::*;

    fn header(kind: Kind, units: u32) -> Header {
        Header {
            request: RequestId(300),
            generation: Generation(2),
            seq: Seq(7),
            kind,
            units,
            end: Some(End::Stop),
            sent: 0,
        }
    }

    fn codes() -> Payload {
        Payload { header: header(Kind::Codes, 1), parts: vec![Part::U32(vec![1, 2, 0x0304_0506])], leases: Vec::new() }
    }

    fn read(part: &Part) -> Vec<f32> {
        match part {
            Part::Rows(rows) => rows.tensor().unwrap().flatten_all().unwrap().to_vec1().unwrap(),
            Part::U32(values) => values.iter().map(|value| *value as f32).collect(),
            Part::F32(values) => values.clone(),
        }
    }

    /// Whoever changes these bytes changes the version.
    #[test]
    fn a_frame_has_these_bytes() {
        let frame = encode(&codes()).unwrap();
        let hex: Vec<_> = frame.iter().map(|byte| format!("{byte:02x}")).collect();
        let golden = "4f 4d 4e 41 01 00 0c 00 0c 00 00 00 2f 87 05 d8 fb 2c 01 02 07 02 01 01 00 01 01 03 01 00 00 00 02 00 00 00 06 05 04 03";
        assert_eq!(hex.join(" "), golden);
    }

    #[test]
    fn a_tensor_keeps_its_shape_and_every_bit() {
        let values = [0.1f32, -0.0, f32::MIN_POSITIVE, f32::NAN, 5.0, 6.0];
        let tensor = Tensor::from_slice(&values, (2, 3), &Device::Cpu).unwrap();
        let payload =
            Payload { header: header(Kind::Rows, 2), parts: vec![Part::Rows(tensor.into())], leases: Vec::new() };
        let back = decode(&encode(&payload).unwrap(), &Device::Cpu).unwrap();
        assert_eq!(back.header, payload.header);
        let Part::Rows(Rows::Host(tensor)) = &back.parts[0] else { panic!("{back:?}") };
        assert_eq!(tensor.dims(), [2, 3]);
        assert_eq!(read(&back.parts[0]).into_iter().map(f32::to_bits).collect::<Vec<_>>(), values.map(f32::to_bits));
    }

    #[test]
    fn each_kind_of_damage_has_its_error() {
        let frame = encode(&codes()).unwrap().to_vec();
        let broken = |at: usize, byte: u8| {
            let mut frame = frame.clone();
            frame[at] = byte;
            decode(&frame, &Device::Cpu).unwrap_err().to_string()
        };
        assert!(broken(0, 0).contains("not a wire frame"));
        assert!(broken(4, 9).contains("version"));
        assert!(broken(7, 0xff).contains("header of 65292 exceeds"));
        assert!(broken(11, 0xff).contains("body of"));
        assert!(broken(8, 0xff).contains("were announced"));
        assert!(broken(20, 0xff).contains("checksum"));
        assert!(broken(frame.len() - 1, 0xff).contains("checksum"));
        assert!(decode(&frame[..10], &Device::Cpu).is_err());
    }

    /// Damage that a checksum cannot find, because the sender made it.
    fn sealed(mut frame: Vec<u8>) -> Vec<u8> {
        if frame.len() >= PREFIX {
            let sum = checksum(&frame);
            frame[12..PREFIX].copy_from_slice(&sum.to_le_bytes());
        }
        frame
    }

    proptest! {
        #![proptest_config(ProptestConfig { cases: 4000, ..ProptestConfig::default() })]

        #[test]
        fn any_payload_survives_the_wire(rows in 0..5usize, hidden in 1..9usize, ids in proptest::collection::vec(any::<u32>(), 0..40), units: u32) {
            let tensor = Tensor::arange(0f32, (rows * hidden) as f32, &Device::Cpu).and_then(|t| t.reshape((rows, hidden)));
            let mut parts = vec![Part::U32(ids), Part::F32(vec![0.5; rows])];
            parts.extend(tensor.ok().map(|tensor| Part::Rows(tensor.into())));
            let payload = Payload { header: header(Kind::Rows, units), parts, leases: Vec::new() };
            let back = decode(&encode(&payload).unwrap(), &Device::Cpu).unwrap();
            prop_assert_eq!(back.header, payload.header);
            prop_assert_eq!(back.parts.iter().map(read).collect::<Vec<_>>(), payload.parts.iter().map(read).collect::<Vec<_>>());
        }

        #[test]
        fn hostile_bytes_are_an_error_and_never_a_panic(changes in proptest::collection::vec((any::<usize>(), any::<u8>()), 0..8), cut in any::<usize>(), random in proptest::collection::vec(any::<u8>(), 0..64)) {
            let mut frame = encode(&codes()).unwrap().to_vec();
            for (at, byte) in changes {
                let len = frame.len();
                frame[4 + at % (len - 4)] = byte;
            }
            let _ = decode(&sealed(frame.clone()), &Device::Cpu);
            frame.truncate(cut % frame.len());
            let _ = decode(&sealed(frame), &Device::Cpu);
            let _ = decode(&random, &Device::Cpu);
        }
    }
}
