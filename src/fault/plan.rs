//! The rules of an engine and their counts: changed while it runs, shared with its stage processes.

use super::capabilities::FaultCapabilities;
use super::matching::FaultContext;
use super::rule::{FaultPoint, FaultRule};
use super::site::{FaultSite, Site};
use bincode::{Decode, Encode};
use omni_core::ids::{Content, RequestId, StageName};
use omni_telemetry::{clock, fault_injected};
use std::collections::VecDeque;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, OnceLock, PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard};
use tokio::sync::watch;

/// Requests whose contents are kept: more than run at once.
const CONTENTS: usize = 4096;

/// Why a plan does not take rules.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum PlanError {
    /// It was not made to be changed.
    #[error("faults cannot be planned while this engine runs: set drill.enabled = true")]
    Closed,
    /// A rule asks for what cannot happen here.
    #[error("faults[{rule}].{key}: {reason}")]
    Unsuited {
        /// Which of the rules, from 0.
        rule: usize,
        /// What of it.
        key: &'static str,
        /// What is allowed.
        reason: String,
    },
}

/// All rules of an engine. Cheap to clone; clones are the same plan.
#[derive(Clone, Debug)]
pub struct FaultPlan {
    pub(super) shared: Arc<Shared>,
}

/// The part that the sites of a plan share.
pub(super) struct Shared {
    pub seed: u64,
    open: bool,
    /// How many rules there are: a site that finds none takes no lock.
    filled: AtomicUsize,
    rules: RwLock<Rules>,
    accepted: AtomicU64,
    /// What the latest requests ask for; kept only where there can be rules, the oldest first.
    contents: RwLock<VecDeque<(RequestId, Content)>>,
    draining: AtomicBool,
    changes: watch::Sender<u64>,
    capabilities: OnceLock<FaultCapabilities>,
    /// In a stage process: asks the parent to kill it.
    pub kill: OnceLock<Box<dyn Fn(Vec<RuleCount>) + Send + Sync>>,
}

#[derive(Default)]
pub(super) struct Rules {
    next: u64,
    pub list: Vec<Planned>,
}

/// A rule that is in force.
pub(super) struct Planned {
    /// Its place among all that the plan ever had.
    pub index: u64,
    pub rule: FaultRule,
    /// Requests accepted before it.
    before: u64,
    /// When it was made, on the clock that processes share.
    since: u64,
    pub seen: AtomicU64,
    pub hits: AtomicU64,
}

/// A rule in force, and what it has done.
#[derive(Clone, Debug, PartialEq, Encode, Decode)]
pub struct RuleState {
    /// The rule.
    pub rule: FaultRule,
    /// Occurrences that it is about, and how many of them were hit.
    pub count: RuleCount,
    before: u64,
    since: u64,
}

/// What a rule has done.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Encode, Decode)]
pub struct RuleCount {
    /// Its place among all rules that the plan ever had, from 0.
    pub index: u64,
    /// Occurrences that it is about.
    pub seen: u64,
    /// How many of them were hit.
    pub hits: u64,
}

/// A plan at one moment, for a stage process.
#[derive(Clone, Debug, Default, PartialEq, Encode, Decode)]
pub struct PlanState {
    rules: Vec<RuleState>,
    draining: bool,
}

impl Default for FaultPlan {
    /// No rule, ever.
    fn default() -> FaultPlan {
        FaultPlan::new(&[])
    }
}

impl FaultPlan {
    /// A plan of these rules, for good.
    pub fn new(rules: &[FaultRule]) -> FaultPlan {
        FaultPlan::with(0, false, rules)
    }

    /// A plan that draws by `seed`. An `open` one can be changed at any time, for which each of its sites looks at it.
    pub fn with(seed: u64, open: bool, rules: &[FaultRule]) -> FaultPlan {
        let shared = Shared {
            seed,
            open,
            filled: AtomicUsize::new(0),
            rules: RwLock::default(),
            accepted: AtomicU64::new(0),
            contents: RwLock::default(),
            draining: AtomicBool::new(false),
            changes: watch::channel(0).0,
            capabilities: OnceLock::new(),
            kill: OnceLock::new(),
        };
        let plan = FaultPlan { shared: Arc::new(shared) };
        plan.shared.append(rules);
        plan
    }

    /// Whether rules can be added and removed while the engine runs.
    pub fn is_open(&self) -> bool {
        self.shared.open
    }

