//! Which sequences run in the next step of a stage: continuous batching, placeholders, late stops, windows, deadlines.
//!
//! The scheduler may launch a step before it knows the outcome of the one before. Every launched and not yet returned
//! step of a sequence is a *placeholder*. When a sequence turns out to have stopped, its younger placeholders are void:
//! their outcomes name a request that has no sequence any more, and the scheduler drops them as stale.
//!
//! A sequence that may have brought the stage down runs alone ([`suspects`](crate::suspects)): a step of it has no other
//! sequence, and no other step is out.

mod bounds;
mod sequence;
#[cfg(test)]
mod tests;

pub use sequence::{Pace, PromptRun, SequenceParams, Start};

use crate::deadline::{PlaybackPolicy, Priority, Urgency};
use crate::ids::{RequestId, Slot, StepId};
use bounds::StepBounds;
use sequence::Sequence;
use std::collections::{BTreeMap, VecDeque};
use std::time::Duration;

/// The shape of a stage.
#[derive(Clone, Debug)]
pub struct SchedulerConfig {
    /// Sequences that can hold state at once.
    pub slots: u32,
    /// Sequences of one step.
    pub max_batch: usize,
    /// Prompt positions of one step, over all sequences.
    pub prefill_chunk: u32,
    /// Positions of a prompt that are worth a step of their own: fewer wait while input for further ones is still to come,
    /// and so do those that would leave fewer. On a device that reads all weights in each step, a small piece takes nearly
    /// as long as all of it.
    pub prefill_least: u32,
    /// Which sequences that have given the next stage enough for its first unit wait until that has used it, because both
    /// compute on one device and the next stage makes the first sound. Their steps side by side take each other's memory
    /// bandwidth.
    pub yields: Yields,
    /// Whether prompts wait while a step with some is out, unless they fill a step: on a device that reads all weights in
    /// each step, those that come together should not go through it one after the other.
    pub joins_prompts: bool,
    /// Whether a step is planned only when the one before it is nearly over ([`Event::Nearly`]), and not when that begins:
    /// who comes meanwhile is in it, and does not wait for it.
    pub paced: bool,
    /// Steps launched and not returned, of the stage and of each sequence; 1 is the synchronous order.
    pub run_ahead: u32,
    /// Units a sequence may be ahead of what the next stage has taken over.
    pub window: u32,
    /// Numbers of sequences, ascending, that steps are computed for: what is left of the next one costs nothing. Empty:
    /// every sequence costs.
    pub buckets: Vec<u32>,
    /// Most units of one step whose sequences take chunks, over all sequences; a longer chunk is cut. `None`: no bound.
    pub max_step_units: Option<u32>,
    /// What its sequences' listeners hear.
    pub playback: PlaybackPolicy,
}

/// Which sequences of a stage leave the device to the next one ([`SchedulerConfig::yields`]).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Yields {
    /// None.
    Never,
    /// One that has the stage to itself: beside others its step costs next to nothing.
    Alone,
    /// Each.
    Each,
}

/// What happened.
#[derive(Clone, Debug)]
pub enum Event {
    /// A request wants a sequence.
    Admit(RequestId, SequenceParams, Start),
    /// Input arrived at the runner.
    Input {
        /// Whose.
        request: RequestId,
        /// How many units.
        units: u32,
        /// Nothing follows.
        end: bool,
    },
    /// The next stage, or the client, took units over.
    Acked {
        /// Whose.
        request: RequestId,
        /// Those before this number. What is known already, from this attempt or an earlier one, changes nothing.
        upto: u32,
    },
    /// A step will be over by the time that the next one is launched.
    Nearly(StepId),
    /// The outcome of a step is known.
    StepDone(StepDone),
    /// The request is gone: free its sequence now.
    Abort(RequestId),
    /// What the stage was held back for may be over.
    Wake,
}

/// The outcome of a step.
#[derive(Clone, Debug)]
pub struct StepDone {
    /// Which step; steps return in the order of their launch.
    pub step: StepId,
    /// One entry per planned sequence.
    pub sequences: Vec<SequenceDone>,
}

/// What a step did to a sequence.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SequenceDone {
    /// Whose sequence.
    pub request: RequestId,
    /// Units that go downstream.
    pub emitted: u32,
    /// The sequence ended with this step.
    pub finished: bool,
}

