//! One sequence of a stage: what it may do next.

use super::SchedulerConfig;
use crate::deadline::Stream;
use crate::ids::{RequestId, Slot};
use std::time::Duration;

/// What the scheduler must know of a sequence; derived from the request, fixed for its life.
#[derive(Clone, Debug, PartialEq, Eq, bincode::Encode, bincode::Decode)]
pub struct SequenceParams {
    /// Positions to prefill before the first decode step; for the vocoder, frames of its context.
    pub prompt: u32,
    /// Input units that the prompt uses.
    pub prompt_input: u32,
    /// The positions that they stand at; all other positions need none. Empty: every position needs all of them.
    pub prompt_runs: Vec<PromptRun>,
    /// Units that the prompt alone sends downstream. The next stage may need all of them before it can take over any,
    /// so they do not count against the window.
    pub prompt_emits: u32,
    /// Units of its own with which the next stage can make its first, where that makes the first sound or leads to it; 0:
    /// it does not.
    pub yields_after: u32,
    /// How decode steps depend on input.
    pub pace: Pace,
    /// Sound that the listener has of what went before the sequence, from its admission on.
    pub lead: Duration,
}

/// Positions of a prompt that stand for input units, one after the other.
#[derive(Clone, Copy, Debug, PartialEq, Eq, bincode::Encode, bincode::Decode)]
pub struct PromptRun {
    /// The first position.
    pub at: u32,
    /// The unit that it stands for.
    pub input: u32,
    /// How many.
    pub len: u32,
}

impl SequenceParams {
    /// Of a sequence without a prompt that begins at once.
    pub fn unprompted(pace: Pace) -> SequenceParams {
        SequenceParams {
            prompt: 0,
            prompt_input: 0,
            prompt_runs: Vec::new(),
            prompt_emits: 0,
            yields_after: 0,
            pace,
            lead: Duration::ZERO,
        }
    }

    /// Positions of the prompt that can be prefilled once `arrived` units of it have arrived.
    pub fn ready(&self, arrived: u32) -> u32 {
        if arrived >= self.prompt_input {
            return self.prompt;
        }
        let missing = |run: &PromptRun| {
            let there = arrived.saturating_sub(run.input).min(run.len);
            (there < run.len).then_some(run.at + there)
        };
        self.prompt_runs.iter().filter_map(missing).min().unwrap_or(0).min(self.prompt)
    }
}

/// Where a sequence goes on that had come some way in an earlier attempt. All zero for a sequence that begins.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, bincode::Encode, bincode::Decode)]
pub struct Start {
    /// Input units that are part of its prompt and do not come again.
    pub input: u32,
    /// Those before this one were reported upstream as used.
    pub consumed: u32,
    /// Units that were emitted downstream.
    pub emitted: u32,
    /// Those of them that were taken over there.
    pub acked: u32,
    /// Those of them that its listener has not heard by now; `None` before playback.
    pub ahead: Option<u32>,
    /// Of a suspect ([`suspects`](crate::suspects)): the unit up to which it runs alone.
    pub alone: Option<u32>,
}

/// How decode steps depend on input.
#[derive(Clone, Debug, PartialEq, Eq, bincode::Encode, bincode::Decode)]
pub enum Pace {
    /// No input: one unit per step until the model stops (a sampling thinker).
    Free,
    /// One input unit per step; once the input has ended, no input (a talker, whose text is used up before its speech).
    OnePerStep,
    /// Units are input: as many per step as have arrived, and the sequence ends with its input (a thinker that follows
    /// text).
    Follow,
    /// Units are input, taken in chunks of these sizes, the last of which repeats; a shorter chunk only at the end of
    /// the input (a vocoder).
    Chunks(Vec<u32>),
}

/// A sequence and its placeholders.
#[derive(Clone, Debug)]
pub(super) struct Sequence {
    pub request: RequestId,
    pub params: SequenceParams,
    pub slot: Option<Slot>,
    /// Where it went on.
    pub start: Start,
    /// Order of admission, the tie-breaker of every choice.
    pub order: u64,
    /// When its listener begins to wait: on its admission, or when what went before it has been heard.
    pub since: Duration,
    /// When its first unit was emitted: playback starts then.
    pub first_emit: Option<Duration>,
    /// Input units that have arrived, and whether more may come.
    pub input: u32,
    pub input_ended: bool,
    /// Positions of the prompt planned so far.
    pub prefilled: u32,
    /// Decode steps (units, for `Follow` and `Chunks`) planned so far.
    pub decoded: u32,
    /// Chunks planned so far.
    pub chunks: u32,
    /// Steps launched whose outcome is not known: one placeholder each.
    pub placeholders: u32,
    /// Units that those steps will emit at most.
    pub pending: u32,
    /// Units emitted downstream, and units that the next stage has taken over.
    pub emitted: u32,
    pub acked: u32,
    /// Input units whose use was reported upstream.
    pub reported: u32,
    /// The flush step was planned: nothing follows.
    pub flushed: bool,
}

impl Sequence {
    pub fn new(request: RequestId, params: SequenceParams, start: Start, order: u64, now: Duration) -> Sequence {
        Sequence {
            request,
            slot: None,
            start,
            order,
            since: now + params.lead,
            params,
            first_emit: start.ahead.map(|_| now),
            input: start.input,
            input_ended: false,
            prefilled: 0,
            decoded: 0,
            chunks: 0,
            placeholders: 0,
            pending: 0,
            emitted: start.emitted,
            acked: start.acked,
            reported: start.consumed,
            flushed: false,
        }
    }

