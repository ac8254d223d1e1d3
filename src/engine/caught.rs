//! A panic in what is done for one request ends that request, and nothing else.

use std::any::Any;
use std::panic::AssertUnwindSafe;

/// What `work` gives; what it panicked with, if it did. `work` must leave nothing half done that outlives it.
///
/// # Errors
/// The text of the panic.
pub(super) fn caught<T>(work: impl FnOnce() -> T) -> Result<T, String> {
    std::panic::catch_unwind(AssertUnwindSafe(work)).map_err(|panic| text(panic.as_ref()))
}

/// What a panic says.
pub(super) fn text(panic: &(dyn Any + Send)) -> String {
    let known = panic.downcast_ref::<&str>().copied();
    let known = known.or_else(|| panic.downcast_ref::<String>().map(String::as_str));
    known.unwrap_or("a panic without a message").to_owned()
}
