//! A stage for simulations: the code of its actors, without their threads, mailboxes and clock. The simulation says
//! which actor handles its next message when, which actor dies, and when the supervisor hears of it; so it plays any
//! interleaving, again and again, on one thread.
//!
//! It owns what a generation owns. It repeats the few lines in which the supervisor starts and ends generations,
//! because those wait for real threads. It must never decide anything that an actor decides.

use crate::connector::{INBOX, Inbound, InboundState, Outbound, OutboundState};
use crate::failure::failure;
use crate::generation::{Peer, StageGeneration};
use crate::handle::{StageHandle, StageLoad, StageState};
use crate::in_hand::InHands;
use crate::messages::{Command, InboundMessage, Ready, SamplerMessage, SchedulerMessage};
use crate::model_runner::{Runner, RunnerEnds};
use crate::packager::{Packager, PackagerState};
use crate::pulse::Role;
use crate::scheduler::{Scheduler, SchedulerState};
use crate::setup::{StageFailure, StageSetup};
use omni_core::ids::{Generation, StageName};
use omni_core::restart::{RestartPolicy, Verdict};
use omni_telemetry::clock::Clock;
use omni_transfer::transport::Delivery;
use ractor::ActorProcessingErr;
use std::pin::pin;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};

/// An actor of a stage. The sampler works inside the runner's turns, as it does where a model computes in its launch.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum SimulatedActor {
    /// The inbound connector.
    Inbound,
    /// The scheduler.
    Scheduler,
    /// The model runner, with the sampler.
    Runner,
    /// The packager.
    Packager,
    /// The outbound connector.
    Outbound,
}

impl SimulatedActor {
    /// All of them.
    pub const ALL: [SimulatedActor; 5] = [
        SimulatedActor::Inbound,
        SimulatedActor::Scheduler,
        SimulatedActor::Runner,
        SimulatedActor::Packager,
        SimulatedActor::Outbound,
    ];
}

/// What the runner takes up with its next turn.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SimulatedWork {
    /// A step of so many sequences and units.
    Step(usize, u32),
    /// Anything else, which takes no time to speak of.
    Other,
}

/// See the module.
pub struct SimulatedStage {
    setup: Arc<StageSetup>,
    handle: Arc<StageHandle>,
    clock: Clock,
    policy: RestartPolicy,
    failed: bool,
    current: Option<Running>,
}

/// A generation.
struct Running {
    stage: Arc<StageGeneration>,
    inbox: flume::Sender<Delivery>,
    to_inbound: flume::Receiver<InboundMessage>,
    inbound: InboundState,
    to_scheduler: flume::Receiver<SchedulerMessage>,
    scheduler: SchedulerState,
    to_packager: flume::Receiver<Ready>,
    packager: PackagerState,
    to_outbound: flume::Receiver<Ready>,
    outbound: OutboundState,
    to_sampler: flume::Receiver<SamplerMessage>,
    commands: flume::Receiver<Command>,
    runner: RunnerState,
    /// What the runner does now.
    at_hand: Option<Command>,
    dead: [bool; SimulatedActor::ALL.len()],
}

enum RunnerState {
    /// It builds its model.
    Building(Box<RunnerEnds>),
    Built(Box<Runner>),
    /// It could not.
    Broken,
}

impl SimulatedStage {
    /// A stage that has not started. Its state shows in `handle`.
    pub fn new(setup: StageSetup, handle: Arc<StageHandle>, clock: Clock) -> SimulatedStage {
        let policy = RestartPolicy::new(setup.restart);
        SimulatedStage { setup: Arc::new(setup), handle, clock, policy, failed: false, current: None }
    }

    /// Which stage.
    pub fn name(&self) -> StageName {
        self.setup.name
    }

    /// The generation that runs or starts; `None` while there is none.
    pub fn generation(&self) -> Option<Generation> {
        self.current.as_ref().map(|running| running.stage.life.generation)
    }

