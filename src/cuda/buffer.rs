//! Memory: on the device, and page-locked on the host.

use super::Stream;
use super::device::Gpu;
use super::error::{CudaError, check};
use cudarc::driver::sys;
use omni_model::no_block;
use std::marker::PhantomData;

const MIB: usize = 1 << 20;

/// Plain data: any bits are a value, and a copy of the bits is a copy of the value.
///
/// # Safety
/// Any bits must be a value of the type, and it must have no padding.
pub unsafe trait Element: Copy + Send + Sync + 'static {}
// SAFETY: numbers.
unsafe impl Element for u8 {}
// SAFETY: numbers.
unsafe impl Element for u16 {}
// SAFETY: numbers.
unsafe impl Element for u32 {}
// SAFETY: numbers.
unsafe impl Element for i32 {}
// SAFETY: numbers.
unsafe impl Element for u64 {}
// SAFETY: numbers.
unsafe impl Element for f32 {}

/// Memory of the device.
pub struct Buffer<T> {
    gpu: Gpu,
    address: sys::CUdeviceptr,
    len: usize,
    kind: PhantomData<T>,
}

impl<T: Element> Buffer<T> {
    pub(super) fn new(gpu: &Gpu, what: &'static str, len: usize) -> Result<Buffer<T>, CudaError> {
        no_block::waits("cuMemAlloc");
        let bytes = len * size_of::<T>();
        gpu.charge(what, bytes)?;
        let mut address = 0;
        // SAFETY: `address` is a local. No allocation is empty, so that every buffer has an address of its own.
        match check("cuMemAlloc", unsafe { sys::cuMemAlloc_v2(&mut address, bytes.max(16)) }) {
            Ok(()) => {}
            Err(CudaError::Call { code: sys::CUresult::CUDA_ERROR_OUT_OF_MEMORY, .. }) => {
                gpu.count_bytes(-(bytes as isize));
                let free = gpu.memory().map_or(0, |(free, _)| free / MIB);
                return Err(CudaError::OutOfMemory { what, wanted: bytes.div_ceil(MIB), free });
            }
            Err(error) => {
                gpu.count_bytes(-(bytes as isize));
                return Err(error);
            }
        }
        Ok(Buffer { gpu: gpu.clone(), address, len, kind: PhantomData })
    }

    /// Where it is.
    pub fn address(&self) -> u64 {
        self.address
    }

    /// Where element `at` is.
    pub fn at(&self, at: usize) -> u64 {
        debug_assert!(at <= self.len);
        self.address + (at * size_of::<T>()) as u64
    }

    /// Elements.
    pub fn len(&self) -> usize {
        self.len
    }

    /// No elements.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Its size.
    pub fn bytes(&self) -> usize {
        self.len * size_of::<T>()
    }

    /// Queues a copy of `source[..len]` to the elements from `at` on. The caller must not change the source until the
    /// stream has run the copy; a ring that an event guards ensures that.
    ///
    /// # Errors
    /// What the driver says.
    pub fn upload_async(
        &self,
        stream: &Stream,
        at: usize,
        source: &Pinned<T>,
        from: usize,
        len: usize,
    ) -> Result<(), CudaError> {
        assert!(at + len <= self.len && from + len <= source.len, "a copy beyond its buffers");
        // SAFETY: both ranges are inside their buffers, and the source is page-locked.
        check("cuMemcpyHtoDAsync", unsafe {
            sys::cuMemcpyHtoDAsync_v2(self.at(at), source.host.add(from).cast(), len * size_of::<T>(), stream.raw())
        })
    }

    /// [`Buffer::upload_async`] from raw bytes, whole elements of them.
    ///
    /// # Errors
    /// What the driver says.
    pub fn upload_bytes_async(
        &self,
        stream: &Stream,
        at: usize,
        source: &Pinned<u8>,
        from: usize,
        bytes: usize,
    ) -> Result<(), CudaError> {
        assert!(at * size_of::<T>() + bytes <= self.bytes() && from + bytes <= source.len, "a copy beyond its buffers");
        // SAFETY: both ranges are inside their buffers, the source is page-locked, and any bytes are elements.
        check("cuMemcpyHtoDAsync", unsafe {
            sys::cuMemcpyHtoDAsync_v2(self.at(at), source.host.add(from).cast(), bytes, stream.raw())
        })
    }

