//! Streams, events and graphs: the order of work on the device.

use super::device::{Gpu, Priority};
use super::error::{CudaError, check};
use cudarc::driver::sys;
use omni_model::no_block;
use std::time::Duration;

/// Work on the device that runs in the order in which it was queued. Belongs to one thread at a time.
pub struct Stream {
    gpu: Gpu,
    raw: sys::CUstream,
    overlaps: bool,
}

// SAFETY: a handle; the driver locks.
unsafe impl Send for Stream {}

impl Stream {
    pub(super) fn new(gpu: &Gpu, priority: Priority) -> Result<Stream, CudaError> {
        let (mut least, mut greatest, mut raw) = (0, 0, std::ptr::null_mut());
        let flags = sys::CUstream_flags::CU_STREAM_NON_BLOCKING as u32;
        // SAFETY: all pointers are to locals.
        unsafe {
            check("cuCtxGetStreamPriorityRange", sys::cuCtxGetStreamPriorityRange(&mut least, &mut greatest))?;
            let priority = match priority {
                Priority::High => greatest,
                // Lower numbers go first. Where there are only two, what is not urgent shares the last.
                Priority::Normal if least - greatest > 1 => least - 1,
                Priority::Normal | Priority::Low => least,
            };
            check("cuStreamCreateWithPriority", sys::cuStreamCreateWithPriority(&mut raw, flags, priority))?;
        }
        Ok(Stream { gpu: gpu.clone(), raw, overlaps: gpu.capability() >= 90 })
    }

    /// The GPU.
    pub fn gpu(&self) -> &Gpu {
        &self.gpu
    }

    pub(super) fn raw(&self) -> sys::CUstream {
        self.raw
    }

    /// Whether kernels may start before their predecessors have ended.
    pub(super) fn overlaps(&self) -> bool {
        self.overlaps
    }

    /// Waits until everything queued so far is done. Counted as blocking.
    ///
    /// # Errors
    /// An earlier error on the device.
    pub fn synchronize(&self) -> Result<(), CudaError> {
        self.gpu.count_blocking();
        // SAFETY: the stream is alive.
        check("cuStreamSynchronize", unsafe { sys::cuStreamSynchronize(self.raw) })
    }

    /// Makes everything queued from now on wait for an event.
    ///
    /// # Errors
    /// What the driver says.
    pub fn wait(&self, event: &Event) -> Result<(), CudaError> {
        // SAFETY: both are alive.
        check("cuStreamWaitEvent", unsafe { sys::cuStreamWaitEvent(self.raw, event.raw, 0) })
    }

    /// Records what `queue` queues on this stream as a graph, without running it.
    ///
    /// # Errors
    /// Those of `queue`, and what the driver says.
    pub fn capture<E: From<CudaError>>(&self, queue: impl FnOnce() -> Result<(), E>) -> Result<Graph, E> {
        no_block::waits("cuGraphInstantiate");
        // Other threads may allocate meanwhile: only this thread may not make calls that cannot be captured.
        let mode = sys::CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_THREAD_LOCAL;
        // SAFETY: the stream is alive.
        check("cuStreamBeginCapture", unsafe { sys::cuStreamBeginCapture_v2(self.raw, mode) })?;
        let queued = queue();
        let mut graph = std::ptr::null_mut();
        // SAFETY: the capture began above; it ends on errors too, or the stream could not be used any more.
        let ended = check("cuStreamEndCapture", unsafe { sys::cuStreamEndCapture(self.raw, &mut graph) });
        queued?;
        ended?;
        let (mut exec, mut nodes) = (std::ptr::null_mut(), 0);
        // SAFETY: the graph was captured; it may go once it is instantiated.
        unsafe {
            let counted = check("cuGraphGetNodes", sys::cuGraphGetNodes(graph, std::ptr::null_mut(), &mut nodes));
            let made = check("cuGraphInstantiate", sys::cuGraphInstantiateWithFlags(&mut exec, graph, 0));
            let _ = sys::cuGraphDestroy(graph);
            counted?;
            made?;
            check("cuGraphUpload", sys::cuGraphUpload(exec, self.raw))?;
        }
        Ok(Graph { exec, nodes })
    }
}

