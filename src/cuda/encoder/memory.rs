//! Memory of the stage: what a launch needs for itself, what a picture keeps between its steps, page-locked memory for
//! copies. It grows to what is needed and is used again.

use crate::{Buffer, CudaError, Event, Gpu, Pinned, Stream};
use omni_model::no_block;
use std::cell::RefCell;
use std::rc::Rc;
use std::sync::{Arc, Mutex, PoisonError};

/// Memory that pictures have given back and that is kept for the next, in bytes.
const KEPT: usize = 1 << 30;

/// What a launch writes and reads again, by what it is for. Launches follow each other on one stream, so each may use all
/// of it.
#[derive(Clone, Copy, Debug)]
pub(super) enum Room {
    /// The residual stream of windows, f32.
    Stream,
    /// Normed rows.
    Normed,
    /// Queries, keys and values.
    Qkv,
    /// What attention saw.
    Seen,
    /// The inner rows of a feed-forward net or merger.
    Inner,
    /// What a convolution sees.
    Taps,
    /// Maps of a convolution: its input.
    Before,
    /// Its output.
    After,
    /// Finished rows of windows, f32.
    Rows,
    /// Features as they came, f32.
    Features,
    /// Tables of attention.
    Tables,
}

const ROOMS: usize = Room::Tables as usize + 1;

/// A buffer for each [`Room`].
pub(super) struct Scratch {
    gpu: Gpu,
    rooms: RefCell<[Option<Buffer<u8>>; ROOMS]>,
}

impl Scratch {
    /// Empty.
    pub fn new(gpu: &Gpu) -> Scratch {
        Scratch { gpu: gpu.clone(), rooms: RefCell::default() }
    }

    /// The address of a room of at least so many bytes; what was in it is lost if it has to grow.
    ///
    /// # Errors
    /// When the device has no room.
    pub fn room(&self, stream: &Stream, room: Room, bytes: usize) -> Result<u64, CudaError> {
        let slot = &mut self.rooms.borrow_mut()[room as usize];
        match slot {
            Some(buffer) if buffer.len() >= bytes => Ok(buffer.address()),
            _ => {
                let _excused = no_block::allow("a part is larger than any before it");
                // Queued launches may use the buffer that is freed here.
                stream.synchronize()?;
                *slot = None;
                Ok(slot.insert(self.gpu.alloc("the encoder", bytes + bytes / 4)?).address())
            }
        }
    }

    /// [`Scratch::room`], filled from page-locked memory.
    ///
    /// # Errors
    /// Those of [`Scratch::room`], and what the driver says.
    pub fn filled(&self, stream: &Stream, room: Room, from: &Pinned<u8>, bytes: usize) -> Result<u64, CudaError> {
        let address = self.room(stream, room, bytes)?;
        if let Some(buffer) = &self.rooms.borrow()[room as usize] {
            buffer.upload_bytes_async(stream, 0, from, 0, bytes)?;
        }
        Ok(address)
    }

    /// Queues the copy of the first bytes of a room to page-locked memory.
    ///
    /// # Errors
    /// What the driver says.
    pub fn download(
        &self,
        stream: &Stream,
        room: Room,
        at: usize,
        to: &Pinned<u8>,
        bytes: usize,
    ) -> Result<(), CudaError> {
        match &self.rooms.borrow()[room as usize] {
            Some(buffer) => buffer.download_async(stream, at, to, 0, bytes),
            None => Ok(()),
        }
    }
}

/// Memory of the device that pictures take and give back. All of it is used on one stream, so the next may use it at
/// once.
pub(super) struct Pool {
    gpu: Gpu,
    free: RefCell<Vec<Buffer<u8>>>,
}

/// Memory lent by a [`Pool`].
pub(super) struct Lent {
    buffer: Option<Buffer<u8>>,
    pool: Rc<Pool>,
}

impl Pool {
    /// Empty.
    pub fn new(gpu: &Gpu) -> Rc<Pool> {
        Rc::new(Pool { gpu: gpu.clone(), free: RefCell::default() })
    }

    /// At least so many bytes.
    ///
    /// # Errors
    /// When the device has no room.
    pub fn take(self: &Rc<Pool>, bytes: usize) -> Result<Lent, CudaError> {
        let found = {
            let mut free = self.free.borrow_mut();
            let fits = free.iter().enumerate().filter(|(_, buffer)| (bytes..=4 * bytes).contains(&buffer.len()));
            let best = fits.min_by_key(|(_, buffer)| buffer.len()).map(|(at, _)| at);
            best.map(|at| free.swap_remove(at))
        };
        let buffer = match found {
            Some(buffer) => buffer,
            None => {
                let _excused = no_block::allow("more pictures than ever are on their way, or a larger one");
                self.gpu.alloc("the encoder", bytes)?
            }
        };
        Ok(Lent { buffer: Some(buffer), pool: Rc::clone(self) })
    }
}

impl Lent {
    /// The memory.
    pub fn buffer(&self) -> &Buffer<u8> {
        match &self.buffer {
            Some(buffer) => buffer,
            None => unreachable!("the buffer is taken when this is dropped"),
        }
    }

    /// Where byte `at` is.
    pub fn at(&self, at: usize) -> u64 {
        self.buffer().at(at)
    }
}

impl Drop for Lent {
    fn drop(&mut self) {
        let mut free = self.pool.free.borrow_mut();
        free.extend(self.buffer.take());
        let mut kept: usize = free.iter().map(Buffer::len).sum();
        // Freeing waits for the device.
        let _excused = no_block::allow("more memory was given back than is kept");
        while kept > KEPT && free.len() > 1 {
            kept -= free.remove(0).len();
        }
    }
}

/// Page-locked memory and events that steps borrow; threads that wait for a step give them back.
pub(super) struct Stash {
    gpu: Gpu,
    pinned: Mutex<Vec<Pinned<u8>>>,
    events: Mutex<Vec<Event>>,
}

impl Stash {
    /// Empty.
    pub fn new(gpu: &Gpu) -> Arc<Stash> {
        Arc::new(Stash { gpu: gpu.clone(), pinned: Mutex::default(), events: Mutex::default() })
    }

    /// Page-locked memory of at least so many bytes.
    ///
    /// # Errors
    /// What the driver says.
    pub fn pinned(&self, bytes: usize) -> Result<Pinned<u8>, CudaError> {
        let mut free = self.pinned.lock().unwrap_or_else(PoisonError::into_inner);
        let fits = free.iter().enumerate().filter(|(_, pinned)| pinned.len() >= bytes);
        match fits.min_by_key(|(_, pinned)| pinned.len()).map(|(at, _)| at) {
            Some(at) => Ok(free.swap_remove(at)),
            None => {
                let _excused = no_block::allow("more copies than ever are on their way, or a larger one");
                self.gpu.pinned(bytes.next_power_of_two())
            }
        }
    }

    /// An event.
    ///
    /// # Errors
    /// What the driver says.
    pub fn event(&self) -> Result<Event, CudaError> {
        let free = self.events.lock().unwrap_or_else(PoisonError::into_inner).pop();
        free.map_or_else(|| Event::new(&self.gpu), Ok)
    }

    /// Takes back what no step uses any more.
    pub fn give_back(&self, pinned: impl IntoIterator<Item = Pinned<u8>>, events: impl IntoIterator<Item = Event>) {
        self.pinned.lock().unwrap_or_else(PoisonError::into_inner).extend(pinned);
        self.events.lock().unwrap_or_else(PoisonError::into_inner).extend(events);
    }
}
