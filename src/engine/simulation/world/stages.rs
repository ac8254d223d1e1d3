//! What happens to the stages of a simulation and to their edges, by themselves and by faults.

use super::super::edges::Trouble;
use super::super::model::POISON;
use super::super::scenario::What;
use super::{Event, World};
use omni_core::ids::StageName;
use omni_core::restart::Verdict;
use omni_stage::simulation::SimulatedActor;
use std::sync::atomic::Ordering;
use std::time::Duration;

impl World<'_> {
    pub(super) fn turn(&mut self, name: StageName, actor: SimulatedActor) -> Result<(), String> {
        let stage = self.stage(name);
        stage.turning[actor as usize] = false;
        let Err(reason) = stage.stage.turn(actor) else { return Ok(()) };
        if !reason.contains(POISON) {
            return Err(format!("the {actor:?} of the {name} died by itself: {reason}"));
        }
        self.report.poisoned += 1;
        self.stage(name).poisoned += 1;
        self.dies(name, POISON);
        Ok(())
    }

    pub(super) fn arrive(&mut self, name: StageName) {
        let (now, stopped) = (self.now(), self.stopped);
        let stage = self.stage(name);
        if stopped || stage.given_up {
            stage.wire.cut();
            return;
        }
        let mut deliveries = stage.wire.take(now).into_iter();
        while let Some(delivery) = deliveries.next() {
            if let Err(delivery) = stage.stage.receive(delivery) {
                let rest = std::iter::once(delivery).chain(deliveries).collect();
                stage.wire.give_back(now, rest);
                break;
            }
        }
        let Some(next) = stage.wire.next() else { return };
        // While the stage is down or its inbox is full, things wait on the edge.
        let next = if next <= now { now + Duration::from_millis(1) } else { next };
        self.at(next, Event::Arrive(name));
    }

    pub(super) fn built(&mut self, name: StageName) -> Result<(), String> {
        let stage = self.stage(name);
        if stage.failing_starts > 0 {
            stage.failing_starts -= 1;
            self.dies(name, "it cannot be built");
            return Ok(());
        }
        stage.stage.build()?;
        if let Some(actor) = stage.again.take() {
            stage.stage.kill(actor);
            self.dies(name, "an actor died again");
        }
        Ok(())
    }

    /// A stage has died, and its supervisor hears of it soon.
    fn dies(&mut self, name: StageName, reason: &'static str) {
        let pause = self.random.micros(1500);
        self.dies_after(name, reason, pause);
    }

    fn dies_after(&mut self, name: StageName, reason: &'static str, pause: Duration) {
        let stage = self.stage(name);
        let Some(generation) = stage.stage.generation().filter(|_| stage.dying.is_none()) else { return };
        stage.dying = Some(reason);
        self.after(pause, Event::Heard(name, generation));
    }

    pub(super) fn heard(&mut self, name: StageName) {
        let stage = self.stage(name);
        let Some(generation) = stage.stage.generation() else { return };
        let verdict = stage.stage.fail(stage.dying.unwrap_or("it died"));
        stage.given_up |= verdict == Verdict::GiveUp;
        self.report.restarts += 1;
        if self.scenario.shape.stage(name).process {
            self.stage(name).wire.cut();
        }
        let takes = self.random.micros(3000);
        self.after(takes, Event::TakeDown(name, generation));
        if let Verdict::Restart(pause) = verdict {
            self.after(takes + pause + Duration::from_micros(1), Event::Start(name));
        } else {
            self.report.given_up += 1;
        }
    }

    pub(super) fn strike(&mut self, what: What) {
        *self.report.faults.entry(what.name()).or_default() += 1;
        let shape = &self.scenario.shape;
        match what {
            What::Dies(name, actor) => {
                self.stage(name).stage.kill(actor);
                self.dies(name, "an actor died");
            }
            What::DiesTwice(name, actor) => {
                let stage = self.stage(name);
                stage.stage.kill(actor);
                stage.again = Some(actor);
                self.dies(name, "an actor died");
            }
            What::DiesStarting(name) => {
                let stage = self.stage(name);
                stage.failing_starts += 1;
                stage.stage.kill(SimulatedActor::Runner);
                self.dies(name, "the runner died");
            }
            What::DieTogether(one, other) => {
                for name in [one, other] {
                    self.stage(name).stage.kill(SimulatedActor::Scheduler);
                    self.dies(name, "it died with another");
                }
            }
            What::Hangs(name, actor) => {
                self.stage(name).stage.kill(actor);
                self.dies_after(name, "an actor hangs", shape.watchdog);
            }
            What::Fails(name, times) => _ = self.book.failing[name as usize].fetch_add(times, Ordering::Relaxed),
            What::Doubles(name, times) => self.stage(name).wire.trouble(Trouble::Doubled, times),
            What::Loses(name, times) => self.trouble(name, Trouble::Lost, times),
            What::Overtakes(name, times) => self.trouble(name, Trouble::Overtaken, times),
            What::Damages(name, times) => self.trouble(name, Trouble::Damaged, times),
            What::Delays(name, pause) => {
                let until = self.stage(name).wire.delay(pause);
                self.at(until.max(self.now()), Event::Arrive(name));
            }
            What::Stops(grace) => {
                if !self.draining {
                    self.draining = true;
                    self.after(grace, Event::ShutDown);
                }
            }
        }
    }

    /// An edge of handles loses nothing.
    fn trouble(&mut self, name: StageName, trouble: Trouble, times: u32) {
        let stage = self.stage(name);
        if stage.wire.frames {
            stage.wire.trouble(trouble, times);
        }
    }
}
