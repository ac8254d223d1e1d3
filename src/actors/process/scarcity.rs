//! A machine that has no descriptor, process or memory left for a child: how that is told from other errors, how long to
//! wait for better times, and the descriptors that are kept back for starting children.

use std::fs::File;
use std::io;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

/// Descriptors kept back: starting a child takes about 16 for a moment, and three stages may be lost at once.
const KEPT: usize = 48;
/// First pause; doubles with each try.
const FIRST_PAUSE: Duration = Duration::from_millis(20);
/// Longest pause: what ends a scarcity (clients that leave, a process that ends) takes as long.
const LONGEST_PAUSE: Duration = Duration::from_secs(1);

/// Of the whole process: its descriptors have one limit.
static RESERVE: Mutex<Vec<File>> = Mutex::new(Vec::new());

/// Whether a start failed for want of something that others hold and will give back.
pub(super) fn is_scarcity(error: &io::Error) -> bool {
    /// As Linux numbers them on all of its architectures.
    const EAGAIN: i32 = 11;
    const ENOMEM: i32 = 12;
    const ENFILE: i32 = 23;
    const EMFILE: i32 = 24;
    const ENOBUFS: i32 = 105;
    matches!(error.raw_os_error(), Some(EAGAIN | ENOMEM | ENFILE | EMFILE | ENOBUFS))
}

/// How long to wait after so many tries in vain.
pub(super) fn pause(tries: u32) -> Duration {
    (FIRST_PAUSE * 2u32.pow(tries.min(10))).min(LONGEST_PAUSE)
}

/// Takes descriptors, as many as are free and missing.
pub(super) fn keep_back() {
    let mut reserve = RESERVE.lock().unwrap_or_else(PoisonError::into_inner);
    while reserve.len() < KEPT {
        match File::open("/dev/null") {
            Ok(file) => reserve.push(file),
            // Another time.
            Err(_) => return,
        }
    }
}

/// Gives them back.
pub(super) fn release() {
    RESERVE.lock().unwrap_or_else(PoisonError::into_inner).clear();
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pauses_double_up_to_the_longest() {
        assert_eq!(pause(0), FIRST_PAUSE);
        assert_eq!(pause(1), FIRST_PAUSE * 2);
        assert_eq!((pause(20), pause(u32::MAX)), (LONGEST_PAUSE, LONGEST_PAUSE));
    }

    #[test]
    fn a_program_that_is_not_there_is_no_scarcity() {
        assert!(!is_scarcity(&io::Error::from(io::ErrorKind::NotFound)));
        assert!(!is_scarcity(&File::open("/no/such/file").unwrap_err()));
        assert!(is_scarcity(&io::Error::from_raw_os_error(24)));
    }
}