    /// Units this sequence could advance in the next step, at most `chunk` of them where it is free to choose; `None`
    /// while it must wait. `Some(0)` is the flush: its input has ended and is used up, so the sequence ends without
    /// another unit.
    pub fn next_advance(&self, config: &SchedulerConfig, chunk: u32) -> Option<u32> {
        if self.slot.is_none() || self.flushed || self.placeholders >= config.run_ahead {
            return None;
        }
        // Steps in flight will emit too: only one step may overshoot the window, by less than its own units.
        if self.emitted.saturating_sub(self.acked) + self.pending >= config.window + self.params.prompt_emits {
            return None;
        }
        if self.prefilled < self.params.prompt {
            let upto = self.params.ready(self.input - self.start.input);
            let ready = upto.saturating_sub(self.prefilled);
            let is_last = upto == self.params.prompt || self.input_ended;
            let is_worth_a_step = ready.min(self.params.prompt - upto) >= config.prefill_least;
            if ready > 0 {
                return (is_last || is_worth_a_step).then(|| ready.min(chunk));
            }
            // The input ended before a prompt could be made of it: an empty answer.
            return self.flush();
        }
        match &self.params.pace {
            Pace::Free => Some(1),
            Pace::OnePerStep => (self.input_ended || self.available() > 0).then_some(1),
            Pace::Follow => match self.available() {
                0 => self.flush(),
                n => Some(n.min(chunk)),
            },
            Pace::Chunks(ramp) => {
                let size = ramp.get(self.chunks as usize).or(ramp.last()).copied().unwrap_or(1).max(1);
                match self.available() {
                    0 => self.flush(),
                    n if n >= size => Some(size),
                    n => self.input_ended.then_some(n),
                }
            }
        }
    }

    /// Records that a step was launched with this sequence; says what it counts against the window until it returns.
    pub fn launched(&mut self, advance: u32) -> u32 {
        self.placeholders += 1;
        let prefilling = self.prefilled < self.params.prompt;
        let pending = if prefilling { advance.min(self.params.prompt_emits).max(1) } else { advance };
        self.pending += pending;
        if advance == 0 {
            self.flushed = true;
        } else if self.prefilled < self.params.prompt {
            self.prefilled += advance;
        } else {
            self.decoded += advance;
            self.chunks += 1;
        }
        pending
    }

    /// Records that the oldest launched step has returned.
    pub fn returned(&mut self, pending: u32, emitted: u32, now: Duration) {
        self.placeholders -= 1;
        self.pending -= pending;
        self.emitted += emitted;
        // What the next stage is given of the prompt is heard by no listener.
        if emitted > 0 && self.made() > 0 {
            self.first_emit.get_or_insert(now);
        }
    }

    /// How far planned steps have used the input, where that is further than was reported.
    pub fn take_consumed(&mut self) -> Option<u32> {
        let prompt = if self.prefilled >= self.params.prompt { self.params.prompt_input } else { 0 };
        let used = match self.params.pace {
            Pace::Free => 0,
            _ => (self.start.input + prompt + self.decoded).min(self.input),
        };
        let further = used > self.reported;
        self.reported = self.reported.max(used);
        further.then_some(used)
    }

    /// Units that it has emitted behind those of its prompt.
    pub fn made(&self) -> u32 {
        (self.emitted - self.start.emitted).saturating_sub(self.params.prompt_emits)
    }

    /// Whether it has made, or makes, all that the next stage needs for its first unit, of which that has used nothing yet.
    pub fn leads(&self) -> bool {
        // The last positions of a prompt make a unit too.
        let made = u32::from(self.params.prompt > 0) + self.decoded;
        (1..=made).contains(&self.params.yields_after) && self.acked == 0 && !self.prefilling()
    }

    /// What is known of the sequence's listener.
    pub fn stream(&self, now: Duration) -> Stream {
        // Of a sequence that went on, what was heard before it did is of the past.
        let units = self.made() + self.start.ahead.unwrap_or(0) + self.pending;
        // A first unit in the making is as good as heard: the device can do no more for it.
        let made = match self.params.pace {
            Pace::Free | Pace::OnePerStep => self.prefilled >= self.params.prompt,
            Pace::Follow | Pace::Chunks(_) => self.decoded > 0,
        };
        let heard = self.first_emit.or_else(|| (made && self.placeholders > 0).then_some(now));
        let heard = heard.map(|start| start.max(self.since));
        Stream { since: self.since, heard, units }
    }

    /// Whether it runs alone: no step of it runs while one of another sequence does.
    pub fn is_alone(&self) -> bool {
        self.start.alone.is_some_and(|unit| self.emitted <= unit)
    }

    /// The unit at which its next step is.
    pub fn next_unit(&self) -> u32 {
        self.emitted.saturating_add(self.pending)
    }

    /// Whether its next units are of its prompt.
    pub fn prefilling(&self) -> bool {
        self.prefilled < self.params.prompt
    }

    fn available(&self) -> u32 {
        self.input.saturating_sub(self.start.input + self.params.prompt_input + self.decoded)
    }

    fn flush(&self) -> Option<u32> {
        // Wait for steps in flight: one of them may still end the sequence by itself.
        (self.input_ended && self.placeholders == 0).then_some(0)
    }
}