/// What is to be done, in order.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Effect {
    /// The request's sequence now lives in this slot of the model.
    Open(RequestId, Slot),
    /// Run this step.
    Launch(Plan),
    /// Free the slot; may be reused by the next effect.
    Close(Slot),
    /// Input that the stage has used up: the previous stage may send more. Never empty, at most one of an event, and
    /// behind its launches, which need not wait until the previous stage has been told.
    Consumed(Vec<Ack>),
    /// The sequence is gone because it ended (not because it was aborted).
    Finished(RequestId),
}

/// The consumer of an edge has taken units over. It says how far, not how many: the same news may come twice, or late
/// from an attempt that another one has taken the place of, and counts once.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ack {
    /// Of which request.
    pub request: RequestId,
    /// All units before this number, counted from the request's first one.
    pub upto: u32,
}

/// One step to launch.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Plan {
    /// Counted from 0.
    pub step: StepId,
    /// Never empty.
    pub sequences: Vec<PlannedSequence>,
}

/// A sequence's share of a plan.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PlannedSequence {
    /// Whose sequence.
    pub request: RequestId,
    /// Where its state is.
    pub slot: Slot,
    /// Units; 0 ends a sequence whose input is used up.
    pub advance: u32,
    /// Whether the units are of its prompt.
    pub prompt: bool,
    /// The unit of its output at which it is, as far as steps that are out make units.
    pub unit: u32,
    /// What this counts against the sequence's window until it returns.
    pending: u32,
    /// Which of the request's sequences: another attempt may get the slot of the one before.
    order: u64,
}

/// The state machine.
#[derive(Debug)]
pub struct SchedulerCore {
    config: SchedulerConfig,
    sequences: BTreeMap<RequestId, Sequence>,
    /// Sequences without a slot, first come first served.
    waiting: VecDeque<RequestId>,
    free: Vec<Slot>,
    in_flight: VecDeque<Plan>,
    next_step: u64,
    next_order: u64,
    stale: u64,
    held: bool,
    /// The oldest step in flight is nearly over.
    nearly: bool,
}

impl SchedulerCore {
    /// An idle stage.
    pub fn new(config: SchedulerConfig) -> SchedulerCore {
        let free = (0..config.slots).rev().map(Slot).collect();
        SchedulerCore {
            config,
            sequences: BTreeMap::new(),
            waiting: VecDeque::new(),
            free,
            in_flight: VecDeque::new(),
            next_step: 0,
            next_order: 0,
            stale: 0,
            held: false,
            nearly: false,
        }
    }

    /// Takes one event in and says what is to be done. `now` is time since any fixed moment, never decreasing.
    pub fn handle(&mut self, event: Event, now: Duration) -> Vec<Effect> {
        self.handle_held(event, now, false)
    }

    /// [`SchedulerCore::handle`] on a device that other stages share: while `hold`, it launches only steps that a
    /// listener is due for. [`SchedulerCore::is_held`] tells whether that kept a step back.
    pub fn handle_held(&mut self, event: Event, now: Duration, hold: bool) -> Vec<Effect> {
        let (mut effects, mut behind) = (Vec::new(), Vec::new());
        match event {
            Event::Admit(request, params, start) => self.admit(request, params, start, now),
            Event::Input { request, units, end } => {
                if let Some(sequence) = self.sequences.get_mut(&request) {
                    sequence.input = sequence.input.saturating_add(units);
                    sequence.input_ended |= end;
                }
            }
            Event::Acked { request, upto } => {
                if let Some(sequence) = self.sequences.get_mut(&request) {
                    sequence.acked = sequence.acked.max(upto);
                }
            }
            Event::Nearly(step) => self.nearly |= self.in_flight.front().is_some_and(|plan| plan.step == step),
            Event::StepDone(done) => self.step_done(&done, now, &mut effects, &mut behind),
            Event::Abort(request) => {
                self.release(request, &mut effects);
            }
            Event::Wake => {}
        }
        self.seat(&mut effects);
        self.launch(now, hold, &mut effects);
        effects.append(&mut behind);
        effects
    }

    /// Whether the request has a sequence.
    pub fn knows(&self, request: RequestId) -> bool {
        self.sequences.contains_key(&request)
    }

    /// Sequences with or without a slot.
    pub fn sequences(&self) -> usize {
        self.sequences.len()
    }

    /// Sequences that wait for a slot.
    pub fn waiting(&self) -> usize {
        self.waiting.len()
    }

    /// Steps launched and not returned.
    pub fn in_flight(&self) -> usize {
        self.in_flight.len()
    }

    /// Whether a step was kept back when the last event was handled.
    pub fn is_held(&self) -> bool {
        self.held
    }

