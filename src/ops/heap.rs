//! Settings of the allocator for large blocks.

/// Lets blocks of a megabyte and more, such as recordings that clients send, go back to the system when they are freed.
/// By default, glibc adapts to the first few of them and keeps up to 64 MB of freed memory for every thread that
/// allocated or freed one. Does nothing with other allocators. Call it once, at the start.
pub fn give_large_blocks_back() {
    #[cfg(all(target_os = "linux", target_env = "gnu"))]
    {
        use std::ffi::c_int;
        unsafe extern "C" {
            fn mallopt(parameter: c_int, value: c_int) -> c_int;
        }
        const M_TRIM_THRESHOLD: c_int = -1;
        const M_MMAP_THRESHOLD: c_int = -3;
        // SAFETY: part of glibc, which takes its own locks; the parameters are in its ABI. What it returns is whether
        // it knows the parameter: if not, nothing changes.
        unsafe {
            mallopt(M_MMAP_THRESHOLD, 1 << 20);
            // The value that glibc would reach by itself: memory that every step needs is not returned after every
            // step.
            mallopt(M_TRIM_THRESHOLD, 32 << 20);
        }
    }
}
