//! The reading end, and the chunks that it hands out.

use super::bell::Bell;
use super::handle::{RingHandle, Side};
use super::map::Map;
use super::notes::Notes;
use super::{ALIGN, FRAME_HEADER, RingError, SEAL, footprint};
use bytes::Bytes;
use std::collections::VecDeque;
use std::io;
use std::ops::Deref;
use std::os::fd::OwnedFd;
use std::ptr::NonNull;
use std::sync::atomic::{Ordering, fence};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

/// How long a blocking reader looks again and again before it sleeps: about what being woken takes.
const SPIN: Duration = Duration::from_micros(20);

/// The reading end of a ring. Dropping it tells the producer; chunks that are still in use stay valid.
#[derive(Debug)]
pub struct Consumer {
    memory: OwnedFd,
    shared: Arc<Shared>,
    /// Where the next frame begins.
    next: u64,
    corrupt: Option<&'static str>,
    handed_over: bool,
}

/// What the chunks need to give their space back.
#[derive(Debug)]
struct Shared {
    map: Arc<Map>,
    bell: Bell,
    in_use: Mutex<InUse>,
}

/// Frames between head and the next one, oldest first.
#[derive(Debug, Default)]
struct InUse {
    /// Frames that were given back and had no older one in use.
    gone: u64,
    frames: VecDeque<Frame>,
    head: u64,
}

#[derive(Debug)]
struct Frame {
    end: u64,
    dropped: bool,
}

impl Consumer {
    pub(super) fn new(memory: OwnedFd, map: Map, bell: Bell) -> io::Result<Consumer> {
        let next = map.header().consumed.0.head.load(Ordering::Acquire);
        if !next.is_multiple_of(ALIGN) {
            return Err(io::Error::new(io::ErrorKind::InvalidData, "the ring is corrupt: impossible positions"));
        }
        let in_use = Mutex::new(InUse { head: next, ..InUse::default() });
        let shared = Arc::new(Shared { map: Arc::new(map), bell, in_use });
        Ok(Consumer { memory, shared, next, corrupt: None, handed_over: false })
    }

    /// Words beside the frames.
    pub fn notes(&self) -> Notes {
        Notes::new(Arc::clone(&self.shared.map))
    }

    /// The next frame, if there is one. Finds out that the producer closed the ring, but not that it died: only a call
    /// that waits does.
    ///
    /// # Errors
    /// [`RingError`]; none of them passes.
    pub fn try_pop(&mut self) -> Result<Option<Chunk>, RingError> {
        if let Some(why) = self.corrupt {
            return Err(RingError::Corrupt(why));
        }
        let popped = self.look();
        if let Err(RingError::Corrupt(why)) = popped {
            self.corrupt = Some(why);
        }
        popped
    }

    /// The next frame, when there is one. May be given up at any time.
    ///
    /// # Errors
    /// [`RingError`]; none of them passes.
    pub async fn pop(&mut self) -> Result<Chunk, RingError> {
        loop {
            if let Some(chunk) = self.pop_or_sleep()? {
                return Ok(chunk);
            }
            self.shared.bell.heard().await?;
        }
    }

    /// As [`Consumer::pop`], on a thread that may block; `None` when the time is over. Looks for 20 us before it
    /// sleeps.
    ///
    /// # Errors
    /// [`RingError`]; none of them passes.
    pub fn pop_blocking(&mut self, timeout: Duration) -> Result<Option<Chunk>, RingError> {
        let start = Instant::now();
        loop {
            if let Some(chunk) = self.try_pop()? {
                return Ok(Some(chunk));
            }
            if start.elapsed() > SPIN.min(timeout) {
                break;
            }
            // The producer may be waiting for this core.
            std::thread::yield_now();
        }
        loop {
            if let Some(chunk) = self.pop_or_sleep()? {
                return Ok(Some(chunk));
            }
            let left = timeout.saturating_sub(start.elapsed());
            if left.is_zero() {
                return Ok(None);
            }
            self.shared.bell.heard_blocking(left)?;
        }
    }

    /// Bytes of the ring from the oldest chunk in use to the next frame: what cannot be written to now.
    pub fn held(&self) -> usize {
        (self.next - self.shared.lock().head) as usize
    }

    /// Bytes of the whole ring.
    pub fn capacity(&self) -> usize {
        self.shared.map.capacity() as usize
    }

    /// Gives this end away, to be opened in another process. Only before its first use.
    ///
    /// # Errors
    /// No more descriptors.
    pub fn into_handle(mut self) -> io::Result<RingHandle> {
        let bell = self.shared.bell.socket().try_clone()?;
        let handle = RingHandle::new(Side::Consumer, self.memory.try_clone()?, bell);
        self.handed_over = true;
        Ok(handle)
    }

