//! Device to host: one stream, one thread, a ring of page-locked memory.

use super::arena::Memory;
use crate::{CudaError, Event, Gpu, Pinned, Priority, Stream};
use bytes::Bytes;
use omni_model::no_block;
use omni_telemetry::{CopyMetrics, Direction};
use std::collections::VecDeque;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::Instant;
use tokio::sync::oneshot;

/// Copies the output of steps from a device to the host. A caller does not wait for the device: it gets a future.
/// Dropping this type waits for the copies that have begun.
pub struct HostCopies {
    ring: Arc<HostRing>,
    jobs: Option<flume::Sender<Job>>,
    thread: Option<JoinHandle<()>>,
}

/// A copy to make, and the channel for its result.
pub(super) struct Job {
    /// Kept until the copy is over.
    pub memory: Arc<Memory>,
    pub reply: oneshot::Sender<Result<Bytes, CudaError>>,
}

/// Page-locked, cacheable memory for copies off a device: the host reads it at its usual speed.
pub(super) struct HostRing {
    gpu: Gpu,
    bytes: usize,
    count: usize,
    free: Mutex<Vec<Piece>>,
    lent: AtomicUsize,
}

/// Memory for one copy, and the event behind it.
struct Piece {
    memory: Pinned<u8>,
    over: Event,
}

/// A copy that has arrived; its memory goes back to the ring when it is dropped.
pub struct HostBytes {
    piece: Option<Piece>,
    len: usize,
    ring: Arc<HostRing>,
}

impl HostCopies {
    /// With `leases` pieces of page-locked memory of `bytes` bytes. `metrics`: of the stage whose output it copies.
    ///
    /// # Errors
    /// When the device has no stream or the host no memory.
    pub fn new(gpu: &Gpu, leases: usize, bytes: usize, metrics: CopyMetrics) -> Result<HostCopies, CudaError> {
        let ring = Arc::new(HostRing::new(gpu, leases.max(2), bytes)?);
        let stream = gpu.stream(Priority::High)?;
        let (send, jobs) = flume::unbounded();
        let copier = Copier { gpu: gpu.clone(), stream, ring: Arc::clone(&ring), under_way: VecDeque::new(), metrics };
        let thread = std::thread::Builder::new().name("d2h".into()).spawn(move || copier.run(&jobs));
        // Without the thread every copy returns an error.
        let thread = thread.inspect_err(|error| tracing::error!(%error, "no thread for copies off the GPU")).ok();
        Ok(HostCopies { ring, jobs: Some(send), thread })
    }

    /// Queues a copy. Callable from any thread.
    pub(super) fn begin(&self, job: Job) {
        if let Some(jobs) = &self.jobs {
            // A job that finds no thread drops its reply, which its owner sees.
            let _ = jobs.send(job);
        }
    }

    /// Queues a copy in a step, on the step's own stream: which [`HostCopies`] avoids. The caller waits for the step
    /// before it reads.
    ///
    /// # Errors
    /// What the driver says.
    pub(crate) fn in_step(&self, stream: &Stream, memory: &Memory) -> Result<HostBytes, CudaError> {
        let here = HostRing::lease(&self.ring, memory.bytes())?;
        memory.queue_copy(stream, &here.piece().memory)?;
        Ok(here)
    }
}

