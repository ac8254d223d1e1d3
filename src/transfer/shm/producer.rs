//! The writing end.

use super::bell::Bell;
use super::handle::{RingHandle, Side};
use super::map::Map;
use super::notes::Notes;
use super::{ALIGN, FRAME_HEADER, PushError, SEAL, footprint};
use std::io;
use std::ops::{Deref, DerefMut};
use std::os::fd::OwnedFd;
use std::ptr::NonNull;
use std::sync::Arc;
use std::sync::atomic::{Ordering, fence};
use std::time::{Duration, Instant};

/// The writing end of a ring. Dropping it tells the consumer, which reads what is there and then finds it closed.
#[derive(Debug)]
pub struct Producer {
    memory: OwnedFd,
    map: Arc<Map>,
    bell: Bell,
    tail: u64,
    /// What was last seen of the consumer's head: read again only when it is not enough.
    head: u64,
    handed_over: bool,
}

impl Producer {
    pub(super) fn new(memory: OwnedFd, map: Map, bell: Bell) -> io::Result<Producer> {
        let header = map.header();
        let tail = header.produced.0.tail.load(Ordering::Acquire);
        let head = header.consumed.0.head.load(Ordering::Acquire);
        if !tail.is_multiple_of(ALIGN) || tail.checked_sub(head).is_none_or(|used| used > map.capacity()) {
            return Err(io::Error::new(io::ErrorKind::InvalidData, "the ring is corrupt: impossible positions"));
        }
        Ok(Producer { memory, map: Arc::new(map), bell, tail, head, handed_over: false })
    }

    /// Words beside the frames.
    pub fn notes(&self) -> Notes {
        Notes::new(Arc::clone(&self.map))
    }

    /// The most bytes that a frame can have.
    pub fn limit(&self) -> usize {
        (self.map.capacity() - FRAME_HEADER).min(u64::from(u32::MAX)) as usize
    }

    /// Bytes of the ring in use, as far as this side knows without looking.
    pub fn used(&self) -> usize {
        (self.tail - self.head) as usize
    }

