//! The Sampler actor: the completion side of a stage. It waits for launched steps in their order, reads the tokens that
//! were drawn inside them (the mathematics are in `omni_model::sampling`), and decides who hears of them when: the
//! scheduler first, for the next launch may wait for it; then the packager; then telemetry.
//!
//! A model that computes inside its launch has the outcome on the launch thread, so the sampler reads it there. With
//! the first step that is [pending](omni_model::stage::PendingStep) it gets a thread of its own, which waits for the
//! device; from then on the launch thread is steps ahead of it. Wherever it runs, the actor stands for it: what it dies
//! of, its supervisor hears from the actor, and its watchdog reads when it took up the step at hand.
//!
//! It must never launch, and never let any other actor hear of a token before the scheduler.

mod read;
mod span;

use crate::failure::{ActorFailure, ThreadError, failure};
use crate::generation::{Life, Peer};
use crate::messages::{LaunchEvent, LaunchedStep, Output, SamplerMessage, SchedulerMessage};
use crate::pulse::Role;
use crate::queue::QueueSender;
use omni_core::scheduler::StepDone;
use omni_fault::{FaultEvent, FaultPoint, FaultSite};
use omni_model::stage::Launched;
use omni_telemetry::Queue;
use omni_telemetry::trace::{self, Component, What};
use omni_transfer::lease::LeaseBook;
use ractor::{Actor, ActorProcessingErr, ActorRef};
use read::{Reader, Reading};
use span::{Span, Steps};
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::Instant;

/// The actor, which stands for the thread that the sampler runs on.
pub(super) struct Sampler;

impl Actor for Sampler {
    type Msg = SamplerMessage;
    type State = ();
    type Arguments = ();

    async fn pre_start(&self, _: ActorRef<Self::Msg>, (): ()) -> Result<(), ActorProcessingErr> {
        Ok(())
    }

    async fn handle(
        &self,
        _: ActorRef<Self::Msg>,
        SamplerMessage::Died(reason): SamplerMessage,
        (): &mut (),
    ) -> Result<(), ActorProcessingErr> {
        Err(ActorFailure::Thread(reason).into())
    }
}

/// What the sampler has of its stage.
pub(super) struct SamplerEnds {
    pub life: Arc<Life>,
    pub actor: Peer<SamplerMessage>,
    pub scheduler: Peer<SchedulerMessage>,
    pub outputs: QueueSender<Output>,
    /// Whether the scheduler hears first.
    pub early: bool,
    /// Whether it wants to hear when a step is nearly over.
    pub paced: bool,
    pub leases: LeaseBook,
    /// Events that can wait: the launch thread does what it was commanded to, so no more than in its own queue.
    pub capacity: usize,
}

/// Where the launch thread hands over: to the sampler here and now, or to its thread. Dropping it waits until the
/// sampler has seen every step through, so the model can be dropped behind it.
pub(super) struct HandOver {
    life: Arc<Life>,
    actor: Peer<SamplerMessage>,
    capacity: usize,
    to: To,
}

enum To {
    Here(Box<Sampling>),
    Thread {
        events: flume::Sender<LaunchEvent>,
        thread: JoinHandle<()>,
    },
    /// The sampler died. Its actor has told so, and the supervisor takes the stage down.
    Dead,
}

impl HandOver {
    pub fn new(ends: SamplerEnds) -> HandOver {
        let (life, actor, capacity) = (Arc::clone(&ends.life), ends.actor.clone(), ends.capacity);
        HandOver { life, actor, capacity, to: To::Here(Box::new(Sampling::new(ends))) }
    }

    /// Passes an event on. Waits for no other thread.
    pub fn tell(&mut self, event: LaunchEvent) -> Result<(), ActorFailure> {
        if let LaunchEvent::Step(LaunchedStep { launched: Launched::Pending(_), .. }) = &event {
            self.begin_thread()?;
        }
        match &mut self.to {
            To::Here(sampling) => {
                if let Some(reason) = failure(|| sampling.handle(event)) {
                    self.life.pulse.rest(Role::Sampler);
                    self.to = To::Dead;
                    self.actor.tell(SamplerMessage::Died(reason));
                }
                Ok(())
            }
            To::Thread { events, .. } => match events.try_send(event) {
                Err(flume::TrySendError::Full(_)) => Err(ActorFailure::Queue("step")),
                Ok(()) | Err(flume::TrySendError::Disconnected(_)) => Ok(()),
            },
            To::Dead => Ok(()),
        }
    }

    fn begin_thread(&mut self) -> Result<(), ActorFailure> {
        match std::mem::replace(&mut self.to, To::Dead) {
            To::Here(sampling) => {
                let (events, queue) = flume::bounded(self.capacity);
                let (life, actor) = (Arc::clone(&self.life), self.actor.clone());
                let thread = std::thread::Builder::new()
                    .name(format!("{}-sampler", self.life.stage))
                    .spawn(move || run(*sampling, &queue, &life, &actor))
                    .map_err(|error| ActorFailure::Thread(format!("no sampler thread: {error}")))?;
                self.to = To::Thread { events, thread };
            }
            already => self.to = already,
        }
        Ok(())
    }
}

