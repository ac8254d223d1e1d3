//! What came of a step: which units and tokens, under which leases they travel, and which sequences it ends.

use crate::failure::ActorFailure;
use crate::messages::{Output, Outputs, Resume};
use omni_core::ids::{Attempt, RequestId, Seq, Slot, StepId};
use omni_core::scheduler::{Plan, PlannedSequence, SequenceDone};
use omni_fault::{FaultEvent, FaultKind, FaultSite};
use omni_model::ModelError;
use omni_model::stage::{SequenceOutput, StageData};
use omni_transfer::lease::LeaseBook;
use std::collections::HashMap;

/// The outcome of a step, as others hear of it.
pub(super) struct Reading {
    /// One entry per planned sequence.
    pub done: Vec<SequenceDone>,
    /// Sequences that cannot go on, and why.
    pub failed: Vec<(RequestId, String)>,
    /// What the step made.
    pub outputs: Vec<Output>,
}

impl Reading {
    /// The events of it for a fault plan.
    pub fn events(&self) -> Vec<FaultEvent> {
        let event = |done: &SequenceDone| {
            let request = done.request;
            if self.failed.iter().any(|(failed, _)| *failed == request) {
                return FaultEvent::of(request);
            }
            match self.outputs.iter().find(|output| output.request == request) {
                Some(output) => FaultEvent::units(request, output.seq, output.end.is_some()),
                None => FaultEvent::prompt(request),
            }
        };
        self.done.iter().map(event).collect()
    }
}

/// Reads the outcomes of steps.
pub(super) struct Reader {
    sequences: HashMap<Slot, Sequence>,
    leases: LeaseBook,
    fault: FaultSite,
}

struct Sequence {
    attempt: Attempt,
    deliver: Outputs,
    /// Units made so far, and the number of the first to deliver.
    units: u32,
    deliver_from: u32,
    tokens: u32,
    /// A step of it failed.
    failed: bool,
}

impl Reader {
    pub fn new(fault: FaultSite, leases: LeaseBook) -> Reader {
        Reader { sequences: HashMap::new(), leases, fault }
    }

    /// A slot has a new sequence.
    pub fn opened(&mut self, slot: Slot, deliver: Outputs, from: Resume) {
        let Resume { attempt, first, deliver_from, tokens, .. } = from;
        let sequence = Sequence { attempt, deliver, units: first, deliver_from, tokens, failed: false };
        self.sequences.insert(slot, sequence);
    }

    /// A slot is free. What later steps say of it is dropped.
    pub fn closed(&mut self, slot: Slot) {
        self.sequences.remove(&slot);
    }

    /// Injects what a fault plan asks for, before any actor hears of the step.
    pub fn inject(
        &self,
        plan: &Plan,
        sequences: &mut [Result<SequenceOutput, ModelError>],
        stopping: impl Fn() -> bool,
    ) -> Result<(), ActorFailure> {
        let events = || {
            let both = plan.sequences.iter().zip(&*sequences);
            both.map(|(planned, sequence)| self.event(planned, sequence)).collect::<Vec<_>>()
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
            _ => Ok(self.fault.happen(hit, stopping)?),
        }
    }

    fn event(&self, planned: &PlannedSequence, sequence: &Result<SequenceOutput, ModelError>) -> FaultEvent {
        match sequence {
            Ok(output) if !output.stale && planned.prompt && output.sampled.is_none() => {
                FaultEvent::prompt(planned.request)
            }
            Ok(output) if !output.stale => {
                let sequence = self.sequences.get(&planned.slot);
                let first = sequence.is_some_and(|sequence| sequence.units == 0 && sequence.tokens == 0);
                FaultEvent::output(planned.request, first, output.finish.is_some()).in_prompt(planned.prompt)
            }
            _ => FaultEvent::of(planned.request),
        }
    }

    /// Reads what came of a step.
    pub fn read(&mut self, plan: &Plan, results: Vec<Result<SequenceOutput, ModelError>>) -> Reading {
        let count = plan.sequences.len();
        let (mut done, mut failed, mut outputs) = (Vec::with_capacity(count), Vec::new(), Vec::with_capacity(count));
        for (planned, result) in plan.sequences.iter().zip(results) {
            let request = planned.request;
            let idle = SequenceDone { request, emitted: 0, finished: false };
            match self.sequence(plan.step, planned, result) {
                Ok(Some((of, output))) => {
                    done.push(of);
                    outputs.extend(output);
                }
                Ok(None) => done.push(idle),
                Err(reason) => {
                    done.push(idle);
                    failed.push((request, reason));
                }
            }
        }
        Reading { done, failed, outputs }
    }

    /// What came of a step for one sequence: nothing where the sequence had ended before it; why it cannot go on.
    fn sequence(
        &mut self,
        step: StepId,
        planned: &PlannedSequence,
        result: Result<SequenceOutput, ModelError>,
    ) -> Result<Option<(SequenceDone, Option<Output>)>, String> {
        let request = planned.request;
        // A unit behind one that failed would pass for it, and the steps behind a failure fail for the same reason.
        let Some(sequence) = self.sequences.get_mut(&planned.slot).filter(|sequence| !sequence.failed) else {
            return Ok(None);
        };
        let output = match result {
            Ok(output) if output.stale => return Ok(None),
            Ok(output) => output,
            Err(error) => {
                sequence.failed = true;
                return Err(error.to_string());
            }
        };
        let made = match &output.emit {
            None | Some(StageData::Features(_)) => 0,
            Some(StageData::Embeddings(embeddings)) => embeddings.shape().0 as u32,
            Some(StageData::Tokens(tokens)) => tokens.len() as u32,
            Some(StageData::Codes(_)) => 1,
            Some(StageData::Audio(_)) => planned.advance,
        };
        // Of what an earlier attempt delivered, only embeddings are made once more: the model looks them up.
        let passed = sequence.deliver_from.saturating_sub(sequence.units).min(made);
        sequence.units += passed;
        let (units, emit) = match output.emit {
            Some(StageData::Embeddings(embeddings)) if passed > 0 => {
                let rest = embeddings.behind(passed as usize).map_err(|error| error.to_string())?;
                (made - passed, rest.map(StageData::Embeddings))
            }
            emit => (made, emit),
        };
        let (end, cached) = (output.finish, output.cached);
        let token = output.sampled.filter(|_| sequence.deliver.tokens).map(|token| (Seq(sequence.tokens), token));
        let seq = Seq(sequence.units);
        sequence.units += units;
        sequence.tokens += u32::from(token.is_some());
        let emitted = if sequence.deliver.speech { units } else { u32::from(token.is_some()) };
        let done = SequenceDone { request, emitted, finished: end.is_some() };
        let (attempt, deliver) = (sequence.attempt, sequence.deliver);
        let nothing = units == 0 && token.is_none() && end.is_none();
        let output = (!nothing).then(|| {
            let lease = self.leases.lease(emit.as_ref().map_or(0, StageData::bytes));
            Output { request, attempt, step, deliver, seq, units, emit, token, cached, end, lease }
        });
        Ok(Some((done, output)))
    }
}
