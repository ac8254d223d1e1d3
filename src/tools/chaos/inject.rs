//! Gives an engine its faults when they are due, and counts which of them struck.

use omni_engine::Engine;
use omni_fault::{FaultPlan, FaultRule, PlanError, RuleCount};
use std::collections::VecDeque;
use std::time::Duration;

/// How many spent rules a plan may keep: each place looks through all of them whenever it is struck.
const KEPT: usize = 32;

/// The faults of one run.
pub struct Injector {
    plan: FaultPlan,
    /// All faults of the run.
    faults: Vec<Fault>,
    /// Those whose time has not come, the next one first: places in `faults`.
    due: VecDeque<usize>,
    /// Rules given to the engine and not taken back: their place in `faults`.
    given: Vec<usize>,
}

/// One fault, and how often it struck.
#[derive(Clone, Debug, PartialEq)]
pub struct Fault {
    /// As planned; its time is since the run began.
    pub rule: FaultRule,
    /// When it was given to the engine; `None` if the run ended before.
    pub injected: Option<Duration>,
    /// How often it struck.
    pub hits: u64,
    /// Its number in the engine's plan.
    index: Option<u64>,
}

impl Injector {
    /// For an engine whose faults can be planned while it runs.
    pub fn new(engine: &Engine, faults: &[FaultRule]) -> Injector {
        let fault = |rule: &FaultRule| Fault { rule: rule.clone(), injected: None, hits: 0, index: None };
        let mut due: Vec<usize> = (0..faults.len()).collect();
        due.sort_by_key(|i| injected_at(&faults[*i]));
        let faults = faults.iter().map(fault).collect();
        Injector { plan: engine.faults().clone(), faults, due: due.into(), given: Vec::new() }
    }

    /// Gives the engine what is planned by a time, and notes that it was given `now`.
    ///
    /// # Errors
    /// The first rule that asks for what cannot happen in this engine.
    pub fn inject(&mut self, now: Duration, planned_by: Duration) -> Result<(), PlanError> {
        while let Some(next) = self.due.front().copied()
            && injected_at(&self.faults[next].rule) <= planned_by
        {
            self.due.pop_front();
            let fault = &mut self.faults[next];
            let waited = injected_at(&fault.rule);
            let rule = FaultRule { after: fault.rule.after.saturating_sub(waited), ..fault.rule.clone() };
            self.plan.add(std::slice::from_ref(&rule))?;
            fault.injected = Some(now);
            fault.index = self.plan.counts().last().map(|count| count.index);
            self.given.push(next);
        }
        if self.given.len() > KEPT {
            self.count();
            self.plan.forget_spent();
            let kept: Vec<u64> = self.plan.counts().iter().map(|count| count.index).collect();
            let faults = &self.faults;
            self.given.retain(|i| faults[*i].index.is_some_and(|index| kept.contains(&index)));
        }
        Ok(())
    }

    /// Looks which faults have struck.
    pub fn count(&mut self) {
        for RuleCount { index, hits, .. } in self.plan.counts() {
            let found = self.given.iter().copied().find(|given| self.faults[*given].index == Some(index));
            if let Some(fault) = found {
                self.faults[fault].hits = self.faults[fault].hits.max(hits);
            }
        }
    }

    /// All faults of the run so far.
    pub fn faults(&self) -> &[Fault] {
        &self.faults
    }
}

/// When a rule is given to an engine. One that counts requests must be there from the beginning, to count all of them.
fn injected_at(rule: &FaultRule) -> Duration {
    if rule.request.is_some() { Duration::ZERO } else { rule.after }
}
