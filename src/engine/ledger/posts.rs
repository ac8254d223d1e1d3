//! Posts: what actors tell the ledger without ever waiting for it. A scheduler posts acknowledgements on its way to the
//! next launch; any actor posts the failure of a sequence. Where the lock of the ledger is free, the actor's thread
//! carries the post out itself; otherwise the thread that holds the lock carries it out when it releases the lock.

use super::{Ledger, State};
use crate::journal::Edge;
use omni_core::ids::{Attempt, Replica, RequestId, Seq, StageName};
use omni_core::scheduler::Ack;
use omni_stage::AckSink;
use std::ops::{Deref, DerefMut};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, TryLockError};

/// A message of an actor to the ledger.
pub(super) enum Post {
    /// A stage acknowledged units of its input.
    Acked(StageName, Vec<Ack>),
    /// A sequence cannot go on in this attempt.
    SequenceFailed(Replica, RequestId, String),
    /// Input of an attempt, from this unit on, did not get over its edge.
    InputLost(Replica, RequestId, Attempt, Seq),
}

/// A state behind a lock, and the posts to carry out as soon as the lock is free.
pub(super) struct PostedLock<S, P> {
    state: Mutex<S>,
    /// Locked for a push or a take and nothing else.
    posts: Mutex<Vec<P>>,
}

/// The locked state. When its holder drops it, the holder carries out the posts that came meanwhile.
pub(super) struct Locked<'a, S, P, F: Fn(&mut S, P)> {
    // Dropped first: fields are dropped in their order.
    state: MutexGuard<'a, S>,
    _rest: Rest<'a, S, P, F>,
}

struct Rest<'a, S, P, F: Fn(&mut S, P)>(&'a PostedLock<S, P>, F);

impl<S, P> PostedLock<S, P> {
    pub fn new(state: S) -> PostedLock<S, P> {
        PostedLock { state: Mutex::new(state), posts: Mutex::default() }
    }

    /// The state after all earlier posts. Waits for the lock.
    pub fn lock<F: Fn(&mut S, P)>(&self, carry_out: F) -> Locked<'_, S, P, F> {
        // Only a bug in a pure core could panic under the lock; to go on serves the other clients better than to fail
        // them all.
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        self.take().into_iter().for_each(|post| carry_out(&mut state, post));
        Locked { state, _rest: Rest(self, carry_out) }
    }

    /// Carries a post out, here or on the thread that holds the lock. Never waits for that thread.
    pub fn post(&self, post: P, carry_out: impl Fn(&mut S, P)) {
        self.posts.lock().unwrap_or_else(PoisonError::into_inner).push(post);
        self.settle(carry_out);
    }

    /// Carries out what is posted, unless another thread has the lock: that one does when it lets go. A post cannot be
    /// missed by both. Where its thread finds the lock taken, it has pushed before the holder let go, and the holder
    /// looks after it has let go.
    fn settle(&self, carry_out: impl Fn(&mut S, P)) {
        while !self.posts.lock().unwrap_or_else(PoisonError::into_inner).is_empty() {
            let mut state = match self.state.try_lock() {
                Ok(state) => state,
                Err(TryLockError::Poisoned(poisoned)) => poisoned.into_inner(),
                Err(TryLockError::WouldBlock) => return,
            };
            self.take().into_iter().for_each(|post| carry_out(&mut state, post));
        }
    }

    fn take(&self) -> Vec<P> {
        std::mem::take(&mut *self.posts.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

impl<S, P, F: Fn(&mut S, P)> Deref for Locked<'_, S, P, F> {
    type Target = S;
    fn deref(&self) -> &S {
        &self.state
    }
}

impl<S, P, F: Fn(&mut S, P)> DerefMut for Locked<'_, S, P, F> {
    fn deref_mut(&mut self) -> &mut S {
        &mut self.state
    }
}

impl<S, P, F: Fn(&mut S, P)> Drop for Rest<'_, S, P, F> {
    fn drop(&mut self) {
        self.0.settle(&self.1);
    }
}