    /// Whether a listener who has heard nothing yet waits for a step that can run or runs. While that is so, steps
    /// return.
    pub fn is_awaited(&self, now: Duration) -> bool {
        self.sequences.values().filter(|sequence| sequence.since <= now).any(|sequence| {
            sequence.acked == 0
                && (sequence.placeholders > 0 || sequence.first_emit.is_none() && self.can_run(sequence))
        })
    }

    /// Whether a sequence leaves the device to the next stage.
    fn yields(&self, sequence: &Sequence) -> bool {
        let may = match self.config.yields {
            Yields::Never => false,
            Yields::Alone => self.sequences.len() == 1,
            Yields::Each => true,
        };
        may && sequence.leads()
    }

    fn can_run(&self, sequence: &Sequence) -> bool {
        sequence.next_advance(&self.config, self.config.prefill_chunk).is_some() && !self.yields(sequence)
    }

    /// Whether slots are scarce. Then streams that are ahead run too: they free slots for those who hear nothing yet.
    fn is_crowded(&self) -> bool {
        self.sequences.len() * 2 > self.config.slots as usize
    }

    /// Outcomes dropped because their sequence had ended.
    pub fn stale(&self) -> u64 {
        self.stale
    }

    fn admit(&mut self, request: RequestId, mut params: SequenceParams, start: Start, now: Duration) {
        if let (Pace::Chunks(ramp), Some(most)) = (&mut params.pace, self.config.max_step_units) {
            // Whatever a request asks for, no step takes so long that its stage counts as hung.
            ramp.iter_mut().for_each(|size| *size = (*size).min(most.max(1)));
        }
        let order = self.next_order;
        self.next_order += 1;
        if self.sequences.insert(request, Sequence::new(request, params, start, order, now)).is_none() {
            self.waiting.push_back(request);
        }
    }

    /// Takes the outcome of a step in. The effects that tell others of it go `behind` the next launches.
    fn step_done(&mut self, done: &StepDone, now: Duration, effects: &mut Vec<Effect>, behind: &mut Vec<Effect>) {
        // Steps return in order; anything else belongs to a generation that is gone.
        if self.in_flight.front().is_none_or(|plan| plan.step != done.step) {
            self.stale += done.sequences.len() as u64;
            return;
        }
        let Some(plan) = self.in_flight.pop_front() else { return };
        self.nearly = false;
        let mut consumed = Vec::new();
        for (planned, outcome) in plan.sequences.iter().zip(&done.sequences) {
            let Some(sequence) =
                self.sequences.get_mut(&planned.request).filter(|sequence| sequence.order == planned.order)
            else {
                self.stale += 1;
                continue;
            };
            sequence.returned(planned.pending, outcome.emitted, now);
            consumed.extend(sequence.take_consumed().map(|upto| Ack { request: planned.request, upto }));
            if outcome.finished && self.release(planned.request, effects) {
                behind.push(Effect::Finished(planned.request));
            }
        }
        if !consumed.is_empty() {
            behind.insert(0, Effect::Consumed(consumed));
        }
    }

    fn release(&mut self, request: RequestId, effects: &mut Vec<Effect>) -> bool {
        let Some(sequence) = self.sequences.remove(&request) else { return false };
        match sequence.slot {
            // Steps in flight with this slot were sent to the runner before this, so the slot may be reused at once.
            Some(slot) => {
                self.free.push(slot);
                effects.push(Effect::Close(slot));
            }
            None => self.waiting.retain(|waiting| *waiting != request),
        }
        true
    }

    fn seat(&mut self, effects: &mut Vec<Effect>) {
        while !self.waiting.is_empty() {
            let Some(slot) = self.free.pop() else { return };
            let Some(request) = self.waiting.pop_front() else { return };
            if let Some(sequence) = self.sequences.get_mut(&request) {
                sequence.slot = Some(slot);
                effects.push(Effect::Open(request, slot));
            }
        }
    }

    fn launch(&mut self, now: Duration, hold: bool, effects: &mut Vec<Effect>) {
        self.held = false;
        let paced = |core: &Self| core.config.paced && core.in_flight.len() > usize::from(core.nearly);
        while self.in_flight.len() < self.config.run_ahead as usize && !paced(self) {
            let runnable = self.apart(self.runnable(now));
            self.held = hold
                && !self.is_crowded()
                && runnable.first().is_some_and(|(priority, ..)| priority.urgency != Urgency::Due);
            if self.held {
                return;
            }
            let Some(plan) = self.plan(runnable) else { return };
            self.in_flight.push_back(plan.clone());
            effects.push(Effect::Launch(plan));
        }
    }

