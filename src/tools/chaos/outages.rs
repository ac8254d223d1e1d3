//! When which stage was down, from frequent snapshots of the health. Pure.

use omni_core::ids::StageName;
use omni_engine::{StageHealth, StageState};
use std::time::Duration;

/// A stage that did not serve. Times are since the run began.
#[derive(Clone, Debug, PartialEq)]
pub struct Outage {
    /// Which.
    pub stage: StageName,
    /// When it was seen to be down.
    pub from: Duration,
    /// When it was seen to serve again; `None` if it did not.
    pub to: Option<Duration>,
}

impl Outage {
    /// How long it lasted, if it is over.
    pub fn lasted(&self) -> Option<Duration> {
        self.to.map(|to| to.saturating_sub(self.from))
    }

    /// Whether any of it was between two times.
    pub fn touches(&self, from: Duration, to: Duration) -> bool {
        self.from < to && self.to.is_none_or(|end| end > from)
    }
}

/// Builds outages from snapshots.
#[derive(Clone, Debug, Default)]
pub struct Outages {
    seen: Vec<Outage>,
    stages: Vec<Stage>,
    last_look: Duration,
}

#[derive(Clone, Debug)]
struct Stage {
    name: StageName,
    restarts: u32,
    /// Of its outage that is not over.
    open: Option<usize>,
}

impl Outages {
    /// Takes in one snapshot.
    pub fn look(&mut self, now: Duration, health: &[StageHealth]) {
        for stage in health {
            let known = match self.stages.iter().position(|known| known.name == stage.name) {
                Some(known) => &mut self.stages[known],
                None => {
                    self.stages.push(Stage { name: stage.name, restarts: stage.restarts, open: None });
                    continue;
                }
            };
            let runs = stage.state == StageState::Running;
            let died = stage.restarts > known.restarts;
            known.restarts = stage.restarts;
            match (runs, known.open) {
                (true, Some(open)) => {
                    self.seen[open].to = Some(now);
                    known.open = None;
                }
                (false, None) => {
                    known.open = Some(self.seen.len());
                    self.seen.push(Outage { stage: stage.name, from: now, to: None });
                }
                // It came and went between two snapshots.
                (true, None) if died => {
                    self.seen.push(Outage { stage: stage.name, from: self.last_look, to: Some(now) });
                }
                (true | false, _) => {}
            }
        }
        self.last_look = now;
    }

    /// All so far, in the order in which they began.
    pub fn seen(&self) -> &[Outage] {
        &self.seen
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const fn ms(n: u64) -> Duration {
        Duration::from_millis(n)
    }

    fn talker(state: StageState, restarts: u32) -> [StageHealth; 1] {
        [StageHealth {
            name: StageName::Talker,
            replica: None,
            state,
            since: 0,
            generation: restarts,
            restarts,
            last_reason: None,
            last_recovery_s: None,
            sequences: 0,
            pid: None,
            node: None,
        }]
    }

    #[test]
    fn an_outage_lasts_from_the_first_snapshot_that_shows_it_to_the_first_that_does_not() {
        let mut outages = Outages::default();
        outages.look(ms(0), &talker(StageState::Running, 0));
        outages.look(ms(5), &talker(StageState::Restarting, 1));
        outages.look(ms(10), &talker(StageState::Starting, 1));
        outages.look(ms(40), &talker(StageState::Running, 1));
        outages.look(ms(45), &talker(StageState::Running, 1));
        assert_eq!(outages.seen(), [Outage { stage: StageName::Talker, from: ms(5), to: Some(ms(40)) }]);
        assert_eq!(outages.seen()[0].lasted(), Some(ms(35)));
    }

    #[test]
    fn an_outage_between_two_snapshots_is_known_by_the_count_of_restarts() {
        let mut outages = Outages::default();
        outages.look(ms(0), &talker(StageState::Running, 3));
        outages.look(ms(5), &talker(StageState::Running, 3));
        outages.look(ms(10), &talker(StageState::Running, 4));
        assert_eq!(outages.seen(), [Outage { stage: StageName::Talker, from: ms(5), to: Some(ms(10)) }]);
    }

    #[test]
    fn a_stage_that_does_not_come_back_is_down_to_the_end() {
        let mut outages = Outages::default();
        outages.look(ms(0), &talker(StageState::Running, 0));
        outages.look(ms(5), &talker(StageState::Failed, 0));
        outages.look(ms(900), &talker(StageState::Failed, 0));
        let [outage] = outages.seen() else { panic!("{:?}", outages.seen()) };
        assert_eq!(outage.lasted(), None);
        assert!(outage.touches(ms(800), ms(900)) && !outage.touches(ms(0), ms(5)));
    }
}