impl Drop for HostCopies {
    fn drop(&mut self) {
        self.jobs = None;
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

impl HostRing {
    fn new(gpu: &Gpu, count: usize, bytes: usize) -> Result<HostRing, CudaError> {
        let free = (0..count).map(|_| Piece::new(gpu, bytes)).collect::<Result<_, _>>()?;
        Ok(HostRing { gpu: gpu.clone(), bytes, count, free: Mutex::new(free), lent: AtomicUsize::new(0) })
    }

    /// Memory for a copy. A copy that is larger than the ring's pieces, or finds none free, gets memory of its own.
    fn lease(ring: &Arc<HostRing>, len: usize) -> Result<HostBytes, CudaError> {
        let fits = len <= ring.bytes;
        let free = if fits { ring.free.lock().unwrap_or_else(PoisonError::into_inner).pop() } else { None };
        let piece = match free {
            Some(piece) => piece,
            None => {
                let _excused = no_block::allow("all of the ring is lent, or a copy is larger than its pieces");
                Piece::new(&ring.gpu, len.max(ring.bytes))?
            }
        };
        ring.lent.fetch_add(1, Ordering::Relaxed);
        Ok(HostBytes { piece: Some(piece), len, ring: Arc::clone(ring) })
    }

    /// Whether the last piece is lent. The data is then copied once more, so that a slow consumer never blocks others.
    fn is_short(&self) -> bool {
        self.lent.load(Ordering::Relaxed) >= self.count
    }
}

impl Piece {
    fn new(gpu: &Gpu, bytes: usize) -> Result<Piece, CudaError> {
        Ok(Piece { memory: gpu.pinned(bytes)?, over: Event::new(gpu)? })
    }
}

impl HostBytes {
    fn piece(&self) -> &Piece {
        match &self.piece {
            Some(piece) => piece,
            None => unreachable!("the memory is taken when this is dropped"),
        }
    }

    /// As bytes whose slices share it. The copy is over.
    pub(crate) fn arrived(self) -> Bytes {
        if self.ring.is_short() { Bytes::copy_from_slice(self.as_ref()) } else { Bytes::from_owner(self) }
    }
}

impl AsRef<[u8]> for HostBytes {
    fn as_ref(&self) -> &[u8] {
        self.piece().memory.settled(self.len)
    }
}

impl Drop for HostBytes {
    fn drop(&mut self) {
        self.ring.lent.fetch_sub(1, Ordering::Relaxed);
        if let Some(piece) = self.piece.take() {
            let mut free = self.ring.free.lock().unwrap_or_else(PoisonError::into_inner);
            if free.len() < self.ring.count {
                free.push(piece);
            }
        }
    }
}

/// The thread.
struct Copier {
    gpu: Gpu,
    stream: Stream,
    ring: Arc<HostRing>,
    under_way: VecDeque<UnderWay>,
    metrics: CopyMetrics,
}

struct UnderWay {
    job: Job,
    here: HostBytes,
    begun: Instant,
}

/// Copies queued at once: enough to keep the copy engine busy.
const DEPTH: usize = 8;

impl Copier {
    fn run(mut self, jobs: &flume::Receiver<Job>) {
        let bound = self.gpu.bind();
        let mut idle_since = Instant::now();
        loop {
            let next = match self.under_way.len() {
                0 => match jobs.recv() {
                    Ok(job) => Some(job),
                    Err(_) => return,
                },
                DEPTH.. => None,
                _ => jobs.try_recv().ok(),
            };
            match next {
                Some(job) => match bound.clone().and_then(|()| self.begin(&job)) {
                    Ok(here) => self.under_way.push_back(UnderWay { job, here, begun: Instant::now() }),
                    Err(error) => tell(job, Err(error)),
                },
                None => {
                    let Some(UnderWay { job, here, begun }) = self.under_way.pop_front() else { continue };
                    let waited = here.piece().over.wait();
                    // Copies run one after the other; what this measures is the stream's time as the host sees it.
                    let now = Instant::now();
                    self.metrics.copied(Direction::DeviceToHost, here.len, Some(now - begun.max(idle_since)));
                    idle_since = now;
                    tell(job, waited.map(|()| here.arrived()));
                }
            }
        }
    }

    fn begin(&self, job: &Job) -> Result<HostBytes, CudaError> {
        let here = HostRing::lease(&self.ring, job.memory.bytes())?;
        // Most have passed: then the stream needs no wait.
        if !job.memory.ready().passed()? {
            self.stream.wait(job.memory.ready())?;
        }
        job.memory.queue_copy(&self.stream, &here.piece().memory)?;
        here.piece().over.record(&self.stream)?;
        Ok(here)
    }
}

fn tell(job: Job, result: Result<Bytes, CudaError>) {
    let Job { memory, reply } = job;
    // Return the memory first, so that the receiver of this copy finds room for the next.
    drop(memory);
    // The receiver may be gone.
    let _ = reply.send(result);
}
