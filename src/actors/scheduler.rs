//! The Scheduler actor: turns messages into events for [`SchedulerCore`] and carries out its effects: commands first,
//! then what others are to hear. It never sees a tensor and never waits.

use crate::arbiter::Arbiter;
use crate::failure::ActorFailure;
use crate::generation::{Commands, Life, Peer};
use crate::in_hand::InHand;
use crate::messages::{Admission, Command, InboundMessage, Outputs, Resume, SchedulerMessage};
use crate::pulse::Role;
use crate::setup::{AckSink, StageReports};
use omni_core::arbiter::Turn;
use omni_core::ids::{Attempt, RequestId, StepId};
use omni_core::scheduler::{Ack, Effect, Event, SchedulerConfig, SchedulerCore, SequenceDone};
use omni_fault::{Begun, FaultEvent, FaultPoint, FaultSite};
use omni_model::stage::SequenceSpec;
use omni_telemetry::trace::{self, Component, What};
use ractor::{Actor, ActorProcessingErr, ActorRef};
use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::Ordering;

impl SchedulerMessage {
    /// What it is about.
    fn events(&self, begun: &mut Begun, core: &SchedulerCore) -> Vec<FaultEvent> {
        match self {
            SchedulerMessage::Admit(admission) => vec![FaultEvent::prompt(admission.request)],
            SchedulerMessage::Done { done, .. } => {
                let in_prompt = |sequence: &SequenceDone| sequence.emitted == 0 && !sequence.finished;
                // A late step of a sequence that is gone has no output.
                let event = |sequence: &SequenceDone| match core.knows(sequence.request) {
                    true => begun.event(sequence.request, in_prompt(sequence), sequence.finished),
                    false => FaultEvent::of(sequence.request),
                };
                done.sequences.iter().map(event).collect()
            }
            SchedulerMessage::Input { request, .. }
            | SchedulerMessage::SequenceFailed { request, .. }
            | SchedulerMessage::Abort(request) => vec![FaultEvent::of(*request)],
            // Each is injected into when its turn comes.
            SchedulerMessage::Acked { .. } | SchedulerMessage::Nearly(_) | SchedulerMessage::Wake => Vec::new(),
        }
    }

    /// Writes down which requests it is about.
    fn noted(&self, in_hand: &InHand) {
        match self {
            SchedulerMessage::Admit(admission) => in_hand.take(Role::Scheduler, admission.request),
            SchedulerMessage::Done { done, .. } => in_hand.taking(done.sequences.len()),
            SchedulerMessage::Input { request, .. }
            | SchedulerMessage::SequenceFailed { request, .. }
            | SchedulerMessage::Abort(request) => in_hand.take(Role::Scheduler, *request),
            SchedulerMessage::Acked { .. } | SchedulerMessage::Nearly(_) | SchedulerMessage::Wake => {}
        }
    }
}

/// What the scheduler has of its stage.
pub(super) struct SchedulerEnds {
    pub life: Arc<Life>,
    pub config: SchedulerConfig,
    pub arbiter: Option<Arc<Arbiter>>,
    pub commands: Commands,
    pub inbound: Peer<InboundMessage>,
    pub acks: Arc<dyn AckSink>,
    pub reports: Arc<dyn StageReports>,
}

pub(super) struct Scheduler;

pub(super) struct SchedulerState {
    ends: SchedulerEnds,
    core: SchedulerCore,
    /// What the model opens sequences with, for those without a slot.
    specs: HashMap<RequestId, (SequenceSpec, Outputs, Resume)>,
    /// The attempt of each request's sequence.
    attempts: HashMap<RequestId, Attempt>,
    fault: FaultSite,
    begun: Begun,
    stale: u64,
    /// The step whose outcome the scheduler takes up now, for the trace.
    after: Option<StepId>,
}

impl Actor for Scheduler {
    type Msg = SchedulerMessage;
    type State = SchedulerState;
    type Arguments = SchedulerEnds;

    async fn pre_start(
        &self,
        myself: ActorRef<Self::Msg>,
        ends: SchedulerEnds,
    ) -> Result<SchedulerState, ActorProcessingErr> {
        if let Some(arbiter) = &ends.arbiter {
            let own = Peer::new();
            own.set(myself);
            arbiter.join(ends.life.stage, own);
        }
        Ok(SchedulerState::new(ends))
    }

