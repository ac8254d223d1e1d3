//! The whole engine, simulated: the real ledger, journals, admission, schedulers, connectors, packagers and restart
//! policies on one thread, with a clock that jumps from event to event and models that compute nothing. What happens
//! follows from a seed: requests, clients that stall and leave, actors that die and hang, edges that lose and damage.
//!
//! It checks after each event that nothing is counted wrong, and for each client that it hears exactly the samples that
//! it is owed. A scenario that fails is played again from its seed, and [shrinks](shrink) to what it takes to fail.
//!
//! | file | what |
//! | --- | --- |
//! | `scenario` | what happens, from a seed |
//! | `media` | sound and pictures, which an encoder in front of the thinker is given |
//! | `plan`, `model` | requests, and stages whose units are hashes of all that went before |
//! | `world` | the events, what must hold after each, and what at the end |
//! | `edges`, `listener` | the edges between stages with their faults; the clients |

mod edges;
mod listener;
mod media;
mod model;
mod plan;
mod scenario;
#[cfg(test)]
mod tests;
mod world;

pub use scenario::{Scenario, Settings};

use omni_core::shrink::Shrinker;
use std::collections::BTreeMap;
use std::panic::AssertUnwindSafe;
use std::time::Duration;
use world::World;

/// What a simulation did.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Report {
    /// Events that happened.
    pub events: u64,
    /// Times that a client asked; of these were so many refused and so many accepted.
    pub asked: u64,
    /// See `asked`.
    pub refused: u64,
    /// See `asked`.
    pub accepted: u64,
    /// Requests that ended, and how: as they should, with an error that has a cause, or because the client left.
    pub ended: u64,
    /// See `ended`.
    pub finished: u64,
    /// See `ended`.
    pub failed: u64,
    /// See `ended`.
    pub left: u64,
    /// Requests with media that were accepted.
    pub media: u64,
    /// Of these, those whose media had all been encoded before.
    pub known: u64,
    /// Frames and characters that were compared.
    pub units: u64,
    /// Failures of stages that supervisors heard of.
    pub restarts: u64,
    /// Stages that were given up.
    pub given_up: u64,
    /// Times that a prompt brought its stage down.
    pub poisoned: u64,
    /// Faults by kind.
    pub faults: BTreeMap<&'static str, u64>,
    /// Simulated time.
    pub lasted: Duration,
    /// A hash of all events: equal for equal runs.
    pub digest: u64,
}

impl Report {
    /// Adds another one's counts.
    pub fn add(&mut self, other: &Report) {
        self.events += other.events;
        self.asked += other.asked;
        self.refused += other.refused;
        self.accepted += other.accepted;
        self.ended += other.ended;
        self.finished += other.finished;
        self.failed += other.failed;
        self.left += other.left;
        self.media += other.media;
        self.known += other.known;
        self.units += other.units;
        self.restarts += other.restarts;
        self.given_up += other.given_up;
        self.poisoned += other.poisoned;
        self.lasted += other.lasted;
        self.digest ^= other.digest;
        for (kind, count) in &other.faults {
            *self.faults.entry(kind).or_default() += count;
        }
    }
}

/// Something that must never be.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("seed {seed}, {at:?}, event {event}: {what}")]
pub struct Violation {
    /// Of the scenario.
    pub seed: u64,
    /// Simulated time.
    pub at: Duration,
    /// Number of the event.
    pub event: u64,
    /// What is wrong.
    pub what: String,
    /// The stages at that moment.
    pub stages: Vec<String>,
}

/// Plays a scenario.
///
/// # Errors
/// The first violation. A panic is one.
pub fn play(scenario: &Scenario) -> Result<Report, Violation> {
    match std::panic::catch_unwind(AssertUnwindSafe(|| World::new(scenario).play())) {
        Ok(outcome) => outcome,
        Err(panic) => {
            let text = panic.downcast_ref::<&str>().map(|text| (*text).to_owned());
            let text = text.or_else(|| panic.downcast_ref::<String>().cloned()).unwrap_or_default();
            Err(Violation {
                seed: scenario.seed,
                at: Duration::ZERO,
                event: 0,
                what: format!("panic: {text}"),
                stages: Vec::new(),
            })
        }
    }
}

/// The few members of a scenario that fails which suffice for it to fail, found in at most `runs` more runs, and how it
/// fails then. It need not be the same violation.
pub fn shrink(scenario: &Scenario, violation: Violation, runs: usize) -> (Scenario, Violation) {
    let (mut shrinker, mut last) = (Shrinker::new(scenario.members(), runs), violation);
    while let Some(members) = shrinker.candidate() {
        let outcome = play(&scenario.of(&members));
        shrinker.judged(outcome.is_err());
        if let Err(violation) = outcome {
            last = violation;
        }
    }
    (scenario.of(shrinker.best()), last)
}
