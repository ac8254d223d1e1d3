//! One generation of a stage: its queues and its actors. Each actor gets its own ends of them and nothing else.

use crate::connector::{InboundEnds, OutboundEnds};
use crate::failure::ActorFailure;
use crate::handle::StageLoad;
use crate::in_hand::InHand;
use crate::messages::{Command, InboundMessage, Output, Ready, SamplerMessage, SchedulerMessage, SupervisorMessage};
use crate::model_runner::RunnerEnds;
use crate::packager::PackagerEnds;
use crate::pulse::Pulse;
use crate::queue::{QueueSender, queue};
use crate::sampler::SamplerEnds;
use crate::scheduler::SchedulerEnds;
use crate::setup::StageSetup;
use omni_core::ids::{Generation, Replica, StageName};
use omni_core::scheduler::SchedulerConfig;
use omni_fault::{FaultPlan, FaultPoint, FaultSite};
use omni_telemetry::StageMetrics;
use omni_telemetry::clock::Clock;
use omni_telemetry::trace::{Component, Recorder, Track, TrackWriter};
use omni_transfer::payload::Payload;
use ractor::{ActorRef, Message};
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, OnceLock};

/// The address of an actor, which others have before the actor starts.
pub(super) struct Peer<M: Message>(Arc<OnceLock<Mailbox<M>>>);

/// Where an actor gets its messages.
enum Mailbox<M: Message> {
    Actor(ActorRef<M>),
    /// Of an actor that a simulation turns by hand.
    Simulated(flume::Sender<M>),
}

impl<M: Message> Peer<M> {
    pub fn new() -> Peer<M> {
        Peer(Arc::default())
    }

    /// It has started.
    pub fn set(&self, actor: ActorRef<M>) {
        let _ = self.0.set(Mailbox::Actor(actor));
    }

    /// A simulation takes its messages out here.
    pub fn simulated(&self) -> flume::Receiver<M> {
        #[expect(clippy::disallowed_methods, reason = "it stands for a mailbox, which has no bound either")]
        let (send, messages) = flume::unbounded();
        let _ = self.0.set(Mailbox::Simulated(send));
        messages
    }

    /// Sends it a message and waits for nothing. False if it has not started, or has ended.
    pub fn tell(&self, message: M) -> bool {
        self.0.get().is_some_and(|mailbox| match mailbox {
            Mailbox::Actor(actor) => actor.cast(message).is_ok(),
            Mailbox::Simulated(messages) => messages.try_send(message).is_ok(),
        })
    }
}

impl<M: Message> Clone for Peer<M> {
    fn clone(&self) -> Peer<M> {
        Peer(Arc::clone(&self.0))
    }
}

/// What every actor of a generation has: a name and a clock, and where it records what it does.
pub(super) struct Life {
    pub stage: StageName,
    pub replica: u8,
    pub generation: Generation,
    pub pulse: Arc<Pulse>,
    pub in_hand: InHand,
    pub gauges: Gauges,
    pub metrics: StageMetrics,
    faults: FaultPlan,
    recorder: Recorder,
}

impl Life {
    /// Where a part of this generation records what it does.
    pub fn track(&self, component: Component) -> TrackWriter<'_> {
        self.recorder.writer(Track::of(Replica { stage: self.stage, number: self.replica }, self.generation, component))
    }

    /// Where a fault plan can inject faults into the edge behind another stage, which leads here.
    pub fn site_behind(&self, stage: StageName) -> FaultSite {
        self.faults.site(stage, FaultPoint::Edge)
    }

    /// Where a fault plan can inject faults.
    pub fn site(&self, point: FaultPoint) -> FaultSite {
        self.faults.site(self.stage, point)
    }
}

/// Counts that actors keep for [`StageHandle::load`](crate::StageHandle::load) and for each other.
#[derive(Default)]
pub(super) struct Gauges {
    pub sequences: AtomicUsize,
    pub slots: AtomicUsize,
    pub inputs: AtomicUsize,
    /// Steps whose tokens the scheduler has seen.
    pub seen: AtomicU64,
    /// Whether anything has left the stage.
    pub made: AtomicBool,
}

/// The end of the command queue of those who command.
#[derive(Clone)]
pub(super) struct Commands(flume::Sender<Command>);

impl Commands {
    /// Puts a command in. A launch thread that has ended reports its death itself, so its closed queue is no failure.
    pub fn put(&self, command: Command) -> Result<(), ActorFailure> {
        match self.0.try_send(command) {
            Err(flume::TrySendError::Full(_)) => Err(ActorFailure::Queue("command")),
            Ok(()) | Err(flume::TrySendError::Disconnected(_)) => Ok(()),
        }
    }
}