    /// The seed that chances are drawn with.
    pub fn seed(&self) -> u64 {
        self.shared.seed
    }

    /// From now on only what can happen there is let in.
    ///
    /// # Errors
    /// [`PlanError::Unsuited`] for the first rule that cannot happen there.
    pub fn settle(&self, capabilities: FaultCapabilities) -> Result<(), PlanError> {
        let rules: Vec<FaultRule> = self.rules().into_iter().map(|state| state.rule).collect();
        suited(&capabilities, &rules)?;
        let _ = self.shared.capabilities.set(capabilities);
        Ok(())
    }

    /// Adds rules, all or none. They count from now on.
    ///
    /// # Errors
    /// [`PlanError`].
    pub fn add(&self, rules: &[FaultRule]) -> Result<(), PlanError> {
        if !self.shared.open {
            return Err(PlanError::Closed);
        }
        self.check(rules)?;
        self.shared.append(rules);
        Ok(())
    }

    /// Whether it would take these rules, if it were open.
    ///
    /// # Errors
    /// [`PlanError::Unsuited`] for the first rule that cannot happen here.
    pub fn check(&self, rules: &[FaultRule]) -> Result<(), PlanError> {
        self.shared.capabilities.get().map_or(Ok(()), |capabilities| suited(capabilities, rules))
    }

    /// Forgets those rules that will never hit again.
    pub fn forget_spent(&self) {
        let spent = |planned: &Planned| {
            let last = planned.rule.nth.saturating_add(planned.rule.times.saturating_sub(1));
            planned.seen.load(Ordering::Relaxed) >= last
        };
        self.shared.change(|rules| rules.list.retain(|planned| !spent(planned)));
    }

    /// Forgets all rules. An actor that hangs because of one keeps hanging until its stage is taken down.
    pub fn clear(&self) {
        self.shared.change(|rules| rules.list.clear());
    }

    /// The rules in force, in the order in which they came.
    pub fn rules(&self) -> Vec<RuleState> {
        self.shared.look().list.iter().map(Planned::state).collect()
    }

    /// The place of one actor.
    pub fn site(&self, stage: impl Into<Option<StageName>>, point: FaultPoint) -> FaultSite {
        let stage = stage.into();
        let planned = self.shared.look().list.iter().any(|planned| planned.is_at(stage, point));
        FaultSite((self.shared.open || planned).then(|| Arc::new(Site::new(stage, point, Arc::clone(&self.shared)))))
    }

    /// The engine has accepted this request, after all with smaller numbers, and it asks for this.
    pub fn accepted(&self, request: RequestId, content: Content) {
        self.shared.accepted.fetch_max(request.0, Ordering::Relaxed);
        self.asks_for(request, content);
    }

    /// In a stage process: what a request asks for that the parent has accepted.
    pub fn asks_for(&self, request: RequestId, content: Content) {
        if !self.shared.open && self.shared.is_empty() {
            return;
        }
        let mut contents = self.shared.contents.write().unwrap_or_else(PoisonError::into_inner);
        if contents.iter().any(|(known, _)| *known == request) {
            return;
        }
        if contents.len() >= CONTENTS {
            contents.pop_front();
        }
        contents.push_back((request, content));
    }

    /// The engine drains.
    pub fn drains(&self) {
        self.shared.draining.store(true, Ordering::Relaxed);
        self.shared.changes.send_modify(|change| *change += 1);
    }

    /// Every change of what [`FaultPlan::state`] tells, counts aside.
    pub fn changes(&self) -> watch::Receiver<u64> {
        self.shared.changes.subscribe()
    }

    /// What a stage process has to know.
    pub fn state(&self) -> PlanState {
        PlanState { rules: self.rules(), draining: self.shared.draining.load(Ordering::Relaxed) }
    }

    /// In a stage process: has the rules of the parent's plan, with whatever was counted here or there.
    pub fn follow(&self, state: PlanState) {
        self.shared.draining.store(state.draining, Ordering::Relaxed);
        let counts = self.counts();
        self.shared.change(|rules| rules.list = state.rules.into_iter().map(Planned::of).collect());
        for planned in &self.shared.look().list {
            if let Some(count) = counts.iter().find(|count| count.index == planned.index) {
                planned.raise(*count);
            }
        }
    }

    /// In a stage process: sets what has the process killed when a rule says so, given the counts to go on from.
    pub fn doomed_by(&self, kill: impl Fn(Vec<RuleCount>) + Send + Sync + 'static) {
        let _ = self.shared.kill.set(Box::new(kill));
    }