impl Ledger {
    /// Takes the lock, and carries out the posts before and after.
    pub(super) fn lock(&self) -> impl DerefMut<Target = State> + '_ {
        self.state.lock(|state, post| self.carry_post(state, post))
    }

    /// Posts to the ledger. Never waits for its lock.
    pub(super) fn post(&self, post: Post) {
        self.state.post(post, |state, post| self.carry_post(state, post));
    }

    fn carry_post(&self, state: &mut State, post: Post) {
        match post {
            Post::Acked(stage, acks) => self.used(state, stage, acks),
            // What a replica says of a sequence that another one has by now is dropped.
            Post::SequenceFailed(replica, request, reason) if state.has(replica, request) => {
                self.sequence_lost(state, request, replica.stage, reason);
            }
            Post::InputLost(replica, request, attempt, unit) if state.has(replica, request) => {
                self.input_lost(state, request, replica.stage, attempt, unit);
            }
            Post::SequenceFailed(..) | Post::InputLost(..) => {}
        }
    }

    /// A stage has used units of its input. Over which edge they came differs between requests.
    fn used(&self, state: &mut State, stage: StageName, acks: Vec<Ack>) {
        let mut by_edge: Vec<(Edge, Vec<Ack>)> = Vec::new();
        for ack in acks {
            let Some(open) = state.open.get(&ack.request) else { continue };
            let edge = open.journal.edge_into(stage);
            match by_edge.iter_mut().find(|(of, _)| *of == edge) {
                Some((_, acks)) => acks.push(ack),
                None => by_edge.push((edge, vec![ack])),
            }
        }
        for (edge, acks) in by_edge {
            let requests: Vec<_> = acks.iter().map(|ack| ack.request).collect();
            self.ack(state, edge, acks);
            if edge == Edge::Features {
                requests.into_iter().for_each(|request| self.feed(state, request));
            }
        }
    }

    /// Gives the encoder more of a request's media, as far as it has come.
    fn feed(&self, state: &mut State, request: RequestId) {
        // One without a seat gets its input when it is admitted again.
        let Some(seat) = state.seats[StageName::Encoder as usize].of(request) else { return };
        let Some(open) = state.open.get_mut(&request).filter(|open| !open.is_paused()) else { return };
        for payload in open.journal.feed() {
            if let Err(error) = self.put(StageName::Encoder, seat, payload) {
                return self.sequence_lost(state, request, StageName::Encoder, error.to_string());
            }
        }
    }

    /// The consumer of an edge has acknowledged units.
    pub(super) fn ack(&self, state: &mut State, edge: Edge, mut acks: Vec<Ack>) {
        acks.retain(|ack| {
            let open = state.open.get_mut(&ack.request);
            open.map(|open| open.journal.acked(edge, ack.upto)).is_some()
        });
        let Some(producer) = edge.producer().filter(|_| !acks.is_empty()) else { return };
        match self.stages.replicas(producer) {
            [only] => only.acked(&acks),
            replicas => {
                let seats = &state.seats[producer as usize];
                for (number, replica) in replicas.iter().enumerate() {
                    let its = |ack: &&Ack| seats.of(ack.request) == Some(number);
                    let its: Vec<Ack> = acks.iter().filter(its).copied().collect();
                    if !its.is_empty() {
                        replica.acked(&its);
                    }
                }
            }
        }
    }
}

/// The acknowledgements of a stage pass the journal on their way to the producer.
pub(crate) struct Acks {
    pub ledger: Arc<Ledger>,
    pub stage: StageName,
}

impl AckSink for Acks {
    fn acked(&self, acks: &[Ack]) {
        self.ledger.post(Post::Acked(self.stage, acks.to_vec()));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn append(state: &mut Vec<u32>, post: u32) {
        state.push(post);
    }

    #[test]
    fn a_post_never_waits_and_is_carried_out_when_the_lock_is_free() {
        let lock = PostedLock::new(Vec::new());
        let mut state = lock.lock(append);
        lock.post(2, append);
        state.push(1);
        assert_eq!(*state, [1], "the lock was taken");
        drop(state);
        assert_eq!(*lock.lock(append), [1, 2]);
        lock.post(3, append);
        assert_eq!(*lock.state.try_lock().unwrap(), [1, 2, 3], "the lock was free");
    }

    #[test]
    fn no_post_is_lost_between_threads() {
        let lock = PostedLock::new(Vec::new());
        std::thread::scope(|scope| {
            for thread in 0..4 {
                let lock = &lock;
                scope.spawn(move || {
                    for number in 0..5_000 {
                        if number % 3 == 0 {
                            lock.lock(append).push(thread * 10_000 + number);
                        } else {
                            lock.post(thread * 10_000 + number, append);
                        }
                    }
                });
            }
        });
        let state = lock.state.try_lock().unwrap();
        for thread in 0..4 {
            let own: Vec<_> = state.iter().filter(|number| *number / 10_000 == thread).collect();
            assert_eq!(own.len(), 5_000, "each once, without another look");
            assert!(own.is_sorted(), "in the order in which its thread posted them");
        }
    }
}
