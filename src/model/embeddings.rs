//! Embeddings on their way from a thinker to a talker. They stay where they were computed, behind a handle, until a
//! consumer needs their bytes.

use super::ModelError;
use bytes::Bytes;
use candle_core::{DType, Device, Tensor};
use futures::future::BoxFuture;
use omni_config::Precision;
use std::any::Any;
use std::fmt;
use std::ops::Range;
use std::sync::Arc;

/// `[n, width]` embeddings, on the host or on a device.
#[derive(Clone, Debug)]
pub enum Embeddings {
    /// A tensor in the host's memory.
    Host(Tensor),
    /// Elements in the host's memory, not yet a tensor: a slice of a received frame or of a copy from a device.
    Bytes(EmbeddingBytes),
    /// On the device that computed them.
    Device(DeviceEmbeddings),
}

/// Embeddings as little-endian elements, one after the other.
#[derive(Clone)]
pub struct EmbeddingBytes {
    bytes: Bytes,
    width: usize,
    precision: Precision,
}

/// A range of a buffer on a device. Each range keeps the buffer alive.
#[derive(Clone, Debug)]
pub struct DeviceEmbeddings {
    buffer: Arc<dyn DeviceBuffer>,
    range: Range<usize>,
}

/// The buffer that a step wrote on its device: `[embeddings, width]`, written once.
pub trait DeviceBuffer: Send + Sync + fmt::Debug {
    /// Embeddings of the whole buffer.
    fn embeddings(&self) -> usize;

    /// Elements of an embedding.
    fn width(&self) -> usize;

    /// Its elements.
    fn precision(&self) -> Precision;

    /// For engines of the same device, which know the concrete type.
    fn as_any(&self) -> &dyn Any;

    /// The whole buffer in the host's memory. The first call begins the one copy, which all owners share; no thread
    /// blocks on the device.
    fn fetch(&self) -> BoxFuture<'static, Result<Bytes, ModelError>>;
}

/// Bytes of an element.
pub fn element_bytes(precision: Precision) -> usize {
    match precision {
        Precision::F32 => 4,
        Precision::Bf16 => 2,
    }
}

impl Embeddings {
    /// Number and width of the embeddings; a tensor of another rank has none.
    pub fn shape(&self) -> (usize, usize) {
        match self {
            Embeddings::Host(tensor) => tensor.dims2().unwrap_or((0, 0)),
            Embeddings::Bytes(embeddings) => (embeddings.count(), embeddings.width),
            Embeddings::Device(embeddings) => (embeddings.range.len(), embeddings.buffer.width()),
        }
    }

    /// The embeddings but for the first `count`; `None` if that is all of them.
    ///
    /// # Errors
    /// When the tensor library fails.
    pub fn behind(self, count: usize) -> Result<Option<Embeddings>, ModelError> {
        let (embeddings, width) = self.shape();
        if count >= embeddings {
            return Ok(None);
        }
        Ok(Some(match self {
            Embeddings::Host(tensor) => Embeddings::Host(tensor.narrow(0, count, embeddings - count)?),
            Embeddings::Bytes(embeddings) => {
                let bytes = embeddings.bytes.slice(count * width * element_bytes(embeddings.precision)..);
                Embeddings::Bytes(EmbeddingBytes { bytes, ..embeddings })
            }
            Embeddings::Device(embeddings) => {
                let range = embeddings.range.start + count..embeddings.range.end;
                Embeddings::Device(DeviceEmbeddings { range, ..embeddings })
            }
        }))
    }

    /// Size of the elements.
    pub fn bytes(&self) -> usize {
        match self {
            Embeddings::Host(tensor) => tensor.elem_count() * tensor.dtype().size_in_bytes(),
            Embeddings::Bytes(embeddings) => embeddings.bytes.len(),
            Embeddings::Device(embeddings) => {
                embeddings.range.len() * embeddings.buffer.width() * element_bytes(embeddings.buffer.precision())
            }
        }
    }

    /// The embeddings as `[n, width]` f32 in the host's memory.
    ///
    /// # Errors
    /// [`ModelError::Sequence`] for embeddings that are on a device: they must be [fetched](Embeddings::fetched) first.
    pub fn tensor(&self) -> Result<Tensor, ModelError> {
        match self {
            Embeddings::Host(tensor) => Ok(tensor.to_dtype(DType::F32)?),
            Embeddings::Bytes(embeddings) => {
                let values: Vec<f32> = match embeddings.precision {
                    Precision::F32 => {
                        embeddings.bytes.as_chunks::<4>().0.iter().map(|x| f32::from_le_bytes(*x)).collect()
                    }
                    Precision::Bf16 => {
                        let halves = embeddings.bytes.as_chunks::<2>().0.iter();
                        halves.map(|x| f32::from_bits(u32::from(u16::from_le_bytes(*x)) << 16)).collect()
                    }
                };
                Ok(Tensor::from_vec(values, (embeddings.count(), embeddings.width), &Device::Cpu)?)
            }
            Embeddings::Device(_) => {
                Err(ModelError::Sequence("embeddings that are still on their device cannot be read here".into()))
            }
        }
    }

    /// The same embeddings in the host's memory, copied from their device if they are on one.
    ///
    /// # Errors
    /// What the device says.
    pub async fn fetched(self) -> Result<Embeddings, ModelError> {
        match self {
            Embeddings::Device(embeddings) => embeddings.fetch().await.map(Embeddings::Bytes),
            here => Ok(here),
        }
    }
}

