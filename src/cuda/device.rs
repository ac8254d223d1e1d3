//! One GPU: its context, its streams and its counters.

use super::buffer::{Buffer, Element, Pinned};
use super::error::{CudaError, check};
use super::images;
use super::kernel::{Kernel, Shape, kernel_args};
use super::stream::Stream;
use cudarc::driver::sys;
use cudarc::driver::sys::CUdevice_attribute as A;
use omni_model::Budget;
use omni_model::no_block;
use omni_telemetry::{DeviceMetrics, MemoryUse};
use std::collections::HashMap;
use std::ffi::CString;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, OnceLock};

/// A GPU that was opened. Clones are the same GPU.
///
/// Threads that use it must be bound to it ([`Gpu::bind`]); everything here is otherwise free of hidden state.
#[derive(Clone)]
pub struct Gpu(Arc<Inner>);

struct Inner {
    index: usize,
    device: sys::CUdevice,
    context: sys::CUcontext,
    name: String,
    multiprocessors: u32,
    /// Compute capability, as major * 10 + minor.
    capability: u32,
    modules: Vec<sys::CUmodule>,
    kernels: Mutex<HashMap<&'static str, Kernel>>,
    allocated: AtomicUsize,
    /// The budget of this process, where others use the device too.
    budget: OnceLock<Budget>,
    blocking: AtomicU64,
    clipped: AtomicU64,
    /// Blocks that wait for each other did so in vain.
    stalled: AtomicBool,
    metrics: DeviceMetrics,
}

// SAFETY: the driver's handles may be used from any thread; what is mutable is behind a lock or atomic.
unsafe impl Send for Inner {}
// SAFETY: as above.
unsafe impl Sync for Inner {}

/// An address that no allocation has.
const NOWHERE: u64 = 8;

/// The priority of a stream.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Priority {
    /// Work that gives way to all other.
    Low,
    /// Work that is not urgent.
    Normal,
    /// Work that a listener waits for.
    High,
}

impl Gpu {
    /// Opens a device and loads the kernels.
    ///
    /// # Errors
    /// [`CudaError::Absent`] without a driver or device; what the driver says.
    pub fn open(index: usize) -> Result<Gpu, CudaError> {
        let devices = Gpu::count()?;
        if index >= devices {
            return Err(CudaError::Absent(format!("device {index} was asked for, the driver has {devices}")));
        }
        let (mut device, mut context) = (0, std::ptr::null_mut());
        // SAFETY: the driver was initialized by `count`; all pointers are to locals.
        unsafe {
            check("cuDeviceGet", sys::cuDeviceGet(&mut device, index as i32))?;
            check("cuDevicePrimaryCtxRetain", sys::cuDevicePrimaryCtxRetain(&mut context, device))?;
            check("cuCtxSetCurrent", sys::cuCtxSetCurrent(context))?;
        }
        let major = attribute(device, A::CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR)?;
        let minor = attribute(device, A::CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR)?;
        let multiprocessors = attribute(device, A::CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT)?;
        let modules = images::all().iter().map(|(_, image)| load(&image.0)).collect::<Result<_, _>>()?;
        Ok(Gpu(Arc::new(Inner {
            index,
            device,
            context,
            name: name(device)?,
            multiprocessors,
            capability: major * 10 + minor,
            modules,
            kernels: Mutex::default(),
            allocated: AtomicUsize::new(0),
            budget: OnceLock::new(),
            blocking: AtomicU64::new(0),
            clipped: AtomicU64::new(0),
            stalled: AtomicBool::new(false),
            metrics: DeviceMetrics::new(index),
        })))
    }

    /// Sets the budget of allocations. Only the first call has an effect.
    pub fn limit(&self, budget: Budget) {
        let _ = self.0.budget.set(budget);
    }

    /// How many devices there are.
    ///
    /// # Errors
    /// [`CudaError::Absent`] without a driver.
    pub fn count() -> Result<usize, CudaError> {
        // SAFETY: only looks for the library; every other call would panic without it.
        if !unsafe { sys::is_culib_present() } {
            return Err(CudaError::Absent("the NVIDIA driver (libcuda.so.1) is not installed".into()));
        }
        let mut count = 0;
        // SAFETY: `count` is a local; cuInit may be called any number of times.
        let answer = unsafe {
            check("cuInit", sys::cuInit(0)).and_then(|()| check("cuDeviceGetCount", sys::cuDeviceGetCount(&mut count)))
        };
        answer.map_err(|error| CudaError::Absent(error.to_string()))?;
        match count {
            0 => Err(CudaError::Absent("the NVIDIA driver sees no device".into())),
            count => Ok(count as usize),
        }
    }