    /// As `try_pop`; on `None` the producer has been told that this side sleeps.
    fn pop_or_sleep(&mut self) -> Result<Option<Chunk>, RingError> {
        if let Some(chunk) = self.try_pop()? {
            return Ok(Some(chunk));
        }
        let gone = self.shared.bell.gone();
        self.shared.map.header().consumer_sleeps.0.store(1, Ordering::Relaxed);
        // Either this look sees the new tail or the producer, which moved it before its own fence, sees us sleep.
        fence(Ordering::SeqCst);
        let popped = self.try_pop()?;
        if popped.is_some() {
            self.shared.map.header().consumer_sleeps.0.store(0, Ordering::Relaxed);
        } else if gone {
            // The producer was gone before this look: there will be nothing more.
            return Err(RingError::Closed);
        }
        Ok(popped)
    }

    fn look(&mut self) -> Result<Option<Chunk>, RingError> {
        let map = &self.shared.map;
        let produced = &map.header().produced.0;
        // Acquire: a consumer that sees the new tail sees the frame.
        let mut tail = produced.tail.load(Ordering::Acquire);
        if tail == self.next {
            if produced.closed.load(Ordering::Acquire) == 0 {
                return Ok(None);
            }
            // What was pushed just before the end.
            tail = produced.tail.load(Ordering::Acquire);
            if tail == self.next {
                return Err(RingError::Closed);
            }
        }
        let corrupt = |why| Err(RingError::Corrupt(why));
        let Some(there) = tail.checked_sub(self.next).filter(|there| *there <= map.capacity()) else {
            return corrupt("the end of the data is where it cannot be");
        };
        let Some((word, position)) = map.frame_words(self.next).filter(|_| there >= ALIGN) else {
            return corrupt("a frame that is not aligned");
        };
        let word = word.load(Ordering::Relaxed);
        let (len, seal) = (word as u32 as usize, (word >> 32) as u32);
        if seal != SEAL || position.load(Ordering::Relaxed) != self.next {
            return corrupt("no frame where one should begin");
        }
        let taken = footprint(len);
        let data = map.region(self.next + FRAME_HEADER, len).filter(|_| taken <= there);
        let Some(data) = data else {
            return corrupt("a frame longer than what is there");
        };
        self.next += taken;
        let index = self.shared.lock().took(self.next);
        Ok(Some(Chunk { shared: Arc::clone(&self.shared), data, len, index }))
    }
}

impl Drop for Consumer {
    fn drop(&mut self) {
        if !self.handed_over {
            self.shared.map.header().consumed.0.closed.store(1, Ordering::Release);
            self.shared.bell.close();
        }
    }
}

impl Shared {
    fn lock(&self) -> std::sync::MutexGuard<'_, InUse> {
        // Nothing panics while it holds the lock.
        self.in_use.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn give_back(&self, index: u64) {
        let mut in_use = self.lock();
        if !in_use.gave_back(index) {
            return;
        }
        let head = in_use.head;
        // Under the lock, so that the head never goes back. Release: a producer that sees it may write where we have
        // read.
        self.map.header().consumed.0.head.store(head, Ordering::Release);
        drop(in_use);
        // Either we see what the producer waits for or it, which said so before its own fence, sees the new head.
        fence(Ordering::SeqCst);
        let wants = &self.map.header().producer_wants.0;
        let wanted = wants.load(Ordering::Relaxed);
        if wanted != 0 && head >= wanted && wants.swap(0, Ordering::Relaxed) != 0 {
            self.bell.ring();
        }
    }
}

impl InUse {
    fn took(&mut self, end: u64) -> u64 {
        self.frames.push_back(Frame { end, dropped: false });
        self.gone + self.frames.len() as u64 - 1
    }

    /// Whether the head has moved.
    fn gave_back(&mut self, index: u64) -> bool {
        if let Some(frame) = self.frames.get_mut((index - self.gone) as usize) {
            frame.dropped = true;
        }
        let before = self.gone;
        while self.frames.front().is_some_and(|frame| frame.dropped) {
            let Some(frame) = self.frames.pop_front() else { break };
            self.head = frame.end;
            self.gone += 1;
        }
        self.gone > before
    }
}

/// The data of one frame, where it lies in the ring. Its space is free again when this is dropped and all older chunks
/// are.
pub struct Chunk {
    shared: Arc<Shared>,
    data: NonNull<u8>,
    len: usize,
    index: u64,
}

// SAFETY: the data is shared memory that the producer does not write to while the chunk lives, so it may be read from
// any thread.
unsafe impl Send for Chunk {}
// SAFETY: as above; a shared chunk only reads.
unsafe impl Sync for Chunk {}

impl Chunk {
    /// The same data as reference-counted bytes, without a copy. The space is free when the last of them is gone.
    pub fn into_bytes(self) -> Bytes {
        Bytes::from_owner(self)
    }
}

impl Deref for Chunk {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        // SAFETY: `Consumer::look` took the pointer from `Map::region`, which checked that all `len` bytes lie in the
        // mapping that `shared` keeps. The producer does not write there before the chunk gives the space back.
        unsafe { std::slice::from_raw_parts(self.data.as_ptr(), self.len) }
    }
}

impl AsRef<[u8]> for Chunk {
    fn as_ref(&self) -> &[u8] {
        self
    }
}

impl std::fmt::Debug for Chunk {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Chunk").field("len", &self.len).finish_non_exhaustive()
    }
}

impl Drop for Chunk {
    fn drop(&mut self) {
        self.shared.give_back(self.index);
    }
}