impl Drop for Stream {
    fn drop(&mut self) {
        // SAFETY: created once. What is queued still runs.
        unsafe {
            let _ = sys::cuStreamDestroy_v2(self.raw);
        }
    }
}

/// Work that was recorded once and is queued as a whole.
pub struct Graph {
    exec: sys::CUgraphExec,
    nodes: usize,
}

// SAFETY: a handle; used by one thread at a time.
unsafe impl Send for Graph {}

impl Graph {
    /// Queues all of it.
    ///
    /// # Errors
    /// What the driver says.
    pub fn launch(&self, stream: &Stream) -> Result<(), CudaError> {
        // SAFETY: both are alive.
        check("cuGraphLaunch", unsafe { sys::cuGraphLaunch(self.exec, stream.raw) })
    }

    /// Kernels and copies in it.
    pub fn nodes(&self) -> usize {
        self.nodes
    }
}

impl Drop for Graph {
    fn drop(&mut self) {
        // SAFETY: instantiated once.
        unsafe {
            let _ = sys::cuGraphExecDestroy(self.exec);
        }
    }
}

/// Of graphs for so many rows each, ascending, the smallest that holds `rows`, and its size.
pub(crate) fn fitting(graphs: &[(usize, Graph)], rows: usize) -> Option<(usize, &Graph)> {
    graphs.iter().find(|(bucket, _)| *bucket >= rows).map(|(bucket, graph)| (*bucket, graph))
}

/// A point on a stream.
pub struct Event {
    gpu: Gpu,
    raw: sys::CUevent,
}

// SAFETY: a handle; the driver locks.
unsafe impl Send for Event {}
// SAFETY: as above.
unsafe impl Sync for Event {}

impl Event {
    /// An event that tells the time.
    ///
    /// # Errors
    /// What the driver says.
    pub fn new(gpu: &Gpu) -> Result<Event, CudaError> {
        let mut raw = std::ptr::null_mut();
        // SAFETY: `raw` is a local.
        check("cuEventCreate", unsafe { sys::cuEventCreate(&mut raw, 0) })?;
        Ok(Event { gpu: gpu.clone(), raw })
    }

    /// Moves the event to this place of a stream.
    ///
    /// # Errors
    /// What the driver says.
    pub fn record(&self, stream: &Stream) -> Result<(), CudaError> {
        // SAFETY: both are alive.
        check("cuEventRecord", unsafe { sys::cuEventRecord(self.raw, stream.raw) })
    }

    /// Waits until the device has come to it. For completion threads: not counted as blocking a launch.
    ///
    /// # Errors
    /// An earlier error on the device.
    pub fn wait(&self) -> Result<(), CudaError> {
        no_block::waits("cuEventSynchronize");
        // SAFETY: the event is alive.
        check("cuEventSynchronize", unsafe { sys::cuEventSynchronize(self.raw) })
    }

    /// Whether the device has come to it.
    ///
    /// # Errors
    /// An earlier error on the device.
    pub fn passed(&self) -> Result<bool, CudaError> {
        // SAFETY: the event is alive.
        match unsafe { sys::cuEventQuery(self.raw) } {
            sys::CUresult::CUDA_ERROR_NOT_READY => Ok(false),
            answer => check("cuEventQuery", answer).map(|()| true),
        }
    }

    /// Time on the device from an earlier event to this one, both passed.
    ///
    /// # Errors
    /// When one has not passed.
    pub fn since(&self, earlier: &Event) -> Result<Duration, CudaError> {
        let mut milliseconds = 0f32;
        // SAFETY: both are alive.
        check("cuEventElapsedTime", unsafe { sys::cuEventElapsedTime_v2(&mut milliseconds, earlier.raw, self.raw) })?;
        Ok(Duration::from_secs_f64(f64::from(milliseconds.max(0.0)) / 1e3))
    }

    /// The GPU.
    pub fn gpu(&self) -> &Gpu {
        &self.gpu
    }
}

impl Drop for Event {
    fn drop(&mut self) {
        // SAFETY: created once.
        unsafe {
            let _ = sys::cuEventDestroy_v2(self.raw);
        }
    }
}