impl From<Tensor> for Embeddings {
    fn from(tensor: Tensor) -> Embeddings {
        Embeddings::Host(tensor)
    }
}

impl EmbeddingBytes {
    /// Embeddings of `width` elements; `None` if `bytes` are not whole embeddings.
    pub fn new(bytes: Bytes, width: usize, precision: Precision) -> Option<EmbeddingBytes> {
        let embedding = width.checked_mul(element_bytes(precision))?;
        (embedding > 0 && bytes.len().is_multiple_of(embedding)).then_some(EmbeddingBytes { bytes, width, precision })
    }

    /// A copy in memory of its own, which does not keep the frame alive.
    pub fn detached(&self) -> EmbeddingBytes {
        EmbeddingBytes { bytes: Bytes::copy_from_slice(&self.bytes), ..*self }
    }

    /// How many embeddings.
    pub fn count(&self) -> usize {
        self.bytes.len() / (self.width * element_bytes(self.precision))
    }

    /// Elements of an embedding.
    pub fn width(&self) -> usize {
        self.width
    }

    /// The elements' type.
    pub fn precision(&self) -> Precision {
        self.precision
    }

    /// The elements.
    pub fn data(&self) -> &Bytes {
        &self.bytes
    }
}

impl fmt::Debug for EmbeddingBytes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "EmbeddingBytes({} x {} {})", self.count(), self.width, self.precision.as_str())
    }
}

impl DeviceEmbeddings {
    /// Some embeddings of a buffer; `None` beyond its end.
    pub fn new(buffer: Arc<dyn DeviceBuffer>, range: Range<usize>) -> Option<DeviceEmbeddings> {
        (range.start <= range.end && range.end <= buffer.embeddings()).then_some(DeviceEmbeddings { buffer, range })
    }

    /// One of them.
    ///
    /// # Panics
    /// When there are not so many.
    pub fn one(&self, number: usize) -> DeviceEmbeddings {
        assert!(number < self.range.len(), "embedding {number} of {}", self.range.len());
        let at = self.range.start + number;
        DeviceEmbeddings { buffer: Arc::clone(&self.buffer), range: at..at + 1 }
    }

    /// The buffer.
    pub fn buffer(&self) -> &Arc<dyn DeviceBuffer> {
        &self.buffer
    }

    /// The range of it that these are.
    pub fn range(&self) -> Range<usize> {
        self.range.clone()
    }

    /// These embeddings in the host's memory, a slice of the copy that all owners of the buffer share.
    ///
    /// # Errors
    /// What the device says.
    pub async fn fetch(&self) -> Result<EmbeddingBytes, ModelError> {
        let (width, precision) = (self.buffer.width(), self.buffer.precision());
        let all = self.buffer.fetch().await?;
        let embedding = width * element_bytes(precision);
        let (from, to) = (self.range.start * embedding, self.range.end * embedding);
        if to > all.len() {
            return Err(ModelError::Sequence(format!("{} bytes came of a buffer that has {to}", all.len())));
        }
        Ok(EmbeddingBytes { bytes: all.slice(from..to), width, precision })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(Debug)]
    struct Fake(Bytes);

    impl DeviceBuffer for Fake {
        fn embeddings(&self) -> usize {
            self.0.len() / 4
        }
        fn width(&self) -> usize {
            2
        }
        fn precision(&self) -> Precision {
            Precision::Bf16
        }
        fn as_any(&self) -> &dyn Any {
            self
        }
        fn fetch(&self) -> BoxFuture<'static, Result<Bytes, ModelError>> {
            let bytes = self.0.clone();
            Box::pin(async { Ok(bytes) })
        }
    }

    #[tokio::test]
    async fn embeddings_of_a_device_are_a_slice_of_the_one_copy() {
        // 1, 2 | 3, -4 in bf16.
        let bytes = [0x3f80u16, 0x4000, 0x4040, 0xc080].iter().flat_map(|x| x.to_le_bytes()).collect::<Vec<_>>();
        let all = Bytes::from(bytes);
        let embeddings = Embeddings::Device(DeviceEmbeddings::new(Arc::new(Fake(all.clone())), 1..2).unwrap());
        assert_eq!((embeddings.shape(), embeddings.bytes()), ((1, 2), 4));
        assert!(embeddings.tensor().is_err(), "nothing waits for a device by accident");
        let Embeddings::Bytes(here) = embeddings.fetched().await.unwrap() else { panic!("still elsewhere") };
        assert_eq!(here.data().as_ptr(), all[4..].as_ptr(), "copied once more");
        assert_eq!(Embeddings::Bytes(here).tensor().unwrap().to_vec2::<f32>().unwrap(), [[3.0, -4.0]]);
    }

    #[test]
    fn a_range_beyond_the_buffer_and_bytes_that_are_no_embeddings_are_refused() {
        let buffer: Arc<dyn DeviceBuffer> = Arc::new(Fake(Bytes::from_static(&[0; 8])));
        assert!(DeviceEmbeddings::new(Arc::clone(&buffer), 1..3).is_none());
        assert!(EmbeddingBytes::new(Bytes::from_static(&[0; 7]), 2, Precision::Bf16).is_none());
        assert!(EmbeddingBytes::new(Bytes::from_static(&[0; 8]), 0, Precision::F32).is_none());
    }
}