    /// The supervisor starts the next generation, whose model is not built yet.
    pub fn start(&mut self) {
        let generation = Generation(self.handle.status().borrow().generation.0 + 1);
        self.handle.update(|status| status.generation = generation);
        let (stage, ends) = StageGeneration::new(&self.setup, generation, &Peer::new(), self.clock.clone());
        if let Some(arbiter) = &self.setup.arbiter {
            arbiter.join(self.setup.name, stage.scheduler.clone());
        }
        let (inbox, deliveries) = flume::bounded(INBOX);
        self.current = Some(Running {
            inbox,
            to_inbound: stage.inbound.simulated(),
            inbound: InboundState::new(ends.inbound, deliveries, None),
            to_scheduler: stage.scheduler.simulated(),
            scheduler: SchedulerState::new(ends.scheduler),
            to_packager: ends.to_packager.simulated(),
            packager: PackagerState::new(ends.packager),
            to_outbound: ends.to_outbound.simulated(),
            outbound: OutboundState::new(ends.outbound),
            to_sampler: ends.sampler.simulated(),
            commands: ends.runner.commands.clone(),
            runner: RunnerState::Building(Box::new(ends.runner)),
            at_hand: None,
            dead: Default::default(),
            stage: Arc::new(stage),
        });
    }

    /// The runner builds its model, and the supervisor hears that it has.
    ///
    /// # Errors
    /// Why the model cannot be built.
    pub fn build(&mut self) -> Result<(), String> {
        let Some(running) = &mut self.current else { return Ok(()) };
        let RunnerState::Building(ends) = std::mem::replace(&mut running.runner, RunnerState::Broken) else {
            return Ok(());
        };
        let mut built = None;
        let failed = failure(|| Runner::new(*ends).map(|runner| built = Some(runner)));
        if let Some(reason) = failed {
            return Err(reason);
        }
        running.runner = built.map_or(RunnerState::Broken, |runner| RunnerState::Built(Box::new(runner)));
        let recovered = std::mem::take(&mut self.failed);
        self.handle.set_current(Some(Arc::clone(&running.stage)));
        self.setup.reports.stage_up(self.setup.name, &mut || {
            self.handle.update(|status| {
                status.restarts += u32::from(recovered);
                status.state = StageState::Running;
            });
        });
        Ok(())
    }

    /// Something came over the edge into the stage. Given back where the stage does not take it now.
    ///
    /// # Errors
    /// The delivery.
    pub fn receive(&mut self, delivery: Delivery) -> Result<(), Delivery> {
        match &self.current {
            Some(running) if !running.dead[SimulatedActor::Inbound as usize] => {
                running.inbox.try_send(delivery).map_err(flume::TrySendError::into_inner)?;
                running.stage.inbound.tell(InboundMessage::Arrived);
                Ok(())
            }
            _ => Err(delivery),
        }
    }

    /// Whether an actor has something to do.
    pub fn has_work(&self, actor: SimulatedActor) -> bool {
        let Some(running) = &self.current else { return false };
        !running.dead[actor as usize]
            && match actor {
                SimulatedActor::Inbound => !running.to_inbound.is_empty(),
                SimulatedActor::Scheduler => !running.to_scheduler.is_empty(),
                SimulatedActor::Packager => !running.to_packager.is_empty(),
                SimulatedActor::Outbound => !running.to_outbound.is_empty(),
                SimulatedActor::Runner => {
                    matches!(running.runner, RunnerState::Built(_))
                        && (running.at_hand.is_some() || !running.commands.is_empty())
                }
            }
    }

    /// The runner takes its next command up. Its next turn carries it out.
    pub fn take_up(&mut self) -> Option<SimulatedWork> {
        let running = self.current.as_mut()?;
        let command = match running.at_hand.take() {
            Some(command) => command,
            None => running.commands.try_recv().ok()?,
        };
        let work = match &command {
            Command::Step(plan) => {
                let units = plan.sequences.iter().map(|sequence| sequence.advance).sum();
                SimulatedWork::Step(plan.sequences.len(), units)
            }
            _ => SimulatedWork::Other,
        };
        running.at_hand = Some(command);
        Some(work)
    }

    /// An actor handles its next message, if it has one.
    ///
    /// # Errors
    /// What the actor dies of.
    pub fn turn(&mut self, actor: SimulatedActor) -> Result<(), String> {
        let Some(running) = self.current.as_mut().filter(|running| !running.dead[actor as usize]) else {
            return Ok(());
        };
        let died = failure(|| running.turn(actor));
        let died = died.or_else(|| match running.to_sampler.try_recv() {
            Ok(SamplerMessage::Died(reason)) => Some(reason),
            Err(_) => None,
        });
        match died {
            None => Ok(()),
            Some(reason) => {
                self.kill(actor);
                Err(reason)
            }
        }
    }

    /// An actor handles no message any more. Its supervisor has not heard of it yet.
    pub fn kill(&mut self, actor: SimulatedActor) {
        if let Some(running) = &mut self.current {
            running.dead[actor as usize] = true;
        }
    }

