//! Payload to frame.

use super::{
    ALIGN, Dtype, MAGIC, MAX_BODY, MAX_HEADER, MAX_PARTS, PREFIX, PartHeader, VERSION, WireError, WireHeader,
    body_start, checksum,
};
use crate::payload::{Part, Payload};
use bytes::Bytes;
use candle_core::{CpuStorage, Storage, Tensor};
use omni_config::Precision;
use omni_model::ModelError;
use omni_model::embeddings::Embeddings;

/// A payload that is about to become a frame: how long that is, and what to write.
pub struct Frame<'a> {
    payload: &'a Payload,
    header: Vec<u8>,
    /// Elements of each part, without what fills it up.
    parts: Vec<usize>,
    len: usize,
}

impl<'a> Frame<'a> {
    /// Measures a payload.
    ///
    /// # Errors
    /// [`WireError::TooLarge`] for a body over [`MAX_BODY`]; embeddings that are on a device, which must be
    /// [fetched](Embeddings::fetched) first.
    pub fn new(payload: &'a Payload) -> Result<Frame<'a>, WireError> {
        let too_large =
            |what, got, limit| if got > limit { Err(WireError::TooLarge { what, got, limit }) } else { Ok(()) };
        too_large("number of parts", payload.parts.len(), MAX_PARTS)?;
        let parts = payload.parts.iter().map(part_header).collect::<Result<Vec<_>, _>>()?;
        let lens: Vec<_> = parts.iter().map(|part| part.bytes().unwrap_or(usize::MAX)).collect();
        let body = lens.iter().try_fold(0usize, |sum, len| sum.checked_add(len.checked_next_multiple_of(ALIGN)?));
        let body = body.unwrap_or(usize::MAX);
        too_large("body", body, MAX_BODY)?;
        let header = WireHeader { header: payload.header, parts };
        let header = bincode::encode_to_vec(header, bincode::config::standard());
        let header = header.map_err(|error| WireError::Header(error.to_string()))?;
        too_large("header", header.len(), MAX_HEADER)?;
        Ok(Frame { payload, len: body_start(header.len()) + body, header, parts: lens })
    }

    /// Bytes of the frame, never 0.
    #[expect(clippy::len_without_is_empty, reason = "a frame is never empty")]
    pub fn len(&self) -> usize {
        self.len
    }

    /// Writes the frame.
    ///
    /// # Errors
    /// A place of another length than [`Frame::len`]; embeddings that cannot be read.
    pub fn write(&self, place: &mut [u8]) -> Result<(), WireError> {
        if place.len() != self.len {
            return Err(WireError::Length { expected: self.len, got: place.len() });
        }
        let start = body_start(self.header.len());
        let (front, mut body) = place.split_at_mut(start);
        front[..4].copy_from_slice(&MAGIC);
        front[4..6].copy_from_slice(&VERSION.to_le_bytes());
        front[6..8].copy_from_slice(&(self.header.len() as u16).to_le_bytes());
        front[8..12].copy_from_slice(&(body.len() as u32).to_le_bytes());
        front[PREFIX..PREFIX + self.header.len()].copy_from_slice(&self.header);
        front[PREFIX + self.header.len()..].fill(0);
        for (part, len) in self.payload.parts.iter().zip(&self.parts) {
            let (data, rest) = body.split_at_mut(*len);
            match part {
                Part::Embeddings(embeddings) => write_embeddings(embeddings, data)?,
                Part::Features(features) => copy(data, &features.clone().numbers(), |value| value.to_le_bytes()),
                Part::U32(values) => copy(data, values, |value| value.to_le_bytes()),
                Part::F32(values) => copy(data, values, |value| value.to_le_bytes()),
            }
            let (filling, rest) = rest.split_at_mut(len.next_multiple_of(ALIGN) - len);
            filling.fill(0);
            body = rest;
        }
        let checksum = checksum(place);
        place[12..PREFIX].copy_from_slice(&checksum.to_le_bytes());
        Ok(())
    }
}

/// Turns a payload into a frame of its own memory.
///
/// # Errors
/// As for [`Frame::new`] and [`Frame::write`].
pub fn encode(payload: &Payload) -> Result<Bytes, WireError> {
    let frame = Frame::new(payload)?;
    let mut bytes = vec![0; frame.len()];
    frame.write(&mut bytes)?;
    Ok(bytes.into())
}

fn part_header(part: &Part) -> Result<PartHeader, WireError> {
    let list = |dtype, len: usize| {
        let len = u32::try_from(len).map_err(|_| WireError::TooLarge { what: "part", got: len, limit: MAX_BODY })?;
        Ok(PartHeader { dtype, dims: vec![len] })
    };
    match part {
        Part::U32(values) => list(Dtype::U32, values.len()),
        Part::F32(values) => list(Dtype::F32, values.len()),
        Part::Features(features) => list(Dtype::F32, features.len()),
        Part::Embeddings(embeddings) => {
            let dtype = match embeddings {
                Embeddings::Host(tensor) if tensor.rank() != 2 => {
                    return Err(
                        ModelError::Sequence(format!("a tensor of rank {} is no embeddings", tensor.rank())).into()
                    );
                }
                Embeddings::Host(_) => Dtype::F32,
                Embeddings::Bytes(embeddings) if embeddings.precision() == Precision::Bf16 => Dtype::Bf16,
                Embeddings::Bytes(_) => Dtype::F32,
                // The same refusal that reading them gives.
                Embeddings::Device(_) => {
                    return Err(embeddings.tensor().err().map_or(WireError::Checksum, WireError::Embeddings));
                }
            };
            let (count, width) = embeddings.shape();
            let dims = [count, width].map(u32::try_from);
            let [Ok(count), Ok(width)] = dims else {
                return Err(WireError::TooLarge { what: "part", got: embeddings.bytes(), limit: MAX_BODY });
            };
            if width == 0 {
                return Err(ModelError::Sequence("embeddings without width".into()).into());
            }
            Ok(PartHeader { dtype, dims: vec![count, width] })
        }
    }
}

fn write_embeddings(embeddings: &Embeddings, place: &mut [u8]) -> Result<(), WireError> {
    if let Embeddings::Bytes(embeddings) = embeddings
        && embeddings.data().len() == place.len()
    {
        place.copy_from_slice(embeddings.data());
        return Ok(());
    }
    let tensor = embeddings.tensor()?;
    write_tensor(&tensor, place).map_err(|error| WireError::Embeddings(error.into()))
}

/// A tensor's f32 elements, straight from where it keeps them if they lie in order.
fn write_tensor(tensor: &Tensor, place: &mut [u8]) -> candle_core::Result<()> {
    let (storage, layout) = tensor.storage_and_layout();
    if let (Storage::Cpu(CpuStorage::F32(values)), Some((from, to))) = (&*storage, layout.contiguous_offsets()) {
        copy(place, &values[from..to], |value| value.to_le_bytes());
    } else {
        drop(storage);
        copy(place, &tensor.flatten_all()?.to_vec1::<f32>()?, |value| value.to_le_bytes());
    }
    Ok(())
}

fn copy<T: Copy>(place: &mut [u8], values: &[T], bytes: impl Fn(T) -> [u8; 4]) {
    for (place, value) in place.as_chunks_mut::<4>().0.iter_mut().zip(values) {
        *place = bytes(*value);
    }
}
