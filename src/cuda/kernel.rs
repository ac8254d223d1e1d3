//! Launching kernels.

use super::Stream;
use super::error::{CudaError, check};
use cudarc::driver::sys;
use std::ffi::c_void;

/// A function on the device.
#[derive(Clone, Copy, Debug)]
pub struct Kernel {
    name: &'static str,
    function: sys::CUfunction,
}

// SAFETY: a handle into a module that stays loaded.
unsafe impl Send for Kernel {}
// SAFETY: as above.
unsafe impl Sync for Kernel {}

/// The shape of a launch.
#[derive(Clone, Copy, Debug)]
pub struct Shape {
    /// Blocks.
    pub grid: [u32; 3],
    /// Threads of a block.
    pub threads: u32,
    /// Dynamic shared memory of a block in bytes.
    pub shared: u32,
    /// Whether the kernel may start before the one ahead of it on the stream has ended. It then waits itself
    /// (`griddepcontrol.wait`) before it needs earlier results: each of our kernels that is launched so waits before it
    /// reads or writes anything but weights.
    pub overlap: bool,
    /// Blocks along the first dimension that run together and see each other's shared memory; 1 for none.
    pub cluster: u32,
    /// Whether blocks wait for each other: then all must be on the device at once.
    pub cooperative: bool,
}

impl Shape {
    /// A one-dimensional grid without shared memory.
    pub fn new(blocks: usize, threads: u32) -> Shape {
        Shape { grid: [blocks as u32, 1, 1], threads, shared: 0, overlap: false, cluster: 1, cooperative: false }
    }

    /// The same with a grid of two dimensions.
    #[must_use]
    pub fn by(mut self, rows: usize) -> Shape {
        self.grid[1] = rows as u32;
        self
    }

    /// The same with a grid of three dimensions.
    #[must_use]
    pub fn deep(mut self, planes: usize) -> Shape {
        self.grid[2] = planes as u32;
        self
    }

    /// The same with dynamic shared memory.
    #[must_use]
    pub fn shared(mut self, bytes: usize) -> Shape {
        self.shared = bytes as u32;
        self
    }

    /// The same in clusters of so many blocks; needs compute capability 9.0.
    #[must_use]
    pub fn clusters(mut self, blocks: usize) -> Shape {
        self.cluster = blocks as u32;
        self
    }

    /// The same with all blocks on the device at once.
    #[must_use]
    pub fn cooperative(mut self) -> Shape {
        self.cooperative = true;
        self
    }

    /// The same, overlapping with what is ahead of it.
    #[must_use]
    pub fn overlapping(mut self) -> Shape {
        self.overlap = true;
        self
    }
}

/// Pointers to the arguments of a launch, in the order of the kernel's parameters. Every argument is a value of exactly
/// the parameter's type: `u64` addresses, `u32`, `i32`, `f32`, or a `repr(C)` struct.
macro_rules! kernel_args {
    ($($value:expr),* $(,)?) => {
        &mut [$(std::ptr::from_ref(&$value).cast_mut().cast::<std::ffi::c_void>()),*]
    };
}
#[allow(unused_imports, reason = "for the nets")]
pub(crate) use kernel_args;

impl Kernel {
    pub(super) fn new(name: &'static str, function: sys::CUfunction) -> Result<Kernel, CudaError> {
        Ok(Kernel { name, function })
    }

    /// Its name.
    pub fn name(&self) -> &'static str {
        self.name
    }

    /// Lets blocks have so much dynamic shared memory; needed above 48 KiB.
    ///
    /// # Errors
    /// What the driver says when the device has less.
    pub fn allow_shared(&self, bytes: usize) -> Result<(), CudaError> {
        let attribute = sys::CUfunction_attribute::CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES;
        // SAFETY: the function is loaded.
        check("cuFuncSetAttribute", unsafe { sys::cuFuncSetAttribute(self.function, attribute, bytes as i32) })
    }

    /// Has multiprocessors that run it divide their memory in favour of shared memory. Kernels that are to share a
    /// multiprocessor must agree on it.
    ///
    /// # Errors
    /// What the driver says.
    pub fn prefer_shared(&self) -> Result<(), CudaError> {
        let attribute = sys::CUfunction_attribute::CU_FUNC_ATTRIBUTE_PREFERRED_SHARED_MEMORY_CARVEOUT;
        let most = sys::CUshared_carveout::CU_SHAREDMEM_CARVEOUT_MAX_SHARED as i32;
        // SAFETY: the function is loaded.
        check("cuFuncSetAttribute", unsafe { sys::cuFuncSetAttribute(self.function, attribute, most) })
    }

    /// Queues a launch.
    ///
    /// # Safety
    /// The arguments must be those that the kernel's source declares, and the memory that it touches with them must
    /// live until the stream has run the kernel.
    ///
    /// # Errors
    /// What the driver says.
    pub unsafe fn launch(&self, stream: &Stream, shape: Shape, args: &mut [*mut c_void]) -> Result<(), CudaError> {
        if shape.grid.contains(&0) {
            return Ok(());
        }
        // SAFETY: all fields are plain numbers, for which zeros are a value; the id of 0 means to ignore it.
        let mut attributes: [sys::CUlaunchAttribute; 3] = unsafe { std::mem::zeroed() };
        let mut count = 0;
        if shape.overlap && stream.overlaps() {
            attributes[count].id = sys::CUlaunchAttributeID::CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION;
            attributes[count].value.programmaticStreamSerializationAllowed = 1;
            count += 1;
        }
        if shape.cluster > 1 {
            attributes[count].id = sys::CUlaunchAttributeID::CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION;
            attributes[count].value.clusterDim =
                sys::CUlaunchAttributeValue_union__bindgen_ty_1 { x: shape.cluster, y: 1, z: 1 };
            count += 1;
        }
        if shape.cooperative {
            attributes[count].id = sys::CUlaunchAttributeID::CU_LAUNCH_ATTRIBUTE_COOPERATIVE;
            attributes[count].value.cooperative = 1;
            count += 1;
        }
        let config = sys::CUlaunchConfig {
            gridDimX: shape.grid[0],
            gridDimY: shape.grid[1],
            gridDimZ: shape.grid[2],
            blockDimX: shape.threads,
            blockDimY: 1,
            blockDimZ: 1,
            sharedMemBytes: shape.shared,
            hStream: stream.raw(),
            attrs: attributes.as_mut_ptr(),
            numAttrs: count as u32,
        };
        // SAFETY: the caller's promise.
        let answer = unsafe { sys::cuLaunchKernelEx(&config, self.function, args.as_mut_ptr(), std::ptr::null_mut()) };
        check(self.name, answer)
    }
}
