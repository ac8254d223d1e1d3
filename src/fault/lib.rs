//! Faults on purpose: where something breaks, when, and how. Free when no rule is set.
//!
//! A [`FaultPlan`] is made once per engine from the config. An actor asks it once, when it is built, for the
//! [`FaultSite`] of its place, and asks that site at each occurrence what happens. Counts go on over restarts, of
//! actors and of stage processes, so that a plan means the same whatever it breaks. A plan that is *open* can be
//! changed while the engine runs.
//!
//! | file | what |
//! | --- | --- |
//! | `rule` | what a rule says |
//! | `event` | what a stage is working on when a fault may happen |
//! | `matching` | which occurrences a rule hits: pure |
//! | `capabilities` | what can break in one engine |
//! | `plan` | the rules of an engine, and their counts |
//! | `site` | one place where faults can happen |
//!
//! `docs/faults.md` explains how to write a plan.

#![forbid(unsafe_code)]
#![cfg_attr(test, allow(clippy::unwrap_used))]

mod capabilities;
mod event;
mod matching;
mod plan;
mod rule;
mod site;

pub use capabilities::FaultCapabilities;
pub use event::{Begun, FaultEvent};
pub use plan::{FaultPlan, PlanError, PlanState, RuleCount, RuleState};
pub use rule::{Beside, FaultKind, FaultPoint, FaultRule, HANG, Phase};
pub use site::{FaultSite, Injected, InjectedFault};
