//! Tensors of a golden case as plain numbers.

use candle_core::{DType, Tensor};
use safetensors::tensor::{Dtype, SafeTensors, TensorView};
use std::collections::BTreeMap;

/// A tensor of a case: whole numbers (tokens, codes, positions, lengths) or floats.
#[derive(Clone, Debug, PartialEq)]
pub struct Value {
    /// Outermost dimension first.
    pub shape: Vec<usize>,
    /// The elements, the last dimension fastest.
    pub data: Data,
}

/// The elements of a [`Value`].
#[derive(Clone, Debug, PartialEq)]
pub enum Data {
    /// Whole numbers, which must be equal.
    Ints(Vec<i64>),
    /// Floats, which must be close.
    Floats(Vec<f32>),
}

/// Tensors by name.
pub type Values = BTreeMap<String, Value>;

impl Value {
    /// Whole numbers of a shape.
    pub fn ints(shape: impl Into<Vec<usize>>, data: impl IntoIterator<Item = u32>) -> Value {
        Value { shape: shape.into(), data: Data::Ints(data.into_iter().map(i64::from).collect()) }
    }

    /// A float tensor, with `leading` dimensions of 1 put before its own.
    ///
    /// # Errors
    /// What the device says.
    pub fn floats(tensor: &Tensor, leading: usize) -> candle_core::Result<Value> {
        let data = tensor.flatten_all()?.to_dtype(DType::F32)?.to_vec1::<f32>()?;
        let shape = std::iter::repeat_n(1, leading).chain(tensor.dims().iter().copied()).collect();
        Ok(Value { shape, data: Data::Floats(data) })
    }

    /// The part `from..from + length` of one dimension.
    ///
    /// # Errors
    /// When the value has no such part.
    pub fn narrow(&self, dimension: usize, from: usize, length: usize) -> Result<Value, String> {
        let Some(size) = self.shape.get(dimension).copied().filter(|size| from + length <= *size) else {
            return Err(format!("has shape {:?}: dimension {dimension} has no {from}..{}", self.shape, from + length));
        };
        let inner = self.shape[dimension + 1..].iter().product::<usize>();
        fn part<T: Copy>(all: &[T], block: usize, range: std::ops::Range<usize>) -> Vec<T> {
            all.chunks(block.max(1)).flat_map(|block| block[range.clone()].iter().copied()).collect()
        }
        let (block, range) = (size * inner, from * inner..(from + length) * inner);
        let data = match &self.data {
            Data::Ints(ints) => Data::Ints(part(ints, block, range)),
            Data::Floats(floats) => Data::Floats(part(floats, block, range)),
        };
        let mut shape = self.shape.clone();
        shape[dimension] = length;
        Ok(Value { shape, data })
    }

    /// The numbers as token ids.
    ///
    /// # Errors
    /// When they are floats, negative or too large.
    pub fn tokens(&self) -> Result<Vec<u32>, String> {
        match &self.data {
            Data::Ints(ints) => {
                ints.iter().map(|i| u32::try_from(*i).map_err(|_| format!("{i} is not a token id"))).collect()
            }
            Data::Floats(_) => Err("has floats where token ids are expected".into()),
        }
    }
}

/// Reads every tensor of a safetensors file.
///
/// # Errors
/// What is wrong with the file, as text.
pub fn read_values(bytes: &[u8]) -> Result<Values, String> {
    let file = SafeTensors::deserialize(bytes).map_err(|e| e.to_string())?;
    let read = |(name, view): (String, TensorView<'_>)| {
        let data = elements(&view).map_err(|e| format!("{name}: {e}"))?;
        Ok((name, Value { shape: view.shape().to_vec(), data }))
    };
    file.tensors().into_iter().map(read).collect()
}

fn elements(view: &TensorView<'_>) -> Result<Data, String> {
    let bytes = view.data();
    Ok(match view.dtype() {
        Dtype::I32 => Data::Ints(words(bytes, |b| i64::from(i32::from_le_bytes(b)))),
        Dtype::I64 => Data::Ints(words(bytes, i64::from_le_bytes)),
        Dtype::U32 => Data::Ints(words(bytes, |b| i64::from(u32::from_le_bytes(b)))),
        Dtype::U8 | Dtype::BOOL => Data::Ints(bytes.iter().map(|b| i64::from(*b)).collect()),
        Dtype::F32 => Data::Floats(words(bytes, f32::from_le_bytes)),
        Dtype::F64 => Data::Floats(words(bytes, |b| f64::from_le_bytes(b) as f32)),
        Dtype::BF16 => Data::Floats(words(bytes, |b| f32::from_bits(u32::from(u16::from_le_bytes(b)) << 16))),
        other => return Err(format!("element type {other} is not read; store f32 or int32")),
    })
}

fn words<const N: usize, T>(bytes: &[u8], read: impl Fn([u8; N]) -> T) -> Vec<T> {
    bytes.as_chunks::<N>().0.iter().map(|b| read(*b)).collect()
}
