//! Frame to payload.

use super::{
    ALIGN, Dtype, MAGIC, MAX_BODY, MAX_HEADER, MAX_PARTS, MAX_RANK, PREFIX, PartHeader, VERSION, WireError, WireHeader,
    body_start, checksum,
};
use crate::payload::{Part, Payload};
use bytes::Bytes;
use omni_config::Precision;
use omni_model::embeddings::{EmbeddingBytes, Embeddings};

/// Turns a frame back into a payload. With `zero_copy` embeddings stay where they are and keep the frame; otherwise
/// they are copied.
///
/// # Errors
/// Every [`WireError`]; never panics, whatever the bytes.
pub fn decode(frame: &Bytes, zero_copy: bool) -> Result<Payload, WireError> {
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
    let start = body_start(header_len);
    let expected = start + body_len;
    if frame.len() != expected {
        return Err(WireError::Length { expected, got: frame.len() });
    }
    if checksum(frame) != u32_at(prefix, 12) {
        return Err(WireError::Checksum);
    }
    let header = read_header(&frame[PREFIX..PREFIX + header_len])?;
    let mut parts = Vec::with_capacity(header.parts.len());
    let mut at = start;
    for part in &header.parts {
        let beyond = || WireError::Header("parts reach beyond the body".into());
        let end = part.bytes().and_then(|len| at.checked_add(len)).filter(|end| *end <= expected).ok_or_else(beyond)?;
        parts.push(read_part(part, frame.slice(at..end), zero_copy)?);
        // Does not overflow: `end` is at most the length of the frame.
        at = end.next_multiple_of(ALIGN);
    }
    if at != expected {
        return Err(WireError::Header(format!("parts end at {at} of {expected} bytes")));
    }
    Ok(Payload { header: header.header, parts, leases: Vec::new() })
}

fn read_header(bytes: &[u8]) -> Result<WireHeader, WireError> {
    // Bounds what a decoder may allocate: a list of dimensions that claims to be long is refused.
    let config = bincode::config::standard().with_limit::<{ MAX_HEADER * 8 }>();
    let (header, used): (WireHeader, usize) =
        bincode::decode_from_slice(bytes, config).map_err(|error| WireError::Header(error.to_string()))?;
    if used != bytes.len() {
        return Err(WireError::Header(format!("{} bytes too many", bytes.len() - used)));
    }
    if header.parts.len() > MAX_PARTS {
        return Err(WireError::TooLarge { what: "number of parts", got: header.parts.len(), limit: MAX_PARTS });
    }
    Ok(header)
}

fn read_part(part: &PartHeader, data: Bytes, zero_copy: bool) -> Result<Part, WireError> {
    let embeddings = |width: u32, precision| {
        let data = if zero_copy { data.clone() } else { Bytes::copy_from_slice(&data) };
        let embeddings = EmbeddingBytes::new(data, width as usize, precision);
        embeddings
            .map(|embeddings| Part::Embeddings(Embeddings::Bytes(embeddings)))
            .ok_or_else(|| WireError::Header("embeddings without width".into()))
    };
    match (part.dtype, &part.dims[..]) {
        (Dtype::F32, [_, width]) => embeddings(*width, Precision::F32),
        (Dtype::Bf16, [_, width]) => embeddings(*width, Precision::Bf16),
        (Dtype::U32, [_]) => Ok(Part::U32(words(&data, u32::from_le_bytes))),
        (Dtype::F32, [_]) => Ok(Part::F32(words(&data, f32::from_le_bytes))),
        (_, dims) if dims.len() > MAX_RANK => {
            Err(WireError::TooLarge { what: "rank", got: dims.len(), limit: MAX_RANK })
        }
        (dtype, dims) => Err(WireError::Header(format!("no part has {} dimensions of {dtype:?}", dims.len()))),
    }
}

fn words<T>(data: &[u8], read: impl Fn([u8; 4]) -> T) -> Vec<T> {
    data.as_chunks::<4>().0.iter().map(|bytes| read(*bytes)).collect()
}

fn u16_at(bytes: &[u8], at: usize) -> u16 {
    u16::from_le_bytes([bytes[at], bytes[at + 1]])
}

fn u32_at(bytes: &[u8], at: usize) -> u32 {
    u32::from_le_bytes([bytes[at], bytes[at + 1], bytes[at + 2], bytes[at + 3]])
}