    /// Binds the calling thread to this GPU. Every thread that uses the GPU calls it first.
    ///
    /// # Errors
    /// What the driver says.
    pub fn bind(&self) -> Result<(), CudaError> {
        // SAFETY: the context lives as long as `self`.
        check("cuCtxSetCurrent", unsafe { sys::cuCtxSetCurrent(self.0.context) })
    }

    /// Launches a kernel that writes to an unmapped address, which destroys the context as any illegal access does. For
    /// drills.
    ///
    /// # Errors
    /// What the driver says of the launch; later calls report the kernel's fault.
    pub fn break_context(&self, stream: &Stream) -> Result<(), CudaError> {
        tracing::warn!("an illegal access on the GPU, as planned");
        let kernel = self.kernel("illegal_access")?;
        // SAFETY: it is unsound on purpose: the address is unmapped, which is what the drill tests. The host's memory
        // is not touched.
        unsafe { kernel.launch(stream, Shape::new(1, 1), kernel_args![NOWHERE]) }
    }

    /// Which one it is, as the driver counts them.
    pub fn index(&self) -> usize {
        self.0.index
    }

    /// Enables direct copies between this GPU and another one of the host, where the machine supports them.
    ///
    /// # Errors
    /// What the driver says.
    pub fn befriend(&self, other: &Gpu) -> Result<(), CudaError> {
        for (from, to) in [(self, other), (other, self)] {
            let mut possible = 0;
            // SAFETY: `possible` is a local; both devices are open.
            check("cuDeviceCanAccessPeer", unsafe {
                sys::cuDeviceCanAccessPeer(&mut possible, from.0.device, to.0.device)
            })?;
            if possible == 0 {
                tracing::warn!(from = from.index(), to = to.index(), "copies between these GPUs go through the host");
                continue;
            }
            from.bind()?;
            // SAFETY: both contexts are alive.
            match unsafe { sys::cuCtxEnablePeerAccess(to.0.context, 0) } {
                sys::CUresult::CUDA_ERROR_PEER_ACCESS_ALREADY_ENABLED => {}
                answer => check("cuCtxEnablePeerAccess", answer)?,
            }
        }
        Ok(())
    }

    pub(super) fn context(&self) -> sys::CUcontext {
        self.0.context
    }

    /// The product name.
    pub fn name(&self) -> &str {
        &self.0.name
    }

    /// Multiprocessors.
    pub fn multiprocessors(&self) -> u32 {
        self.0.multiprocessors
    }

    /// Whether it has what kernels for Hopper alone need, and the binary them.
    pub fn is_hopper(&self) -> bool {
        self.capability() == 90 && images::HOPPER
    }

    /// Compute capability, as major * 10 + minor.
    pub fn capability(&self) -> u32 {
        self.0.capability
    }

    /// Cycles of a multiprocessor in a second, at its fastest.
    ///
    /// # Errors
    /// What the driver says.
    pub(super) fn clock_rate(&self) -> Result<f64, CudaError> {
        Ok(f64::from(attribute(self.0.device, A::CU_DEVICE_ATTRIBUTE_CLOCK_RATE)?) * 1e3)
    }

    /// Bytes that the memory gives in a second at most.
    ///
    /// # Errors
    /// What the driver says.
    pub(super) fn memory_rate(&self) -> Result<f64, CudaError> {
        let kilohertz = f64::from(attribute(self.0.device, A::CU_DEVICE_ATTRIBUTE_MEMORY_CLOCK_RATE)?);
        let bits = f64::from(attribute(self.0.device, A::CU_DEVICE_ATTRIBUTE_GLOBAL_MEMORY_BUS_WIDTH)?);
        // Twice in each cycle.
        Ok(2.0 * kilohertz * 1e3 * bits / 8.0)
    }

    /// Whether kernels of other processes run beside those of this one (MPS), and not in turns.
    pub(super) fn is_shared(&self) -> bool {
        attribute(self.0.device, A::CU_DEVICE_ATTRIBUTE_MPS_ENABLED).is_ok_and(|enabled| enabled != 0)
    }

