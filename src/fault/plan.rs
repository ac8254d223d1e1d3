//! Counts occurrences and says which of them are hit.

use super::{FaultKind, FaultPoint, FaultRule};
use crate::ids::StageName;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

/// The error of [`FaultKind::Error`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("injected fault: {stage} {point:?}, occurrence {occurrence}")]
pub struct Injected {
    /// Where.
    pub stage: StageName,
    /// Where.
    pub point: FaultPoint,
    /// Which one, from 1.
    pub occurrence: u64,
}

/// All rules of a process. Cheap to clone; clones share the counts.
#[derive(Clone, Debug, Default)]
pub struct FaultPlan {
    sites: Arc<[Arc<Site>]>,
}

/// One place where faults can happen. Without a rule for it, striking it is one comparison with null.
#[derive(Clone, Debug, Default)]
pub struct FaultSite(Option<Arc<Site>>);

#[derive(Debug)]
struct Site {
    stage: StageName,
    point: FaultPoint,
    rules: Vec<FaultRule>,
    seen: AtomicU64,
}

impl FaultPlan {
    /// A plan that breaks what the rules say.
    pub fn new(rules: &[FaultRule]) -> FaultPlan {
        let mut sites: Vec<Site> = Vec::new();
        for rule in rules {
            match sites.iter_mut().find(|site| site.stage == rule.stage && site.point == rule.point) {
                Some(site) => site.rules.push(rule.clone()),
                None => sites.push(Site {
                    stage: rule.stage,
                    point: rule.point,
                    rules: vec![rule.clone()],
                    seen: AtomicU64::new(0),
                }),
            }
        }
        FaultPlan { sites: sites.into_iter().map(Arc::new).collect() }
    }

    /// How often each place that has rules was struck, in the order of the rules.
    pub fn counts(&self) -> Vec<u64> {
        self.sites.iter().map(|site| site.seen.load(Ordering::Relaxed)).collect()
    }

    /// Goes on from the counts of a plan of the same rules, in another process. A count never falls.
    pub fn resume(&self, counts: &[u64]) {
        for (site, count) in self.sites.iter().zip(counts) {
            site.seen.fetch_max(*count, Ordering::Relaxed);
        }
    }

    /// The place of one actor.
    pub fn site(&self, stage: StageName, point: FaultPoint) -> FaultSite {
        FaultSite(self.sites.iter().find(|site| site.stage == stage && site.point == point).cloned())
    }
}

impl FaultSite {
    /// Whether anything can happen here.
    pub fn is_planned(&self) -> bool {
        self.0.is_some()
    }

    /// Counts one occurrence and says what happens to it. For callers that must wait in their own way.
    #[inline]
    pub fn occurs(&self) -> Option<FaultKind> {
        self.0.as_deref().and_then(|site| site.next().0)
    }

    /// Counts one occurrence and lets happen what is planned, on a thread that may block.
    ///
    /// # Errors
    /// [`Injected`] if an error is planned.
    ///
    /// # Panics
    /// If a panic is planned.
    #[inline]
    pub fn strike(&self) -> Result<(), Injected> {
        match self.0.as_deref() {
            None => Ok(()),
            Some(site) => site.strike()?.map_or(Ok(()), |pause| {
                std::thread::sleep(pause);
                Ok(())
            }),
        }
    }

    /// As [`FaultSite::strike`], for async code: a pause does not block the thread.
    ///
    /// # Errors
    /// [`Injected`] if an error is planned.
    ///
    /// # Panics
    /// If a panic is planned.
    #[inline]
    pub async fn strike_async(&self) -> Result<(), Injected> {
        if let Some(site) = self.0.as_deref()
            && let Some(pause) = site.strike()?
        {
            tokio::time::sleep(pause).await;
        }
        Ok(())
    }
}

impl Site {
    fn next(&self) -> (Option<FaultKind>, u64) {
        // Relaxed: the count orders nothing but itself.
        let occurrence = self.seen.fetch_add(1, Ordering::Relaxed) + 1;
        let hit = |rule: &&FaultRule| occurrence >= rule.nth && occurrence - rule.nth < rule.times;
        (self.rules.iter().find(hit).map(|rule| rule.kind), occurrence)
    }

