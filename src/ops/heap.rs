//! What the allocator does with large blocks.

/// Lets blocks of a megabyte and more, such as recordings that clients send, go back to the system when they are freed. Left
/// to itself, glibc takes the first few of them as a sign that there will be more, and keeps as much as 64 MB of what is
/// freed on every thread that had a part in them. Does nothing with other allocators. Call it once, at the start.
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
            // Where glibc would have got to by itself: what a step needs again is not given back after every step.
            mallopt(M_TRIM_THRESHOLD, 32 << 20);
        }
    }
}
