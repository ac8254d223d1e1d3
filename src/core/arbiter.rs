//! Which stage of a device may launch now, where several stages share the device. A GPU runs steps of several stages
//! side by side, and each of them is slower for it. So a stage holds back a step whose listeners have lead, while a
//! stage upstream makes the first sound of a listener. The step goes as soon as one of its listeners is due.
//!
//! A stage waits only for stages upstream, so no two wait for each other. A stage that others wait for has a step out,
//! and its return wakes them. The other way round, frame steps held back for first chunks, gains nothing in the
//! simulation: a first chunk is short.

use crate::ids::StageName;

/// The state machine, shared by the schedulers of one device.
#[derive(Debug, Default)]
pub struct ArbiterCore {
    seats: [Seat; StageName::ALL.len()],
}

/// What is known of a stage.
#[derive(Clone, Copy, Debug, Default)]
struct Seat {
    /// A listener who has heard nothing waits for one of its steps, which runs or can run.
    awaited: bool,
    /// It has a step to launch and was told to hold.
    held: bool,
}

/// What a scheduler did in its turn.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Turn {
    /// One of its steps had returned.
    pub returned: bool,
    /// [`SchedulerCore::is_awaited`](crate::scheduler::SchedulerCore::is_awaited).
    pub awaited: bool,
    /// [`SchedulerCore::is_held`](crate::scheduler::SchedulerCore::is_held).
    pub held: bool,
}

impl ArbiterCore {
    /// Whether a stage has to hold back steps that no listener is due for.
    pub fn holds(&self, stage: StageName) -> bool {
        self.seats[..stage as usize].iter().any(|seat| seat.awaited)
    }

    /// Takes in what a stage did, and returns the stages that have to look again whether to launch. No other stage may
    /// have its turn between [`ArbiterCore::holds`] and this.
    pub fn settle(&mut self, stage: StageName, turn: Turn) -> Vec<StageName> {
        let Turn { returned, awaited, held } = turn;
        let was = std::mem::replace(&mut self.seats[stage as usize], Seat { awaited, held });
        let news = returned || was.awaited && !awaited;
        if news { self.wake_below(stage) } else { Vec::new() }
    }

    /// A stage is gone, so no other waits for it. Returns the stages that have to look again.
    pub fn leave(&mut self, stage: StageName) -> Vec<StageName> {
        self.seats[stage as usize] = Seat::default();
        self.wake_below(stage)
    }

    fn wake_below(&mut self, stage: StageName) -> Vec<StageName> {
        let below = StageName::ALL.into_iter().skip(stage as usize + 1);
        below.filter(|stage| std::mem::take(&mut self.seats[*stage as usize].held)).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use StageName::{Talker, Thinker, Vocoder};

    const AWAITED: Turn = Turn { returned: false, awaited: true, held: false };
    const HELD: Turn = Turn { returned: false, awaited: false, held: true };

    #[test]
    fn stages_wait_for_those_before_them_only() {
        let mut arbiter = ArbiterCore::default();
        arbiter.settle(Talker, AWAITED);
        assert_eq!([Thinker, Talker, Vocoder].map(|stage| arbiter.holds(stage)), [false, false, true]);
    }

    #[test]
    fn a_stage_that_was_held_looks_again_when_a_step_returns_and_when_nobody_waits_any_more() {
        let mut arbiter = ArbiterCore::default();
        arbiter.settle(Talker, AWAITED);
        arbiter.settle(Vocoder, HELD);
        assert_eq!(arbiter.settle(Talker, AWAITED), [], "nothing new");
        assert_eq!(arbiter.settle(Talker, Turn { returned: true, ..AWAITED }), [Vocoder]);
        assert_eq!(arbiter.settle(Talker, Turn { returned: true, ..AWAITED }), [], "it was told already");
        arbiter.settle(Vocoder, HELD);
        assert_eq!(arbiter.settle(Talker, Turn::default()), [Vocoder]);
        assert!(!arbiter.holds(Vocoder));
    }

    #[test]
    fn a_stage_that_dies_is_waited_for_no_longer() {
        let mut arbiter = ArbiterCore::default();
        arbiter.settle(Thinker, AWAITED);
        arbiter.settle(Talker, HELD);
        arbiter.settle(Vocoder, HELD);
        assert_eq!(arbiter.leave(Thinker), [Talker, Vocoder]);
        assert!(!arbiter.holds(Talker) && !arbiter.holds(Vocoder));
        assert_eq!(arbiter.leave(Thinker), []);
    }
}
