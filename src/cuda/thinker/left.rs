//! Embeddings of media that an encoder left on a device, on their way into a pass: those that follow each other in both
//! places are one copy.

use crate::copies::EmbeddingBuffer;
use crate::{Buffer, CudaError, Stream};
use omni_model::embeddings::{DeviceBuffer, DeviceEmbeddings};
use std::ops::Range;
use std::sync::Arc;

/// See the module.
#[derive(Default)]
pub(super) struct Left {
    copies: Vec<Copy>,
}

struct Copy {
    buffer: Arc<dyn DeviceBuffer>,
    from: Range<usize>,
    /// The place of the first one among the media of the pass.
    to: usize,
}

impl Left {
    /// Adds an embedding with its place among the media of the pass.
    pub fn add(&mut self, one: &DeviceEmbeddings, to: usize) {
        let from = one.range();
        if let Some(last) = self.copies.last_mut()
            && Arc::ptr_eq(&last.buffer, one.buffer())
            && (last.from.end, last.to + last.from.len()) == (from.start, to)
        {
            last.from.end = from.end;
            return;
        }
        self.copies.push(Copy { buffer: Arc::clone(one.buffer()), from, to });
    }

    /// Queues the copies to rows of `stride` bytes. The caller keeps the embeddings until the stream has run them.
    ///
    /// # Errors
    /// What the driver says.
    pub fn copy_to(&self, stream: &Stream, media: &Buffer<u8>, stride: usize) -> Result<(), CudaError> {
        for Copy { buffer, from, to } in &self.copies {
            // What they are was checked when the step was planned.
            let Some(there) = buffer.as_any().downcast_ref::<EmbeddingBuffer>() else { continue };
            if there.width() * size_of::<f32>() == stride {
                there.copy_to(stream, from.clone(), media, to * stride)?;
                continue;
            }
            for (number, at) in from.clone().enumerate() {
                there.copy_to(stream, at..at + 1, media, (to + number) * stride)?;
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use futures::future::BoxFuture;
    use omni_config::Precision;
    use omni_model::ModelError;
    use std::any::Any;

    #[derive(Debug)]
    struct Fake;

    impl DeviceBuffer for Fake {
        fn embeddings(&self) -> usize {
            10
        }
        fn width(&self) -> usize {
            4
        }
        fn precision(&self) -> Precision {
            Precision::F32
        }
        fn as_any(&self) -> &dyn Any {
            self
        }
        fn fetch(&self) -> BoxFuture<'static, Result<bytes::Bytes, ModelError>> {
            unreachable!("nothing is fetched")
        }
    }

    #[test]
    fn what_follows_each_other_is_one_copy() {
        let [a, b] = [(); 2].map(|()| DeviceEmbeddings::new(Arc::new(Fake), 2..9).unwrap());
        let mut left = Left::default();
        // Of `a` 0, 1 and 2 in a row; 4 behind a gap; 5 behind a gap of places; then `b`.
        for (of, number, to) in [(&a, 0, 0), (&a, 1, 1), (&a, 2, 2), (&a, 4, 3), (&a, 5, 5), (&b, 6, 6)] {
            left.add(&of.one(number), to);
        }
        let copies: Vec<_> = left.copies.iter().map(|copy| (copy.from.clone(), copy.to)).collect();
        assert_eq!(copies, [(2..5, 0), (6..7, 3), (7..8, 5), (8..9, 6)]);
    }
}
