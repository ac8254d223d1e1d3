//! Work of one request on several threads: frames of a video, pictures of a turn.
//!
//! A request works on the thread that it has, and takes a seat with it if one is free. While seats are free it has helpers
//! in those too, and gives each back as soon as nothing is left to begin. So requests share the seats, none waits for one,
//! and many requests at once need no helpers.

use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::thread;

/// Threads of one request at most, its own included: each may have a worker with a worker's memory.
const MOST: usize = 8;

/// Seats for threads that work for requests; see the module.
pub(crate) struct Helpers {
    seats: usize,
    free: AtomicUsize,
}

impl Helpers {
    /// So many helpers for a request that is alone.
    pub fn new(count: usize) -> Helpers {
        Helpers { seats: count + 1, free: AtomicUsize::new(count + 1) }
    }

    /// Seats for half of the cores: the other half is for stages and clients.
    pub fn usual() -> Helpers {
        let cores = thread::available_parallelism().map_or(1, usize::from);
        Helpers::new((cores / 2).clamp(1, MOST) - 1)
    }

    /// How many seats there are: threads of a request that is alone.
    pub fn seats(&self) -> usize {
        self.seats
    }

    /// Calls `work` with 0 to `count - 1`, ascending, side by side, until a call says that no further one is wanted.
    /// Blocks; what has begun ends. So the results are those of all numbers up to some number, whatever was said where.
    pub fn each<T: Send + Sync>(&self, count: usize, work: impl Fn(usize) -> (T, bool) + Sync) -> Vec<T> {
        let own = self.take();
        let results: Vec<OnceLock<T>> = (0..count).map(|_| OnceLock::new()).collect();
        let (next, enough) = (AtomicUsize::new(0), AtomicBool::new(false));
        let take_part = || {
            while !enough.load(Ordering::Relaxed) {
                let number = next.fetch_add(1, Ordering::Relaxed);
                let Some(result) = results.get(number) else { break };
                let (found, more) = work(number);
                // Each number is given out once.
                let _ = result.set(found);
                if !more {
                    enough.store(true, Ordering::Relaxed);
                }
            }
        };
        thread::scope(|scope| {
            for _ in 1..count {
                let Some(helper) = self.take() else { break };
                let help = || {
                    take_part();
                    drop(helper);
                };
                if thread::Builder::new().name("decode".into()).spawn_scoped(scope, help).is_err() {
                    break;
                }
            }
            take_part();
            drop(own);
        });
        results.into_iter().map_while(OnceLock::into_inner).collect()
    }

    fn take(&self) -> Option<Seat<'_>> {
        let one = |free: usize| free.checked_sub(1);
        self.free.fetch_update(Ordering::Relaxed, Ordering::Relaxed, one).ok().map(|_| Seat(self))
    }
}

/// A seat that is taken, free again when it is dropped.
struct Seat<'a>(&'a Helpers);

impl Drop for Seat<'_> {
    fn drop(&mut self) {
        self.0.free.fetch_add(1, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::sync::Barrier;

    #[test]
    fn as_many_work_at_once_as_there_are_helpers_and_the_caller() {
        let helpers = Helpers::new(3);
        let all = Barrier::new(4);
        let results = helpers.each(4, |number| {
            all.wait();
            (number, true)
        });
        assert_eq!((results, helpers.free.load(Ordering::Relaxed)), (vec![0, 1, 2, 3], 4));
    }

    #[test]
    fn a_request_that_finds_no_helper_works_alone() {
        let helpers = Helpers::new(1);
        // Another request's, and its helper's.
        let taken = [helpers.take().unwrap(), helpers.take().unwrap()];
        let caller = thread::current().id();
        let results = helpers.each(5, |number| (number, thread::current().id() == caller));
        assert_eq!(results, [0, 1, 2, 3, 4]);
        drop(taken);
        assert!(helpers.each(0, |_| ((), true)).is_empty());
    }

    #[test]
    fn two_requests_have_the_helpers_of_one() {
        let helpers = Helpers::new(1);
        let other = helpers.take().unwrap();
        let caller = thread::current().id();
        assert!(helpers.each(3, |_| (thread::current().id() == caller, true)).into_iter().all(|own| own));
        assert_eq!(helpers.free.load(Ordering::Relaxed), 1);
        drop(other);
    }

    proptest! {
        #[test]
        fn results_are_a_beginning_that_holds_the_first_which_was_enough(
            count in 0usize..30, helpers in 0usize..4, enough in proptest::collection::vec(0usize..30, 0..3),
        ) {
            let results = Helpers::new(helpers).each(count, |number| (number, !enough.contains(&number)));
            prop_assert!(results.iter().copied().eq(0..results.len()));
            match enough.into_iter().filter(|number| *number < count).min() {
                Some(first) => prop_assert!(results.len() > first),
                None => prop_assert_eq!(results.len(), count),
            }
        }
    }
}
