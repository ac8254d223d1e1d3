//! One place where faults can happen.

use super::event::FaultEvent;
use super::matching::{fits, is_hit};
use super::plan::Shared;
use super::rule::{FaultKind, FaultPoint, HANG};
use omni_core::ids::StageName;
use omni_telemetry::fault_injected;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

/// How often a thread that hangs looks whether its stage is being taken down.
const GLANCE: Duration = Duration::from_millis(5);
/// A process that asked to be killed and lives for longer than this kills itself.
const LAST_MOMENTS: Duration = Duration::from_secs(2);

/// An injected fault as the error that the faulted call returns.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("injected fault: {}{} {}, occurrence {occurrence}", of(.stage), .point.as_str(), .kind.as_str())]
pub struct Injected {
    /// In which stage.
    pub stage: Option<StageName>,
    /// At which point.
    pub point: FaultPoint,
    /// What.
    pub kind: FaultKind,
    /// Which one of those that the rule is about, from 1.
    pub occurrence: u64,
}

fn of(stage: &Option<StageName>) -> String {
    stage.map(|stage| format!("{stage} ")).unwrap_or_default()
}

/// A fault that is to happen now.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[must_use]
pub struct InjectedFault {
    /// What happens.
    pub kind: FaultKind,
    /// Index of the event that it happens to.
    pub sequence: usize,
    /// The same as an error, for a caller that fails with it.
    pub injected: Injected,
}

/// One place where faults can happen. Without a rule for it in a plan that is not open, asking it is one comparison
/// with null.
#[derive(Clone, Debug, Default)]
pub struct FaultSite(pub(super) Option<Arc<Site>>);

#[derive(Debug)]
pub(super) struct Site {
    stage: Option<StageName>,
    point: FaultPoint,
    plan: Arc<Shared>,
}

impl FaultSite {
    /// Counts one occurrence and says what happens to it, for callers that carry the fault out themselves. `events`
    /// says what the work is about, and is called only where there are rules.
    #[inline]
    pub fn occurs<M: IntoIterator<Item = FaultEvent>>(&self, events: impl FnOnce() -> M) -> Option<InjectedFault> {
        match self.0.as_deref() {
            None => None,
            Some(site) => site.occurs(events),
        }
    }

    /// Counts one occurrence and carries out what is planned, on a thread that may block. A hang lasts until `stopped`.
    ///
    /// # Errors
    /// [`Injected`] if the call is to fail.
    ///
    /// # Panics
    /// If a panic is planned.
    #[inline]
    pub fn inject<M: IntoIterator<Item = FaultEvent>>(
        &self,
        events: impl FnOnce() -> M,
        stopped: impl Fn() -> bool,
    ) -> Result<(), Injected> {
        match self.occurs(events) {
            None => Ok(()),
            Some(hit) => self.happen(hit, stopped),
        }
    }

    /// Carries a fault out, as [`FaultSite::inject`] does.
    ///
    /// # Errors
    /// [`Injected`] if the call is to fail.
    ///
    /// # Panics
    /// If a panic is planned.
    #[cold]
    pub fn happen(&self, hit: InjectedFault, stopped: impl Fn() -> bool) -> Result<(), Injected> {
        let pause = self.begin(hit)?;
        if hit.kind == FaultKind::Delay(pause) {
            #[expect(clippy::disallowed_methods, reason = "the pause that a fault plan asks for")]
            std::thread::sleep(pause);
            return Ok(());
        }
        let begun = Instant::now();
        while !pause.is_zero() && begun.elapsed() < pause && !stopped() {
            #[expect(clippy::disallowed_methods, reason = "the hang that a fault plan asks for")]
            std::thread::sleep(GLANCE);
        }
        self.end(hit)
    }

