//! Embedding rows on their way from a thinker to a talker, wherever they are: a handle for as long as one will do, bytes
//! only where a consumer needs them.

use super::ModelError;
use bytes::Bytes;
use candle_core::{DType, Device, Tensor};
use futures::future::BoxFuture;
use omni_config::Precision;
use std::any::Any;
use std::fmt;
use std::ops::Range;
use std::sync::Arc;

/// `[n, width]` rows.
#[derive(Clone, Debug)]
pub enum Rows {
    /// A tensor in the host's memory.
    Host(Tensor),
    /// Elements in the host's memory as they came: a slice of a frame, or of what a device has copied out.
    Bytes(RowBytes),
    /// On the device that computed them.
    Device(DeviceRows),
}

/// Rows as little-endian elements, one row after the other.
#[derive(Clone)]
pub struct RowBytes {
    bytes: Bytes,
    width: usize,
    precision: Precision,
}

/// Some rows of a buffer on a device. Whoever holds one keeps the buffer.
#[derive(Clone, Debug)]
pub struct DeviceRows {
    buffer: Arc<dyn DeviceBuffer>,
    range: Range<usize>,
}

/// What a step left on its device: `[rows, width]`, written once.
pub trait DeviceBuffer: Send + Sync + fmt::Debug {
    /// Rows of the whole buffer.
    fn rows(&self) -> usize;

    /// Elements of a row.
    fn width(&self) -> usize;

    /// Its elements.
    fn precision(&self) -> Precision;

    /// For engines of the same device, which know what it is.
    fn as_any(&self) -> &dyn Any;

    /// The whole buffer in the host's memory. The first who asks begins the one copy there is; all owners share it.
    /// Nobody's thread waits for the device.
    fn fetch(&self) -> BoxFuture<'static, Result<Bytes, ModelError>>;
}

/// Bytes of an element.
pub fn element_bytes(precision: Precision) -> usize {
    match precision {
        Precision::F32 => 4,
        Precision::Bf16 => 2,
    }
}

impl Rows {
    /// Number and width of the rows; a tensor of another rank has none.
    pub fn shape(&self) -> (usize, usize) {
        match self {
            Rows::Host(tensor) => tensor.dims2().unwrap_or((0, 0)),
            Rows::Bytes(rows) => (rows.count(), rows.width),
            Rows::Device(rows) => (rows.range.len(), rows.buffer.width()),
        }
    }

    /// The rows but for the first `count`; `None` if that is all of them.
    ///
    /// # Errors
    /// When the tensor library says no.
    pub fn behind(self, count: usize) -> Result<Option<Rows>, ModelError> {
        let (rows, width) = self.shape();
        if count >= rows {
            return Ok(None);
        }
        Ok(Some(match self {
            Rows::Host(tensor) => Rows::Host(tensor.narrow(0, count, rows - count)?),
            Rows::Bytes(rows) => {
                let bytes = rows.bytes.slice(count * width * element_bytes(rows.precision)..);
                Rows::Bytes(RowBytes { bytes, ..rows })
            }
            Rows::Device(rows) => {
                let range = rows.range.start + count..rows.range.end;
                Rows::Device(DeviceRows { range, ..rows })
            }
        }))
    }

    /// Size of the elements.
    pub fn bytes(&self) -> usize {
        match self {
            Rows::Host(tensor) => tensor.elem_count() * tensor.dtype().size_in_bytes(),
            Rows::Bytes(rows) => rows.bytes.len(),
            Rows::Device(rows) => rows.range.len() * rows.buffer.width() * element_bytes(rows.buffer.precision()),
        }
    }

    /// The rows as `[n, width]` f32 in the host's memory.
    ///
    /// # Errors
    /// [`ModelError::Row`] for rows that are on a device: they must be [fetched](Rows::fetched) first.
    pub fn tensor(&self) -> Result<Tensor, ModelError> {
        match self {
            Rows::Host(tensor) => Ok(tensor.to_dtype(DType::F32)?),
            Rows::Bytes(rows) => {
                let values: Vec<f32> = match rows.precision {
                    Precision::F32 => rows.bytes.as_chunks::<4>().0.iter().map(|x| f32::from_le_bytes(*x)).collect(),
                    Precision::Bf16 => {
                        let halves = rows.bytes.as_chunks::<2>().0.iter();
                        halves.map(|x| f32::from_bits(u32::from(u16::from_le_bytes(*x)) << 16)).collect()
                    }
                };
                Ok(Tensor::from_vec(values, (rows.count(), rows.width), &Device::Cpu)?)
            }
            Rows::Device(_) => Err(ModelError::Row("rows that are still on their device cannot be read here".into())),
        }
    }