    /// What each rule has done, in the order of the rules.
    pub fn counts(&self) -> Vec<RuleCount> {
        self.shared.counts()
    }

    /// Goes on from the counts of a stage process. A count never falls.
    pub fn resume(&self, counts: &[RuleCount]) {
        let rules = self.shared.look();
        for count in counts {
            let Some(planned) = rules.list.iter().find(|planned| planned.index == count.index) else { continue };
            let FaultRule { stage, point, kind, .. } = &planned.rule;
            let before = planned.raise(*count);
            fault_injected(*stage, point.as_str(), kind.as_str(), count.hits.saturating_sub(before));
        }
    }
}

impl std::fmt::Debug for Shared {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let rules: Vec<_> = self.look().list.iter().map(Planned::state).collect();
        f.debug_struct("FaultPlan").field("seed", &self.seed).field("open", &self.open).field("rules", &rules).finish()
    }
}

impl Shared {
    pub fn is_empty(&self) -> bool {
        // Relaxed: a new rule need not be seen by every site at once.
        self.filled.load(Ordering::Relaxed) == 0
    }

    pub fn look(&self) -> RwLockReadGuard<'_, Rules> {
        // The lock only guards a list that is changed in one go.
        self.rules.read().unwrap_or_else(PoisonError::into_inner)
    }

    pub fn counts(&self) -> Vec<RuleCount> {
        self.look().list.iter().map(Planned::count).collect()
    }

    pub fn context(&self, planned: &Planned) -> FaultContext {
        // Most rules ask for no time and need no clock.
        let waits = !planned.rule.after.is_zero();
        FaultContext {
            before: planned.before,
            age: if waits { clock::since(planned.since) } else { std::time::Duration::ZERO },
            draining: self.draining.load(Ordering::Relaxed),
            seed: self.seed,
        }
    }

    /// What a request asks for, if it is one of the latest.
    pub fn content(&self, request: RequestId) -> Option<Content> {
        let contents = self.contents.read().unwrap_or_else(PoisonError::into_inner);
        contents.iter().rev().find(|(known, _)| *known == request).map(|(_, content)| *content)
    }

    fn append(&self, more: &[FaultRule]) {
        let (before, since) = (self.accepted.load(Ordering::Relaxed), clock::now());
        self.change(|rules| {
            for rule in more {
                let count = RuleCount { index: rules.next, seen: 0, hits: 0 };
                rules.next += 1;
                rules.list.push(Planned::of(RuleState { rule: rule.clone(), count, before, since }));
            }
        });
    }

    fn change(&self, change: impl FnOnce(&mut Rules)) {
        let mut rules: RwLockWriteGuard<'_, Rules> = self.rules.write().unwrap_or_else(PoisonError::into_inner);
        change(&mut rules);
        self.filled.store(rules.list.len(), Ordering::Relaxed);
        drop(rules);
        self.changes.send_modify(|change| *change += 1);
    }
}

impl Planned {
    pub fn is_at(&self, stage: Option<StageName>, point: FaultPoint) -> bool {
        self.rule.stage == stage && self.rule.point == point
    }

    fn of(state: RuleState) -> Planned {
        let RuleState { rule, count, before, since } = state;
        let (seen, hits) = (AtomicU64::new(count.seen), AtomicU64::new(count.hits));
        Planned { index: count.index, rule, before, since, seen, hits }
    }

    fn state(&self) -> RuleState {
        RuleState { rule: self.rule.clone(), count: self.count(), before: self.before, since: self.since }
    }

    fn count(&self) -> RuleCount {
        let (seen, hits) = (self.seen.load(Ordering::Relaxed), self.hits.load(Ordering::Relaxed));
        RuleCount { index: self.index, seen, hits }
    }

    /// Hits that were known before.
    fn raise(&self, count: RuleCount) -> u64 {
        self.seen.fetch_max(count.seen, Ordering::Relaxed);
        self.hits.fetch_max(count.hits, Ordering::Relaxed)
    }
}

fn suited(capabilities: &FaultCapabilities, rules: &[FaultRule]) -> Result<(), PlanError> {
    for (number, rule) in rules.iter().enumerate() {
        capabilities.check(rule).map_err(|(key, reason)| PlanError::Unsuited { rule: number, key, reason })?;
    }
    Ok(())
}
