//! A state behind a lock that hardly anybody waits for.
//!
//! Posts: what a thread tells the state without ever waiting for the lock. Where the lock is free, the thread carries the
//! post out itself; otherwise the thread that holds the lock carries it out when it releases the lock.
//!
//! Arrivals: the threads of requests that come at once do not take the lock one after the other, each woken by the one
//! before, which takes longer than what they do under it. One of the threads opens all that have arrived; the others go
//! on. No thread that posts opens any: that takes longer than a launch should wait.

use std::collections::VecDeque;
use std::ops::{Deref, DerefMut};
use std::sync::{LockResult, Mutex, MutexGuard, PoisonError, TryLockError};

/// A state behind a lock, the posts to carry out as soon as the lock is free, and the arrivals to open before them.
pub(crate) struct PostedLock<S, P, A> {
    state: Mutex<S>,
    /// Each locked for a push or a take and nothing else.
    posts: Mutex<Vec<P>>,
    arrivals: Mutex<VecDeque<A>>,
    /// Held by the thread that opens arrivals for the others.
    opener: Mutex<()>,
}

/// The locked state. When its holder drops it, the holder carries out the posts that came meanwhile.
pub(crate) struct Locked<'a, S, P, A, F: Fn(&mut S, P)> {
    // Dropped first: fields are dropped in their order.
    state: MutexGuard<'a, S>,
    _rest: Rest<'a, S, P, A, F>,
}

struct Rest<'a, S, P, A, F: Fn(&mut S, P)>(&'a PostedLock<S, P, A>, F);

impl<S, P, A> PostedLock<S, P, A> {
    pub fn new(state: S) -> PostedLock<S, P, A> {
        PostedLock {
            state: Mutex::new(state),
            posts: Mutex::default(),
            arrivals: Mutex::default(),
            opener: Mutex::default(),
        }
    }

    /// The state after all earlier arrivals and posts. Waits for the lock.
    pub fn lock<F: Fn(&mut S, P)>(&self, open: impl Fn(&mut S, A), carry_out: F) -> Locked<'_, S, P, A, F> {
        // Only a bug in a pure core could panic under the lock; to go on serves the other clients better than to fail
        // them all.
        let mut state = held(self.state.lock());
        // One by one: a panic must not cost those behind it.
        while let Some(arrival) = self.next_arrival() {
            open(&mut state, arrival);
        }
        taken(&self.posts).into_iter().for_each(|post| carry_out(&mut state, post));
        Locked { state, _rest: Rest(self, carry_out) }
    }

    /// Opens an arrival, here or on the thread that opens others. Every thread that locks the state from now on finds
    /// it open.
    pub fn arrive(&self, arrival: A, open: impl Fn(&mut S, A), carry_out: impl Fn(&mut S, P)) {
        held(self.arrivals.lock()).push_back(arrival);
        // No arrival is missed: a thread that finds the opener taken has pushed before the opener looks again.
        while !held(self.arrivals.lock()).is_empty() {
            let Some(_opener) = held_if_free(&self.opener) else { return };
            drop(self.lock(&open, &carry_out));
        }
    }

    fn next_arrival(&self) -> Option<A> {
        held(self.arrivals.lock()).pop_front()
    }

    /// Carries a post out, here or on the thread that holds the lock. Never waits for that thread.
    pub fn post(&self, post: P, carry_out: impl Fn(&mut S, P)) {
        held(self.posts.lock()).push(post);
        self.settle(carry_out);
    }

    /// Carries out what is posted, unless another thread has the lock: that one does when it lets go. A post cannot be
    /// missed by both. Where its thread finds the lock taken, it has pushed before the holder let go, and the holder
    /// looks after it has let go.
    fn settle(&self, carry_out: impl Fn(&mut S, P)) {
        while !held(self.posts.lock()).is_empty() {
            let Some(mut state) = held_if_free(&self.state) else { return };
            taken(&self.posts).into_iter().for_each(|post| carry_out(&mut state, post));
        }
    }
}

fn held<'a, T>(lock: LockResult<MutexGuard<'a, T>>) -> MutexGuard<'a, T> {
    lock.unwrap_or_else(PoisonError::into_inner)
}

