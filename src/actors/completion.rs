//! What is known of a step only after it has run: which units and tokens came of it, under which leases they travel, how
//! long it took. The launch thread hands everything over here and goes on.
//!
//! A model that computes inside its launch is completed on the launch thread, where the outcome is. With the first step
//! that is [pending](omni_model::stage::PendingStep) a thread begins that waits for the device and does nothing else;
//! from then on the launch thread is steps ahead of it.

use super::model_runner::{RunnerMessage, failure};
use super::packager::Output;
use super::sampler::{SamplerMessage, Ticket, TicketSequence};
use super::stage::{ActorFailure, Outputs, Resume, StageGeneration};
use omni_core::ids::{Attempt, RequestId, Seq, Slot, StepId};
use omni_core::scheduler::{Plan, PlannedSequence, SequenceDone};
use omni_fault::{FaultEvent, FaultKind, FaultPoint, FaultSite};
use omni_model::ModelError;
use omni_model::stage::{DeviceTimes, Launched, SequenceOutput, StageData};
use omni_telemetry::trace::{self, Component, Ran, SequenceShare, What};
use ractor::ActorRef;
use std::collections::HashMap;
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// What the launch thread did, in its order.
pub(super) enum Event {
    /// A slot has a new sequence.
    Opened { slot: Slot, deliver: Outputs, from: Resume },
    /// A sequence could not be opened or fed.
    SequenceFailed { request: RequestId, reason: String },
    /// A step was launched.
    Step(LaunchedStep),
    /// A slot is free.
    Closed(Slot),
}

/// A step, and when its launch began and returned.
pub(super) struct LaunchedStep {
    pub plan: Plan,
    pub launched: Launched,
    pub began: Instant,
    pub returned: Instant,
}