    /// Room for a frame of `len` bytes, to be written in place and then committed.
    ///
    /// # Errors
    /// [`PushError`]; `Full` if it is worth trying again.
    pub fn reserve(&mut self, len: usize) -> Result<Reservation<'_>, PushError> {
        self.room(len)?;
        let Some(data) = self.map.region(self.tail + FRAME_HEADER, len) else {
            return Err(PushError::TooLarge { got: len, limit: self.limit() });
        };
        Ok(Reservation { producer: self, data, len })
    }

    /// Pushes one frame made of these pieces.
    ///
    /// # Errors
    /// [`PushError`]; `Full` if it is worth trying again.
    pub fn try_push(&mut self, pieces: &[&[u8]]) -> Result<(), PushError> {
        let mut reservation = self.reserve(pieces.iter().map(|piece| piece.len()).sum())?;
        let mut rest = &mut *reservation;
        for piece in pieces {
            let (place, after) = rest.split_at_mut(piece.len());
            place.copy_from_slice(piece);
            rest = after;
        }
        reservation.commit();
        Ok(())
    }

    /// Pushes one frame made of these pieces when there is room.
    ///
    /// # Errors
    /// [`PushError`], never `Full`.
    pub async fn push(&mut self, pieces: &[&[u8]]) -> Result<(), PushError> {
        self.wait_for_room(pieces.iter().map(|piece| piece.len()).sum()).await?;
        self.try_push(pieces)
    }

    /// Waits until [`Producer::reserve`] has room for `len` bytes. May be given up at any time.
    ///
    /// # Errors
    /// [`PushError`], never `Full`.
    pub async fn wait_for_room(&mut self, len: usize) -> Result<(), PushError> {
        loop {
            match self.room_or_sleep(len) {
                Err(PushError::Full) => self.bell.heard().await?,
                other => return other,
            }
        }
    }

    /// As [`Producer::push`], on a thread that may block.
    ///
    /// # Errors
    /// [`PushError`]; `Full` when the time is over.
    pub fn push_blocking(&mut self, pieces: &[&[u8]], timeout: Duration) -> Result<(), PushError> {
        let (deadline, len) = (Instant::now() + timeout, pieces.iter().map(|piece| piece.len()).sum());
        loop {
            match self.room_or_sleep(len) {
                Ok(()) => return self.try_push(pieces),
                Err(PushError::Full) => {
                    let left = deadline.saturating_duration_since(Instant::now());
                    if left.is_zero() {
                        return Err(PushError::Full);
                    }
                    self.bell.heard_blocking(left)?;
                }
                Err(error) => return Err(error),
            }
        }
    }

    /// Whether the consumer is known to be gone.
    pub fn closed(&self) -> bool {
        self.bell.gone() || self.map.header().consumed.0.closed.load(Ordering::Acquire) != 0
    }

    /// Gives this end away, to be opened in another process. Only before its first use: a consumer's unread frames
    /// would be read again.
    ///
    /// # Errors
    /// No more descriptors.
    pub fn into_handle(mut self) -> io::Result<RingHandle> {
        let handle = RingHandle::new(Side::Producer, self.memory.try_clone()?, self.bell.socket().try_clone()?);
        self.handed_over = true;
        Ok(handle)
    }

    fn room(&mut self, len: usize) -> Result<(), PushError> {
        let limit = self.limit();
        if len > limit {
            return Err(PushError::TooLarge { got: len, limit });
        }
        if self.closed() {
            return Err(PushError::Closed);
        }
        let (need, capacity) = (footprint(len), self.map.capacity());
        if self.tail + need - self.head > capacity {
            // Acquire: whatever the consumer read of the frames before this head, it has read.
            let head = self.map.header().consumed.0.head.load(Ordering::Acquire);
            if head < self.head || head > self.tail {
                return Err(PushError::Corrupt("the consumer freed what was never sent"));
            }
            self.head = head;
            if self.tail + need - head > capacity {
                return Err(PushError::Full);
            }
        }
        Ok(())
    }

    /// As `room`; on `Full` the consumer has been told what to ring for.
    fn room_or_sleep(&mut self, len: usize) -> Result<(), PushError> {
        match self.room(len) {
            Err(PushError::Full) => {}
            other => return other,
        }
        let wants = &self.map.header().producer_wants.0;
        wants.store(self.tail + footprint(len) - self.map.capacity(), Ordering::Relaxed);
        // Either the second look sees the new head or the consumer, which moved it before its own fence, sees the wish.
        fence(Ordering::SeqCst);
        let again = self.room(len);
        if !matches!(again, Err(PushError::Full)) {
            self.map.header().producer_wants.0.store(0, Ordering::Relaxed);
        }
        again
    }
}

impl Drop for Producer {
    fn drop(&mut self) {
        if !self.handed_over {
            self.map.header().produced.0.closed.store(1, Ordering::Release);
            self.bell.close();
        }
    }
}

/// Room for one frame. Dropped without a commit, it was never there.
#[derive(Debug)]
pub struct Reservation<'a> {
    producer: &'a mut Producer,
    data: NonNull<u8>,
    len: usize,
}

impl Reservation<'_> {
    /// Hands the frame to the consumer.
    pub fn commit(self) {
        let Reservation { producer, len, .. } = self;
        let header = producer.map.header();
        if let Some((word, position)) = producer.map.frame_words(producer.tail) {
            word.store(len as u64 | u64::from(SEAL) << 32, Ordering::Relaxed);
            position.store(producer.tail, Ordering::Relaxed);
        }
        producer.tail += footprint(len);
        // Release: a consumer that sees the new tail sees the frame.
        header.produced.0.tail.store(producer.tail, Ordering::Release);
        // Either we see that the consumer sleeps or it, which said so before its own fence, sees the new tail.
        fence(Ordering::SeqCst);
        let sleeps = &header.consumer_sleeps.0;
        if sleeps.load(Ordering::Relaxed) != 0 && sleeps.swap(0, Ordering::Relaxed) != 0 {
            producer.bell.ring();
        }
    }
}

impl Deref for Reservation<'_> {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        // SAFETY: `room` found these bytes free: the consumer is done with them and will not look at them before the
        // commit. They are within the mapping, initialized as all memory of a file is, and only `self` refers to them.
        unsafe { std::slice::from_raw_parts(self.data.as_ptr(), self.len) }
    }
}

impl DerefMut for Reservation<'_> {
    fn deref_mut(&mut self) -> &mut [u8] {
        // SAFETY: as for `deref`; the reservation borrows its producer mutably, so there is one at a time.
        unsafe { std::slice::from_raw_parts_mut(self.data.as_ptr(), self.len) }
    }
}
