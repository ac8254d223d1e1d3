//! Memory of the device in which steps leave embeddings for other stages.

use super::fetch::{HostCopies, Job};
use super::ranges::Ranges;
use crate::{Buffer, CudaError, Event, Gpu, Pinned, Stream};
use bytes::Bytes;
use futures::FutureExt;
use futures::future::{BoxFuture, Shared};
use omni_config::Precision;
use omni_model::ModelError;
use omni_model::embeddings::{DeviceBuffer, element_bytes};
use omni_model::no_block;
use std::any::Any;
use std::fmt;
use std::ops::Range;
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use tokio::sync::oneshot;

/// Room for embeddings of one width.
pub struct EmbeddingArena {
    gpu: Gpu,
    width: usize,
    precision: Precision,
    home: Arc<Home>,
    copies: Arc<HostCopies>,
}

struct Home {
    memory: Buffer<u8>,
    state: Mutex<State>,
}

struct State {
    ranges: Ranges,
    events: Vec<Event>,
}

/// Part of an arena, lent until its last reader drops it.
pub(crate) struct Memory {
    place: Place,
    bytes: usize,
    /// The event behind the step that wrote it. `None` only while the buffer is being dropped.
    ready: Option<Event>,
}

enum Place {
    Arena(Arc<Home>, Range<usize>),
    /// The arena had no room.
    Alone(Buffer<u8>),
}

/// The embeddings that one step left: `[embeddings, width]`.
pub struct EmbeddingBuffer {
    memory: Arc<Memory>,
    embeddings: usize,
    width: usize,
    precision: Precision,
    copies: Arc<HostCopies>,
    fetched: OnceLock<Shared<BoxFuture<'static, Result<Bytes, CudaError>>>>,
}

impl EmbeddingArena {
    /// Room for `embeddings` embeddings.
    ///
    /// # Errors
    /// When the device has no room.
    pub fn new(
        gpu: &Gpu,
        embeddings: usize,
        width: usize,
        precision: Precision,
        copies: Arc<HostCopies>,
    ) -> Result<EmbeddingArena, CudaError> {
        let bytes = embeddings * width * element_bytes(precision);
        let memory = gpu.alloc("embeddings for the next stage", bytes)?;
        let state = Mutex::new(State { ranges: Ranges::new(bytes), events: Vec::new() });
        Ok(EmbeddingArena { gpu: gpu.clone(), width, precision, home: Arc::new(Home { memory, state }), copies })
    }

    /// [`EmbeddingArena::take`] where that allocates nothing; `None` where the arena is full.
    ///
    /// # Errors
    /// What the driver says.
    pub(crate) fn take_free(&self, embeddings: usize) -> Result<Option<Memory>, CudaError> {
        let bytes = self.bytes_of(embeddings);
        let mut state = self.home.lock();
        let Some(range) = state.ranges.take(bytes) else { return Ok(None) };
        let event = state.events.pop();
        drop(state);
        let ready = event.map_or_else(|| Event::new(&self.gpu), Ok)?;
        Ok(Some(Memory { place: Place::Arena(Arc::clone(&self.home), range), bytes, ready: Some(ready) }))
    }

    /// Embeddings begin where any kernel may read them.
    fn bytes_of(&self, embeddings: usize) -> usize {
        (embeddings * self.width * element_bytes(self.precision)).next_multiple_of(16)
    }

    /// Room for the embeddings of one step. Allocates where embeddings wait so long that the arena is full.
    ///
    /// # Errors
    /// When the device has no room.
    pub(crate) fn take(&self, embeddings: usize) -> Result<Memory, CudaError> {
        if let Some(memory) = self.take_free(embeddings)? {
            return Ok(memory);
        }
        let _excused = no_block::allow("embeddings wait for so long that the arena is full");
        let bytes = self.bytes_of(embeddings);
        let place = Place::Alone(self.gpu.alloc("embeddings for the next stage", bytes)?);
        Ok(Memory { place, bytes, ready: Some(Event::new(&self.gpu)?) })
    }

    /// The embeddings that a step writes to `memory`, complete when the stream has run it.
    ///
    /// # Errors
    /// What the driver says.
    pub(crate) fn written(
        &self,
        stream: &Stream,
        memory: Memory,
        embeddings: usize,
    ) -> Result<Arc<EmbeddingBuffer>, CudaError> {
        memory.ready().record(stream)?;
        Ok(Arc::new(EmbeddingBuffer {
            memory: Arc::new(memory),
            embeddings,
            width: self.width,
            precision: self.precision,
            copies: Arc::clone(&self.copies),
            fetched: OnceLock::new(),
        }))
    }