    /// Queues a copy of the elements from `at` on to page-locked memory, which the caller must not read before the
    /// stream has run the copy.
    ///
    /// # Errors
    /// What the driver says.
    pub fn download_async(
        &self,
        stream: &Stream,
        at: usize,
        to: &Pinned<T>,
        into: usize,
        len: usize,
    ) -> Result<(), CudaError> {
        assert!(at + len <= self.len && into + len <= to.len, "a copy beyond its buffers");
        // SAFETY: both ranges are inside their buffers.
        check("cuMemcpyDtoHAsync", unsafe {
            sys::cuMemcpyDtoHAsync_v2(to.host.add(into).cast(), self.at(at), len * size_of::<T>(), stream.raw())
        })
    }

    /// Queues zeros for the elements from `at` on.
    ///
    /// # Errors
    /// What the driver says.
    pub fn zero_async(&self, stream: &Stream, at: usize, len: usize) -> Result<(), CudaError> {
        assert!(at + len <= self.len, "zeros beyond a buffer");
        // SAFETY: the range is inside the buffer.
        check("cuMemsetD8Async", unsafe { sys::cuMemsetD8Async(self.at(at), 0, len * size_of::<T>(), stream.raw()) })
    }

    /// Queues a copy between two places of the device, or from another GPU of this host.
    ///
    /// # Errors
    /// What the driver says.
    pub fn copy_async(
        &self,
        stream: &Stream,
        at: usize,
        source: &Buffer<T>,
        from: usize,
        len: usize,
    ) -> Result<(), CudaError> {
        assert!(at + len <= self.len && from + len <= source.len, "a copy beyond its buffers");
        let (to, from, bytes) = (self.at(at), source.at(from), len * size_of::<T>());
        if self.gpu.index() == source.gpu.index() {
            // SAFETY: both ranges are inside their buffers.
            return check("cuMemcpyDtoDAsync", unsafe { sys::cuMemcpyDtoDAsync_v2(to, from, bytes, stream.raw()) });
        }
        let (here, there) = (self.gpu.context(), source.gpu.context());
        // SAFETY: both ranges are inside their buffers, each of its own context.
        check("cuMemcpyPeerAsync", unsafe { sys::cuMemcpyPeerAsync(to, here, from, there, bytes, stream.raw()) })
    }

    /// Copies host memory to the elements from `at` on and waits: for loading, not for steps.
    ///
    /// # Errors
    /// What the driver says.
    pub fn write(&self, at: usize, data: &[T]) -> Result<(), CudaError> {
        assert!(at + data.len() <= self.len, "a copy beyond its buffer");
        self.gpu.count_blocking();
        // SAFETY: both ranges are inside their buffers.
        check("cuMemcpyHtoD", unsafe { sys::cuMemcpyHtoD_v2(self.at(at), data.as_ptr().cast(), size_of_val(data)) })?;
        self.gpu.settle()
    }

    /// Everything in it, once all that was queued on `stream` is done: for tests and loading.
    ///
    /// # Errors
    /// What the driver says.
    pub fn read(&self, stream: &Stream) -> Result<Vec<T>, CudaError> {
        stream.synchronize()?;
        let mut data = Vec::with_capacity(self.len);
        self.gpu.count_blocking();
        // SAFETY: the vector has room for what is copied, which fills it.
        unsafe {
            check("cuMemcpyDtoH", sys::cuMemcpyDtoH_v2(data.as_mut_ptr() as *mut _, self.address, self.bytes()))?;
            data.set_len(self.len);
        }
        Ok(data)
    }
}

