//! The shared memory itself, mapped.

use rustix::fs::{FallocateFlags, MemfdFlags, SealFlags};
use rustix::mm::{MapFlags, ProtFlags};
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::ptr::NonNull;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

const MAGIC: u64 = u64::from_le_bytes(*b"OMNARNG1");
/// Lengths of frames are 32 bits.
const MAX_CAPACITY: u64 = 1 << 32;

/// Two cache lines: processors fetch lines in pairs.
#[repr(C, align(128))]
#[derive(Debug)]
pub(super) struct Line<T>(pub T);

/// The first page. Each line is written by one side, but for the two sleeping words.
#[repr(C)]
#[derive(Debug)]
pub(super) struct Header {
    identity: Line<Identity>,
    /// Written by the producer.
    pub produced: Line<Produced>,
    /// Written by the consumer.
    pub consumed: Line<Consumed>,
    /// Not 0: the consumer sleeps until there is a frame. Set by the consumer, cleared by the producer that wakes it.
    pub consumer_sleeps: Line<AtomicU32>,
    /// Not 0: the producer sleeps until `head` is at least this. Set by the producer, cleared by the consumer that
    /// wakes it.
    pub producer_wants: Line<AtomicU64>,
}

#[repr(C)]
#[derive(Debug)]
struct Identity {
    magic: AtomicU64,
    capacity: AtomicU64,
}

#[repr(C)]
#[derive(Debug)]
pub(super) struct Produced {
    /// Where the next frame will begin.
    pub tail: AtomicU64,
    /// Not 0: there will be no more.
    pub closed: AtomicU32,
}

#[repr(C)]
#[derive(Debug)]
pub(super) struct Consumed {
    /// Where the oldest frame in use begins.
    pub head: AtomicU64,
    /// Not 0: the consumer reads no more.
    pub closed: AtomicU32,
}

/// One side's view of the memory. Unmapped when dropped.
#[derive(Debug)]
pub(super) struct Map {
    base: NonNull<u8>,
    page: usize,
    capacity: usize,
}

// SAFETY: `base` is a mapping that this value owns alone and that moves with it. What lies in it is reached through
// atomics (the header) or through regions that the ring's protocol gives to one owner at a time.
unsafe impl Send for Map {}
// SAFETY: as above; no method hands out a reference to data that another could hold as well.
unsafe impl Sync for Map {}

impl Map {
    /// Makes new memory for at least `bytes` bytes of frames.
    pub fn create(bytes: usize) -> io::Result<(OwnedFd, Map)> {
        let page = rustix::param::page_size() as u64;
        let capacity = (bytes.max(1) as u64).checked_next_multiple_of(page).filter(|bytes| *bytes < MAX_CAPACITY);
        let Some(capacity) = capacity else {
            return Err(io::Error::new(io::ErrorKind::InvalidInput, "a ring is smaller than 4 GiB"));
        };
        let memory = rustix::fs::memfd_create("omni-ring", MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING)?;
        rustix::fs::ftruncate(&memory, page + capacity)?;
        // All of it now: a page that cannot be had is an error here and would be a signal later.
        rustix::fs::fallocate(&memory, FallocateFlags::empty(), 0, page + capacity)?;
        rustix::fs::fcntl_add_seals(&memory, SealFlags::SHRINK | SealFlags::GROW | SealFlags::SEAL)?;
        let map = Map::view(&memory, page as usize, capacity as usize)?;
        let identity = &map.header().identity.0;
        identity.capacity.store(capacity, Ordering::Relaxed);
        identity.magic.store(MAGIC, Ordering::Release);
        Ok((memory, map))
    }