    fn strike(&self) -> Result<Option<Duration>, Injected> {
        let (kind, occurrence) = self.next();
        let injected = Injected { stage: self.stage, point: self.point, occurrence };
        if let Some(kind) = kind {
            tracing::warn!(stage = %self.stage, point = ?self.point, occurrence, ?kind, "fault injected");
        }
        match kind {
            // The rest is for edges, which do it themselves.
            None | Some(FaultKind::Drop | FaultKind::Duplicate | FaultKind::Reorder | FaultKind::Corrupt) => Ok(None),
            Some(FaultKind::Delay(pause)) => Ok(Some(pause)),
            Some(FaultKind::Error) => Err(injected),
            // The plan asks for a panic: this is the one place that panics on purpose.
            Some(FaultKind::Panic) => panic!("{injected}"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rule(point: FaultPoint, kind: FaultKind, nth: u64, times: u64) -> FaultRule {
        FaultRule { stage: StageName::Talker, point, kind, nth, times }
    }

    #[test]
    fn only_the_planned_occurrences_are_hit() {
        let plan = FaultPlan::new(&[rule(FaultPoint::Sampler, FaultKind::Error, 3, 2)]);
        let site = plan.site(StageName::Talker, FaultPoint::Sampler);
        let hits: Vec<bool> = (0..6).map(|_| site.strike().is_err()).collect();
        assert_eq!(hits, [false, false, true, true, false, false]);
    }

    #[test]
    fn counts_go_on_when_an_actor_is_built_again() {
        let plan = FaultPlan::new(&[rule(FaultPoint::Runner, FaultKind::Error, 2, 1)]);
        assert!(plan.site(StageName::Talker, FaultPoint::Runner).strike().is_ok());
        assert!(plan.clone().site(StageName::Talker, FaultPoint::Runner).strike().is_err());
        assert!(plan.site(StageName::Talker, FaultPoint::Runner).strike().is_ok());
    }

    #[test]
    fn counts_go_on_in_another_process() {
        let rules =
            [rule(FaultPoint::Runner, FaultKind::Error, 2, 1), rule(FaultPoint::Sampler, FaultKind::Error, 1, 1)];
        let (first, second) = (FaultPlan::new(&rules), FaultPlan::new(&rules));
        assert!(first.site(StageName::Talker, FaultPoint::Runner).strike().is_ok());
        second.resume(&first.counts());
        second.resume(&[0, 0]);
        assert_eq!(second.counts(), [1, 0]);
        assert!(second.site(StageName::Talker, FaultPoint::Runner).strike().is_err());
    }

    #[test]
    fn a_place_without_rules_is_never_hit() {
        let plan = FaultPlan::new(&[rule(FaultPoint::Runner, FaultKind::Panic, 1, u64::MAX)]);
        assert_eq!(plan.site(StageName::Thinker, FaultPoint::Runner).occurs(), None);
        assert!(plan.site(StageName::Talker, FaultPoint::Packager).strike().is_ok());
        assert!(FaultPlan::default().site(StageName::Talker, FaultPoint::Runner).strike().is_ok());
    }

    #[test]
    #[should_panic(expected = "injected fault: talker Runner, occurrence 1")]
    fn a_planned_panic_panics() {
        let plan = FaultPlan::new(&[rule(FaultPoint::Runner, FaultKind::Panic, 1, 1)]);
        let _ = plan.site(StageName::Talker, FaultPoint::Runner).strike();
    }

    #[tokio::test(start_paused = true)]
    async fn a_planned_pause_lasts_as_long_as_it_says() {
        let plan = FaultPlan::new(&[rule(FaultPoint::Connector, FaultKind::Delay(Duration::from_secs(5)), 1, 1)]);
        let before = tokio::time::Instant::now();
        plan.site(StageName::Talker, FaultPoint::Connector).strike_async().await.unwrap();
        assert_eq!(before.elapsed(), Duration::from_secs(5));
    }
}