    /// Embeddings with undefined elements, for measuring copies.
    ///
    /// # Errors
    /// What the driver says.
    pub fn unwritten(&self, stream: &Stream, embeddings: usize) -> Result<Arc<EmbeddingBuffer>, CudaError> {
        self.written(stream, self.take(embeddings)?, embeddings)
    }

    /// Queues the copy of `memory` to the host in the step itself.
    ///
    /// # Errors
    /// What the driver says.
    pub(crate) fn copy_in_step(&self, stream: &Stream, memory: &Memory) -> Result<super::HostBytes, CudaError> {
        self.copies.in_step(stream, memory)
    }
}

impl Home {
    fn lock(&self) -> std::sync::MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Memory {
    /// Where it is on the device.
    pub fn address(&self) -> u64 {
        let (buffer, at) = self.buffer();
        buffer.at(at)
    }

    /// Its size.
    pub fn bytes(&self) -> usize {
        self.bytes
    }

    /// The event behind the step that writes it.
    pub fn ready(&self) -> &Event {
        match &self.ready {
            Some(ready) => ready,
            None => unreachable!("the event is taken when this is dropped"),
        }
    }

    fn buffer(&self) -> (&Buffer<u8>, usize) {
        match &self.place {
            Place::Arena(home, range) => (&home.memory, range.start),
            Place::Alone(buffer) => (buffer, 0),
        }
    }

    /// Queues a copy of `bytes` bytes of a buffer of the same GPU to its beginning.
    ///
    /// # Errors
    /// What the driver says.
    pub fn fill(&self, stream: &Stream, from: &Buffer<u8>, at: usize, bytes: usize) -> Result<(), CudaError> {
        assert!(bytes <= self.bytes, "a copy beyond its buffers");
        let (buffer, start) = self.buffer();
        buffer.copy_async(stream, start, from, at, bytes)
    }

    /// Queues its copy to the host.
    pub(super) fn queue_copy(&self, stream: &Stream, to: &Pinned<u8>) -> Result<(), CudaError> {
        let (buffer, at) = self.buffer();
        buffer.download_async(stream, at, to, 0, self.bytes)
    }
}

impl Drop for Memory {
    fn drop(&mut self) {
        let Place::Arena(home, range) = &self.place else { return };
        let mut state = home.lock();
        state.ranges.give_back(range.clone());
        state.events.extend(self.ready.take());
    }
}

impl EmbeddingBuffer {
    /// Queues a copy of `embeddings` to byte `at` of a buffer of this or another GPU. The stream waits for the step
    /// that writes them; the host does not wait. The caller keeps `self` until the stream has run the copy.
    ///
    /// # Errors
    /// What the driver says.
    pub fn copy_to(
        &self,
        stream: &Stream,
        embeddings: Range<usize>,
        to: &Buffer<u8>,
        at: usize,
    ) -> Result<(), CudaError> {
        let embedding = self.width * element_bytes(self.precision);
        let (from, start) = self.memory.buffer();
        let (start, len) = (start + embeddings.start * embedding, embeddings.len() * embedding);
        stream.wait(self.memory.ready())?;
        to.copy_async(stream, at, from, start, len)
    }
}

impl DeviceBuffer for EmbeddingBuffer {
    fn embeddings(&self) -> usize {
        self.embeddings
    }

    fn width(&self) -> usize {
        self.width
    }

    fn precision(&self) -> Precision {
        self.precision
    }

    fn as_any(&self) -> &dyn Any {
        self
    }

    fn fetch(&self) -> BoxFuture<'static, Result<Bytes, ModelError>> {
        let fetched = self.fetched.get_or_init(|| {
            let (reply, answer) = oneshot::channel();
            self.copies.begin(Job { memory: Arc::clone(&self.memory), reply });
            let lost = || Err(CudaError::Absent("the copy off the GPU was given up".into()));
            async move { answer.await.unwrap_or_else(|_| lost()) }.boxed().shared()
        });
        let (fetched, len) = (fetched.clone(), self.embeddings * self.width * element_bytes(self.precision));
        async move { Ok(fetched.await?.slice(..len)) }.boxed()
    }
}

impl fmt::Debug for EmbeddingBuffer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "EmbeddingBuffer({} x {} {})", self.embeddings, self.width, self.precision.as_str())
    }
}
