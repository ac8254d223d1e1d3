//! Many gateways and many nodes, simulated: the real [`Nodes`](super::Nodes) and [`Shares`](super::Shares), which decide
//! who uses what, the real [`Seats`](crate::seats::Seats), which place sequences, ledgers, and the order on edges, where a
//! sequence takes what is meant for its attempt. What is played around them is the network, stages that make a unit
//! every so often, and journals that only count.
//!
//! Nodes are killed, stopped, cut off, drained, taken out of service and come back, and gateways are killed. What a link that is closed still
//! carries arrives all the same, which Zenoh's links do not do: so nothing but journals and attempts tells what is late.
//!
//! | file | what |
//! | --- | --- |
//! | `scenario` | what happens, from a seed |
//! | `gateway`, `node` | the two sides |
//! | `world` | the events and the network |
//! | `faults` | what becomes of those that break |
//! | `checks` | what must hold, and how even the load is |

mod checks;
mod faults;
mod gateway;
mod node;
mod scenario;
#[cfg(test)]
mod tests;
mod world;

pub use scenario::{Balancer, Scenario, Settings};

use crate::shrink::Shrinker;
use std::collections::BTreeMap;
use std::time::Duration;
use world::World;

/// What a simulation did.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Report {
    /// Events that happened.
    pub events: u64,
    /// Requests that clients made, once each.
    pub requests: u64,
    /// Sequences that were admitted again because their replica was gone.
    pub readmitted: u64,
    /// Times that a client asked another gateway because its own was gone.
    pub asked_again: u64,
    /// Units that clients heard, each compared.
    pub units: u64,
    /// Units that gateways dropped, because an earlier attempt had made them or one that is gone.
    pub stale: u64,
    /// Questions of gateways for a stage of a node, and how many were refused.
    pub asks: u64,
    /// See `asks`.
    pub refusals: u64,
    /// Nodes that were not taken out of service, because a gateway had no other.
    pub stay: u64,
    /// Faults by kind.
    pub faults: BTreeMap<&'static str, u64>,
    /// How even the load was, on average over the looks.
    pub balance: Balance,
    /// Simulated time.
    pub lasted: Duration,
}

/// How sequences lie on the nodes that could have some.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Balance {
    /// Times that it was looked at.
    pub looks: u64,
    /// Nodes that are up and of use.
    pub nodes: f64,
    /// Of these, those that a gateway uses.
    pub used: f64,
    /// Most gateways that use one node.
    pub gateways: f64,
    /// Sequences of a node: mean over `nodes`, 99 of 100, most.
    pub mean: f64,
    /// See `mean`.
    pub p99: f64,
    /// See `mean`.
    pub most: f64,
}

/// Something that must never be.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Violation {
    /// Of the scenario.
    pub seed: u64,
    /// Simulated time.
    pub at: Duration,
    /// What is wrong.
    pub what: String,
}

impl std::fmt::Display for Violation {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "seed {}, {:?}: {}", self.seed, self.at, self.what)
    }
}

/// Plays a scenario.
///
/// # Errors
/// The first violation.
pub fn play(scenario: &Scenario) -> Result<Report, Violation> {
    World::new(scenario).play()
}

/// The few requests and faults of a scenario that fails which suffice for it to fail, found in at most `runs` more runs,
/// and how it fails then. It need not be the same violation.
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