    /// Maps memory that [`Map::create`] made, here or in another process.
    pub fn open(memory: &OwnedFd) -> io::Result<Map> {
        let refused = |why| Err(io::Error::new(io::ErrorKind::InvalidData, why));
        let page = rustix::param::page_size() as u64;
        // Without the seals the other side could cut the memory under us.
        let seals = rustix::fs::fcntl_get_seals(memory)?;
        if !seals.contains(SealFlags::SHRINK | SealFlags::GROW) {
            return refused("the memory of the ring is not sealed");
        }
        let size = u64::try_from(rustix::fs::fstat(memory)?.st_size).unwrap_or(0);
        let Some(capacity) = size.checked_sub(page).filter(|bytes| (page..MAX_CAPACITY).contains(bytes)) else {
            return refused("the memory of the ring has no size that a ring has");
        };
        if !capacity.is_multiple_of(page) {
            return refused("the memory of the ring is not a whole number of pages");
        }
        let map = Map::view(memory, page as usize, capacity as usize)?;
        let identity = &map.header().identity.0;
        if identity.magic.load(Ordering::Acquire) != MAGIC || identity.capacity.load(Ordering::Relaxed) != capacity {
            return refused("the memory is not a ring of this version");
        }
        Ok(map)
    }

    fn view(memory: &OwnedFd, page: usize, capacity: usize) -> io::Result<Map> {
        const { assert!(size_of::<Header>() <= 4096) };
        let len = page + 2 * capacity;
        // SAFETY: a new mapping at an address of the system's choice overlaps nothing.
        let base =
            unsafe { rustix::mm::mmap_anonymous(std::ptr::null_mut(), len, ProtFlags::empty(), MapFlags::PRIVATE)? };
        let Some(base) = NonNull::new(base.cast::<u8>()) else {
            return Err(io::Error::other("mapped at address zero"));
        };
        // From here on a failure unmaps what is there.
        let map = Map { base, page, capacity };
        let shared = MapFlags::SHARED | MapFlags::FIXED | MapFlags::POPULATE;
        let access = ProtFlags::READ | ProtFlags::WRITE;
        for (at, len, offset) in [(0, page + capacity, 0), (page + capacity, capacity, page as u64)] {
            // SAFETY: both ranges lie within the mapping made above, which no other code knows of yet.
            unsafe { rustix::mm::mmap(base.as_ptr().add(at).cast(), len, access, shared, memory.as_fd(), offset)? };
        }
        Ok(map)
    }

    /// The words that both sides share.
    pub fn header(&self) -> &Header {
        // SAFETY: the mapping begins with a page of its own, larger than a header and aligned to more than one; it
        // lives as long as `self`; every field is atomic, so the other side may write at any time.
        unsafe { self.base.cast::<Header>().as_ref() }
    }

    /// The rest of the first page, which the ring itself does not use.
    pub fn notes(&self) -> &[AtomicU64] {
        let words = (self.page - size_of::<Header>()) / size_of::<AtomicU64>();
        // SAFETY: the range lies within the first page, behind the header, whose size is a multiple of its alignment of
        // 128; it lives as long as `self`; the words are atomic, so the other side may write at any time.
        unsafe { std::slice::from_raw_parts(self.base.add(size_of::<Header>()).cast::<AtomicU64>().as_ptr(), words) }
    }

    /// Bytes of data.
    pub fn capacity(&self) -> u64 {
        self.capacity as u64
    }

    /// The `len` bytes at a position of the stream, contiguous also where they wrap. `None` if there are not so many.
    pub fn region(&self, position: u64, len: usize) -> Option<NonNull<u8>> {
        let at = (position % self.capacity as u64) as usize;
        // SAFETY: `at` is less than the capacity and `len` at most that, so the region lies within the two data
        // mappings.
        (len <= self.capacity).then(|| unsafe { self.base.add(self.page + at) })
    }

    /// The two words in front of a frame's data.
    pub fn frame_words(&self, position: u64) -> Option<(&AtomicU64, &AtomicU64)> {
        if !position.is_multiple_of(super::ALIGN) {
            return None;
        }
        let words = self.region(position, super::FRAME_HEADER as usize)?.cast::<AtomicU64>();
        // SAFETY: 16 bytes within the mapping, aligned since positions are multiples of 64 and the data begins on a
        // page; atomics, so the other side may write at any time.
        unsafe { Some((words.as_ref(), words.add(1).as_ref())) }
    }
}

impl Drop for Map {
    fn drop(&mut self) {
        // SAFETY: exactly the range of `Map::view`; everything that points into it borrows from or owns a share of
        // `self`.
        let unmapped = unsafe { rustix::mm::munmap(self.base.as_ptr().cast(), self.page + 2 * self.capacity) };
        debug_assert!(unmapped.is_ok());
    }
}