    /// The sequences that can run, the most urgent ahead.
    fn runnable(&self, now: Duration) -> Vec<(Priority, u64, RequestId)> {
        let playback = &self.config.playback;
        let mut runnable: Vec<_> = self
            .sequences
            .values()
            .filter(|sequence| self.can_run(sequence))
            .map(|sequence| (playback.priority(&sequence.stream(now), now), sequence.order, sequence.request))
            .collect();
        runnable.sort_unstable();
        runnable
    }

    /// Those of the sequences that can run which may share a step: the most urgent one, where that runs alone and
    /// nothing is out; all that need not run alone, where the most urgent one is of them.
    fn apart(&self, mut runnable: Vec<(Priority, u64, RequestId)>) -> Vec<(Priority, u64, RequestId)> {
        if !self.sequences.values().any(Sequence::is_alone) {
            return runnable;
        }
        let alone = |request: &RequestId| self.sequences.get(request).is_some_and(Sequence::is_alone);
        let is_out = |plan: &Plan| plan.sequences.iter().any(|sequence| alone(&sequence.request));
        if self.in_flight.iter().any(is_out) {
            runnable.clear();
        } else if runnable.first().is_some_and(|(.., request)| alone(request)) {
            // What is out returns first; were others launched meanwhile, it might never run.
            runnable.truncate(usize::from(self.in_flight.is_empty()));
        } else {
            runnable.retain(|(.., request)| !alone(request));
        }
        runnable
    }

    /// Sequences that a step of `sequences` sequences computes, whatever they are.
    fn bucket(&self, sequences: usize) -> usize {
        self.config
            .buckets
            .iter()
            .map(|bucket| *bucket as usize)
            .find(|bucket| *bucket >= sequences)
            .unwrap_or(sequences)
    }

    /// Whether prompts wait for others to join them.
    fn is_joining(&self, runnable: &[(Priority, u64, RequestId)]) -> bool {
        let has_prompts = |plan: &Plan| plan.sequences.iter().any(|sequence| sequence.prompt);
        if !self.config.joins_prompts || !self.in_flight.iter().any(has_prompts) {
            return false;
        }
        let chunk = self.config.prefill_chunk;
        let prompts =
            runnable.iter().filter_map(|(.., request)| self.sequences.get(request)).filter(|s| s.prefilling());
        let ready =
            prompts.filter_map(|sequence| sequence.next_advance(&self.config, chunk)).fold(0, u32::saturating_add);
        ready < chunk
    }

    /// The most urgent sequences that can run, or `None` if no sequence can.
    fn plan(&mut self, runnable: Vec<(Priority, u64, RequestId)>) -> Option<Plan> {
        let SchedulerConfig { prefill_chunk, max_batch, max_step_units, .. } = self.config;
        let one_is_due =
            self.waiting.is_empty() && runnable.first().is_some_and(|(priority, ..)| priority.urgency == Urgency::Due);
        let joining = self.is_joining(&runnable);
        let (mut planned, mut prefill_left) = (Vec::new(), prefill_chunk);
        let mut bounds = StepBounds::new(max_step_units);
        for (priority, _, request) in runnable {
            if planned.len() == max_batch {
                break;
            }
            if one_is_due && priority.urgency == Urgency::Parked && planned.len() >= self.bucket(planned.len()) {
                // The rest is further ahead still.
                break;
            }
            let Some(sequence) = self.sequences.get_mut(&request) else { continue };
            let prefilling = sequence.prefilling();
            if prefilling && (joining || prefill_left == 0) {
                continue;
            }
            let in_chunks = matches!(sequence.params.pace, Pace::Chunks(_));
            let chunk = if prefilling { prefill_left } else { prefill_chunk };
            let chunk = max_step_units.filter(|_| in_chunks).map_or(chunk, |most| chunk.min(most.max(1)));
            let (Some(advance), Some(slot)) = (sequence.next_advance(&self.config, chunk), sequence.slot) else {
                continue;
            };
            if in_chunks && !bounds.admit(advance, prefilling) {
                continue;
            }
            if prefilling {
                prefill_left -= advance;
            }
            let unit = sequence.next_unit();
            let (pending, order) = (sequence.launched(advance), sequence.order);
            planned.push(PlannedSequence { request, slot, advance, prompt: prefilling, unit, pending, order });
        }
        if planned.is_empty() {
            return None;
        }
        let step = StepId(self.next_step);
        self.next_step += 1;
        Some(Plan { step, sequences: planned })
    }
}