    async fn handle(
        &self,
        _: ActorRef<Self::Msg>,
        message: SchedulerMessage,
        state: &mut SchedulerState,
    ) -> Result<(), ActorProcessingErr> {
        Scheduler::turn(message, state).await
    }
}

impl SchedulerState {
    pub fn new(ends: SchedulerEnds) -> SchedulerState {
        let core = SchedulerCore::new(ends.config.clone());
        let fault = ends.life.site(FaultPoint::Scheduler);
        SchedulerState {
            ends,
            core,
            specs: HashMap::new(),
            attempts: HashMap::new(),
            fault,
            begun: Begun::default(),
            stale: 0,
            after: None,
        }
    }
}

impl Scheduler {
    /// Handles one message.
    pub async fn turn(message: SchedulerMessage, state: &mut SchedulerState) -> Result<(), ActorProcessingErr> {
        let _at_work = state.ends.life.pulse.at_work(Role::Scheduler);
        message.noted(&state.ends.life.in_hand);
        state.fault.inject_async(|| message.events(&mut state.begun, &state.core)).await?;
        match message {
            SchedulerMessage::Admit(admission) => {
                let Admission { request, params, spec, deliver, from, .. } = *admission;
                state.specs.insert(request, (spec, deliver, from));
                state.attempts.insert(request, from.attempt);
                state.apply(Event::Admit(request, params, from.start))?;
            }
            SchedulerMessage::Input { request, units, end } => state.apply(Event::Input { request, units, end })?,
            SchedulerMessage::Acked { acks, behind } => {
                let (known, unknown): (Vec<_>, _) =
                    acks.into_iter().partition(|ack| behind || state.core.knows(ack.request));
                for Ack { request, upto } in known {
                    state.ends.life.in_hand.take(Role::Scheduler, request);
                    state.fault.inject_async(|| [FaultEvent::of(request)]).await?;
                    state.apply(Event::Acked { request, upto })?;
                }
                if !unknown.is_empty() {
                    // Their sequences may be on their way to here.
                    state.ends.inbound.tell(InboundMessage::Acked(unknown));
                }
            }
            SchedulerMessage::Done { done, failed } => {
                let (began, step) = (trace::now(), done.step);
                state.ends.life.gauges.seen.store(step.0 + 1, Ordering::Relaxed);
                state.after = Some(step);
                // Sequences that failed go first, or the event would plan them once more. The engine hears of them when
                // the next step is launched.
                for (request, _) in &failed {
                    state.drop_failed(*request)?;
                }
                state.apply(Event::StepDone(done))?;
                state.after = None;
                failed.into_iter().for_each(|(request, reason)| state.report(request, reason));
                trace::since(began, state.ends.life.track(Component::Scheduler), || What::Returned(step));
            }
            SchedulerMessage::SequenceFailed { request, reason } => {
                state.drop_failed(request)?;
                state.report(request, reason);
            }
            SchedulerMessage::Abort(request) => {
                state.specs.remove(&request);
                state.attempts.remove(&request);
                state.begun.forget(request);
                state.apply(Event::Abort(request))?;
            }
            SchedulerMessage::Nearly(step) => state.apply(Event::Nearly(step))?,
            SchedulerMessage::Wake => state.apply(Event::Wake)?,
        }
        state.ends.life.in_hand.rest(Role::Scheduler);
        state.ends.life.in_hand.settled();
        state.count();
        Ok(())
    }
}

impl SchedulerState {
    /// All that its core knows.
    pub fn describe(&self) -> String {
        format!("{:?}", self.core)
    }

    /// Entries of its tables; none when it has no sequence.
    pub fn entries(&self) -> usize {
        self.specs.len() + self.attempts.len() + self.core.sequences() + self.core.waiting() + self.core.in_flight()
    }

