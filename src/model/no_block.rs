//! The launch section: what a launch thread does between taking a command and handing over the result. Nothing in it
//! may wait for a device. A function that may wait reports it here first; inside the section the report is counted, and
//! in builds with debug assertions it panics with the name of the call, so that the tests catch a wait that a change
//! adds to a step.

use omni_telemetry as telemetry;
use std::cell::Cell;
use std::marker::PhantomData;

#[derive(Clone, Copy, PartialEq)]
enum Here {
    Outside,
    Inside,
    Allowed,
}

thread_local! {
    static HERE: Cell<Here> = const { Cell::new(Here::Outside) };
}

/// Keeps this thread in the section, or allowed to wait in it, until it is dropped.
#[must_use]
pub struct Section {
    before: Here,
    /// Stays on its thread.
    thread: PhantomData<*const ()>,
}

/// Begins the section on this thread.
pub fn section() -> Section {
    here(Here::Inside)
}

/// Allows waits in the section until the guard is dropped, for the given reason: rare work that has no place elsewhere,
/// such as memory that has to grow.
pub fn allow(_why: &'static str) -> Section {
    // Outside the section there is nothing to be allowed to wait in.
    here(if HERE.get() == Here::Outside { Here::Outside } else { Here::Allowed })
}

fn here(now: Here) -> Section {
    Section { before: HERE.replace(now), thread: PhantomData }
}

impl Drop for Section {
    fn drop(&mut self) {
        HERE.set(self.before);
    }
}

/// Reports that this thread is about to make a call that may wait for a device.
///
/// # Panics
/// In the launch section, in builds with debug assertions.
pub fn waits(call: &'static str) {
    if HERE.get() != Here::Inside {
        return;
    }
    telemetry::launch_waited();
    // A panicking thread drops its state; the calls that this makes are no step.
    if cfg!(debug_assertions) && !std::thread::panicking() {
        panic!("{call} in a launch: it may wait for the device, and the next launch must not");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    #[should_panic(expected = "cuStreamSynchronize in a launch")]
    fn a_wait_inside_the_section_is_told() {
        let _section = section();
        waits("cuStreamSynchronize");
    }

    #[test]
    fn elsewhere_one_may_wait() {
        waits("before");
        {
            let _section = section();
            let _allowed = allow("a test");
            waits("excused");
            // Another thread is not in it.
            std::thread::spawn(|| waits("completion")).join().unwrap();
        }
        waits("after");
    }

    #[test]
    #[should_panic(expected = "cuMemAlloc in a launch")]
    fn an_excuse_ends_where_its_block_ends() {
        let _section = section();
        drop(allow("a test"));
        waits("cuMemAlloc");
    }
}
