//! The arbiter of a device: [`ArbiterCore`] behind a lock, and the schedulers to wake. It is a lock and not an actor,
//! because a scheduler needs the answer before its next launch. A scheduler holds it while it plans, and takes no other
//! lock meanwhile.

use crate::generation::Peer;
use crate::messages::SchedulerMessage;
use omni_core::arbiter::{ArbiterCore, Turn};
use omni_core::ids::StageName;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// Shared by the stages of one device.
#[derive(Default)]
pub struct Arbiter {
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    core: ArbiterCore,
    schedulers: [Option<Peer<SchedulerMessage>>; StageName::ALL.len()],
}

impl Arbiter {
    /// For a device without stages yet.
    pub fn new() -> Arc<Arbiter> {
        Arc::default()
    }

    /// The scheduler of a new generation.
    pub(super) fn join(&self, stage: StageName, scheduler: Peer<SchedulerMessage>) {
        self.lock().schedulers[stage as usize] = Some(scheduler);
    }

    /// Lets a scheduler plan: `work` hears whether to hold back steps that no listener is due for.
    pub(super) fn plan<T>(&self, stage: StageName, work: impl FnOnce(bool) -> (T, Turn)) -> T {
        let mut state = self.lock();
        let (result, turn) = work(state.core.holds(stage));
        let woken = state.core.settle(stage, turn);
        state.wake(&woken);
        result
    }

    /// A generation is gone.
    pub(super) fn leave(&self, stage: StageName) {
        let mut state = self.lock();
        state.schedulers[stage as usize] = None;
        let woken = state.core.leave(stage);
        state.wake(&woken);
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        // A scheduler that panicked while it planned leaves nothing half done here, and leaves as a whole soon.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl State {
    fn wake(&self, stages: &[StageName]) {
        for scheduler in stages.iter().filter_map(|stage| self.schedulers[*stage as usize].as_ref()) {
            scheduler.tell(SchedulerMessage::Wake);
        }
    }
}