impl<T> Drop for Buffer<T> {
    fn drop(&mut self) {
        self.gpu.count_bytes(-((self.len * size_of::<T>()) as isize));
        // SAFETY: allocated once, freed once. The thread may be another one than the one that allocated.
        unsafe {
            let _ = sys::cuMemFree_v2(self.address);
        }
    }
}

/// Page-locked host memory that the device sees under the same layout.
pub struct Pinned<T> {
    _gpu: Gpu,
    host: *mut T,
    device: sys::CUdeviceptr,
    len: usize,
}

// SAFETY: memory; events order reads and writes, as with any buffer.
unsafe impl<T: Element> Send for Pinned<T> {}
// SAFETY: as above.
unsafe impl<T: Element> Sync for Pinned<T> {}

impl<T: Element> Pinned<T> {
    /// `kind`: further flags of `cuMemHostAlloc`.
    pub(super) fn new(gpu: &Gpu, len: usize, kind: u32) -> Result<Pinned<T>, CudaError> {
        no_block::waits("cuMemHostAlloc");
        let bytes = (len * size_of::<T>()).max(16);
        let flags = sys::CU_MEMHOSTALLOC_DEVICEMAP | sys::CU_MEMHOSTALLOC_PORTABLE | kind;
        let (mut host, mut device) = (std::ptr::null_mut(), 0);
        // SAFETY: both are locals; the memory is zeroed before the first read.
        unsafe {
            check("cuMemHostAlloc", sys::cuMemHostAlloc(&mut host, bytes, flags))?;
            std::ptr::write_bytes(host.cast::<u8>(), 0, bytes);
            check("cuMemHostGetDevicePointer", sys::cuMemHostGetDevicePointer_v2(&mut device, host, 0))?;
        }
        Ok(Pinned { _gpu: gpu.clone(), host: host.cast(), device, len })
    }

    /// Elements.
    pub fn len(&self) -> usize {
        self.len
    }

    /// No elements.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Where kernels find element `at`.
    pub fn device_at(&self, at: usize) -> u64 {
        debug_assert!(at <= self.len);
        self.device + (at * size_of::<T>()) as u64
    }

    /// A copy of what the device has written to a range. The caller has waited for it.
    pub fn get(&self, range: std::ops::Range<usize>) -> Vec<T> {
        assert!(range.start <= range.end && range.end <= self.len, "beyond a pinned buffer");
        // SAFETY: inside the buffer, which is initialized.
        range.map(|at| unsafe { self.host.add(at).read_volatile() }).collect()
    }

    /// The first `len` elements. The caller has waited for the device's writes to them and queues no other while the
    /// slice lives.
    pub(super) fn settled(&self, len: usize) -> &[T] {
        assert!(len <= self.len, "beyond a pinned buffer");
        // SAFETY: inside the buffer, which is initialized; the caller ensures that nothing writes to it.
        unsafe { std::slice::from_raw_parts(self.host, len) }
    }

    /// Lets `with` write the first `len` elements. The caller ensures that no earlier copy still reads there.
    ///
    /// # Errors
    /// Those of `with`.
    pub fn fill<E>(&mut self, len: usize, with: impl FnOnce(&mut [T]) -> Result<(), E>) -> Result<(), E> {
        assert!(len <= self.len, "beyond a pinned buffer");
        // SAFETY: inside the buffer, which is initialized; the borrow of `self` is the only one of the host's.
        with(unsafe { std::slice::from_raw_parts_mut(self.host, len) })
    }

    /// Writes elements that a queued copy will read. The caller ensures that no earlier copy still reads there.
    pub fn set(&self, at: usize, data: &[T]) {
        assert!(at + data.len() <= self.len, "beyond a pinned buffer");
        // SAFETY: inside the buffer; the borrow cannot overlap memory that only this type hands out.
        unsafe { std::ptr::copy_nonoverlapping(data.as_ptr(), self.host.add(at), data.len()) };
    }
}

impl<T> Drop for Pinned<T> {
    fn drop(&mut self) {
        // SAFETY: allocated once, freed once.
        unsafe {
            let _ = sys::cuMemFreeHost(self.host.cast());
        }
    }
}
