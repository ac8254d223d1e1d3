//! What a stage is working on when a fault may happen.

use super::rule::Phase;
use omni_core::ids::{RequestId, Seq};
use std::collections::HashSet;

/// One request that is worked on, and its phase. A step of several sequences has one event for each.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FaultEvent {
    /// The request.
    pub request: RequestId,
    prompt: bool,
    output: Option<Output>,
}

/// Where in a request's output.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Output {
    first: bool,
    last: bool,
}

impl FaultEvent {
    /// Work on a request in no particular phase.
    pub fn of(request: RequestId) -> FaultEvent {
        FaultEvent { request, prompt: false, output: None }
    }

    /// Before or inside the prompt of a request.
    pub fn prompt(request: RequestId) -> FaultEvent {
        FaultEvent { request, prompt: true, output: None }
    }

    /// Output of a request. A request of one unit is at its first and its last with it.
    pub fn output(request: RequestId, first: bool, last: bool) -> FaultEvent {
        FaultEvent { request, prompt: false, output: Some(Output { first, last }) }
    }

    /// Units on their way, from `seq` on.
    pub fn units(request: RequestId, seq: Seq, last: bool) -> FaultEvent {
        FaultEvent::output(request, seq.0 == 0, last)
    }

    /// The same, at the end of the prompt if `prompt`: the step that computes it makes the first output.
    #[must_use]
    pub fn in_prompt(self, prompt: bool) -> FaultEvent {
        FaultEvent { prompt: self.prompt || prompt, ..self }
    }

    /// Whether the event is in this phase. An event does not know whether the engine drains.
    pub fn is_at(&self, phase: Phase) -> bool {
        match (phase, self.output) {
            (Phase::Prefill, _) => self.prompt,
            (Phase::First, Some(output)) => output.first,
            (Phase::Last, Some(output)) => output.last,
            (Phase::Stream, Some(output)) => !output.first && !output.last,
            _ => false,
        }
    }
}

/// Requests that have had output in this generation of an actor, for actors that do not learn the number of a unit.
/// Filled only where a fault plan has rules.
#[derive(Debug, Default)]
pub struct Begun(HashSet<RequestId>);

impl Begun {
    /// The event of a sequence that takes part in a step.
    pub fn event(&mut self, request: RequestId, prompt: bool, last: bool) -> FaultEvent {
        if prompt {
            return FaultEvent::prompt(request);
        }
        let first = self.0.insert(request);
        FaultEvent::output(request, first, last)
    }

    /// The sequence is gone.
    pub fn forget(&mut self, request: RequestId) {
        self.0.remove(&request);
    }
}
