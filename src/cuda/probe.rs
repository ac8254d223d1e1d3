//! Looks for GPUs without opening one.

use super::device::Gpu;
use super::error::{CudaError, check};
use cudarc::driver::sys;
use std::ffi::CStr;

/// The CUDA version that a driver must know for our images: theirs, whose machine code older drivers refuse.
const DRIVER: i32 = 13_000;
/// The lowest compute capability that the kernels are written for.
const CAPABILITY: (i32, i32) = (8, 0);

/// Memory of a GPU in bytes. Opens nothing.
///
/// # Errors
/// [`CudaError::Absent`] when there is no such GPU; what the driver says.
pub fn total_memory(index: usize) -> Result<u64, CudaError> {
    Gpu::count()?;
    let (mut device, mut bytes) = (0, 0);
    // SAFETY: the driver was initialized by `count`; all pointers are to locals.
    unsafe {
        check("cuDeviceGet", sys::cuDeviceGet(&mut device, index as i32))?;
        check("cuDeviceTotalMem", sys::cuDeviceTotalMem_v2(&mut bytes, device))?;
    }
    Ok(bytes as u64)
}

/// A GPU in words: name, memory, compute capability. Opens nothing and takes no memory.
///
/// # Errors
/// [`CudaError::Absent`] when there is no such GPU, or it or its driver is too old; what the driver says.
pub fn probe(index: usize) -> Result<String, CudaError> {
    let count = Gpu::count()?;
    let mut version = 0;
    // SAFETY: `version` is a local.
    check("cuDriverGetVersion", unsafe { sys::cuDriverGetVersion(&mut version) })?;
    if version < DRIVER {
        let (major, minor) = (version / 1000, version % 1000 / 10);
        let told =
            format!("the NVIDIA driver knows CUDA {major}.{minor} and 13.0 is needed: install driver 580 or newer");
        return Err(CudaError::Absent(told));
    }
    if index >= count {
        let told = format!("device.index is {index} and the driver shows {count}, counted from 0");
        return Err(CudaError::Absent(told));
    }
    let (mut device, mut bytes, mut name) = (0, 0, [0u8; 128]);
    let mut capability = (0, 0);
    use sys::CUdevice_attribute as A;
    // SAFETY: the driver was initialized by `count`; all pointers are to locals, `name` with its length.
    unsafe {
        check("cuDeviceGet", sys::cuDeviceGet(&mut device, index as i32))?;
        check("cuDeviceTotalMem", sys::cuDeviceTotalMem_v2(&mut bytes, device))?;
        check("cuDeviceGetName", sys::cuDeviceGetName(name.as_mut_ptr().cast(), name.len() as i32, device))?;
        let (major, minor) =
            (A::CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR, A::CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR);
        check("cuDeviceGetAttribute", sys::cuDeviceGetAttribute(&mut capability.0, major, device))?;
        check("cuDeviceGetAttribute", sys::cuDeviceGetAttribute(&mut capability.1, minor, device))?;
    }
    let name = CStr::from_bytes_until_nul(&name).map_or_else(|_| "GPU".into(), CStr::to_string_lossy);
    if capability < CAPABILITY {
        let told = format!("{name} has compute capability {}.{} and 8.0 is needed", capability.0, capability.1);
        return Err(CudaError::Absent(told));
    }
    let gib = bytes as f64 / f64::from(1u32 << 30);
    Ok(format!("{name}, {gib:.0} GiB, compute capability {}.{}", capability.0, capability.1))
}