fn held_if_free<T>(lock: &Mutex<T>) -> Option<MutexGuard<'_, T>> {
    match lock.try_lock() {
        Ok(held) => Some(held),
        Err(TryLockError::Poisoned(poisoned)) => Some(poisoned.into_inner()),
        Err(TryLockError::WouldBlock) => None,
    }
}

fn taken<T>(queue: &Mutex<Vec<T>>) -> Vec<T> {
    std::mem::take(&mut *held(queue.lock()))
}

impl<S, P, A, F: Fn(&mut S, P)> Deref for Locked<'_, S, P, A, F> {
    type Target = S;
    fn deref(&self) -> &S {
        &self.state
    }
}

impl<S, P, A, F: Fn(&mut S, P)> DerefMut for Locked<'_, S, P, A, F> {
    fn deref_mut(&mut self) -> &mut S {
        &mut self.state
    }
}

impl<S, P, A, F: Fn(&mut S, P)> Drop for Rest<'_, S, P, A, F> {
    fn drop(&mut self) {
        self.0.settle(&self.1);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    type Numbers = PostedLock<Vec<u32>, u32, u32>;

    fn append(state: &mut Vec<u32>, number: u32) {
        state.push(number);
    }

    #[test]
    fn a_post_never_waits_and_is_carried_out_when_the_lock_is_free() {
        let lock = Numbers::new(Vec::new());
        let mut state = lock.lock(append, append);
        lock.post(2, append);
        state.push(1);
        assert_eq!(*state, [1], "the lock was taken");
        drop(state);
        assert_eq!(*lock.lock(append, append), [1, 2]);
        lock.post(3, append);
        assert_eq!(*lock.state.try_lock().unwrap(), [1, 2, 3], "the lock was free");
    }

    #[test]
    fn an_arrival_does_not_wait_for_the_thread_that_opens_and_is_opened_by_it() {
        let lock = Numbers::new(Vec::new());
        let (inside, come) = (std::sync::Barrier::new(2), std::sync::Barrier::new(2));
        std::thread::scope(|scope| {
            scope.spawn(|| {
                let slowly = |state: &mut Vec<u32>, number| {
                    if number == 1 {
                        inside.wait();
                        come.wait();
                    }
                    append(state, number);
                };
                lock.arrive(1, slowly, append);
            });
            inside.wait();
            // This thread would wait for ever if it waited for the lock.
            lock.arrive(2, append, append);
            lock.arrive(3, append, append);
            lock.post(4, append);
            come.wait();
        });
        assert_eq!(*held(lock.state.lock()), [1, 2, 3, 4], "without another look");
    }

    #[test]
    fn the_lock_opens_arrivals_before_it_carries_out_posts() {
        let lock = Numbers::new(Vec::new());
        let opener = lock.opener.lock().unwrap();
        lock.arrive(1, append, append);
        lock.arrive(2, append, append);
        held(lock.posts.lock()).push(3);
        assert_eq!(*held(lock.state.lock()), [0; 0], "another thread opens");
        assert_eq!(*lock.lock(append, append), [1, 2, 3]);
        drop(opener);
    }

    #[test]
    fn nothing_is_lost_between_threads() {
        let lock = Numbers::new(Vec::new());
        std::thread::scope(|scope| {
            for thread in 0..4 {
                let lock = &lock;
                scope.spawn(move || {
                    for number in 0..6_000 {
                        let number = thread * 10_000 + number;
                        match number % 3 {
                            0 => lock.lock(append, append).push(number),
                            1 => lock.post(number, append),
                            _ => lock.arrive(number, append, append),
                        }
                    }
                });
            }
        });
        let state = lock.state.try_lock().unwrap();
        for thread in 0..4 {
            let own: Vec<_> = state.iter().filter(|number| *number / 10_000 == thread).collect();
            assert_eq!(own.len(), 6_000, "each once, without another look");
            for way in 0..3 {
                let those = own.iter().filter(|number| **number % 3 == way);
                assert!(those.is_sorted(), "in the order in which its thread did them");
            }
        }
    }
}