    /// The same rows in the host's memory, copied off their device if need be.
    ///
    /// # Errors
    /// What the device says.
    pub async fn fetched(self) -> Result<Rows, ModelError> {
        match self {
            Rows::Device(rows) => rows.fetch().await.map(Rows::Bytes),
            here => Ok(here),
        }
    }
}

impl From<Tensor> for Rows {
    fn from(tensor: Tensor) -> Rows {
        Rows::Host(tensor)
    }
}

impl RowBytes {
    /// Rows of `width` elements; `None` if `bytes` are not whole rows.
    pub fn new(bytes: Bytes, width: usize, precision: Precision) -> Option<RowBytes> {
        let row = width.checked_mul(element_bytes(precision))?;
        (row > 0 && bytes.len().is_multiple_of(row)).then_some(RowBytes { bytes, width, precision })
    }

    /// The same in memory of their own.
    pub fn detached(&self) -> RowBytes {
        RowBytes { bytes: Bytes::copy_from_slice(&self.bytes), ..*self }
    }

    /// How many rows.
    pub fn count(&self) -> usize {
        self.bytes.len() / (self.width * element_bytes(self.precision))
    }

    /// Elements of a row.
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

impl fmt::Debug for RowBytes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "RowBytes({} x {} {})", self.count(), self.width, self.precision.as_str())
    }
}

impl DeviceRows {
    /// Some rows of a buffer; `None` beyond its end.
    pub fn new(buffer: Arc<dyn DeviceBuffer>, range: Range<usize>) -> Option<DeviceRows> {
        (range.start <= range.end && range.end <= buffer.rows()).then_some(DeviceRows { buffer, range })
    }

    /// The buffer.
    pub fn buffer(&self) -> &Arc<dyn DeviceBuffer> {
        &self.buffer
    }

    /// Which rows of it.
    pub fn range(&self) -> Range<usize> {
        self.range.clone()
    }

    /// These rows in the host's memory, a slice of the copy that all owners of the buffer share.
    ///
    /// # Errors
    /// What the device says.
    pub async fn fetch(&self) -> Result<RowBytes, ModelError> {
        let (width, precision) = (self.buffer.width(), self.buffer.precision());
        let all = self.buffer.fetch().await?;
        let row = width * element_bytes(precision);
        let (from, to) = (self.range.start * row, self.range.end * row);
        if to > all.len() {
            return Err(ModelError::Row(format!("{} bytes came of a buffer that has {to}", all.len())));
        }
        Ok(RowBytes { bytes: all.slice(from..to), width, precision })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(Debug)]
    struct Fake(Bytes);

    impl DeviceBuffer for Fake {
        fn rows(&self) -> usize {
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
    async fn rows_of_a_device_are_a_slice_of_the_one_copy() {
        // 1, 2 | 3, -4 in bf16.
        let bytes = [0x3f80u16, 0x4000, 0x4040, 0xc080].iter().flat_map(|x| x.to_le_bytes()).collect::<Vec<_>>();
        let all = Bytes::from(bytes);
        let rows = Rows::Device(DeviceRows::new(Arc::new(Fake(all.clone())), 1..2).unwrap());
        assert_eq!((rows.shape(), rows.bytes()), ((1, 2), 4));
        assert!(rows.tensor().is_err(), "nothing waits for a device by accident");
        let Rows::Bytes(here) = rows.fetched().await.unwrap() else { panic!("still elsewhere") };
        assert_eq!(here.data().as_ptr(), all[4..].as_ptr(), "copied once more");
        assert_eq!(Rows::Bytes(here).tensor().unwrap().to_vec2::<f32>().unwrap(), [[3.0, -4.0]]);
    }

    #[test]
    fn a_range_beyond_the_buffer_and_bytes_that_are_no_rows_are_refused() {
        let buffer: Arc<dyn DeviceBuffer> = Arc::new(Fake(Bytes::from_static(&[0; 8])));
        assert!(DeviceRows::new(Arc::clone(&buffer), 1..3).is_none());
        assert!(RowBytes::new(Bytes::from_static(&[0; 7]), 2, Precision::Bf16).is_none());
        assert!(RowBytes::new(Bytes::from_static(&[0; 8]), 0, Precision::F32).is_none());
    }
}