/// What ends a runner.
#[derive(Debug, thiserror::Error)]
pub(super) enum RunnerError {
    #[error(transparent)]
    Model(#[from] ModelError),
    #[error(transparent)]
    Stage(#[from] ActorFailure),
}

/// Where the launch thread hands over: here and now, or to the completion thread. Dropping it waits until that thread has
/// seen every step through.
pub(super) struct HandOver {
    stage: Arc<StageGeneration>,
    actor: ActorRef<RunnerMessage>,
    to: To,
}

enum To {
    Here(Completion),
    Thread { events: flume::Sender<Event>, thread: JoinHandle<()> },
    Nobody,
}

impl HandOver {
    pub fn new(stage: Arc<StageGeneration>, actor: ActorRef<RunnerMessage>) -> HandOver {
        let to = To::Here(Completion::new(Arc::clone(&stage)));
        HandOver { stage, actor, to }
    }

    /// Passes an event on. Waits for nobody.
    pub fn tell(&mut self, event: Event) -> Result<(), RunnerError> {
        if let Event::Step(LaunchedStep { launched: Launched::Pending(_), .. }) = &event {
            self.begin_thread()?;
        }
        match &mut self.to {
            To::Here(completion) => completion.handle(event),
            To::Thread { events, .. } => Ok(events.try_send(event).map_err(|_| ActorFailure::Queue("completion"))?),
            To::Nobody => Ok(()),
        }
    }

    fn begin_thread(&mut self) -> Result<(), RunnerError> {
        match std::mem::replace(&mut self.to, To::Nobody) {
            To::Here(completion) => {
                // Whatever the launch thread does, it was commanded to: no more can wait here than in its own queue.
                let (events, queue) = flume::bounded(self.stage.commands.send.capacity().unwrap_or(1));
                let actor = self.actor.clone();
                let thread = std::thread::Builder::new()
                    .name(format!("{}-completion", self.stage.setup.name))
                    .spawn(move || run(completion, &queue, &actor))
                    .map_err(|error| ActorFailure::Runner(format!("no completion thread: {error}")))?;
                self.to = To::Thread { events, thread };
            }
            already => self.to = already,
        }
        Ok(())
    }
}

impl Drop for HandOver {
    fn drop(&mut self) {
        if let To::Thread { events, thread } = std::mem::replace(&mut self.to, To::Nobody) {
            drop(events);
            // A panic over there has been reported from there.
            let _ = thread.join();
        }
    }
}

/// The completion thread, whatever happens on it.
fn run(mut completion: Completion, queue: &flume::Receiver<Event>, actor: &ActorRef<RunnerMessage>) {
    let stage = Arc::clone(&completion.stage);
    let died = failure(|| {
        while let Ok(event) = queue.recv() {
            stage.pulse.completion.take(stage.now());
            completion.handle(event)?;
            stage.pulse.completion.rest();
        }
        Ok::<_, RunnerError>(())
    });
    stage.pulse.completion.rest();
    // Before the queue closes, so that the launch thread's complaint about it comes second.
    if let Some(reason) = died {
        let _ = actor.cast(RunnerMessage::Died(reason));
    }
}

/// Makes tickets of outcomes.
struct Completion {
    stage: Arc<StageGeneration>,
    sequences: HashMap<Slot, Sequence>,
    /// When the last step had run, and for whom.
    last_step: Option<(Instant, Vec<RequestId>)>,
    fault: FaultSite,
}

struct Sequence {
    attempt: Attempt,
    deliver: Outputs,
    /// Units made so far, and the number of the first that is wanted.
    units: u32,
    deliver_from: u32,
    tokens: u32,
    /// A step of it failed.
    failed: bool,
}

impl Completion {
    fn new(stage: Arc<StageGeneration>) -> Completion {
        let fault = stage.setup.faults.site(stage.setup.name, FaultPoint::Completion);
        Completion { stage, sequences: HashMap::new(), last_step: None, fault }
    }

    fn handle(&mut self, event: Event) -> Result<(), RunnerError> {
        match event {
            Event::Opened { slot, deliver, from } => {
                let Resume { attempt, first, deliver_from, tokens, .. } = from;
                self.sequences
                    .insert(slot, Sequence { attempt, deliver, units: first, deliver_from, tokens, failed: false });
            }
            Event::SequenceFailed { request, reason } => self.hand_over(Ticket::SequenceFailed { request, reason })?,
            Event::Step(step) => self.step(step)?,
            Event::Closed(slot) => {
                self.sequences.remove(&slot);
            }
        }
        Ok(())
    }

    fn step(&mut self, step: LaunchedStep) -> Result<(), RunnerError> {
        let LaunchedStep { plan, launched, began, returned } = step;
        let pending = matches!(launched, Launched::Pending(_));
        let mut outcome = launched.wait()?;
        let ended = if pending { Instant::now() } else { returned };
        if self.stage.pulse.is_stopping() {
            return Ok(());
        }
        self.inject(&plan, &mut outcome.sequences)?;
        let time = Span { began, returned, ended, device: outcome.times.total };
        self.stage.setup.metrics.phases(&outcome.times.phases);
        let step = plan.step;
        let results = plan.sequences.iter().zip(outcome.sequences);
        let sequences: Vec<_> = results.map(|(planned, result)| self.ticket_sequence(step, planned, result)).collect();
        let (took, bubble) = self.measure(&plan, &time, pending);
        let began = ended.checked_sub(took).unwrap_or(ended);
        self.trace(&plan, &outcome.times, (began, ended), bubble, &sequences);
        self.hand_over(Ticket::Step { step, ended, sequences })?;
        trace::until_now(self.stage.track(Component::Completion), ended, || What::Read(step));
        Ok(())
    }

    /// Lets happen what a fault plan asks for, before anybody hears of the step.
    fn inject(&self, plan: &Plan, sequences: &mut [Result<SequenceOutput, ModelError>]) -> Result<(), ActorFailure> {
        let events = || {
            plan.sequences
                .iter()
                .zip(&*sequences)
                .map(|(planned, sequence)| self.event(planned, sequence))
                .collect::<Vec<_>>()
        };
        let Some(hit) = self.fault.occurs(events) else { return Ok(()) };
        match sequences.get_mut(hit.sequence) {
            Some(sequence) if hit.kind == FaultKind::Nan => {
                *sequence = Err(ModelError::Sequence(format!(
                    "the logit of token 0 is NaN, so no token can be sampled ({})",
                    hit.injected
                )));
                Ok(())
            }
            _ => Ok(self.fault.happen(hit, || self.stage.pulse.is_stopping())?),
        }
    }

    fn event(&self, planned: &PlannedSequence, sequence: &Result<SequenceOutput, ModelError>) -> FaultEvent {
        match sequence {
            Ok(output) if !output.stale && planned.prompt && output.sampled.is_none() => {
                FaultEvent::prompt(planned.request)
            }
            Ok(output) if !output.stale => {
                let first = self
                    .sequences
                    .get(&planned.slot)
                    .is_some_and(|sequence| sequence.units == 0 && sequence.tokens == 0);
                FaultEvent::output(planned.request, first, output.finish.is_some()).in_prompt(planned.prompt)
            }
            _ => FaultEvent::of(planned.request),
        }
    }

    fn ticket_sequence(
        &mut self,
        step: StepId,
        planned: &PlannedSequence,
        result: Result<SequenceOutput, ModelError>,
    ) -> TicketSequence {
        let request = planned.request;
        let idle = TicketSequence::Done { done: SequenceDone { request, emitted: 0, finished: false }, output: None };
        let Some(sequence) = self.sequences.get_mut(&planned.slot) else { return idle };
        let output = match result {
            // What comes behind a unit that failed would pass for it.
            Ok(output) if output.stale || sequence.failed => return idle,
            Ok(output) => output,
            // One failure is one: the steps behind it fail for the same reason.
            Err(_) if sequence.failed => return idle,
            Err(error) => {
                sequence.failed = true;
                return TicketSequence::Failed { request, reason: error.to_string() };
            }
        };
        let made = match &output.emit {
            None => 0,
            Some(StageData::Embeddings(sequences)) => sequences.shape().0 as u32,
            Some(StageData::Tokens(tokens)) => tokens.len() as u32,
            Some(StageData::Codes(_)) => 1,
            Some(StageData::Audio(_)) => planned.advance,
        };
        // What an earlier attempt passed on is made once more by sequences only, which are looked up and not computed.
        let passed = sequence.deliver_from.saturating_sub(sequence.units).min(made);
        sequence.units += passed;
        let (units, emit) = match output.emit {
            Some(StageData::Embeddings(sequences)) if passed > 0 => match sequences.behind(passed as usize) {
                Ok(rest) => (made - passed, rest.map(StageData::Embeddings)),
                Err(error) => return TicketSequence::Failed { request, reason: error.to_string() },
            },
            emit => (made, emit),
        };
        let bytes = emit.as_ref().map_or(0, StageData::bytes);
        let end = output.finish;
        let token = output.sampled.filter(|_| sequence.deliver.tokens).map(|token| (Seq(sequence.tokens), token));
        let seq = Seq(sequence.units);
        sequence.units += units;
        sequence.tokens += u32::from(token.is_some());
        let emitted = if sequence.deliver.speech { units } else { u32::from(token.is_some()) };
        let done = SequenceDone { request, emitted, finished: end.is_some() };
        let nothing = units == 0 && token.is_none() && end.is_none();
        let output = (!nothing).then(|| {
            let lease = self.stage.setup.leases.lease(bytes);
            Output {
                request,
                attempt: sequence.attempt,
                step,
                deliver: sequence.deliver,
                seq,
                units,
                emit,
                token,
                end,
                lease,
            }
        });
        TicketSequence::Done { done, output }
    }

    /// The only wake-up of a step's completion.
    fn hand_over(&self, ticket: Ticket) -> Result<(), ActorFailure> {
        self.stage.tickets.send.try_send(ticket).map_err(|_| ActorFailure::Queue("ticket"))?;
        if let Some(sampler) = self.stage.sampler.get() {
            let _ = sampler.cast(SamplerMessage::Ready);
        }
        Ok(())
    }

    /// Counts a step; tells how long it ran, and for how long the device had waited for it though it had work.
    fn measure(&mut self, plan: &Plan, time: &Span, pending: bool) -> (Duration, Option<Duration>) {
        let metrics = &self.stage.setup.metrics;
        let last = self.last_step.as_ref();
        metrics.steps.increment(1);
        let took = time.step(last.map(|(ended, _)| *ended));
        metrics.step_seconds.record(took);
        metrics.batch_sequences.record(plan.sequences.len() as f64);
        metrics.units.increment(plan.sequences.iter().map(|sequence| u64::from(sequence.advance)).sum());
        let requests: Vec<_> = plan.sequences.iter().map(|sequence| sequence.request).collect();
        let goes_on = last.filter(|(_, before)| requests.iter().any(|request| before.contains(request)));
        let bubble = goes_on.map(|(last, _)| time.bubble(*last, pending));
        if let Some(bubble) = bubble {
            metrics.bubble_seconds.record(bubble);
        }
        self.last_step = Some((time.ended, requests));
        (took, bubble)
    }

    /// The step in a trace.
    fn trace(
        &self,
        plan: &Plan,
        outcome: &DeviceTimes,
        time: (Instant, Instant),
        bubble: Option<Duration>,
        sequences: &[TicketSequence],
    ) {
        let share = |(planned, sequence): (&PlannedSequence, &TicketSequence)| SequenceShare {
            request: planned.request,
            units: planned.advance,
            prompt: planned.prompt,
            gave: if let TicketSequence::Done { done, .. } = sequence { done.emitted } else { 0 },
        };
        trace::span(self.stage.track(Component::Device), time.0, time.1, || {
            What::Ran(Box::new(Ran {
                step: plan.step,
                sequences: plan.sequences.iter().zip(sequences).map(share).collect(),
                measured: outcome.total.is_some(),
                bubble: bubble.map(|bubble| bubble.as_nanos() as u64),
                phases: Ran::nanos(&outcome.phases),
            }))
        });
    }
}

/// When things happened to a step.
struct Span {
    /// Its launch began and returned.
    began: Instant,
    returned: Instant,
    /// It had run.
    ended: Instant,
    /// For how long it ran, if the device can tell.
    device: Option<Duration>,
}

impl Span {
    /// How long the step ran. Steps run one after the other: without word from the device, it is taken to have begun when
    /// it was launched or the one before had ended, whatever came last.
    fn step(&self, last: Option<Instant>) -> Duration {
        let begun = last.map_or(self.began, |last| last.max(self.began));
        self.device.unwrap_or_else(|| self.ended.saturating_duration_since(begun))
    }

    /// How long the device had nothing to do before the step, after the one before had ended.
    fn bubble(&self, last: Instant, pending: bool) -> Duration {
        if pending && self.returned <= last {
            return Duration::ZERO;
        }
        let begun = self.device.and_then(|device| self.ended.checked_sub(device)).unwrap_or(self.began);
        begun.max(self.began).saturating_duration_since(last)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ms(ms: u64) -> Duration {
        Duration::from_millis(ms)
    }

    fn span(start: Instant, began: u64, returned: u64, ended: u64, device: Option<u64>) -> Span {
        let at = |at| start + ms(at);
        Span { began: at(began), returned: at(returned), ended: at(ended), device: device.map(ms) }
    }

    #[test]
    fn a_step_launched_before_the_last_one_ended_leaves_no_bubble() {
        let start = Instant::now();
        let last = start + ms(10);
        assert_eq!(span(start, 3, 4, 15, None).bubble(last, true), ms(0));
        assert_eq!(span(start, 3, 4, 15, Some(5)).bubble(last, true), ms(0));
    }

    #[test]
    fn a_step_launched_late_leaves_a_bubble_up_to_its_launch_or_its_start_on_the_device() {
        let start = Instant::now();
        let last = start + ms(10);
        assert_eq!(span(start, 12, 13, 20, None).bubble(last, true), ms(2));
        assert_eq!(span(start, 12, 13, 20, Some(6)).bubble(last, true), ms(4));
        assert_eq!(span(start, 9, 11, 20, Some(8)).bubble(last, true), ms(2), "its launch returned too late");
        assert_eq!(span(start, 12, 20, 20, None).bubble(last, false), ms(2), "a step that a launch computes");
    }

    #[test]
    fn a_step_takes_what_the_device_says_or_the_time_it_had_the_device_to_itself() {
        let start = Instant::now();
        let last = Some(start + ms(10));
        assert_eq!(span(start, 3, 4, 15, Some(4)).step(last), ms(4));
        assert_eq!(span(start, 3, 4, 15, None).step(last), ms(5));
        assert_eq!(span(start, 12, 13, 15, None).step(last), ms(3));
        assert_eq!(span(start, 12, 13, 15, None).step(None), ms(3));
    }
}
