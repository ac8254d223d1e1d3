//! Pages of the thinker's cache that the host's memory keeps ([`PagedPrompts::with_host`]): the copies out and back.
//!
//! Copies out run beside the steps, on a stream of their own at the lowest priority, behind all steps that were queued
//! before. A page that is being copied is not written meanwhile: a kept page never is, and a step that gets it anew waits
//! on the device until the copy has ended. Copies back are queued in front of the step that was planned with them.
//!
//! [`PagedPrompts::with_host`]: omni_model::stages::PagedPrompts::with_host

use super::steps::Steps;
use crate::kernel::{Kernel, Shape, kernel_args};
use crate::{CudaError, Event, Gpu, Pinned, Priority, Stream};
use omni_model::stages::HostCopy;
use std::collections::HashSet;
use std::sync::{Arc, Mutex, PoisonError};

/// `MOST` of `kernels/pages.cu`.
const MOST: usize = 64;
/// Blocks of a launch, and threads of each: enough to fill a link of 16 lanes, few enough to leave room for steps.
const BLOCKS: [usize; 2] = [8, 4];
const THREADS: u32 = 256;
/// Bytes that a thread copies at once.
const UNIT: usize = 16;

/// The host's memory for pages, which takes a while to lock: generations of a stage follow each other in it. One that
/// hangs does not give it back, and the next one gets memory of its own.
#[derive(Default)]
pub(super) struct HostMemory(Mutex<Option<Pinned<u8>>>);

impl HostMemory {
    fn take(&self, gpu: &Gpu, bytes: usize) -> Result<Pinned<u8>, CudaError> {
        let before = self.0.lock().unwrap_or_else(PoisonError::into_inner).take();
        match before.filter(|memory| memory.len() == bytes) {
            Some(memory) => Ok(memory),
            None => gpu.pinned(bytes),
        }
    }

    fn give_back(&self, memory: Pinned<u8>) {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = Some(memory);
    }
}

/// See the module.
pub(super) struct HostPages {
    /// `None` while it is dropped.
    memory: Option<Pinned<u8>>,
    of: Arc<HostMemory>,
    stream: Stream,
    kernel: Kernel,
    /// Behind the steps that the copies out wait for, and behind these copies.
    queued: Event,
    saved: Event,
    /// Pages that may still be copied out.
    saving: HashSet<u32>,
}

#[derive(Clone, Copy)]
#[repr(C)]
struct Pair {
    page: u32,
    slot: u32,
}

/// `PagesArgs` of `kernels/pages.cu`.
#[derive(Clone, Copy)]
#[repr(C)]
struct Args {
    keys: u64,
    values: u64,
    hidden: u64,
    host: u64,
    layer: u64,
    layers: i32,
    page: i32,
    states: i32,
    count: i32,
    to_host: i32,
    unused: i32,
    copies: [Pair; MOST],
}

impl HostPages {
    /// Room for `slots` pages of so many bytes.
    ///
    /// # Errors
    /// When the host cannot lock so much memory.
    pub fn new(gpu: &Gpu, of: &Arc<HostMemory>, slots: usize, page_bytes: usize) -> Result<HostPages, CudaError> {
        Ok(HostPages {
            memory: Some(of.take(gpu, slots * page_bytes)?),
            of: Arc::clone(of),
            stream: gpu.stream(Priority::Low)?,
            kernel: gpu.kernel("copy_pages")?,
            queued: Event::new(gpu)?,
            saved: Event::new(gpu)?,
            saving: HashSet::new(),
        })
    }

    /// Queues copies to the host, behind what is queued on `steps_stream`.
    ///
    /// # Errors
    /// What the driver says.
    pub fn save(&mut self, steps_stream: &Stream, steps: &Steps, copies: &[HostCopy]) -> Result<(), CudaError> {
        if copies.is_empty() {
            return Ok(());
        }
        self.queued.record(steps_stream)?;
        self.stream.wait(&self.queued)?;
        self.copy(&self.stream, steps, copies, true)?;
        self.saving.extend(copies.iter().map(|copy| copy.page));
        self.saved.record(&self.stream)
    }

    /// Queues copies to the device on the stream of the steps.
    ///
    /// # Errors
    /// What the driver says.
    pub fn restore(&mut self, steps_stream: &Stream, steps: &Steps, copies: &[HostCopy]) -> Result<(), CudaError> {
        if copies.is_empty() {
            return Ok(());
        }
        self.settle(steps_stream)?;
        self.copy(steps_stream, steps, copies, false)
    }

    /// Steps that are queued from now on may write `pages`.
    ///
    /// # Errors
    /// What the driver says.
    pub fn give(&mut self, steps_stream: &Stream, pages: &[u32]) -> Result<(), CudaError> {
        if pages.iter().any(|page| self.saving.contains(page)) {
            self.settle(steps_stream)?;
        }
        Ok(())
    }

    /// Has steps that are queued from now on wait, on the device, for the copies out.
    fn settle(&mut self, steps_stream: &Stream) -> Result<(), CudaError> {
        if !self.saving.is_empty() {
            steps_stream.wait(&self.saved)?;
            self.saving.clear();
        }
        Ok(())
    }

    fn copy(&self, stream: &Stream, steps: &Steps, copies: &[HostCopy], to_host: bool) -> Result<(), CudaError> {
        let Some(memory) = &self.memory else { return Ok(()) };
        let [keys, values] = steps.cache.buffers();
        let hidden = steps.hidden.as_ref();
        for copies in copies.chunks(MOST) {
            let mut args = Args {
                keys: keys.address(),
                values: values.address(),
                hidden: hidden.map_or(0, |hidden| hidden.address()),
                host: memory.device_at(0),
                layer: (steps.cache.layer_bytes() / UNIT) as u64,
                layers: steps.cache.layers() as i32,
                page: (steps.cache.page_bytes() / UNIT) as i32,
                states: hidden.map_or(0, |hidden| hidden.len() / steps.cache.pages() / UNIT) as i32,
                count: copies.len() as i32,
                to_host: i32::from(to_host),
                unused: 0,
                copies: [Pair { page: 0, slot: 0 }; MOST],
            };
            for (pair, copy) in args.copies.iter_mut().zip(copies) {
                *pair = Pair { page: copy.page, slot: copy.slot };
            }
            let shape = Shape::new(BLOCKS[0].min(copies.len()), THREADS).by(BLOCKS[1]);
            // SAFETY: the argument is `PagesArgs`, with addresses of the buffers of `steps` and of `self`, which live until
            // both streams have run what is queued; pages and slots are those of `PagedPrompts`, which counts both.
            unsafe { self.kernel.launch(stream, shape, kernel_args![args])? };
        }
        Ok(())
    }
}

impl Drop for HostPages {
    fn drop(&mut self) {
        // The steps' stream has ended before: see the drop of the stage.
        if let (Ok(()), Some(memory)) = (self.stream.synchronize(), self.memory.take()) {
            self.of.give_back(memory);
        }
    }
}