impl Drop for HandOver {
    fn drop(&mut self) {
        if let To::Thread { events, thread } = std::mem::replace(&mut self.to, To::Dead) {
            drop(events);
            // A panic over there has been reported from there.
            let _ = thread.join();
        }
    }
}

/// The sampler's thread.
fn run(mut sampling: Sampling, queue: &flume::Receiver<LaunchEvent>, life: &Life, actor: &Peer<SamplerMessage>) {
    let died = failure(|| {
        while let Ok(event) = queue.recv() {
            sampling.handle(event)?;
        }
        Ok::<_, ThreadError>(())
    });
    life.pulse.rest(Role::Sampler);
    if let Some(reason) = died {
        actor.tell(SamplerMessage::Died(reason));
    }
}

/// The sampler at work, on whichever thread.
struct Sampling {
    life: Arc<Life>,
    reader: Reader,
    steps: Steps,
    scheduler: Peer<SchedulerMessage>,
    outputs: QueueSender<Output>,
    early: bool,
    paced: bool,
    fault: FaultSite,
}

impl Sampling {
    fn new(ends: SamplerEnds) -> Sampling {
        let SamplerEnds { life, scheduler, outputs, early, paced, leases, .. } = ends;
        let reader = Reader::new(life.site(FaultPoint::Completion), leases);
        let fault = life.site(FaultPoint::Sampler);
        Sampling { life, reader, steps: Steps::default(), scheduler, outputs, early, paced, fault }
    }

    fn handle(&mut self, event: LaunchEvent) -> Result<(), ThreadError> {
        match event {
            LaunchEvent::Opened { slot, deliver, from } => self.reader.opened(slot, deliver, from),
            LaunchEvent::Closed(slot) => self.reader.closed(slot),
            LaunchEvent::SequenceFailed { request, reason } => {
                self.inject(|| vec![FaultEvent::of(request)])?;
                self.scheduler.tell(SchedulerMessage::SequenceFailed { request, reason });
            }
            LaunchEvent::Step(step) => {
                self.life.pulse.take(Role::Sampler);
                self.step(step)?;
                self.life.pulse.rest(Role::Sampler);
            }
        }
        Ok(())
    }

    fn step(&mut self, step: LaunchedStep) -> Result<(), ThreadError> {
        let LaunchedStep { plan, launched, began, returned } = step;
        let pending = matches!(launched, Launched::Pending(_));
        if let (Launched::Pending(step), true) = (&launched, self.paced) {
            step.nearly();
            self.scheduler.tell(SchedulerMessage::Nearly(plan.step));
        }
        let mut outcome = launched.wait()?;
        let ended = if pending { Instant::now() } else { returned };
        if self.life.pulse.is_stopping() {
            return Ok(());
        }
        self.reader.inject(&plan, &mut outcome.sequences, || self.life.pulse.is_stopping())?;
        let reading = self.reader.read(&plan, outcome.sequences);
        trace::until_now(self.life.track(Component::Completion), ended, || What::Read(plan.step));

        let told = trace::now();
        self.inject(|| reading.events())?;
        let Reading { done, failed, outputs } = reading;
        let shares = trace::now().map(|_| span::shares(&plan, &done));
        let done = StepDone { step: plan.step, sequences: done };
        self.tell(SchedulerMessage::Done { done, failed }, outputs)?;
        self.life.in_hand.returned(plan.sequences.len());
        self.life.metrics.sample_seconds.record(ended.elapsed());
        trace::since(told, self.life.track(Component::Sampler), || What::Sampled(plan.step));

        let span = Span { began, returned, ended, device: outcome.times.total };
        self.steps.count(&self.life, &plan, &span, pending, &outcome.times, shares);
        Ok(())
    }

    /// The scheduler first, then the packager.
    fn tell(&self, news: SchedulerMessage, outputs: Vec<Output>) -> Result<(), ActorFailure> {
        let later = if self.early {
            self.scheduler.tell(news);
            None
        } else {
            Some(news)
        };
        if !outputs.is_empty() {
            for output in outputs {
                self.outputs.put(output)?;
            }
            self.life.metrics.queue_depth(Queue::Packager, self.outputs.len());
            self.outputs.ring();
        }
        later.map_or(Ok(()), |news| self.outputs.put_news(news))
    }

    fn inject(&self, events: impl FnOnce() -> Vec<FaultEvent>) -> Result<(), ActorFailure> {
        Ok(self.fault.inject(events, || self.life.pulse.is_stopping())?)
    }
}
