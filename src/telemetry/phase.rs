//! The phases of a step, and how long each took.

use std::time::{Duration, Instant};

/// A part of a step's computation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Phase {
    /// Making the step's input: looking embeddings up, adding embeddings.
    Preprocess,
    /// The layers of the thinker or the talker, and the head that gives code 0 or a token.
    Backbone,
    /// The passes that give the other codes of a frame.
    CodePredictor,
    /// Penalties, limits on the choice, and the draw, of tokens and of all codes.
    Sampling,
    /// Making what goes downstream or into the sequence's next step.
    Postprocess,
    /// From codes to samples.
    Vocoder,
}

impl Phase {
    /// Every phase, in the order in which a step goes through them.
    pub const ALL: [Phase; 6] =
        [Phase::Preprocess, Phase::Backbone, Phase::CodePredictor, Phase::Sampling, Phase::Postprocess, Phase::Vocoder];

    /// The name in metrics and traces.
    pub fn as_str(self) -> &'static str {
        match self {
            Phase::Preprocess => "preprocess",
            Phase::Backbone => "backbone",
            Phase::CodePredictor => "code_predictor",
            Phase::Sampling => "sampling",
            Phase::Postprocess => "postprocess",
            Phase::Vocoder => "vocoder",
        }
    }
}

/// How long a step spent in each phase; zero for a phase that it did not have, or that was not measured.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Phases([Duration; Phase::ALL.len()]);

impl Phases {
    /// A step of a single phase.
    pub fn only(phase: Phase, time: Duration) -> Phases {
        let mut phases = Phases::default();
        phases.add(phase, time);
        phases
    }

    /// Adds to a phase.
    pub fn add(&mut self, phase: Phase, time: Duration) {
        self.0[phase as usize] += time;
    }

    /// Time of one phase.
    pub fn get(&self, phase: Phase) -> Duration {
        self.0[phase as usize]
    }

    /// The phases that were measured, in the order of [`Phase::ALL`].
    pub fn measured(&self) -> impl Iterator<Item = (Phase, Duration)> + '_ {
        Phase::ALL.into_iter().map(|phase| (phase, self.get(phase))).filter(|(_, time)| !time.is_zero())
    }
}

/// Splits the time of a computing thread into phases: each [`PhaseClock::lap`] gives the time since the one before to a
/// phase.
#[derive(Clone, Debug)]
pub struct PhaseClock {
    phases: Phases,
    last: Instant,
}

impl PhaseClock {
    /// Begins now.
    pub fn start() -> PhaseClock {
        PhaseClock { phases: Phases::default(), last: Instant::now() }
    }

    /// Gives the time since the last call to a phase.
    pub fn lap(&mut self, phase: Phase) {
        let now = Instant::now();
        self.phases.add(phase, now - self.last);
        self.last = now;
    }

    /// What was measured.
    pub fn phases(self) -> Phases {
        self.phases
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_phase_has_its_own_place_and_name() {
        for (at, phase) in Phase::ALL.into_iter().enumerate() {
            assert_eq!(phase as usize, at);
        }
        let names: std::collections::BTreeSet<_> = Phase::ALL.map(Phase::as_str).into();
        assert_eq!(names.len(), Phase::ALL.len());
    }

    #[test]
    fn a_clock_gives_each_phase_what_passed_before_its_lap() {
        let began = Instant::now();
        let mut clock = PhaseClock::start();
        clock.lap(Phase::Backbone);
        clock.lap(Phase::Sampling);
        clock.lap(Phase::Backbone);
        let phases = clock.phases();
        let sum: Duration = phases.measured().map(|(_, time)| time).sum();
        assert!(sum <= began.elapsed());
        assert_eq!(phases.get(Phase::Vocoder), Duration::ZERO);
        assert!(phases.measured().all(|(phase, _)| matches!(phase, Phase::Backbone | Phase::Sampling)));
    }
}