    /// Frees a sequence that failed.
    fn drop_failed(&mut self, request: RequestId) -> Result<(), ActorFailure> {
        self.specs.remove(&request);
        self.begun.forget(request);
        self.apply(Event::Abort(request))?;
        if let Some(attempt) = self.attempts.remove(&request) {
            self.ends.inbound.tell(InboundMessage::Lost(request, attempt));
        }
        Ok(())
    }

    /// Tells the engine, which gives the stage another attempt.
    fn report(&self, request: RequestId, reason: String) {
        self.ends.reports.sequence_failed(request, self.ends.life.stage, reason);
    }

    fn apply(&mut self, event: Event) -> Result<(), ActorFailure> {
        let mut began = trace::now();
        for effect in self.plan(event) {
            match effect {
                Effect::Open(request, slot) => {
                    let Some((spec, deliver, from)) = self.specs.remove(&request) else { continue };
                    self.ends.commands.put(Command::Open { slot, request, spec: Box::new(spec), deliver, from })?;
                    self.ends.inbound.tell(InboundMessage::Opened(request, from.attempt));
                }
                Effect::Launch(plan) => {
                    let (step, sequences, after) = (plan.step, plan.sequences.len() as u32, self.after);
                    self.ends.commands.put(Command::Step(plan))?;
                    let what = || What::Planned { step, sequences, after };
                    trace::since(began, self.ends.life.track(Component::Scheduler), what);
                    began = trace::now();
                }
                Effect::Close(slot) => self.ends.commands.put(Command::Close(slot))?,
                Effect::Consumed(acks) => self.ends.acks.acked(&acks),
                Effect::Finished(request) => {
                    self.begun.forget(request);
                    if let Some(attempt) = self.attempts.remove(&request) {
                        self.ends.inbound.tell(InboundMessage::Closed(request, attempt));
                    }
                }
            }
        }
        Ok(())
    }

    fn plan(&mut self, event: Event) -> Vec<Effect> {
        let (core, now) = (&mut self.core, self.ends.life.pulse.now());
        let Some(arbiter) = &self.ends.arbiter else { return core.handle(event, now) };
        arbiter.plan(self.ends.life.stage, |hold| {
            let returned = matches!(event, Event::StepDone(_));
            let effects = core.handle_held(event, now, hold);
            (effects, Turn { returned, awaited: core.is_awaited(now), held: core.is_held() })
        })
    }

    fn count(&mut self) {
        let Life { metrics, gauges, .. } = &*self.ends.life;
        gauges.sequences.store(self.core.sequences(), Ordering::Relaxed);
        metrics.sequences.set((self.core.sequences() - self.core.waiting()) as f64);
        let stale = self.core.stale();
        metrics.stale_outcomes.increment(stale - self.stale);
        self.stale = stale;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use omni_core::deadline::PlaybackPolicy;
    use omni_core::scheduler::{Pace, SequenceParams, Start, StepDone, Yields};
    use std::time::Duration;

    #[test]
    fn what_a_late_step_says_of_a_sequence_that_is_gone_is_no_output() {
        let mut core = SchedulerCore::new(SchedulerConfig {
            slots: 1,
            max_batch: 1,
            prefill_chunk: 1,
            prefill_least: 0,
            yields: Yields::Never,
            joins_prompts: false,
            paced: false,
            run_ahead: 3,
            window: 8,
            max_step_units: None,
            buckets: Vec::new(),
            playback: PlaybackPolicy { unit: Duration::from_millis(80), gathers: 0, lead_cap: None },
        });
        let request = RequestId(1);
        let params = SequenceParams::unprompted(Pace::Free);
        let done = |step, finished| StepDone {
            step: StepId(step),
            sequences: vec![SequenceDone { request, emitted: 1, finished }],
        };
        let mut begun = Begun::default();
        core.handle(Event::Admit(request, params, Start::default()), Duration::ZERO);
        for (step, finished, event) in [
            (0, false, FaultEvent::output(request, true, false)),
            (1, true, FaultEvent::output(request, false, true)),
            (2, false, FaultEvent::of(request)),
        ] {
            let message = SchedulerMessage::Done { done: done(step, finished), failed: Vec::new() };
            assert_eq!(message.events(&mut begun, &core), [event], "step {step}");
            core.handle(Event::StepDone(done(step, finished)), Duration::ZERO);
        }
    }
}