    /// No launch whose blocks wait for each other is begun any more.
    pub(super) fn forbid_spinning(&self) {
        self.0.stalled.store(true, Ordering::Relaxed);
    }

    pub(super) fn spinning_is_forbidden(&self) -> bool {
        self.0.stalled.load(Ordering::Relaxed)
    }

    /// A kernel by its name.
    ///
    /// # Errors
    /// [`CudaError::NoKernel`].
    pub fn kernel(&self, name: &'static str) -> Result<Kernel, CudaError> {
        let mut kernels = self.0.kernels.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
        if let Some(kernel) = kernels.get(name) {
            return Ok(*kernel);
        }
        let missing = || CudaError::NoKernel(name.to_owned());
        let symbol = CString::new(name).map_err(|_| missing())?;
        let found = self.0.modules.iter().find_map(|module| {
            let mut function = std::ptr::null_mut();
            // SAFETY: modules stay loaded as long as the context; `symbol` ends with a zero.
            let answer = unsafe { sys::cuModuleGetFunction(&mut function, *module, symbol.as_ptr()) };
            (answer == sys::CUresult::CUDA_SUCCESS).then_some(function)
        });
        let kernel = Kernel::new(name, found.ok_or_else(missing)?)?;
        kernels.insert(name, kernel);
        Ok(kernel)
    }

    /// Memory of the device for `len` elements, which hold anything.
    ///
    /// # Errors
    /// [`CudaError::OutOfMemory`] naming `what`.
    pub fn alloc<T: Element>(&self, what: &'static str, len: usize) -> Result<Buffer<T>, CudaError> {
        Buffer::new(self, what, len)
    }

    /// Memory of the device that holds zeros. Waits for the device.
    ///
    /// # Errors
    /// Those of [`Gpu::alloc`].
    pub fn zeros<T: Element>(&self, what: &'static str, len: usize) -> Result<Buffer<T>, CudaError> {
        let buffer = Buffer::new(self, what, len)?;
        self.count_blocking();
        // SAFETY: the buffer has this many bytes.
        check("cuMemsetD8", unsafe { sys::cuMemsetD8_v2(buffer.address(), 0, buffer.bytes().max(1)) })?;
        self.settle()?;
        Ok(buffer)
    }

    /// Memory of the device with the elements of `data`. Waits for the copy.
    ///
    /// # Errors
    /// Those of [`Gpu::alloc`].
    pub fn upload<T: Element>(&self, what: &'static str, data: &[T]) -> Result<Buffer<T>, CudaError> {
        let buffer = Buffer::new(self, what, data.len())?;
        self.count_blocking();
        // SAFETY: both sides have this many bytes.
        check("cuMemcpyHtoD", unsafe { sys::cuMemcpyHtoD_v2(buffer.address(), data.as_ptr().cast(), buffer.bytes()) })?;
        self.settle()?;
        Ok(buffer)
    }

    /// Page-locked memory of the host that kernels can write to and copies need no staging for; zeros.
    ///
    /// # Errors
    /// What the driver says.
    pub fn pinned<T: Element>(&self, len: usize) -> Result<Pinned<T>, CudaError> {
        Pinned::new(self, len, 0)
    }

    /// The same for copies to the device only: the host writes it past its caches, and must not read it.
    ///
    /// # Errors
    /// What the driver says.
    pub fn pinned_for_upload<T: Element>(&self, len: usize) -> Result<Pinned<T>, CudaError> {
        Pinned::new(self, len, sys::CU_MEMHOSTALLOC_WRITECOMBINED)
    }

    /// A stream of its own.
    ///
    /// # Errors
    /// What the driver says.
    pub fn stream(&self, priority: Priority) -> Result<Stream, CudaError> {
        Stream::new(self, priority)
    }

    /// Free and total memory of the device in bytes.
    ///
    /// # Errors
    /// What the driver says.
    pub fn memory(&self) -> Result<(usize, usize), CudaError> {
        no_block::waits("cuMemGetInfo");
        let (mut free, mut total) = (0, 0);
        // SAFETY: both are locals.
        check("cuMemGetInfo", unsafe { sys::cuMemGetInfo_v2(&mut free, &mut total) })?;
        Ok((free, total))
    }

    /// Bytes that this process has allocated on the device, without the driver's own.
    pub fn allocated(&self) -> usize {
        self.0.allocated.load(Ordering::Relaxed)
    }