/// What the supervisor and the handle keep of a generation.
pub(super) struct StageGeneration {
    pub life: Arc<Life>,
    pub scheduler: Peer<SchedulerMessage>,
    pub inbound: Peer<InboundMessage>,
    commands: Commands,
    outputs: QueueSender<Output>,
    payloads: QueueSender<Payload>,
}

/// What the actors of a generation are started with.
pub(super) struct Ends {
    pub outbound: OutboundEnds,
    pub packager: PackagerEnds,
    pub scheduler: SchedulerEnds,
    pub sampler: Peer<SamplerMessage>,
    pub inbound: InboundEnds,
    pub runner: RunnerEnds,
    /// Addresses that the supervisor fills in.
    pub to_packager: Peer<Ready>,
    pub to_outbound: Peer<Ready>,
}

impl StageGeneration {
    /// The queues of a generation, and their ends.
    pub fn new(
        setup: &Arc<StageSetup>,
        generation: Generation,
        supervisor: &Peer<SupervisorMessage>,
        clock: Clock,
    ) -> (StageGeneration, Ends) {
        let SchedulerConfig { slots, window, max_batch, run_ahead, .. } = setup.scheduler;
        // The windows bound what any sequence can have in any queue of the stage: its outputs, its inputs (the window
        // of the stage before, which is taken to be of the same order), its commands.
        let capacity = slots as usize * (window as usize + 64) * 4 + 1024;
        let life = Arc::new(Life {
            stage: setup.name,
            replica: setup.replica,
            generation,
            pulse: Pulse::new(clock),
            // The steps that are out, and the one whose outcome the scheduler works on.
            in_hand: InHand::new(max_batch * (run_ahead as usize + 1), setup.notes.as_ref()),
            gauges: Gauges::default(),
            metrics: setup.metrics.clone(),
            faults: setup.faults.clone(),
            recorder: setup.recorder.clone(),
        });
        let (scheduler, inbound, sampler) = (Peer::new(), Peer::new(), Peer::new());
        let (to_packager, to_outbound) = (Peer::new(), Peer::new());

        let (send, commanded) = flume::bounded(capacity);
        let commands = Commands(send);
        let tell = scheduler.clone();
        let (payloads, payload_queue) = queue("payload", capacity, to_outbound.clone(), move |news| {
            tell.tell(news);
            Ok(())
        });
        let behind = payloads.clone();
        let (outputs, output_queue) = queue("output", capacity, to_packager.clone(), move |news| behind.put_news(news));

        let ends = Ends {
            outbound: OutboundEnds {
                life: Arc::clone(&life),
                payloads: payload_queue,
                edges: Arc::clone(&setup.outbound),
                reports: Arc::clone(&setup.reports),
                leases: setup.leases.clone(),
            },
            packager: PackagerEnds {
                life: Arc::clone(&life),
                outputs: output_queue,
                payloads: payloads.clone(),
                reports: Arc::clone(&setup.reports),
                handles: setup.outbound.iter().any(|edge| edge.handles),
            },
            scheduler: SchedulerEnds {
                life: Arc::clone(&life),
                config: setup.scheduler.clone(),
                arbiter: setup.arbiter.clone(),
                commands: commands.clone(),
                inbound: inbound.clone(),
                acks: Arc::clone(&setup.acks),
                reports: Arc::clone(&setup.reports),
            },
            inbound: InboundEnds {
                life: Arc::clone(&life),
                edge: Arc::clone(&setup.inbound),
                commands: commands.clone(),
                scheduler: scheduler.clone(),
                acks: Arc::clone(&setup.acks),
                reports: Arc::clone(&setup.reports),
            },
            runner: RunnerEnds {
                life: Arc::clone(&life),
                factory: Arc::clone(&setup.factory),
                commands: commanded,
                supervisor: supervisor.clone(),
                sampler: SamplerEnds {
                    life: Arc::clone(&life),
                    actor: sampler.clone(),
                    scheduler: scheduler.clone(),
                    outputs: outputs.clone(),
                    early: setup.early_handoff,
                    paced: setup.scheduler.paced,
                    leases: setup.leases.clone(),
                    capacity,
                },
            },
            sampler,
            to_packager,
            to_outbound,
        };
        (StageGeneration { life, scheduler, inbound, commands, outputs, payloads }, ends)
    }

    /// Asks the threads to end.
    pub fn stop(&self) {
        self.life.pulse.stop();
        let _ = self.commands.put(Command::Wake);
    }

    pub fn load(&self) -> StageLoad {
        let gauges = &self.life.gauges;
        StageLoad {
            sequences: gauges.sequences.load(Ordering::Relaxed),
            slots: gauges.slots.load(Ordering::Relaxed),
            inputs: gauges.inputs.load(Ordering::Relaxed),
            queued: self.commands.0.len() + self.outputs.len() + self.payloads.len(),
            leases: 0,
        }
    }
}
