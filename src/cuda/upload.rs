//! Small copies to the device that wait for the next launch.

use omni_core::ids::Slot;

/// A copy to the device. `T`: the memory that it goes to.
pub(crate) struct Upload<T> {
    /// Whose sequence it is about.
    pub slot: Slot,
    pub to: T,
    /// First element.
    pub at: usize,
    pub bytes: Vec<u8>,
}

impl<T> Upload<T> {
    /// Bytes of a step's input that it takes.
    pub fn room(&self) -> usize {
        self.bytes.len().next_multiple_of(16)
    }
}