    /// As [`FaultSite::inject`], for async code: a pause does not block the thread, and ends when the future is
    /// dropped.
    ///
    /// # Errors
    /// [`Injected`] if the call is to fail.
    ///
    /// # Panics
    /// If a panic is planned.
    #[inline]
    pub async fn inject_async<M: IntoIterator<Item = FaultEvent>>(
        &self,
        events: impl FnOnce() -> M,
    ) -> Result<(), Injected> {
        let Some(hit) = self.occurs(events) else { return Ok(()) };
        let pause = self.begin(hit)?;
        tokio::time::sleep(pause).await;
        self.end(hit)
    }

    /// What happens at once; for how long the caller has to wait then.
    fn begin(&self, hit: InjectedFault) -> Result<Duration, Injected> {
        match hit.kind {
            // The plan asks for a panic: this is the one place that panics on purpose.
            FaultKind::Panic => panic!("{}", hit.injected),
            FaultKind::Error | FaultKind::Oom | FaultKind::Device => Err(hit.injected),
            FaultKind::Delay(pause) | FaultKind::Slow(pause) => Ok(pause),
            FaultKind::Hang => Ok(HANG),
            FaultKind::Kill => {
                let site = self.0.as_deref().ok_or(hit.injected)?;
                // The parent must know first what was counted, or the next process is killed at the same occurrence.
                let kill = site.plan.kill.get().ok_or(hit.injected)?;
                kill(site.plan.counts());
                Ok(LAST_MOMENTS)
            }
            // Callers carry out the rest themselves.
            FaultKind::Nan
            | FaultKind::Drop
            | FaultKind::Duplicate
            | FaultKind::Reorder
            | FaultKind::Corrupt
            | FaultKind::Cut
            | FaultKind::Full => Ok(Duration::ZERO),
        }
    }

    /// What happens after the wait.
    fn end(&self, hit: InjectedFault) -> Result<(), Injected> {
        match hit.kind {
            FaultKind::Hang => Err(hit.injected),
            FaultKind::Kill => {
                let _ = rustix::process::kill_process(rustix::process::getpid(), rustix::process::Signal::KILL);
                Err(hit.injected)
            }
            _ => Ok(()),
        }
    }
}

impl Site {
    pub fn new(stage: Option<StageName>, point: FaultPoint, plan: Arc<Shared>) -> Site {
        Site { stage, point, plan }
    }

    fn occurs<M: IntoIterator<Item = FaultEvent>>(&self, events: impl FnOnce() -> M) -> Option<InjectedFault> {
        if self.plan.is_empty() {
            return None;
        }
        let rules = self.plan.look();
        let mut here = rules.list.iter().filter(|planned| planned.is_at(self.stage, self.point)).peekable();
        here.peek()?;
        let events: Vec<FaultEvent> = events().into_iter().collect();
        let mut first = None;
        for planned in here {
            let Some(sequence) =
                fits(&planned.rule, &events, self.plan.context(planned), |request| self.plan.content(request))
            else {
                continue;
            };
            // Relaxed: the count orders nothing but itself.
            let occurrence = planned.seen.fetch_add(1, Ordering::Relaxed) + 1;
            if first.is_none() && is_hit(&planned.rule, self.plan.seed, planned.index, occurrence) {
                planned.hits.fetch_add(1, Ordering::Relaxed);
                let kind = planned.rule.kind;
                let injected = Injected { stage: self.stage, point: self.point, kind, occurrence };
                first = Some(InjectedFault { kind, sequence, injected });
            }
        }
        drop(rules);
        if let Some(InjectedFault { kind, sequence, injected }) = first {
            let request = events.get(sequence).map(|event| event.request.0);
            let (stage, point) = (self.stage.map(StageName::as_str), self.point.as_str());
            tracing::warn!(stage, point, occurrence = injected.occurrence, request, ?kind, "fault injected");
            // The parent of a stage process counts what that tells.
            if self.plan.kill.get().is_none() {
                fault_injected(self.stage, point, kind.as_str(), 1);
            }
        }
        first
    }
}