    /// The supervisor hears that an actor has died. Actors that still live may have turns until the stage is
    /// [taken down](SimulatedStage::take_down).
    pub fn fail(&mut self, reason: &str) -> Verdict {
        self.failed = true;
        let in_hands = self.current.as_ref().map_or_else(InHands::nothing, Running::in_hands);
        self.handle.set_current(None);
        let failure = StageFailure::new(reason.to_owned(), in_hands);
        let attribution = self.setup.reports.stage_down(self.setup.name, &failure);
        let verdict = self.policy.failed(self.clock.now(), &attribution);
        self.handle.update(|status| {
            status.state = if verdict == Verdict::GiveUp { StageState::Failed } else { StageState::Restarting };
            status.last_reason = Some(reason.to_owned());
        });
        if verdict == Verdict::GiveUp {
            self.setup.reports.stage_given_up(self.setup.name, reason);
        }
        verdict
    }

    /// All actors and the device state of the generation are gone.
    pub fn take_down(&mut self) {
        self.handle.set_current(None);
        if let Some(running) = self.current.take() {
            running.stage.stop();
            drop(running);
            if let Some(arbiter) = &self.setup.arbiter {
                arbiter.leave(self.setup.name);
            }
        }
    }

    /// What the stage holds: all zero when it is idle.
    pub fn load(&self) -> StageLoad {
        self.current.as_ref().map_or_else(StageLoad::default, |running| running.stage.load())
    }

    /// All that the scheduler knows, for a person who looks for a bug.
    pub fn describe(&self) -> String {
        let state = self.handle.status().borrow().clone();
        let scheduler = self.current.as_ref().map(|running| running.scheduler.describe());
        let turns: Vec<_> = SimulatedActor::ALL.into_iter().filter(|actor| self.has_work(*actor)).collect();
        format!("{}: {state:?}, work for {turns:?}, {}", self.setup.name, scheduler.unwrap_or_default())
    }

    /// Entries in the tables of the actors, which the gauges of [`SimulatedStage::load`] do not count: zero when the
    /// stage is idle.
    pub fn entries(&self) -> usize {
        self.current.as_ref().map_or(0, |running| running.scheduler.entries() + running.inbound.entries())
    }
}

impl Running {
    /// What the actors that died had in hand.
    fn in_hands(&self) -> InHands {
        let mut dead = SimulatedActor::ALL.into_iter().filter(|actor| self.dead[*actor as usize]);
        let role = match (dead.next(), dead.next()) {
            (Some(SimulatedActor::Inbound), None) => Some(Role::Inbound),
            (Some(SimulatedActor::Scheduler), None) => Some(Role::Scheduler),
            (Some(SimulatedActor::Runner), None) => Some(Role::Runner),
            (Some(SimulatedActor::Packager), None) => Some(Role::Packager),
            (Some(SimulatedActor::Outbound), None) => Some(Role::Outbound),
            _ => None,
        };
        self.stage.life.in_hand.of_role(role)
    }

    fn turn(&mut self, actor: SimulatedActor) -> Result<(), String> {
        match actor {
            SimulatedActor::Inbound => match self.to_inbound.try_recv() {
                Ok(message) => at_once(Inbound::turn(message, &mut self.inbound)),
                Err(_) => Ok(()),
            },
            SimulatedActor::Scheduler => match self.to_scheduler.try_recv() {
                Ok(message) => at_once(Scheduler::turn(message, &mut self.scheduler)),
                Err(_) => Ok(()),
            },
            SimulatedActor::Packager => match self.to_packager.try_recv() {
                Ok(Ready) => at_once(Packager::turn(&mut self.packager)),
                Err(_) => Ok(()),
            },
            SimulatedActor::Outbound => match self.to_outbound.try_recv() {
                Ok(Ready) => at_once(Outbound::turn(&mut self.outbound)),
                Err(_) => Ok(()),
            },
            SimulatedActor::Runner => match (&mut self.runner, self.at_hand.take()) {
                (RunnerState::Built(runner), Some(command)) => runner.run(command).map_err(|error| error.to_string()),
                _ => Ok(()),
            },
        }
    }
}

/// The outcome of a turn. Without an injected fault no turn waits for anything.
fn at_once(turn: impl Future<Output = Result<(), ActorProcessingErr>>) -> Result<(), String> {
    match pin!(turn).poll(&mut Context::from_waker(Waker::noop())) {
        Poll::Ready(outcome) => outcome.map_err(|error| error.to_string()),
        Poll::Pending => Err("an actor waited in its turn".into()),
    }
}