    /// Calls so far that made the host wait for the device. A decode step makes none on the launch thread.
    pub fn blocking_calls(&self) -> u64 {
        self.0.blocking.load(Ordering::Relaxed)
    }

    /// Operands of the vocoder so far that were beyond the largest number that their type holds.
    pub fn clipped(&self) -> u64 {
        self.0.clipped.load(Ordering::Relaxed)
    }

    /// So many more were.
    pub(super) fn count_clipped(&self, count: u64) {
        if count == 0 {
            return;
        }
        self.0.metrics.clipped.increment(count);
        if self.0.clipped.fetch_add(count, Ordering::Relaxed) == 0 {
            tracing::warn!(
                "the vocoder clips numbers beyond what 16 bits hold: device.vocoder_dtype = \"tf32\" avoids it"
            );
        }
    }

    /// Writes allocated and used memory into the metrics. It asks the driver, so call it only when a stage has started.
    ///
    /// # Errors
    /// What the driver says.
    pub fn tell_memory(&self) -> Result<(), CudaError> {
        let (free, total) = self.memory()?;
        self.0.metrics.memory(MemoryUse::Allocated, self.allocated() as u64);
        self.0.metrics.memory(MemoryUse::Used, (total - free) as u64);
        Ok(())
    }

    /// Waits for fills and copies that were not queued on a stream of ours: the driver answers when it has taken the
    /// data, which may be before it is where it goes, and streams of ours do not wait for its own.
    pub(super) fn settle(&self) -> Result<(), CudaError> {
        no_block::waits("cuStreamSynchronize");
        // SAFETY: the null handle is the driver's own stream.
        check("cuStreamSynchronize", unsafe { sys::cuStreamSynchronize(std::ptr::null_mut()) })
    }

    pub(super) fn count_blocking(&self) {
        no_block::waits("a call that waits for the GPU");
        self.0.blocking.fetch_add(1, Ordering::Relaxed);
        self.0.metrics.blocking.increment(1);
    }

    /// Counts an allocation that is about to be made; [`Gpu::count_bytes`] gives it back.
    pub(super) fn charge(&self, what: &'static str, bytes: usize) -> Result<(), CudaError> {
        let before = self.0.allocated.fetch_add(bytes, Ordering::Relaxed);
        if let Some(budget) = self.0.budget.get()
            && let Err(error) = budget.check(what, before as u64, bytes as u64)
        {
            self.0.allocated.fetch_sub(bytes, Ordering::Relaxed);
            return Err(error.into());
        }
        Ok(())
    }

    pub(super) fn count_bytes(&self, bytes: isize) {
        if bytes >= 0 {
            self.0.allocated.fetch_add(bytes as usize, Ordering::Relaxed);
        } else {
            self.0.allocated.fetch_sub(bytes.unsigned_abs(), Ordering::Relaxed);
        }
    }
}

impl Drop for Inner {
    fn drop(&mut self) {
        // SAFETY: retained once by `open`. A drop cannot report an error.
        unsafe {
            let _ = sys::cuDevicePrimaryCtxRelease_v2(self.device);
        }
    }
}

fn attribute(device: sys::CUdevice, attribute: A) -> Result<u32, CudaError> {
    let mut value = 0;
    // SAFETY: `value` is a local; the attribute is one of the driver's.
    check("cuDeviceGetAttribute", unsafe { sys::cuDeviceGetAttribute(&mut value, attribute, device) })?;
    Ok(value as u32)
}

fn load(image: &[u8]) -> Result<sys::CUmodule, CudaError> {
    let mut module = std::ptr::null_mut();
    // SAFETY: the image is a whole fatbin, made by nvcc.
    check("cuModuleLoadData", unsafe { sys::cuModuleLoadData(&mut module, image.as_ptr().cast()) })?;
    Ok(module)
}

fn name(device: sys::CUdevice) -> Result<String, CudaError> {
    let mut text = [0u8; 128];
    // SAFETY: the buffer has this many bytes; the driver ends the name with a zero.
    check("cuDeviceGetName", unsafe { sys::cuDeviceGetName(text.as_mut_ptr().cast(), text.len() as i32, device) })?;
    let end = text.iter().position(|byte| *byte == 0).unwrap_or(text.len());
    Ok(String::from_utf8_lossy(&text[..end]).into_owned())
}
